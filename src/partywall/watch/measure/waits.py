"""Who waits for whom while disks are watched: the counters and the rule of `partywall-watch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from partywall.errors import CapabilityError
from partywall.watch.record import Pair, Stalled
from partywall.watch.stalls.detect import FROM, Stall
from partywall.watch.stalls.reading import RESOURCES, Reader
from partywall.watch.stalls.watching import Watching

EVERY_NS = 1_900_000_000
"""Periods of disks are put together, as for processes: a reading of all groups costs more than one of the disks. A tick
of two seconds may come a little early.
"""


class Waits:
    """Reads all groups of a host. root: the folder of /proc and /sys, or none; tell: takes what begins and ends."""

    def __init__(self, root: Path | None, tell: Callable[[Stalled], None], wall: Callable[[], int]) -> None:
        self._tell = tell
        self._watching = Watching(self._stalled, wall, FROM)
        self._sums: dict[tuple[str, str, str], int] = {}
        self._read_ns: int | None = None
        self._reader: Reader | None = None
        self._why = ""
        try:
            self._reader = None if root is None else Reader(root)
        except CapabilityError as error:
            self._why = str(error)

    def lacks(self) -> Iterator[str]:
        """What this host does not show, each with its remedy."""
        if self._why:
            yield f"who waits for whom: {self._why}"
        if self._reader is None:
            return
        self._reader.look(0)
        yield from (lack.text for lack in self._reader.lacks())

    def take(self, now_ns: int) -> tuple[tuple[Pair, ...], int]:
        """The pairs since the last reading, and the ns since then; none if it is too early for another.

        now_ns: of a clock that never steps.
        """
        before_ns = self._read_ns
        if self._reader is None or (before_ns is not None and now_ns - before_ns < EVERY_NS):
            return (), 0
        self._read_ns = now_ns
        self._reader.look(now_ns)
        self._watching.differences.cells = self._reader.cells
        asked = self._reader.asked(now_ns)
        self._watching.take(self._reader.read(now_ns, RESOURCES if before_ns is None else asked), self._reader.names)
        before, self._sums = self._sums, dict(self._watching.totals.pairs())
        pairs = tuple(
            Pair(victim=victim, suspect=suspect, resource=resource, stalled_ns=sum_ns - was)
            for (victim, suspect, resource), sum_ns in self._sums.items()
            if sum_ns != (was := _before(before, (victim, suspect, resource), sum_ns))
        )
        return pairs, 0 if before_ns is None else now_ns - before_ns

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _stalled(self, stall: Stall, at_ns: int, text: str) -> None:
        self._tell(Stalled(at_ns=at_ns, text=text, has_ended=stall.has_ended))


def _before(sums: Mapping[tuple[str, str, str], int], key: tuple[str, str, str], now: int) -> int:
    """The sum of before; 0 for one that was forgotten, because it had not grown for an hour, and began again."""
    was = sums.get(key, 0)
    return was if was <= now else 0
