"""What a watch of a host's disks sees: spans of time, times in which a disk was slow, and what is found in them.

A span contains raw sums, so spans that follow each other can be added. Means and shares are derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from partywall.core.record import JobRecord, Stream, Tabled
from partywall.watch.job import WatchJob
from partywall.watch.stalls.rule import OTHER

Way = Literal["reads", "writes"]
WAYS: tuple[Way, Way] = ("reads", "writes")
HOST = ""
"""The name of the whole host among tenants, and of all disks together among disks."""
USES_MAX = 200
"""The most uses of a sum of spans. Others are only in the sums of their disks."""
UNKNOWN = "(unknown)"
"""In place of a tenant: bytes of some watched tenant, of which is not known."""
REST = "*"
"""All disks together, of a group whose requests the kernel counts for some disks only."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class Disk(_Value):
    """What one disk did in a span: completed requests, their bytes and the sum of their times, and its busy time.

    peak_ns: the highest mean latency of a period, by way. in_flight: requests at the end of the span. others: completed
    discards and flushes, which are not among the operations. saturated_ns: the length of the periods in which it was
    saturated; unjudged_ns: of those in which no bound on its latency was known yet.
    """

    disk: str
    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    read_ns: int = 0
    write_ns: int = 0
    busy_ns: int = 0
    in_flight: int = 0
    others: int = 0
    saturated_ns: int = 0
    unjudged_ns: int = 0
    read_peak_ns: int | None = None
    write_peak_ns: int | None = None

    @property
    def operations(self) -> int:
        return self.reads + self.writes

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    def work(self, way: Way) -> tuple[int, int]:
        """How many requests were completed, and the sum of their times in ns."""
        return (self.reads, self.read_ns) if way == "reads" else (self.writes, self.write_ns)

    def latency_ns(self, way: Way) -> float | None:
        """The mean time of a request from its issue to its completion; None if none was completed."""
        count, total = self.work(way)
        return total / count if count else None

    def queued(self, length_ns: int) -> float:
        """The mean number of requests in the queue and the device, by Little's law from those that were completed."""
        return (self.read_ns + self.write_ns) / length_ns

    def __add__(self, later: Disk) -> Disk:
        changed: dict[str, Any] = {key: getattr(self, key) + getattr(later, key) for key in _SUMS}
        changed |= {key: _largest(getattr(self, key), getattr(later, key)) for key in ("read_peak_ns", "write_peak_ns")}
        return self.model_copy(update=changed | {"in_flight": later.in_flight})


_SUMS = (
    *("reads", "writes", "read_bytes", "write_bytes", "read_ns", "write_ns", "busy_ns", "others"),
    *("saturated_ns", "unjudged_ns"),
)


class Use(_Value):
    """What one tenant did on one disk in a span.

    disk: HOST or REST for all disks together, which is all that the kernel counts of a process. Its operations are None
    then. These are bytes that processes have asked for: they may have been written to a file and not to a disk yet.
    """

    tenant: str
    disk: str
    operations: int | None
    read_bytes: int
    write_bytes: int

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    def __add__(self, later: Use) -> Use:
        both = self.operations is not None and later.operations is not None
        return Use.model_construct(
            tenant=self.tenant,
            disk=self.disk,
            operations=(self.operations or 0) + (later.operations or 0) if both else None,
            read_bytes=self.read_bytes + later.read_bytes,
            write_bytes=self.write_bytes + later.write_bytes,
        )


class Pair(_Value):
    """How long a victim waited for a resource because of a suspect (`stalls.rule`): by use, which is no proof.

    suspect: a group; or itself, host, unknown or other.
    """

    victim: str
    suspect: str
    resource: str
    stalled_ns: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.victim, self.suspect, self.resource

    def __add__(self, later: Pair) -> Pair:
        return self.model_copy(update={"stalled_ns": self.stalled_ns + later.stalled_ns})


class Stalled(_Value):
    """A group began to wait for others, or ceased to. at_ns: since the epoch. text: for people."""

    at_ns: int
    text: str
    has_ended: bool = False


class Span(_Value):
    """A period, or several that follow each other.

    at_ns: its end, in ns since the epoch. waited_ns: how long some task of a tenant, or of the host (HOST), waited for
    a disk (PSI). counted: disks that the kernel counts for each cgroup. left_out: how many tenants' uses are only in
    the sums of their disks. late: periods that were skipped because the reader was late. unread: disks that processes
    may have used, whose bytes were not read in it. pairs: who waited for whom, in the
    last pairs_ns of it, since groups were read before.
    """

    at_ns: int
    length_ns: int
    disks: tuple[Disk, ...] = ()
    uses: tuple[Use, ...] = ()
    counted: tuple[str, ...] = ()
    waited_ns: dict[str, int] = {}
    left_out: int = 0
    late: int = 0
    unread: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    pairs_ns: int = 0

    def __add__(self, later: Span) -> Span:
        waited = {
            name: self.waited_ns.get(name, 0) + later.waited_ns.get(name, 0)
            for name in self.waited_ns | later.waited_ns
        }
        return Span.model_construct(
            at_ns=later.at_ns,
            length_ns=self.length_ns + later.length_ns,
            disks=_added(self.disks, later.disks, lambda each: each.disk),
            uses=_added(self.uses, later.uses, lambda each: (each.tenant, each.disk)),
            counted=later.counted,
            waited_ns=waited,
            left_out=max(self.left_out, later.left_out),
            late=self.late + later.late,
            unread=tuple(disk for disk in self.unread if disk in later.unread),
            pairs=_added(self.pairs, later.pairs, lambda each: each.key),
            pairs_ns=self.pairs_ns + later.pairs_ns,
        ).trimmed(USES_MAX)

    def trimmed(self, most: int) -> Span:
        """With the uses of the most bytes, and the longest waits. The sum of the pairs stays."""
        if len(self.uses) <= most and len(self.waited_ns) <= most and len(self.pairs) <= most:
            return self
        uses = sorted(self.uses, key=lambda use: -use.bytes)
        waits = sorted(self.waited_ns.items(), key=lambda wait: (wait[0] != HOST, -wait[1]))
        left_out = self.left_out + max(0, len(uses) - most)
        pairs = sorted(self.pairs, key=lambda pair: -pair.stalled_ns)
        rest = (pair.model_copy(update={"victim": OTHER, "suspect": OTHER}) for pair in pairs[most:])
        return self.model_copy(
            update={
                "uses": tuple(uses[:most]),
                "waited_ns": dict(waits[:most]),
                "left_out": left_out,
                "pairs": _added(pairs[:most], rest, lambda each: each.key),
            }
        )


def _added(before: Iterable[Any], later: Iterable[Any], key: Any) -> tuple[Any, ...]:
    every: dict[Any, Any] = {}
    for each in (*before, *later):
        known = every.get(key(each))
        every[key(each)] = each if known is None else known + each
    return tuple(every.values())


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)


class Share(_Value):
    """A tenant's share of a disk's operations and bytes. at_most: only its bytes on all disks together are known.

    waited: the share of the time in which some task of it waited for a disk; None if the kernel does not say.
    """

    tenant: str
    operations: float | None
    bytes: float
    at_most: bool = False
    waited: float | None = None


class Slow(_Value):
    """A time in which a saturated disk was slow. end_ns: None while it lasts, or if the watch ended first.

    by: what was exceeded: the stated limit, the disk's own usual latency, or `stuck`: no request was completed.
    bound_ns: that limit, or the bound around the usual. latency_ns: the mean; worst_ns: of the worst period. unread:
    bytes of processes were not read in it, so the tenants' shares are not known yet.
    """

    disk: str
    way: Way
    by: Literal["limit", "usual", "stuck"]
    begin_ns: int
    end_ns: int | None = None
    length_ns: int
    bound_ns: int
    usual_ns: int | None = None
    latency_ns: int | None
    worst_ns: int
    busy: float
    queued: float
    operations: int
    bytes: int
    shares: tuple[Share, ...]
    unread: bool = False

    @property
    def rest(self) -> float:
        """The share of bytes that are not counted as a watched tenant's. At-most shares may be some of them."""
        return max(0.0, 1 - sum(share.bytes for share in self.shares if not share.at_most))

    @property
    def neighbour(self) -> Share | None:
        """The only tenant with at least half of the operations or bytes, if other tenants used the disk too.

        None if that is uncertain: at-most shares may belong to other disks, and `rest` may hide a tenant.
        """
        known = [share for share in self.shares if not share.at_most]
        large = [share for share in known if _weight(share) >= 0.5]
        if len(large) != 1 or len(known) == 1 or self.rest >= 0.5 or self.rest > large[0].bytes:
            return None
        return large[0]


def _weight(share: Share) -> float:
    return max(share.operations or 0.0, share.bytes)


def shares(span: Span, disk: Disk) -> tuple[Share, ...]:
    """The tenants' shares of a disk's work, the largest first. Those that the kernel counts by disk come first."""
    places = (disk.disk, HOST) if disk.disk in span.counted else (disk.disk, HOST, REST)
    uses = [use for use in span.uses if use.disk in places]
    # The kernel counts a tenant's requests before it merges them.
    operations = max(disk.operations, sum(use.operations or 0 for use in uses))
    counted = sum(use.bytes for use in uses if use.disk == disk.disk)
    count = max(disk.bytes, counted)
    every = [
        Share(
            tenant=use.tenant,
            operations=use.operations / operations if use.operations is not None and operations else None,
            # Bytes on all disks are on this one at most as far as those that are counted leave room.
            bytes=(use.bytes if use.disk == disk.disk else min(use.bytes, count - counted)) / count if count else 0.0,
            at_most=use.disk != disk.disk,
            waited=span.waited_ns[use.tenant] / span.length_ns if use.tenant in span.waited_ns else None,
        )
        for use in uses
    ]
    return tuple(sorted(every, key=lambda share: (share.at_most, -_weight(share))))


class Part(_Value):
    """A tenant's part of what the disks did in a span. The parts of all tenants are never more than that.

    disk, operations: as in `Use`. at_most: only the bytes of its processes on all disks together are known. most: what
    it asked for in this span; what it asked for before may reach the disk in it too.
    read_bytes, write_bytes are lower if several tenants asked for more than the
    disks did: what no other watched tenant can have done. The difference is the part of UNKNOWN.
    """

    tenant: str
    disk: str
    operations: int | None
    read_bytes: int
    write_bytes: int
    read_bytes_most: int
    write_bytes_most: int
    at_most: bool = False

    @property
    def bytes_most(self) -> int:
        return self.read_bytes_most + self.write_bytes_most


def parts(span: Span) -> tuple[Part, ...]:
    """The tenants' parts, the largest first."""
    claims = [use for use in span.uses if use.disk in (HOST, REST)]
    reads, writes = _bounded(span, claims, "read_bytes"), _bounded(span, claims, "write_bytes")
    every = [
        Part.model_construct(
            **use.model_dump(), read_bytes_most=use.read_bytes, write_bytes_most=use.write_bytes, at_most=False
        )
        for use in span.uses
        if use.disk not in (HOST, REST)
    ]
    every += [
        Part.model_construct(
            tenant=use.tenant,
            disk=use.disk,
            operations=None,
            read_bytes=read,
            write_bytes=written,
            read_bytes_most=read_most,
            write_bytes_most=written_most,
            at_most=True,
        )
        for use, (read, read_most), (written, written_most) in zip(claims, reads[0], writes[0], strict=True)
    ]
    if reads[1] or writes[1]:
        every.append(_unknown(every, reads[1], writes[1]))
    return tuple(sorted(every, key=lambda part: -part.bytes_most))


def _bounded(span: Span, claims: Sequence[Use], field: str) -> tuple[list[tuple[int, int]], int]:
    """Of each claim on all disks: what no other can have done, and the most; and what is left of the disks' bytes.

    If claims are more than the disks did by some excess, each may be too high by all of it. So what is left plus a
    tenant's first figure is never below what the tenant did.
    """
    counted = sum(getattr(use, field) for use in span.uses if use.disk not in (HOST, REST))
    uncounted = sum(getattr(disk, field) for disk in span.disks if disk.disk not in span.counted)
    free = max(0, sum(getattr(disk, field) for disk in span.disks) - counted)
    most = [min(getattr(use, field), free, *([uncounted] if use.disk == REST else [])) for use in claims]
    excess = max(0, sum(most) - free)
    sure = [max(0, each - excess) for each in most]
    return list(zip(sure, most, strict=True)), free - sum(sure) if excess else 0


def _unknown(every: list[Part], read: int, written: int) -> Part:
    """Bytes of one of several tenants, with those that are known to be so already, which leave `every`."""
    known = next((part for part in every if part.tenant == UNKNOWN), None)
    if known is not None:
        every.remove(known)
        read, written = read + known.read_bytes, written + known.write_bytes
    return Part(
        tenant=UNKNOWN,
        disk=HOST,
        operations=None,
        read_bytes=read,
        write_bytes=written,
        read_bytes_most=read,
        write_bytes_most=written,
        at_most=True,
    )


class Period(_Value):
    """One period, for those who watch: the disks that are slow, and whether it ends a span of the record.

    span: begins with the first period after processes were last read, and has uses of processes only once they are
    read again.
    """

    span: Span
    slow: tuple[Slow, ...] = ()
    kept: bool = False


class Began(_Value):
    """The watch began, or went on after a pause. lacks: what the host does not count, each with its remedy."""

    lacks: tuple[str, ...] = ()


class Paused(_Value):
    """The watch was interrupted, or ended. dropped: slow times that were shown but not kept."""

    dropped: int = 0


class _At(_Value):
    """When a row's span ended, and how long it was."""

    at_ns: int
    length_ns: int


class DiskRow(Disk, _At):
    """A disk in a span."""


class TenantRow(Part, _At):
    """A tenant's part in a span."""


class WaitRow(_At):
    """How long some task of a tenant waited for a disk in a span."""

    tenant: str
    waited_ns: int


class PairRow(Pair, _At):
    """Who waited for whom in a span."""


def _pairs(span: Span) -> Iterator[PairRow]:
    for pair in span.pairs:
        yield PairRow.model_construct(at_ns=span.at_ns, length_ns=span.pairs_ns, **pair.model_dump())


def _disks(span: Span) -> Iterator[DiskRow]:
    for disk in span.disks:
        yield DiskRow.model_construct(at_ns=span.at_ns, length_ns=span.length_ns, **disk.model_dump())


def _tenants(span: Span) -> Iterator[TenantRow]:
    for part in parts(span):
        yield TenantRow.model_construct(at_ns=span.at_ns, length_ns=span.length_ns, **part.model_dump())


def _waits(span: Span) -> Iterator[WaitRow]:
    for tenant, waited_ns in span.waited_ns.items():
        yield WaitRow.model_construct(at_ns=span.at_ns, length_ns=span.length_ns, tenant=tenant, waited_ns=waited_ns)


Line = Span | Slow | Stalled | Began | Paused


class WatchRecord(JobRecord[WatchJob]):
    """The record of a watch: a line for each span, and for each time at which a disk began or ceased to be slow."""

    KIND = "watch"
    JOBS = (WatchJob,)
    TABLES = (
        Tabled("disks", Span, DiskRow, _disks),
        Tabled("tenants", Span, TenantRow, _tenants),
        Tabled("waits", Span, WaitRow, _waits),
        Tabled("pairs", Span, PairRow, _pairs),
    )
    stream = Stream[Line](span=Span, slow=Slow, stalled=Stalled, began=Began, paused=Paused)

    def spans(self) -> Iterator[Span]:
        return (line for line in self.stream if isinstance(line, Span))

    @property
    def watched_ns(self) -> int:
        """How long it has watched, pauses not included."""
        return sum(span.length_ns for span in self.spans())
