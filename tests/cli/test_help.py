"""Help shows examples and summaries as they were written."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from partywall.cli.app import app

WIDTH = 80


def help_of(*names: str) -> str:
    outcome = CliRunner().invoke(app, [*names, "--help"], terminal_width=WIDTH)
    assert outcome.exit_code == 0
    return outcome.output


@pytest.mark.parametrize("name", ["consolidate", "guard", "load", "power", "scenario", "vm"])
def test_a_group_lists_whole_sentences_and_no_options_of_the_program(name: str):
    shown = help_of(name)
    assert "..." not in shown.partition("Commands:")[2]
    assert "completion" not in shown


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("power", ["partywall power calibrate METER    fit a model to a load that Partywall runs"]),
        ("migrate", ["partywall migrate migration --dry-run    predict the moves, change nothing"]),
        (
            "watch",
            ["partywall watch --device sda --latency 20ms --for 10m", "partywall watch db=pid:1234 web=/docker/"],
        ),
        ("study", ["partywall study papers/vits --on shop    measure on another machine"]),
    ],
)
def test_each_example_is_a_line(name: str, lines: list[str]):
    shown = [line.strip() for line in help_of(name).splitlines()]
    for line in lines:
        assert any(each.startswith(line) for each in shown), line
