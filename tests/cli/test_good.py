"""What a user does on the first day, in short form: every command does its work, and leaves nothing."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partywall.cli.app import COMMANDS, command
from tests.cli import corpus

pytestmark = pytest.mark.host


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--version",), "partywall "),
        (("kernels",), "memory-copy"),
        (("kernels", "cache"), "--chains"),
        (("probe", "cache", "--help"), "Parameters of cache: --bytes"),
        (("stress", "--help"), "partywall stress disk-direct-write --help"),
        (("scenario", "list"), "demo"),
        (("scenario", "check", "tiny.yaml"), "tiny.yaml: no mistakes: 1 victim, 1 aggressor"),
        (("scenario", "show", "demo"), "partywall: 1"),
        (("scenario", "schema"), '"$schema"'),
        (("run", "tiny.yaml", "--dry-run"), "Nothing was measured"),
        (("sql", "done", "select count(*) as blocks from events where kind = 'block_done'"), "blocks"),
        (("reap",), "nothing was left"),
    ],
)
def test_what_only_reads_says_its_piece_and_touches_nothing(folder: Path, arguments: tuple[str, ...], said: str):
    outcome = corpus.run(folder, *arguments)
    assert outcome.exit == 0, outcome.text
    assert said in outcome.text
    assert (outcome.left, outcome.half_done) == ((), ())


def modules_of(*arguments: str) -> set[str]:
    """What a command line imports."""
    ended = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"
    said = subprocess.run(
        [sys.executable, "-c", f"{ended}; from partywall.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(said.stderr.split())


def test_help_comes_up_without_any_command():
    assert not {"partywall.run.stages", "pydantic", "rich", "numpy"} & modules_of("--help")


def test_commands_come_up_without_the_libraries_that_load_slowly():
    for name in ("doctor", "run"):
        assert not {"partywall.run.findings", "scipy", "altair", "duckdb"} & modules_of(name, "--help")


@pytest.mark.parametrize(
    "name",
    [
        "blame",
        "compare",
        "fleet",
        "guard",
        "load",
        "migrate",
        "power",
        "run",
        "scenario",
        "study",
        "trace",
        "watch",
    ],
)
def test_the_help_of_a_command_comes_up_without_what_measures_and_draws(name: str):
    slow = {"pyarrow", "jsonschema", "rich", "ruamel.yaml", "asyncio", "partywall.sandbox", "partywall.agent.client"}
    assert not slow & modules_of(name, "--help")


def test_help_gives_each_command_the_first_line_of_its_own_help():
    written = {name: entry for name, entry in COMMANDS.items() if entry is not None}
    assert "watch" not in written, "its help is that of its job"
    for name, entry in written.items():
        own = " ".join(command(name).help.split("\n\n")[0].split())
        assert entry.help == own, name


def test_the_doctor_lists_what_is_there_and_what_is_missing(folder: Path):
    outcome = corpus.run(folder, "doctor")
    assert outcome.exit in (0, 4)
    assert "agent: answers" in outcome.text
    assert "backend process" in outcome.text


def test_the_printed_schema_is_json(folder: Path):
    assert json.loads(corpus.run(folder, "scenario", "schema").output)["properties"]["victims"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("probe", "integer", "--for", "300ms"), "DMIPS"),
        (("stress", "integer", "--intensity", "50%", "--for", "500ms"), "of its maximum"),
    ],
)
def test_a_kernel_by_hand_shows_its_figure_and_leaves_nothing(folder: Path, arguments: tuple[str, ...], said: str):
    outcome = corpus.run(folder, *arguments, "--work-dir", "work")
    assert outcome.exit == 0, outcome.text
    assert said in outcome.text
    assert outcome.left == ()


def test_a_run_ends_with_its_report(finished: Path):
    assert {"plan.json", "host.json", "events.jsonl", "report.html", "findings.json"} <= {
        p.name for p in finished.iterdir()
    }
    assert len(json.loads((finished / "findings.json").read_text())["cells"]) == 2


def test_a_report_made_again_finds_the_same(folder: Path):
    findings = (folder / "done" / "findings.json").read_text()
    outcome = corpus.run(folder, "report", "done", "-f", "json", "-f", "csv", "-f", "parquet")
    assert outcome.exit in (0, 1, 3), outcome.text
    assert (folder / "done" / "findings.json").read_text() == findings
    assert {"done/cells.csv", "done/observations.parquet"} <= set(outcome.half_done)


def test_a_run_compared_with_a_copy_of_itself_is_inconclusive_and_with_itself_refused(folder: Path):
    shutil.copytree(folder / "done", folder / "copy")
    outcome = corpus.run(folder, "compare", "done", "copy")
    assert outcome.exit == 3, outcome.text
    assert "integer" in outcome.text
    assert "variation between runs is unknown" in " ".join(outcome.text.split())
    same = corpus.run(folder, "compare", "done", "done")
    assert same.exit == 2
    assert "both are the same record" in same.text


def test_a_finished_run_is_not_measured_again(folder: Path):
    events = (folder / "done" / "events.jsonl").read_bytes()
    outcome = corpus.run(folder, "run", "--resume", "done", "--work-dir", "work")
    assert outcome.exit in (0, 1, 3), outcome.text
    assert "nothing is left to measure" in outcome.text
    assert (folder / "done" / "events.jsonl").read_bytes() == events


def test_an_interrupted_run_leaves_nothing_and_is_resumed_with_all_its_slices(folder: Path):
    (folder / "long.yaml").write_text(corpus.TINY.replace("50%", "0.01%").replace("budget: 3s", "budget: 15s"))
    environment, evidence = corpus.surroundings(folder, {})
    argv = [*corpus.PARTYWALL, "run", "long.yaml", "--out", "run", "--work-dir", "work"]
    events = folder / "run" / "events.jsonl"
    # A shell that runs these tests in the background has had SIGINT ignored, and programs inherit that.
    argv = ["env", "--default-signal=INT", *argv]
    with subprocess.Popen(argv, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.poll() is None and not (events.exists() and b"block_done" in events.read_bytes()):
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
    assert process.returncode == 130, output
    assert "partywall run --resume run" in " ".join(output.split())
    assert corpus.left(folder, evidence) == ()
    interrupted = events.read_bytes().count(b'"kind": "block_done"')
    resumed = corpus.run(folder, "run", "--resume", "run", "--work-dir", "work")
    assert resumed.exit in (0, 1, 3), resumed.text
    assert resumed.left == ()
    assert events.read_bytes().count(b'"kind": "block_done"') > interrupted
    corpus.run(folder, "report", "run", "-f", "parquet")
    query = "select count(*) filter (rate <= 0) || ' without work of ' || count(*) as found from observations"
    assert "0 without work of" in corpus.run(folder, "sql", "run", query).text
