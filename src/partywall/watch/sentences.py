"""What a watch says: sentences and cells, as text. Pure, and without the libraries that draw."""

from __future__ import annotations

import time
from collections.abc import Sequence

from partywall import units
from partywall.watch.record import REST, UNKNOWN, WAYS, Disk, Part, Share, Slow, Span, WatchFindings, parts, shares

HINT = (
    "Shares say who used a slow disk at that time. They do not prove who made it slow; "
    "to measure what one tenant costs another: partywall run (docs/watch.md)"
)
MOST_OF_NOBODY = (
    "Most bytes belong to no watched tenant (with cgroup version 1, the kernel flushes buffered writes of any tenant)"
)
NOT_YET = "It is not known yet who used it: bytes of processes are read every two seconds."
NAMED = 3
REST_LEAST = 0.05
AT_MOST = (
    "at most: the kernel counts only the bytes that a tenant's processes ask for on all disks together; "
    f"{UNKNOWN} is what one of these tenants did, but which is not known"
)
DISKS = ("disk", "busy", "read", "written", "reads", "writes", "a read takes", "a write takes", "queued")
TENANTS = ("tenant", "disk", "read", "written", "operations", "share of bytes", "share of operations", "waited")


def clock(at_ns: int) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))


def sentence(slow: Slow) -> str:
    """That a disk has begun or ended to be slow, by how much, and who used it most."""
    took = units.format_duration(slow.length_ns)
    mean = "–" if slow.latency_ns is None else units.format_duration(slow.latency_ns)
    if slow.end_ns is None:
        what = "no request is completed" if slow.by == "stuck" else f"{slow.way} take {mean}"
        head = f"{clock(slow.begin_ns + slow.length_ns)} {slow.disk} has been slow for {took}: {what} ({bound(slow)})"
        state = f"busy {100 * slow.busy:.0f} %, {units.format_number(slow.queued, 2)} requests queued"
        return f"{head}; {state}. {who(slow)}"
    what = "no request was completed" if slow.by == "stuck" else f"{slow.way} took {mean}"
    worst = f", at worst {units.format_duration(slow.worst_ns)}"
    return f"{clock(slow.end_ns)} {slow.disk} was slow for {took}: {what}{worst} ({bound(slow)}). {who(slow)}"


def bound(slow: Slow) -> str:
    """What was exceeded."""
    usual = "" if slow.usual_ns is None else f"usually {units.format_duration(slow.usual_ns)}"
    if slow.by == "limit":
        return ", ".join(part for part in (f"limit {units.format_duration(slow.bound_ns)}", usual) if part)
    return usual if slow.by == "usual" else "some wait"


def who(slow: Slow) -> str:
    """The tenants with the largest shares, and which of them is the likely neighbour."""
    if not slow.shares:
        return NOT_YET if slow.unread else "No tenant that is watched used it."
    listed = "; ".join(share_text(share) for share in slow.shares[:NAMED])
    # At-most shares may be part of the rest, so its size is unknown beside them.
    rest = 0.0 if any(share.at_most for share in slow.shares) else slow.rest
    if rest >= REST_LEAST:
        listed += f"; no watched tenant {100 * rest:.0f} % of bytes"
    if slow.neighbour is not None:
        return f"Likely neighbour: {slow.neighbour.tenant}. Shares: {listed}."
    if rest >= 0.5:
        return f"{MOST_OF_NOBODY}. Largest shares: {listed}."
    alone = len(slow.shares) == 1 and not slow.unread and rest < REST_LEAST and not slow.shares[0].at_most
    return f"No other tenant used it: {listed}." if alone else f"Largest shares: {listed}."


def share_text(share: Share) -> str:
    """A tenant's share in words."""
    most = "at most " if share.at_most else ""
    parts = [f"{most}{100 * share.bytes:.0f} % of bytes"]
    if share.operations is not None:
        parts.insert(0, f"{100 * share.operations:.0f} % of operations")
    waited = f", waited {100 * share.waited:.0f} % of the time" if share.waited is not None else ""
    return f"{share.tenant} {', '.join(parts)}{waited}"


def disk_cells(disk: Disk, length_ns: int) -> list[str]:
    """A disk's means in a span, under DISKS."""
    seconds = length_ns / 1e9
    latencies = [disk.latency_ns(way) for way in WAYS]
    return [
        disk.disk,
        f"{min(100.0, 100 * disk.busy_ns / length_ns):.0f} %",
        *(f"{units.format_bytes(count / seconds)}/s" for count in (disk.read_bytes, disk.write_bytes)),
        *(f"{units.format_number(count / seconds, 3)}/s" for count in (disk.reads, disk.writes)),
        *("–" if latency is None else units.format_duration(latency) for latency in latencies),
        units.format_number(disk.queued(length_ns), 2),
    ]


def tenant_cells(span: Span, most: int) -> list[list[str]]:
    """The tenants with the most bytes in a span, under TENANTS. What is of an unknown tenant is always among them."""
    seconds, known = span.length_ns / 1e9, {disk.disk: shares(span, disk) for disk in span.disks}
    every = parts(span)
    rows = []
    for part in [*every[:most], *(part for part in every[most:] if part.tenant == UNKNOWN)]:
        share = _share(known.get(part.disk, ()), part.tenant)
        waited = span.waited_ns.get(part.tenant)
        rows.append(
            [
                part.tenant,
                part.disk if part.disk in known else "other disks" if part.disk == REST else "all disks",
                *(_most(count / seconds, part) for count in (part.read_bytes_most, part.write_bytes_most)),
                "–" if part.operations is None else f"{units.format_number(part.operations / seconds, 3)}/s",
                "–" if share is None else f"{100 * share.bytes:.0f} %",
                "–" if share is None or share.operations is None else f"{100 * share.operations:.0f} %",
                "–" if waited is None else f"{100 * waited / span.length_ns:.0f} %",
            ]
        )
    return rows


def _most(per_second: float, part: Part) -> str:
    text = f"{units.format_bytes(per_second)}/s"
    return f"at most {text}" if part.at_most and part.tenant != UNKNOWN else text


def unjudged(findings: WatchFindings) -> list[str]:
    """The disks of which nothing can be said: whenever they were saturated, their usual latency was not known yet."""
    disks = findings.whole.disks if findings.whole else ()
    return [disk.disk for disk in disks if 0 < disk.saturated_ns == disk.unjudged_ns]


def _share(every: Sequence[Share], tenant: str) -> Share | None:
    return next((share for share in every if share.tenant == tenant), None)
