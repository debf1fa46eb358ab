"""`--format json`: one document on standard output with the same keys for every command, on errors too."""

from __future__ import annotations

import json
import math
import shutil
import sys
import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from partywall.cli import main, output
from partywall.cli.app import COMMANDS, command
from partywall.core.stats.estimate import Estimate
from tests.cli import corpus

WITHOUT_FIGURES = {
    "consolidate watch", "load adjust", "load check", "load import",
    "load record", "load schema",
    "publish", "reap", "scenario schema", "scenario show", "serve", "vm check", "vm export", "vm prepare",
}  # fmt: skip
SHAPE = ["command", "exit", "result", "problems"]


class Ended(NamedTuple):
    exit: int
    document: dict[str, Any]
    errors: str


@pytest.fixture
def partywall(monkeypatch, capsys, tmp_path):
    """Runs a command line in this process with `--format json`."""
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["partywall", *arguments, "--format", "json"])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        document = json.loads(said.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        assert list(document) == SHAPE
        assert document["exit"] == ended.value.code
        return Ended(document["exit"], document, said.err)

    return run


@pytest.mark.parametrize(
    ("arguments", "command", "key", "part"),
    [
        (("kernels",), "kernels", "kernels", "memory-copy"),
        (("kernels", "cache"), "kernels", "kernels", "--chains"),
        (("scenario", "list"), "scenario list", "scenarios", "demo"),
        (("guard", "status"), "guard status", "policies", "[]"),
        (("study",), "study", "studies", "papers/vits"),
    ],
)
def test_a_list_is_one_document(partywall, arguments, command, key, part):
    ended = partywall(*arguments)
    assert (ended.exit, ended.document["command"], ended.errors) == (0, command, "")
    assert part in json.dumps(ended.document["result"][key])
    assert ended.document["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "command", "key"),
    [
        (("run", "demo", "--dry-run"), "run", "lines"),
        (("study", "papers/vits", "--dry-run"), "study", "lines"),
        (("power", "profiles"), "power profiles", "profiles"),
        (("power", "meters"), "power meters", "meters"),
        (("consolidate", "plan", "cluster", "--out", "PLAN"), "consolidate plan", "headline"),
        (("consolidate", "explain", "PLAN"), "consolidate explain", "lines"),
        (("report", "PLAN"), "report", "headline"),
        (("sql", "PLAN", "select 1 as one"), "sql", "rows"),
    ],
)
def test_a_job_and_its_figures_are_one_document(partywall, tmp_path, arguments, command, key):
    if command == "study" and not (shutil.which("crun") or shutil.which("runc")):
        pytest.skip("an OCI runtime, which this study needs")
    plan = tmp_path / "plan"
    if command in ("consolidate explain", "report", "sql"):
        partywall("consolidate", "plan", "cluster", "--out", str(plan))
    ended = partywall(*(str(plan) if word == "PLAN" else word for word in arguments))
    assert (ended.exit, ended.document["command"]) == (0, command)
    assert ended.document["result"][key]


def test_a_dry_run_lists_the_commands_that_it_would_run(partywall, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(
        "partywall: 1\nname: own\nvictims: {v: {probe: integer}}\n"
        "aggressors: {mine: {command: [sleep, infinity]}}\nbudget: 30s\n"
    )
    ended = partywall("run", str(file), "--dry-run")
    assert ended.exit == 0
    (command,) = ended.document["result"]["commands"]
    assert "sleep infinity" in command
    assert isinstance(ended.document["result"]["warnings"], list)


def test_every_command_that_prints_figures_prints_them_as_json_too():
    lacking = set()
    for name in COMMANDS:
        group = command(name)
        for path, each in getattr(group, "commands", {"": group}).items():
            if not any("--format" in parameter.opts for parameter in each.params):
                lacking.add(f"{name} {path}".strip())
    assert lacking == WITHOUT_FIGURES


def test_a_scenario_with_mistakes_gives_each_with_its_place(partywall, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("partywall: 1\nname: bad\nvictims: {v: {probe: integr}}\nbudget: 5\n")
    ended = partywall("scenario", "check", str(file))
    assert (ended.exit, ended.document["result"]) == (2, None)
    assert [(item["file"], item["line"], item["key"]) for item in ended.document["problems"]] == [
        (str(file), 3, "victims.v.probe"),
        (str(file), 4, "budget"),
    ]
    assert all(item["message"] and item["remedy"] for item in ended.document["problems"])
    assert ended.errors.startswith("partywall: ")


@pytest.mark.parametrize(
    ("arguments", "command", "part"),
    [
        (("kernels", "nope"), "kernels", "no kernel is called 'nope'"),
        (("kernels", "--nope"), "kernels", "No such option"),
        (("scenario", "chek", "x"), "scenario chek", "No such command 'chek'"),
        (("compare", "one"), "compare", "Missing argument"),
        (("report", "nothing-here"), "report", "is not a record of a run"),
        (("guard", "adjust", "nothing-here", "x.yaml"), "guard adjust", "cannot be read"),
        (("study", "papers/none"), "study", "no study"),
        (("nope",), "", "No such command"),
    ],
)
def test_a_wrong_command_line_is_a_document_too(partywall, arguments, command, part):
    ended = partywall(*arguments)
    assert (ended.exit, ended.document["command"], ended.document["result"]) == (2, command, None)
    assert part in ended.document["problems"][0]["message"]
    assert ended.errors


def test_a_bug_is_a_document_with_its_exit_code(partywall, monkeypatch):
    monkeypatch.setattr("partywall.cli.show.kernels", None)
    monkeypatch.setattr("partywall.agent.catalogue.Catalogue.names", lambda *_: 1 / 0)
    ended = partywall("kernels")
    assert ended.exit == 70
    assert "this is a bug" in ended.document["problems"][0]["message"]
    assert "Traceback" in ended.errors


def test_json_is_recognised_however_it_is_written():
    for words in (
        ["--format", "json"],
        ["-f", "json"],
        ["--format=json"],
        ["-fjson"],
        ["a", "-f", "csv", "-f", "json"],
    ):
        assert output.requested(["report", *words])
    for words in ([], ["--format"], ["--format", "text"], ["json"], ["-f", "csv"]):
        assert not output.requested(["report", *words])


def test_values_become_plain_json():
    class Colour(StrEnum):
        RED = "red"

    value: dict[str, Any] = {Colour.RED: (Colour.RED, Path("a"), math.nan, math.inf, 0.5, True, None)}
    value["estimate"] = Estimate(value=1.0, low=-math.inf, high=1.5, n=9, method="t")
    plain = output.plain(value)
    assert plain["red"] == ["red", "a", None, None, 0.5, True, None]
    assert plain["estimate"] | {"value": 1.0, "low": None, "high": 1.5, "n": 9} == plain["estimate"]


@pytest.mark.host
@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("doctor",), "checks"),
        (("scenario", "check", "tiny.yaml"), "trials"),
        (("report", "done"), "cells"),
        (("report", "done", "-f", "csv"), "cells"),
        (("compare", "done", "copy"), "cells"),
    ],
)
def test_figures_of_a_host_and_of_a_run_are_one_document(folder: Path, arguments: tuple[str, ...], key: str):
    shutil.copytree(folder / "done", folder / "copy")
    outcome = corpus.run(folder, *arguments, "--format", "json")
    document = json.loads(outcome.output)
    assert list(document) == SHAPE
    assert document["exit"] == outcome.exit
    assert document["exit"] in (0, 1, 3)
    assert key in document["result"]


@pytest.mark.host
def test_a_report_opens_its_page(folder: Path, monkeypatch, capsys):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or bool(len(opened) - 1))
    page = folder / "done" / "report.html"
    for without_browser in (True, False):
        page.unlink()
        monkeypatch.setattr(sys, "argv", ["partywall", "report", str(folder / "done"), "-f", "csv", "--open"])
        with pytest.raises(SystemExit):
            main()
        said = f"no browser found; open this page: {page}"
        assert (said in capsys.readouterr().out) == without_browser
        assert page.is_file()
    assert opened == [page.as_uri()] * 2
