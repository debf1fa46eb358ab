"""A shell that asks what may follow gets names and records, without any command being imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from partywall import kinds
from partywall import study as studies
from partywall.cli import completion
from partywall.run.check import names


def requested(folder: Path, line: str) -> tuple[list[str], set[str]]:
    """What is offered for the last word of a line, and the modules that this took."""
    script = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        "from partywall.cli import main; main()"
    )
    words = {"_PARTYWALL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    paths = os.pathsep.join(path for path in sys.path if path)
    said = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env=os.environ | words | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.split(), set(said.stderr.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for mark, name in (("plan.json", "runs/demo-1"), ("guard.jsonl", "runs/edge-1"), ("load.json", "kept")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / mark).touch()
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "mine.yaml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("partywall run ", ["demo", "full", "migration-passes", "real-tools", "mine.yaml"]),
        ("partywall run de", ["demo"]),
        ("partywall report ", ["kept", "runs/demo-1", "runs/edge-1"]),
        ("partywall sql runs/d", ["runs/demo-1"]),
        ("partywall compare kept runs/", ["runs/demo-1", "runs/edge-1"]),
        ("partywall study papers/hy", ["papers/hyperv-quality"]),
        ("partywall run demo --bud", ["--budget"]),
    ],
)
def test_a_shell_is_offered_what_may_follow(folder: Path, line: str, offered: list[str]):
    assert requested(folder, line)[0] == offered


@pytest.mark.parametrize("line", ["partywall run ", "partywall report ", "partywall compare kept ", "partywall study "])
def test_names_come_without_the_libraries_that_load_slowly(folder: Path, line: str):
    assert not {"partywall.run.stages", "partywall.run.check", "numpy", "ruamel", "duckdb"} & requested(folder, line)[1]


def test_names_and_records_are_those_of_the_commands():
    assert tuple(completion._shipped("", lambda key: key == completion.SCENARIO_KEY)) == names()
    wanted = [name for name in completion.studies("") if name.startswith("papers/")]
    assert sorted(wanted) == sorted(studies.names())
    assert set(completion.MARKS) == {mark for name in kinds.names() for mark in kinds.kind(name).record.marks()}
