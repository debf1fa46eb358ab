"""Commands whose caller has closed a standard stream."""

import subprocess
import sys

import pytest

START = 'exec "$0" -c "from partywall.cli import main; main()" "$@" {}'


def run(streams, *arguments):
    """A command line whose shell closes streams. Returns exit code, output and messages."""
    command = ["sh", "-c", START.format(streams), sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [("kernels",), ("kernels", "--format", "json"), ("--help",)])
def test_output_that_nobody_can_read_is_an_error(arguments):
    code, _, said = run(">&-", *arguments)
    assert code == 5
    assert said == "partywall: cannot write: standard output is closed; send it elsewhere\n"


def test_a_mistake_keeps_its_message_and_exit_code_without_output():
    code, _, said = run(">&-", "scenario", "check", "nonsense", "--format", "json")
    assert code == 2
    assert said.startswith("partywall: there is no scenario 'nonsense'")
    assert "Traceback" not in said


def test_a_command_without_input_and_messages_does_its_work():
    code, output, _ = run("<&- 2>&-", "kernels")
    assert code == 0
    assert "memory-copy" in output
    assert run("<&- 2>&-", "scenario", "check", "nonsense")[0] == 2


def test_no_other_file_gets_the_number_of_a_closed_stream(tmp_path):
    file = tmp_path / "number"
    program = f"""
from partywall.streams import open_streams
open_streams()
with open({str(file)!r}, "w") as opened:
    opened.write(str(opened.fileno()))
"""
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program], check=True)
    assert int(file.read_text()) > 2
