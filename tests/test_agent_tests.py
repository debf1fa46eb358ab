"""The runner of the agent's tests, on a program that behaves like one of cargo's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent.parent / "labs/agent_tests.py"
PROGRAM = """#!/bin/sh
case "$*" in
    *--list*) printf 'is::quick: test\\nis::ignored: test\\nfails: test\\nhangs: test\\n' ;;
    *is::quick*) echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured' ;;
    *is::ignored*) echo 'test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured' ;;
    *fails*) echo 'left: 3, right: 4'; exit 101 ;;
    *hangs*) sleep 600 & echo $! > "$0.child"; wait ;;
    *) echo "arguments: $*" ;;
esac
"""


def ran(program: Path, *args: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PARTYWALL_TEST_LIMIT_S": "2"}
    command = [sys.executable, str(RUNNER), str(program), *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    made = tmp_path / "deps/demo-0a1b2c"
    made.parent.mkdir()
    made.write_text(PROGRAM)
    made.chmod(0o755)
    return made


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


@pytest.mark.long
def test_a_test_that_hangs_is_named_and_ended_with_its_children_and_the_others_run(program: Path) -> None:
    done = ran(program, "--quiet")
    assert done.returncode == 101, done.stderr
    lines = done.stdout.splitlines()
    hung = next(line for line in lines if line.startswith("FAILED hangs: it did not end within 2 s"))
    assert "its threads: demo-0a1b2c in " in hung
    assert lines[:2] == ["left: 3, right: 4", "FAILED fails: it ended with 101"]
    assert lines[-1].startswith("demo: 1 passed, 2 failed, 1 ignored in ")
    assert not runs(int(Path(f"{program}.child").read_text()))


def test_a_program_that_is_no_test_runs_unchanged(program: Path) -> None:
    other = program.parent.parent / "demo"
    program.rename(other)
    assert ran(other, "one", "--two").stdout == "arguments: one --two\n"
