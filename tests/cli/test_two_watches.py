"""`partywall watch` and `partywall-watch` are different programs; each names the other."""

import re
import subprocess
import sys

import pytest

from partywall.watch.stalls import resident


def run(*arguments):
    code = "from partywall.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("option", ["--port", "--ring", "--address"])
def test_an_option_of_the_other_program_leads_there(option):
    assert option in resident.OPTIONS
    done = run("watch", option, "1")
    assert done.returncode == 2
    assert done.stderr.endswith("; that is an option of partywall-watch, another program: see partywall-watch --help\n")


def test_other_mistakes_lead_to_the_help():
    done = run("watch", "--prot", "1")
    assert (done.returncode, done.stderr.endswith("; see --help\n")) == (2, True)
    assert run("load", "--ring", "1").stderr.endswith("; see --help\n")


def test_the_help_of_each_names_the_other(capsys):
    assert "partywall-watch" in run("watch", "--help").stdout
    assert resident.main(["--help"]) == 0
    assert re.search(r"\bpartywall watch\b", capsys.readouterr().out)
