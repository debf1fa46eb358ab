"""A load's report as text for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.core.report.figures import bare_percent
from partywall.core.report.page import BADGES
from partywall.model.load_run import LoadRun
from partywall.report.load_rows import GENERATOR_HEADS, SHARES, generator_rows, headline, other_rows, time_rows
from partywall.report.terminal import OUTCOMES

# Such as '4.43 ms'.
FIGURE_WIDTH = 7
ERRORS_SHOWN = 8
PIPED_WIDTH = 160
TIMES = (
    "response: from the intended start to the last byte; raw: from the actual start; lateness: how late a request left"
)


def show(run: LoadRun, console: Console) -> None:
    """Shows rates, times, errors, whether the generator was reliable, and thresholds."""
    console.print(Text(f"{run.title}: {headline(run)}", style="bold"), soft_wrap=True)
    console.print(_extent(run), highlight=False, markup=False, soft_wrap=True)
    for what, text in run.facts:
        if what == "server":
            console.print(f"server: {text}", highlight=False, markup=False, soft_wrap=True)
    # A pipe has no fixed width.
    console.print(_times(run), width=None if console.is_terminal else PIPED_WIDTH)
    console.print(TIMES, style="dim", highlight=False, soft_wrap=True)
    _errors(run, console)
    for late in run.late_effects:
        measured, on_time = units.format_duration(late.measured_ns), units.format_duration(late.on_time_ns)
        text = f"requests were sent late: p{late.share * 100:.0f} is {measured}; if sent on time: {on_time}"
        console.print(text, style="yellow", highlight=False, soft_wrap=True)
    _health(run, console)
    for bound in run.bounds:
        badge = (BADGES[bound.outcome], OUTCOMES[bound.outcome])
        console.print(Text.assemble(badge, f"  {bound.asked}: {bound.found}"), soft_wrap=True)
    for note in run.notes:
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if run.failure:
        console.print(run.failure, style="red", highlight=False, soft_wrap=True)


def _extent(run: LoadRun) -> str:
    deviation = run.rate_deviation
    spread = "" if deviation is None else f", ±{units.format_number(deviation, 2)}/s between seconds"
    seconds = "" if run.available is None else bare_percent(run.available, 2)
    available = seconds and f"; at least half of the requests succeeded in {seconds} of seconds"
    return (
        f"{run.responses} responses in {units.format_duration(run.length_s * 1e9)}{spread}; "
        f"{units.format_bytes(run.received_bytes)} received, {units.format_bytes(run.sent_bytes)} sent{available}"
    )


def _times(run: LoadRun) -> Table:
    """A table of times. On a narrow terminal, names are folded and figures stay whole."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold")
    for head in ("mean", "sd", *SHARES, "longest"):
        table.add_column(head, justify="right", no_wrap=True, min_width=FIGURE_WIDTH)
    alone = len(run.labels) == 1
    for label in run.labels:
        for number, (name, _done, _failed, *figures) in enumerate(time_rows(label)):
            table.add_row("response" if alone and not number else name.replace("\u2003", "  "), *figures)
    for name, _done, _failed, *figures in other_rows(run):
        table.add_row(name, *figures)
    return table


def _errors(run: LoadRun, console: Console) -> None:
    if not run.errors:
        console.print("errors: none")
    for what, of, count in run.errors[:ERRORS_SHOWN]:
        text = f"error: {count} × {what}{f' of {of}' if of else ''}"
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    if len(run.errors) > ERRORS_SHOWN:
        console.print(f"… and {len(run.errors) - ERRORS_SHOWN} other kinds", highlight=False)


def _health(run: LoadRun, console: Console) -> None:
    if run.generators:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for number, head in enumerate(GENERATOR_HEADS):
            table.add_column(head, justify="right" if number else "left", overflow="fold")
        for row in generator_rows(run):
            table.add_row(*row)
        console.print(table, width=None if console.is_terminal else PIPED_WIDTH)
    good = run.good == run.judged
    console.print(run.believed, style="" if good else "yellow", highlight=False, soft_wrap=True)
    for what, remedy, seconds in run.doubtful:
        text = f"  {seconds} s: {what}; {remedy}"
        console.print(text, style="yellow", highlight=False, markup=False, soft_wrap=True)
