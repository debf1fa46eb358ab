"""A watch as a report: what a terminal, a page, a notebook and a spreadsheet show of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from partywall import units
from partywall.core.report.value import Chart, Column, Lines, On, Report, Row, Table, shown
from partywall.watch import sentences
from partywall.watch.findings import WatchFindings
from partywall.watch.record import HOST, REST, UNKNOWN, Disk, Period, Span, parts, shares
from partywall.watch.stalls.said import FOR, SUSPECTS

DISKS_DRAWN = 4
TENANTS_BRIEF, TENANTS_LISTED = 5, 30
SLOW_LISTED = 100
BOUNDS = f" These are at most what a tenant did here; {UNKNOWN}: which of them did it is not known."
LATENCY = "Mean time of a request, on a logarithmic axis. Shaded: the disk was slow. Dashed: the stated limit."


def _rate(key: str, row: Row) -> str:
    """The bytes a second of a tenant, or the most that they can be."""
    is_bound = row["at_most"] and row["tenant"] != UNKNOWN
    return f"{'at most ' if is_bound else ''}{shown(row[key], 'B/s')}"


def _place(disk: str) -> str:
    return f"{disk} disks" if disk in PLACES.values() else disk


def _suspect(name: str) -> str:
    """A group, or what is not one, in words."""
    return SUSPECTS.get(name, name)


DISKS = (
    Column("disk", "disk", is_key=True),
    Column("busy", "busy", "%"),
    Column("read_bps", "read", "B/s"),
    Column("write_bps", "written", "B/s"),
    Column("reads_per_s", "reads", "/s"),
    Column("writes_per_s", "writes", "/s"),
    Column("read_latency_ns", "a read takes", "ns"),
    Column("write_latency_ns", "a write takes", "ns"),
    Column("queued", "queued", ""),
    Column("slow_s", "slow", "s", on=On.COMPARISON),
    Column("slow_times", "times that it was slow", "", on=On.COMPARISON),
)
PLACES = {HOST: "all", REST: "other"}
"""What is said in place of a disk, of bytes that the kernel counts on several disks together."""
TENANTS = (
    Column("tenant", "tenant", is_key=True),
    Column("disk", "disk", is_key=True, text=lambda row: _place(row["disk"])),
    Column("read_bps", "read", "B/s", text=partial(_rate, "read_bps_most")),
    Column("write_bps", "written", "B/s", text=partial(_rate, "write_bps_most")),
    Column("operations_per_s", "operations", "/s"),
    Column("bytes_share", "share of bytes", "%"),
    Column("operations_share", "share of operations", "%"),
    Column("waited", "waited", "%"),
)
PAIRS_BRIEF, PAIRS_LISTED, STALLS_LISTED = 5, 30, 100
WORTH_SAYING = 0.02
"""The share of the time from which a wait is in the headline."""
BY_USE = (
    "Time in which a group waited while others used what it waited for, divided by use. That is no proof: `partywall "
    "blame` does the experiment."
)
PAIRS = (
    Column("victim", "who waited", is_key=True),
    Column("resource", "for", is_key=True, text=lambda row: FOR[row["resource"]]),
    Column("suspect", "because of", is_key=True, text=lambda row: _suspect(row["suspect"])),
    Column("stalled_s", "waited", "s"),
    Column("stalled_share", "of the time", "%"),
)
TERMS = {
    "Slow": "The disk was busy for at least 90 % of each period, and its reads or writes took longer than the stated "
    "limit, or much longer than usual for this disk.",
    "Usual": "The median of the last 600 periods in which the disk was not slow.",
    "Likely neighbour": "The only tenant with at least half of the disk's operations or bytes at that time, if others "
    "used it too. None if only its bytes on all disks are known, or if most bytes belong to no watched tenant. This is "
    "a coincidence in time, not a proof.",
    "Busy": "The share of the time in which at least one request was in flight. A disk that serves many requests at "
    "once can do more although it is always busy.",
    "Queued": "The mean number of requests in flight: their times divided by the length of the time.",
    "Waited": "The share of the time in which at least one task of the tenant waited for a disk (PSI).",
    "All disks, at most": "The kernel counts only the bytes that these processes ask for, on all disks together. "
    "Tenants together never did more than the disks.",
    "Who waited for whom": BY_USE,
    "(unknown)": "Bytes that one of the tenants marked “at most” did, but which of them is not known.",
    "Not judged": "The disk was saturated before its usual latency was known, and no limit was stated.",
}


def report(findings: WatchFindings) -> Report:
    """Everything that a watch found."""
    whole, slow = findings.whole, findings.slow
    said = [sentences.sentence(each) for each in slow[:SLOW_LISTED]]
    more = max(0, len(slow) - SLOW_LISTED) + findings.dropped
    waited = [each.text for each in findings.stalls[:STALLS_LISTED]]
    disks, pairs = [_disk(disk, whole.length_ns) | _slow(disk, findings) for disk in whole.disks], _pairs(whole)
    has_limit = findings.job.limit_ns is not None
    return Report(
        headline(findings),
        findings.outcome,
        goals=int(has_limit),
        sections=(
            Lines("slow", "When a disk was slow", said, more),
            Table("disks", "Disks", DISKS, disks, lead="Means over the whole time."),
            _tenants(whole),
            pairs,
            Lines("stalls", "When a group waited for others", waited, max(0, len(findings.stalls) - STALLS_LISTED)),
            *_charts(findings),
        ),
        notes=tuple(_notes(findings)),
        terms=TERMS,
        values={
            "name": findings.name,
            "about": findings.about,
            "lacks": findings.lacks,
            "slow": slow,
            "pairs": pairs.rows,
            "stalls": findings.stalls,
            "dropped": findings.dropped,
            "gaps": findings.gaps,
            "ended": findings.ended,
            "length_ns": whole.length_ns,
            "waited_ns": whole.waited_ns.get(HOST),
        },
        name=findings.name,
        started_at=findings.about.get("started_at", ""),
        host=findings.host,
    )


def live(seen: Period) -> Report | None:
    """One period, for those who watch. None until bytes of processes are known: both tables are of the same time."""
    span = seen.span
    if span.unread:
        return None
    slow = ", ".join(f"{each.disk} slow for {units.format_duration(each.length_ns)}" for each in seen.slow)
    unjudged = ", ".join(disk.disk for disk in span.disks if disk.unjudged_ns)
    blind = f"; not judged, because its usual latency is not known yet: {unjudged}" if unjudged else ""
    disks = Table("disks", "Disks", DISKS, [_disk(disk, span.length_ns) for disk in span.disks])
    return Report(
        f"{slow or 'no disk is slow'}{_waits(span)}{blind}",
        sections=(disks, _tenants(span), *([_pairs(span)] if span.pairs else [])),
    )


def headline(findings: WatchFindings) -> str:
    """The result in one line."""
    length, blind = units.format_duration(findings.whole.length_ns), findings.unjudged
    if not findings.slow and blind:
        others = "; no other disk was slow" if len(findings.whole.disks) > len(blind) else ""
        return f"Watched for {length}: {', '.join(blind)} could not be judged{others}{_waits(findings.whole)}"
    if not findings.slow:
        return f"Watched for {length}: no disk was slow{_waits(findings.whole)}"
    disks = list(dict.fromkeys(slow.disk for slow in findings.slow))
    slow_ns = sum(slow.length_ns for slow in findings.slow)
    took = f"{units.counted(len(findings.slow) + findings.dropped, 'time')}, {units.format_duration(slow_ns)} in all"
    were = "was" if len(disks) == 1 else "were"
    return f"Watched for {length}: {', '.join(disks)} {were} slow {took}{_waits(findings.whole)}"


def _waits(span: Span) -> str:
    """The longest wait for another group, as the end of a sentence; nothing if none is worth saying."""
    pairs = [pair for pair in span.pairs if pair.suspect not in SUSPECTS and pair.victim not in SUSPECTS]
    longest = max(pairs, key=lambda pair: pair.stalled_ns, default=None)
    if longest is None or longest.stalled_ns < WORTH_SAYING * span.pairs_ns:
        return ""
    share = f"{100 * longest.stalled_ns / span.pairs_ns:.0f} % of the time"
    return f"; {longest.victim} waited for {FOR[longest.resource]} {share} because of {longest.suspect} (by use)"


def _pairs(span: Span) -> Table:
    """Who waited for whom, the longest waits first."""
    rows = [
        {
            "victim": pair.victim,
            "suspect": pair.suspect,
            "resource": pair.resource,
            "stalled_s": pair.stalled_ns / 1e9,
            "stalled_share": pair.stalled_ns / span.pairs_ns,
        }
        for pair in sorted(span.pairs, key=lambda pair: -pair.stalled_ns)
    ]
    return Table(
        "pairs", "Who waited for whom", PAIRS, rows, lead=BY_USE, in_rows=False, brief=PAIRS_BRIEF, most=PAIRS_LISTED
    )


def _notes(findings: WatchFindings) -> Iterator[str]:
    """What a reader must know about the figures."""
    whole = findings.whole
    if findings.slow:
        yield sentences.HINT
    for disk in whole.disks:
        if disk.unjudged_ns:
            yield (
                f"{disk.disk} was saturated for {units.format_duration(disk.saturated_ns)}, and for "
                f"{units.format_duration(disk.unjudged_ns)} of that its usual latency was not known yet, so it was not "
                "judged; state a limit with --latency, or watch longer: it is known after 60 periods in which the disk "
                "was used"
            )
    if any(use.disk in PLACES for use in whole.uses):
        yield sentences.AT_MOST
    yield from (f"missing: {text}" for text in findings.lacks)
    if findings.gaps:
        yield f"it was interrupted and continued {units.counted(findings.gaps, 'time')}; the pauses are not in it"
    if whole.late:
        yield f"{units.counted(whole.late, 'period')} are longer, because the reader was late"
    if whole.left_out:
        yield f"in some spans up to {units.counted(whole.left_out, 'tenant')} with the fewest bytes left out"
    if findings.dropped:
        yield f"of {findings.dropped} slow times only the number is known, because there were too many"


def _disk(disk: Disk, length_ns: int) -> dict[str, Any]:
    """A disk's means in a span."""
    seconds = length_ns / 1e9
    return {
        "disk": disk.disk,
        "tenant": "all",
        "read_bps": disk.read_bytes / seconds,
        "write_bps": disk.write_bytes / seconds,
        "operations_per_s": disk.operations / seconds,
        "reads_per_s": disk.reads / seconds,
        "writes_per_s": disk.writes / seconds,
        "busy": min(1.0, disk.busy_ns / length_ns),
        "queued": disk.queued(length_ns),
        "read_latency_ns": disk.latency_ns("reads"),
        "write_latency_ns": disk.latency_ns("writes"),
    }


def _slow(disk: Disk, findings: WatchFindings) -> dict[str, Any]:
    """How long and how often a disk was slow or saturated."""
    slow = findings.slow_of(disk.disk)
    return {
        "slow_s": sum(each.length_ns for each in slow) / 1e9,
        "slow_times": len(slow),
        "saturated_s": disk.saturated_ns / 1e9,
        "unjudged_s": disk.unjudged_ns / 1e9,
    }


def _tenants(span: Span) -> Table:
    """The tenants' parts, the largest first. What is of an unknown tenant is always among them."""
    rows = list(_uses(span))
    return Table(
        "tenants", "Tenants", TENANTS, rows, brief=TENANTS_BRIEF, most=TENANTS_LISTED,
        keeps=lambda row: row["tenant"] == UNKNOWN,
    )  # fmt: skip


def _uses(span: Span) -> Iterator[dict[str, Any]]:
    seconds, known = span.length_ns / 1e9, {disk.disk: shares(span, disk) for disk in span.disks}
    for part in parts(span):
        share = next((each for each in known.get(part.disk, ()) if each.tenant == part.tenant), None)
        waited_ns = span.waited_ns.get(part.tenant)
        yield {
            "disk": PLACES.get(part.disk, part.disk),
            "tenant": part.tenant,
            "read_bps": part.read_bytes / seconds,
            "write_bps": part.write_bytes / seconds,
            "operations_per_s": None if part.operations is None else part.operations / seconds,
            "at_most": part.at_most,
            "read_bps_most": part.read_bytes_most / seconds,
            "write_bps_most": part.write_bytes_most / seconds,
            "bytes_share": share and share.bytes,
            "operations_share": share and share.operations,
            "waited": None if waited_ns is None else waited_ns / span.length_ns,
        }


def _charts(findings: WatchFindings) -> Iterator[Chart]:
    """Two of each disk that did something, the busiest disks first."""
    from partywall.watch import charts  # noqa: PLC0415 - Altair is slow to import

    disks = sorted((disk for disk in findings.whole.disks if disk.operations), key=lambda disk: -disk.busy_ns)
    for number, disk in enumerate(disks[:DISKS_DRAWN]):
        name = disk.disk
        takes, uses = f"{name}: how long a request takes", f"{name}: who uses it"
        caption = "Bytes read and written, stacked by tenant. Hover for the tenant."
        caption += "" if name in findings.whole.counted else BOUNDS
        yield Chart(f"latency-{number}", takes, LATENCY, partial(charts.latency, findings, name))
        yield Chart(f"tenants-{number}", uses, caption, partial(charts.tenants, findings, name))
