"""What a terminal shows of an execution's events."""

import io
import re

from rich.console import Console

from partywall.cli import kernel, show
from partywall.cli.live import Live, Steps
from partywall.events import Block, Doing, Left, Note


def shown(*events):
    console = Console(file=io.StringIO(), width=200)
    live = Live(console)
    for event in events:
        live(event)
    return console.file.getvalue().splitlines()


def test_a_line_says_what_is_done_and_how_long_is_left():
    assert shown(Left(70), Left(35), Doing("v: measuring"))[-1] == "v: measuring · about 35 s left"


def test_without_an_estimate_no_time_is_promised():
    assert shown(Doing("planning")) == ["planning"]


def test_of_a_time_that_is_over_nothing_is_promised():
    last = "v: measuring · the planned time is over; trials with too few blocks continue briefly"
    assert shown(Left(70), Left(0), Doing("v: measuring"))[-1] == last


def test_a_note_is_printed_as_it_is():
    assert shown(Note("[bold] is not markup")) == ["[bold] is not markup"]


def test_lines_between_two_steps_are_few():
    assert len(shown(Doing("v: measuring"), *(Block("v", n, "") for n in range(100)))) == 1


def test_steps_on_a_terminal_show_a_bar_and_the_time_left():
    file = io.StringIO()
    with Steps(Console(file=file, width=120, force_terminal=True)) as steps:
        for done in range(3):
            steps.show("writing report.html", done, 3)
    assert re.search(r"writing report\.html.*2/3.*about \d+ s left", file.getvalue())


def test_a_stressor_that_does_not_reach_its_intensity_says_so(capsys):
    kernel._conclude("", kernel.known("memory-copy"), [33.0], most=100.0, cpu=0.4, requested=0.5)
    assert "50% of its maximum was requested, and 33% was reached" in capsys.readouterr().err
    kernel._conclude("", kernel.known("memory-copy"), [46.0], most=100.0, cpu=0.5, requested=0.5)
    assert capsys.readouterr().err == ""


def test_a_row_that_does_not_fit_a_terminal_is_shown_value_by_value():
    columns, rows = ["workload", "a_very_long_column"], [["memory-copy", "x" * 70], ["null", None]]
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    show.table(console, columns, rows)
    written = console.file.getvalue()
    assert "x" * 70 in written
    assert "workload            memory-copy" in written
    piped = Console(file=io.StringIO(), width=80)
    show.table(piped, columns, rows)
    assert "x" * 70 in piped.file.getvalue()
    assert max(map(len, piped.file.getvalue().splitlines())) > 80
