"""A watch as Prometheus text. Pure but for the totals, which grow with each period."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from partywall.core.report.prometheus import family
from partywall.watch.record import HOST, REST, UNKNOWN, Period, Span, parts

USES_WRITTEN = 200
"""The most pairs of a tenant and a disk in the text: those with the most bytes."""
USES_KEPT = 2000
"""The most pairs whose sums are kept, so that one of the others can come back with its whole sum."""
USES = (
    'Bytes of a tenant, in all never more than those of the disks. disk="all": at most these and those of tenant '
    f'"{UNKNOWN}", of which it is not known whose they are.'
)
DISKS = {
    "reads": ("reads_total", "Requests completed.", 1),
    "writes": ("writes_total", "Requests completed.", 1),
    "read_bytes": ("read_bytes_total", "Bytes read.", 1),
    "write_bytes": ("written_bytes_total", "Bytes written.", 1),
    "read_ns": ("read_seconds_total", "Sum of the times of reads.", 1e9),
    "write_ns": ("write_seconds_total", "Sum of the times of writes.", 1e9),
    "busy_ns": ("busy_seconds_total", "Time with a request in flight.", 1e9),
    "unjudged_ns": ("unjudged_seconds_total", "Time of saturation in which no bound was known yet.", 1e9),
}


class Totals:
    """Sums since the watch began. Beyond USES_KEPT, tenants with the fewest bytes on a disk are forgotten."""

    def __init__(self) -> None:
        self._disks: dict[str, list[int]] = {}
        self._uses: dict[tuple[str, str], tuple[int, int]] = {}
        self._forgotten = 0
        self._slow: dict[str, int] = {}
        self._is_slow: frozenset[str] = frozenset()

    def add(self, seen: Period) -> None:
        """Adds one period. Those after which processes are not read yet come later, with the one that ends them."""
        span: Span = seen.span
        if span.unread:
            return
        for disk in span.disks:
            sums = self._disks.setdefault(disk.disk, [0] * len(DISKS))
            for place, field in enumerate(DISKS):
                sums[place] += getattr(disk, field)
        for part in parts(span):
            key = (part.tenant, "all" if part.disk in (HOST, REST) else part.disk)
            read, written = self._uses.get(key, (0, 0))
            self._uses[key] = read + part.read_bytes, written + part.write_bytes
        self._forgotten = max(0, len(self._uses) - USES_KEPT)
        if self._forgotten:
            self._uses = dict(self._largest(USES_KEPT))
        now = frozenset(slow.disk for slow in seen.slow)
        for name in now - self._is_slow:
            self._slow[name] = self._slow.get(name, 0) + 1
        self._is_slow = now

    def _largest(self, most: int) -> list[tuple[tuple[str, str], tuple[int, int]]]:
        return heapq.nlargest(most, self._uses.items(), key=lambda use: sum(use[1]))

    def text(self) -> str:
        """The whole file."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for place, (name, about, scale) in enumerate(DISKS.values()):
            samples = [
                ({"disk": disk}, sums[place] / scale if scale > 1 else sums[place])
                for disk, sums in self._disks.items()
            ]
            yield from family(f"partywall_watch_{name}", about, "counter", samples)
        uses = self._largest(USES_WRITTEN)
        for place, name in enumerate(("read", "written")):
            samples = [({"tenant": who, "disk": disk}, v[place]) for (who, disk), v in uses]
            yield from family(f"partywall_watch_tenant_{name}_bytes_total", USES, "counter", samples)
        about = "Pairs of a tenant and a disk without samples, because others have more bytes."
        left_out = len(self._uses) - len(uses) + self._forgotten
        yield from family("partywall_watch_tenants_left_out", about, "gauge", [({}, left_out)])
        slow = [({"disk": disk}, int(disk in self._is_slow)) for disk in self._disks]
        yield from family("partywall_watch_slow", "1 while the disk is slow.", "gauge", slow)
        times = [({"disk": disk}, self._slow.get(disk, 0)) for disk in self._disks]
        yield from family("partywall_watch_slow_total", "How often the disk began to be slow.", "counter", times)
