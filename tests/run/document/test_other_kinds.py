"""A document of one kind that is given to a command of another kind names the right command."""

import itertools
import sys

import pytest

from partywall import kinds, study
from partywall.agent.catalogue import shipped
from partywall.cli import main
from partywall.consolidate import check as clusters
from partywall.core import here
from partywall.core.document.formats import FORMATS
from partywall.errors import UsageError
from partywall.guard.check import load
from partywall.load import check as loads
from partywall.migrate import check as migrations
from partywall.power import profiles
from partywall.run.check import load as load_scenario
from partywall.web import documents
from partywall.web.jobs import Order

POWER_MODEL = profiles.PROFILES["cervera-dl120-g6"].model_dump_json()
HAR = '{"log": {"version": "1.2", "entries": []}}'
TEXTS = {key: f"# a comment\n---\nname: a\n{key}: 1\n" for key in FORMATS} | {"model": POWER_MODEL, "har": HAR}
READERS = {
    ("partywall",): load_scenario,
    ("partywall_load",): loads.load,
    ("partywall_guard",): load,
    ("partywall_migration",): lambda file: migrations.load(file, shipped()),
    ("partywall_cluster",): clusters.load,
    tuple(study.KINDS): study.kind_of,
    ("model",): lambda file: profiles.find(str(file)),
    (): kinds.opened,
}
COMMANDS = {
    "partywall": "partywall run FILE",
    "partywall_load": "partywall load FILE",
    "partywall_guard": "partywall guard run FILE",
    "partywall_migration": "partywall migrate FILE",
    "partywall_cluster": "partywall consolidate plan FILE",
    "model": "partywall power attribute --model FILE",
    "har": "partywall load import FILE",
    "paper": "partywall study",
} | dict.fromkeys(study.KINDS, "partywall study FILE")


def test_every_kind_of_document_has_a_command():
    assert set(COMMANDS) == set(TEXTS)
    assert set(study.KINDS) < set(FORMATS)


@pytest.mark.parametrize(
    ("own", "given"), [pair for pair in itertools.product(READERS, TEXTS) if pair[1] not in pair[0]]
)
def test_every_reader_names_the_command_for_a_document_of_another_kind(own, given, tmp_path):
    file = tmp_path / "document"
    file.write_text(TEXTS[given])
    with pytest.raises(UsageError) as refused:
        READERS[own](file)
    (problem,) = refused.value.problems
    assert problem.message.startswith("this is ")
    assert COMMANDS[given].replace("FILE", str(file)) in problem.remedy


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("scenario check {edge}", "this is a policy of the guard"),
        ("run {edge} --dry-run", "partywall guard run {edge}"),
        ("guard check {plan}", "partywall load {plan}"),
        ("study {edge}", "partywall guard check {edge}"),
        ("report {edge}", "partywall guard run {edge}"),
        ("compare {edge} {edge}", "partywall guard run {edge}"),
        ("trace {edge} lo", "partywall guard run {edge}"),
        ("migrate {plan} --dry-run", "partywall load check {plan}"),
        ("consolidate plan {edge}", "partywall guard run {edge}"),
        ("power attribute --model {edge}", "partywall guard run {edge}"),
        ("load check {edge}", "partywall guard run {edge}"),
        ("load import {edge} --out x.yaml", "partywall guard run {edge}"),
    ],
)
def test_the_command_line_says_so_in_one_line(line, said, monkeypatch, capsys):
    files = {"edge": "docs/examples/edge.yaml", "plan": "docs/examples/plan.yaml"}
    monkeypatch.setattr(sys, "argv", ["partywall", *line.format(**files).split()])
    with pytest.raises(SystemExit) as ended:
        main()
    reported = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.format(**files) in reported
    assert len(reported.splitlines()) == 1


def test_a_path_that_does_not_exist_is_a_path_and_no_unknown_name(capsys, monkeypatch):
    for line in ("run missing.yaml", "migrate missing.yaml", "study missing.yaml", "consolidate plan missing.yaml",
                 "power attribute --model missing.json", "run no/missing.yml"):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["partywall", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "cannot be read: No such file or directory" in capsys.readouterr().err, line


def test_a_record_that_is_given_as_a_document_is_shown_by_report(tmp_path):
    with pytest.raises(UsageError, match=r"this is a directory.*partywall report"):
        load_scenario(tmp_path)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (kind, given)
        for kind, given in itertools.product(documents.MEASURED, TEXTS)
        if given not in FORMATS or FORMATS[given].kind != kind
    ],
)
def test_an_order_of_the_page_names_the_right_command_too(kind, given):
    order = Order(kind=kind, document=TEXTS[given])
    with pytest.raises(UsageError) as refused:
        documents.forecast(order, here.this_host(), allow_commands=False)
    (problem,) = refused.value.problems
    assert problem.message.startswith("this is ")
    assert COMMANDS[given] in problem.remedy


@pytest.mark.parametrize("given", ["partywall_cluster", "model", "har", "paper"])
def test_the_editor_of_the_page_says_what_only_the_command_line_can_do(given):
    (problem,) = documents.check(TEXTS[given], allow_files=True)
    assert problem.message.startswith("this is ")
    assert COMMANDS[given] in problem.remedy


@pytest.mark.parametrize("given", [key for key, form in FORMATS.items() if form.kind in documents.MEASURED])
def test_the_editor_of_the_page_knows_the_kind_wherever_its_key_is(given):
    assert documents.kind_of(TEXTS[given]) == FORMATS[given].kind
