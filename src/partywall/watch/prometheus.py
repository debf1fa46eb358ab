"""A watch as Prometheus text. Pure but for the totals, which grow with each period."""

from __future__ import annotations

from collections.abc import Iterator

from partywall.model.watch import HOST, REST, Seen, Span
from partywall.report.prometheus import family

TENANTS_MAX = 200
DISKS = {
    "reads": ("reads_total", "Requests completed.", 1),
    "writes": ("writes_total", "Requests completed.", 1),
    "read_bytes": ("read_bytes_total", "Bytes read.", 1),
    "write_bytes": ("written_bytes_total", "Bytes written.", 1),
    "read_ns": ("read_seconds_total", "Sum of the times of reads.", 1e9),
    "write_ns": ("write_seconds_total", "Sum of the times of writes.", 1e9),
    "busy_ns": ("busy_seconds_total", "Time with a request in flight.", 1e9),
}


class Totals:
    """Sums since the watch began. A tenant that does nothing for as long as TENANTS_MAX others do is forgotten."""

    def __init__(self) -> None:
        self._disks: dict[str, list[int]] = {}
        self._uses: dict[tuple[str, str], list[int]] = {}
        self._slow: dict[str, int] = {}
        self._is_slow: frozenset[str] = frozenset()

    def add(self, seen: Seen) -> None:
        """Adds one period."""
        span: Span = seen.span
        for disk in span.disks:
            sums = self._disks.setdefault(disk.disk, [0] * len(DISKS))
            for place, field in enumerate(DISKS):
                sums[place] += getattr(disk, field)
        for use in span.uses:
            key = (use.tenant, "all" if use.disk in (HOST, REST) else use.disk)
            read, written = self._uses.pop(key, [0, 0])
            self._uses[key] = [read + use.read_bytes, written + use.write_bytes]
        for key in list(self._uses)[:-TENANTS_MAX]:
            del self._uses[key]
        now = frozenset(slow.disk for slow in seen.slow)
        for name in now - self._is_slow:
            self._slow[name] = self._slow.get(name, 0) + 1
        self._is_slow = now

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
        for place, name in enumerate(("read", "written")):
            samples = [({"tenant": who, "disk": disk}, v[place]) for (who, disk), v in self._uses.items()]
            yield from family(f"partywall_watch_tenant_{name}_bytes_total", "Bytes of a tenant.", "counter", samples)
        slow = [({"disk": disk}, int(disk in self._is_slow)) for disk in self._disks]
        yield from family("partywall_watch_slow", "1 while the disk is slow.", "gauge", slow)
        times = [({"disk": disk}, self._slow.get(disk, 0)) for disk in self._disks]
        yield from family("partywall_watch_slow_total", "How often the disk began to be slow.", "counter", times)
