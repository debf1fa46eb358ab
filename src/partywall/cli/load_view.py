"""How a load is shown: live while it goes on, and as a summary at its end."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.cli.live import PIPED_WIDTH
from partywall.load.health import ADVICE, Doubt, Health
from partywall.load.second import Second, Timing, histogram, longest_ns
from partywall.load.session import Session
from partywall.load.summary import SHARES, Summary
from partywall.load.thresholds import Kept
from partywall.report.latency import known_quantiles, quantiles

PRINT_EVERY_S = 5.0
# As in '4.43 ms'.
FIGURE_WIDTH = 7
ERRORS_SHOWN = 8
ROWS = 8
NAMES = {0.5: "p50", 0.9: "p90", 0.99: "p99", 0.999: "p99.9"}


class View:
    """The last seconds of a load, on a terminal four times a second; elsewhere a line now and then."""

    def __init__(self, console: Console, session: Session, title: str) -> None:
        self._console = console
        self._session = session
        self._title = title
        labels = enumerate(session.started["labels"])
        self._requests = {number for number, label in labels if label["sort"] == "http"}
        self._printed = 0.0
        # A second does not change once it is given out, and the CPU that draws may be the service's.
        self._rows: list[tuple[str, ...]] = []
        self._live = Live(console=console, refresh_per_second=4, transient=True, auto_refresh=False)

    def __enter__(self) -> None:
        self._printed = time.monotonic()
        if self._console.is_terminal:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, seconds: Sequence[Second], healths: Sequence[Health]) -> None:
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        left_ns = max(0, (self._session.begin_ns or now_ns) + self._session.stages_ns - now_ns)
        left = f"{units.format_duration(round(left_ns / 1e9) * 1e9)} left" if left_ns > 5e8 else "ending"
        if self._console.is_terminal:
            self._live.update(self._table(seconds, healths, left), refresh=True)
        elif seconds and time.monotonic() - self._printed >= PRINT_EVERY_S:
            self._printed = time.monotonic()
            self._console.print(
                f"{_line(seconds[-1], healths[-1], self._requests)} · {left}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def _table(self, seconds: Sequence[Second], healths: Sequence[Health], left: str) -> Group:
        table = Table("", "users", "requests/s", "p50", "p90", "p99", "raw p99", "errors", "generator", box=None)
        for number in range(len(self._rows), len(seconds)):
            self._rows.append(_row(number, seconds[number], healths[number], self._requests))
        for row in self._rows[-ROWS:]:
            table.add_row(*row)
        return Group(Text(f"{self._title} · {left}", style="bold"), table)


def _row(number: int, second: Second, health: Health, requests: Collection[int]) -> tuple[str, ...]:
    timing = _total(second, requests)
    raw = quantiles(histogram(timing.raw), (0.99,))
    tops = [units.format_duration(at) for at in quantiles(histogram(timing.corrected), (0.5, 0.9, 0.99))]
    errors = sum(second.errors.values())
    return (
        f"{number + 1}",
        str(second.users),
        units.format_number(sum(second.statuses.values()) / second.length_s),
        *(tops or ["-"] * 3),
        units.format_duration(raw[0]) if raw else "-",
        str(errors) if errors else "",
        _verdict(health),
    )


def _line(second: Second, health: Health, requests: Collection[int]) -> str:
    timing = _total(second, requests)
    tops = quantiles(histogram(timing.corrected), (0.5, 0.99))
    shown = f"p50 {units.format_duration(tops[0])} p99 {units.format_duration(tops[1])}" if tops else "no answer"
    rate = units.format_number(sum(second.statuses.values()) / second.length_s)
    errors = sum(second.errors.values())
    return f"{second.users} users · {rate}/s · {shown} · {errors} errors · {_verdict(health)}"


def _verdict(health: Health) -> str:
    if health.good:
        return "good"
    return "doubtful: " + ", ".join(f"{ADVICE[doubt][0]} ({figure})" for doubt, figure in health.doubts.items())


def _total(second: Second, requests: Collection[int]) -> Timing:
    """Times of all requests; transactions hold requests and would count them twice."""
    total = Timing()
    for label, timing in second.timings.items():
        if label in requests:
            total.merge(timing)
    return total


def conclude(
    console: Console, summary: Summary, started: Mapping[str, Any], title: str, kept: Sequence[Kept] = ()
) -> None:
    """The summary, and which thresholds were kept."""
    spread = (
        ""
        if summary.rate_deviation is None
        else f" (seconds vary by ±{units.format_number(summary.rate_deviation, 2)})"
    )
    lines = [
        f"{title}: {summary.responses} responses in {units.format_duration(summary.length_s * 1e9)}: "
        f"{units.format_number(summary.rate)}/s{spread}; "
        f"{units.format_bytes(summary.received_bytes)} received, {units.format_bytes(summary.sent_bytes)} sent",
        *(
            f"{origin['name']}: {origin['protocol']} at {', '.join(origin['addresses'])}"
            for origin in started["origins"]
        ),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    # What is read from a pipe has no width to keep to.
    console.print(_latencies(summary, started["labels"]), width=None if console.is_terminal else PIPED_WIDTH)
    _print_errors(console, summary, started["labels"])
    _print_lateness(console, summary)
    _print_health(console, summary)
    _print_thresholds(console, kept)


def _print_thresholds(console: Console, kept: Sequence[Kept]) -> None:
    from partywall.report.html import BADGES  # noqa: PLC0415 - what draws is slow to import
    from partywall.report.terminal import OUTCOMES  # noqa: PLC0415

    for one in kept:
        text = Text.assemble((BADGES[one.outcome], OUTCOMES[one.outcome]), f"  {one.asked}: {one.found}")
        console.print(text, soft_wrap=True)


def _latencies(summary: Summary, labels: Sequence[Mapping[str, Any]]) -> Table:
    """In a narrow terminal names are folded, and figures whole all the same."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", overflow="fold")
    for head in ("mean", "sd", *(NAMES[share] for share in SHARES), "longest"):
        table.add_column(head, justify="right", no_wrap=True, min_width=FIGURE_WIDTH)
    for label, timing in sorted(summary.timings.items()):
        name = _named(labels[label]) if len(summary.timings) > 1 else "response"
        table.add_row(name, _shown(timing.mean_ns), _shown(timing.deviation_ns), *_tops(timing.corrected))
        for what, counts in (("raw", timing.raw), ("first byte", timing.first_byte), ("body", timing.body)):
            # Bodies that all came with their heads took no time, and are no row.
            if any(counts):
                table.add_row(f"  {what}", "", "", *_tops(counts))
    for what, found in (("connecting", summary.connect), ("TLS", summary.tls), ("lateness", summary.lateness)):
        if found:
            table.add_row(what, "", "", *_tops(found))
    return table


def _named(label: Mapping[str, Any]) -> str:
    return str(label["name"]) if label["sort"] == "http" else f"{label['sort']} {label['name']}"


def _tops(counts: Mapping[int, int]) -> list[str]:
    return [_shown(value) for value in [*known_quantiles(counts, SHARES), longest_ns(counts)]]


def _shown(value: float | None) -> str:
    return "-" if value is None else units.format_duration(value)


def _print_errors(console: Console, summary: Summary, labels: Sequence[Mapping[str, Any]]) -> None:
    if not summary.errors:
        console.print("errors: none")
        return
    ordered = sorted(summary.errors.items(), key=lambda pair: -pair[1])
    for error, count in ordered[:ERRORS_SHOWN]:
        where = f" of {labels[error.label]['name']}" if error.label is not None else ""
        detail = f" {error.detail}" if error.detail else ""
        text = f"error: {count} × {error.kind.replace('_', ' ')}{detail}{where}"
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    if len(ordered) > ERRORS_SHOWN:
        console.print(f"… and {len(ordered) - ERRORS_SHOWN} other kinds", highlight=False)


def _print_lateness(console: Console, summary: Summary) -> None:
    for one in summary.late_effects:
        if one.matters:
            told, undelayed = units.format_duration(one.told_ns), units.format_duration(one.undelayed_ns)
            text = (
                f"requests left late: p{one.share * 100:.0f} is {told} and would be {undelayed} had each left on time"
            )
            console.print(text, style="yellow", highlight=False, soft_wrap=True)


def _print_health(console: Console, summary: Summary) -> None:
    doubtful = summary.seconds - summary.good
    if not doubtful:
        text = f"generator: good in all {summary.seconds} seconds; these are the service's numbers"
        console.print(text, highlight=False, soft_wrap=True)
        return
    whose = "the generator's own" if doubtful * 2 > summary.seconds else "the service's, but for those seconds"
    text = f"generator: doubtful in {doubtful} of {summary.seconds} seconds; these numbers are {whose}"
    console.print(text, style="yellow", highlight=False, soft_wrap=True)
    for doubt, count in sorted(summary.doubtful.items(), key=lambda pair: -pair[1]):
        what, remedy = ADVICE[Doubt(doubt)]
        console.print(f"  {count} s: {what}; {remedy}", highlight=False, markup=False, soft_wrap=True)
