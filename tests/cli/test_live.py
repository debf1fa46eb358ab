"""What is told of the time that is left."""

import io

from rich.console import Console

from partywall.cli.live import Live

SECOND = 1_000_000_000


def told(measured_ns: int) -> str:
    console = Console(file=io.StringIO(), width=200)
    live = Live(console, 70 * SECOND, 60 * SECOND)
    live.spent(measured_ns, 60 * SECOND)
    live.doing("v: measuring")
    return console.file.getvalue().splitlines()[-1]


def test_what_is_left_is_the_budget_and_the_set_up_that_goes_with_it():
    assert told(30 * SECOND) == "v: measuring · about 35 s left"


def test_of_a_budget_that_is_spent_no_time_is_promised():
    assert told(61 * SECOND) == "v: measuring · the budget is spent; trials with too few blocks go on a little"
