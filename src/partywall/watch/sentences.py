"""What a watch says while it goes on and afterwards, in sentences. Pure."""

from __future__ import annotations

import time

from partywall import units
from partywall.watch.record import UNKNOWN, Share, Slow

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
