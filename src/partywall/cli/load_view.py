"""Shows the progress of a load."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.cli.live import Drawn
from partywall.core.report.latency import quantiles
from partywall.events import Event, Left, Second, Started
from partywall.load.health import ADVICE, Health
from partywall.load.second import Second as LoadSecond
from partywall.load.second import Timing, histogram

ROWS = 8


class View(Drawn):
    """A listener that shows the last seconds of a load: a table on a terminal, elsewhere a line from time to time."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._requests: set[int] = set()
        self._last: Second | None = None
        # A second does not change after it is reported, so its row is drawn once: drawing may use the service's CPU.
        self._rows: deque[tuple[str, ...]] = deque(maxlen=ROWS)
        self._live = Live(console=console, refresh_per_second=4, transient=True, auto_refresh=False)
        self.seconds = 0
        super().__init__(console, self._live)

    def __call__(self, event: Event) -> None:
        match event:
            case Started(_, about):
                labels = enumerate(about["labels"])
                self._requests = {number for number, label in labels if label["sort"] == "http"}
            case Second(second, health):
                self.seconds += 1
                self._last = event
                if self._console.is_terminal:
                    self._rows.append(_row(self.seconds, second, health, self._requests))
            case Left(seconds):
                self._show(seconds)
            case _:
                super().__call__(event)

    def _show(self, left_s: float) -> None:
        left = f"{units.format_duration(round(left_s) * 1e9)} left" if left_s > 0.5 else "ending"
        if self._console.is_terminal:
            self._live.update(self._table(left), refresh=True)
        elif last := self._last:
            self.line(lambda: f"{_line(last.second, last.health, self._requests)} · {left}")

    def _table(self, left: str) -> Group:
        table = Table("", "users", "requests/s", "p50", "p90", "p99", "raw p99", "errors", "generator", box=None)
        for row in self._rows:
            table.add_row(*row)
        return Group(Text(f"{self._title} · {left}", style="bold"), table)


def _row(number: int, second: LoadSecond, health: Health, requests: Collection[int]) -> tuple[str, ...]:
    timing = _total(second, requests)
    raw = quantiles(histogram(timing.raw), (0.99,))
    tops = [units.format_duration(at) for at in quantiles(histogram(timing.corrected), (0.5, 0.9, 0.99))]
    errors = sum(second.errors.values())
    return (
        f"{number}",
        str(second.users),
        units.format_number(sum(second.statuses.values()) / second.length_s),
        *(tops or ["-"] * 3),
        units.format_duration(raw[0]) if raw else "-",
        str(errors) if errors else "",
        _verdict(health),
    )


def _line(second: LoadSecond, health: Health, requests: Collection[int]) -> str:
    timing = _total(second, requests)
    tops = quantiles(histogram(timing.corrected), (0.5, 0.99))
    shown = f"p50 {units.format_duration(tops[0])} p99 {units.format_duration(tops[1])}" if tops else "no answer"
    rate = units.format_number(sum(second.statuses.values()) / second.length_s)
    errors = sum(second.errors.values())
    return f"{second.users} users · {rate}/s · {shown} · {errors} errors · {_verdict(health)}"


def _verdict(health: Health) -> str:
    if health.good:
        return "good"
    return "doubtful: " + ", ".join(f"{ADVICE[reason][0]} ({figure})" for reason, figure in health.doubts.items())


def _total(second: LoadSecond, requests: Collection[int]) -> Timing:
    """Times of all requests. Transactions are excluded: they contain requests, which would count twice."""
    total = Timing()
    for label, timing in second.timings.items():
        if label in requests:
            total.merge(timing)
    return total
