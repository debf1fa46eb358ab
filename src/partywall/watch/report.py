"""A watch as text for a terminal, as one page, and as files for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import altair as alt
from rich.console import Console
from rich.text import Text

from partywall import units
from partywall.core.report import page
from partywall.core.report.charts import BAND, CATEGORIES, HEIGHT, MUTED, TREATED, WIDTH, AnyChart, inlined, titled
from partywall.core.report.compared import figures_of
from partywall.core.report.files import Files
from partywall.core.report.terminal import listed
from partywall.watch import sentences
from partywall.watch.record import HOST, REST, UNKNOWN, WAYS, Disk, Share, Span, WatchFindings, parts, shares

DISKS_DRAWN = 4
TENANTS_DRAWN = 5
TENANTS_LISTED = 30
SLOW_LISTED = 100
NOBODY, OTHERS = "no watched tenant", "other tenants"
LEAST_EXCESS = 1e-9
"""Sums of shares are wrong by less."""


def headline(findings: WatchFindings) -> str:
    """The result in one line."""
    length = units.format_duration(findings.whole.length_ns if findings.whole else 0)
    blind = sentences.unjudged(findings)
    if not findings.slow and blind:
        others = "; no other disk was slow" if len(findings.whole.disks if findings.whole else ()) > len(blind) else ""
        return f"Watched for {length}: {', '.join(blind)} could not be judged{others}"
    if not findings.slow:
        return f"Watched for {length}: no disk was slow"
    disks = list(dict.fromkeys(slow.disk for slow in findings.slow))
    slow_ns = sum(slow.length_ns for slow in findings.slow)
    took = f"{units.counted(len(findings.slow) + findings.dropped, 'time')}, {units.format_duration(slow_ns)} in all"
    return f"Watched for {length}: {', '.join(disks)} {'was' if len(disks) == 1 else 'were'} slow {took}"


def notes(findings: WatchFindings) -> Iterator[str]:
    """What a reader must know about the figures."""
    if findings.slow:
        yield sentences.HINT
    yield from _unjudged(findings)
    if findings.whole and any(use.disk in (HOST, REST) for use in findings.whole.uses):
        yield sentences.AT_MOST
    yield from (f"missing: {text}" for text in findings.lacks)
    if findings.gaps:
        yield f"it was interrupted and continued {units.counted(findings.gaps, 'time')}; the pauses are not in it"
    if findings.whole and findings.whole.late:
        yield f"{units.counted(findings.whole.late, 'period')} are longer, because the reader was late"
    if findings.whole and findings.whole.left_out:
        yield f"in some spans up to {units.counted(findings.whole.left_out, 'tenant')} with the fewest bytes left out"
    if findings.dropped:
        yield f"of {findings.dropped} slow times only the number is known, because there were too many"


def _unjudged(findings: WatchFindings) -> Iterator[str]:
    for disk in findings.whole.disks if findings.whole else ():
        if disk.unjudged_ns:
            yield (
                f"{disk.disk} was saturated for {units.format_duration(disk.saturated_ns)}, and for "
                f"{units.format_duration(disk.unjudged_ns)} of that its usual latency was not known yet, so it was not "
                "judged; state a limit with --latency, or watch longer: it is known after 60 periods in which the disk "
                "was used"
            )


def show(findings: WatchFindings, console: Console) -> None:
    """Everything, at the end."""
    console.print(Text(headline(findings), style="bold"), soft_wrap=True)
    whole = findings.whole
    if whole is not None:
        console.print(listed(sentences.DISKS, [sentences.disk_cells(disk, whole.length_ns) for disk in whole.disks]))
        if whole.uses:
            console.print(listed(sentences.TENANTS, sentences.tenant_cells(whole, TENANTS_DRAWN)))
    for slow in findings.slow[:SLOW_LISTED]:
        console.print(Text(sentences.sentence(slow)), soft_wrap=True)
    for note in notes(findings):
        console.print(Text(f"note: {note}"), soft_wrap=True)


_BOUNDS = f"These are at most what a tenant did here; {UNKNOWN}: which of them did it is not known."


def all_charts(findings: WatchFindings) -> dict[str, tuple[str, str, AnyChart]]:
    """(title, caption, chart) by id: two of each disk that did something, the busiest disks first."""
    drawn: dict[str, tuple[str, str, AnyChart]] = {}
    counted = findings.whole.counted if findings.whole else ()
    disks = [disk for disk in (findings.whole.disks if findings.whole else ()) if disk.operations]
    for number, disk in enumerate(sorted(disks, key=lambda each: -each.busy_ns)[:DISKS_DRAWN]):
        name = disk.disk
        caption = "Mean time of a request, on a logarithmic axis. Shaded: the disk was slow. Dashed: the stated limit."
        drawn[f"latency-{number}"] = (f"{name}: how long a request takes", caption, latency(findings, name))
        caption = (
            f"Bytes read and written, stacked by tenant. Hover for the tenant. {_BOUNDS if name not in counted else ''}"
        )
        drawn[f"tenants-{number}"] = (f"{name}: who uses it", caption, tenants(findings, name))
    return drawn


def _of(findings: WatchFindings, name: str) -> list[tuple[Span, Disk]]:
    return [(span, disk) for span in findings.spans for disk in span.disks if disk.disk == name]


def _when(begin_ns: float) -> float:
    """Milliseconds since the epoch, as charts count time."""
    return begin_ns / 1e6


def _time(of: list[tuple[Span, Disk]]) -> alt.X:
    """The axis of both charts of a disk."""
    begin, end = _when(of[0][0].at_ns - of[0][0].length_ns), _when(of[-1][0].at_ns)
    axis = alt.Axis(format="%H:%M:%S", labelOverlap=True, tickCount=8)
    return alt.X("at:T", title="time of day", axis=axis, scale=alt.Scale(domain=[begin, end], nice=False))


def latency(findings: WatchFindings, name: str) -> AnyChart:
    """Mean latencies of reads and writes over time."""
    of = _of(findings, name)
    rows = [
        {
            "at": _when(span.at_ns - span.length_ns / 2),
            "what": way,
            # A line has a gap where nothing was read or written.
            "ms": latency_ns / 1e6 if (latency_ns := disk.latency_ns(way)) else None,
            "busy": disk.busy_ns / span.length_ns,
        }
        for span, disk in of
        for way in WAYS
    ]
    spans = [
        {"at": _when(slow.begin_ns), "end": _when(slow.begin_ns + slow.length_ns), "text": sentences.sentence(slow)}
        for slow in findings.slow_of(name)[:SLOW_LISTED]
    ]
    shaded = inlined(spans).mark_rect(color=TREATED, opacity=0.16).encode(x=_time(of), x2="end:T", tooltip="text:N")
    lines = (
        inlined(rows)
        .mark_line(strokeWidth=1.5, point={"size": 12})
        .encode(
            x=_time(of),
            y=alt.Y("ms:Q", title="ms", scale=alt.Scale(type="log")),
            color=alt.Color("what:N", title=None, sort=list(WAYS), scale=alt.Scale(domain=list(WAYS))),
            strokeDash=alt.StrokeDash("what:N", legend=None, sort=list(WAYS)),
            tooltip=["what:N", alt.Tooltip("ms:Q", format=".3~g"), alt.Tooltip("busy:Q", format=".0%")],
        )
    )
    layers = [shaded, lines] if spans else [lines]
    if limit_ns := findings.about.get("limit_ns"):
        layers.append(inlined([{"ms": limit_ns / 1e6}]).mark_rule(strokeDash=[6, 4], color=MUTED).encode(y="ms:Q"))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def tenants(findings: WatchFindings, name: str) -> AnyChart:
    """Bytes a second of the tenants on a disk over time, stacked."""
    of = _of(findings, name)
    sums: dict[str, float] = {}
    for span, disk in of:
        for share in _drawn(span, disk):
            sums[share.tenant] = sums.get(share.tenant, 0.0) + share.bytes * disk.bytes
    sums.pop(UNKNOWN, None)
    known = sorted(sums, key=lambda tenant: -sums[tenant])[:TENANTS_DRAWN]
    order = [*known, OTHERS, UNKNOWN, NOBODY]
    rows = [
        {"at": _when(span.at_ns - span.length_ns / 2), "tenant": tenant, "mb": disk.bytes * part / span.length_ns * 1e3}
        for span, disk in of
        for tenant, part in _parts(span, disk, known).items()
    ]
    used = [tenant for tenant in order if any(row["tenant"] == tenant and row["mb"] for row in rows)]
    chart: alt.Chart = (
        inlined([row for row in rows if row["tenant"] in used])
        .mark_area(interpolate="step", opacity=0.75)
        .encode(
            x=_time(of),
            y=alt.Y("mb:Q", title="MB/s", stack=True),
            color=alt.Color(
                "tenant:N",
                title=None,
                sort=used,
                scale=alt.Scale(domain=used, range=[*CATEGORIES[: len(used) - (NOBODY in used)], BAND]),
                legend=alt.Legend(labelLimit=320, columns=2),
            ),
            order=alt.Order("rank:Q"),
            tooltip=["tenant:N", alt.Tooltip("mb:Q", format=".3~g", title="MB/s")],
        )
        .transform_calculate(rank=f"indexof({json.dumps(used)}, datum.tenant)")
        .properties(width=WIDTH, height=HEIGHT)
    )
    return chart


def _drawn(span: Span, disk: Disk) -> list[Share]:
    """The shares of a disk's bytes; upper bounds only if there is nothing better."""
    return [share for share in shares(span, disk) if not share.at_most or disk.disk not in span.counted]


def _parts(span: Span, disk: Disk, known: list[str]) -> dict[str, float]:
    """The parts of a disk's bytes by tenant. All of them, so that areas do not lean into a gap."""
    drawn = _drawn(span, disk)
    parts = dict.fromkeys((*known, OTHERS, UNKNOWN, NOBODY), 0.0)
    # Bytes of tenants on all disks may be more than those of this disk: see `record.parts`.
    excess = sum(share.bytes for share in drawn) - 1
    for share in drawn:
        place = share.tenant if share.tenant in parts else OTHERS
        parts[place] += max(0.0, share.bytes - max(0.0, excess))
    parts[UNKNOWN if excess > LEAST_EXCESS else NOBODY] += max(0.0, 1 - sum(parts.values()))
    return parts


def render(findings: WatchFindings) -> str:
    """The whole page."""
    drawn, whole = all_charts(findings), findings.whole
    return page.framed(
        "watch.html.j2",
        {identity: page.fluid(chart) for identity, (_, _, chart) in drawn.items()},
        findings=findings,
        headline=headline(findings),
        notes=list(notes(findings)),
        disk_columns=sentences.DISKS,
        disks=[sentences.disk_cells(disk, whole.length_ns) for disk in whole.disks] if whole else [],
        tenant_columns=sentences.TENANTS,
        tenants=sentences.tenant_cells(whole, TENANTS_LISTED) if whole else [],
        slow=[sentences.sentence(slow) for slow in findings.slow[:SLOW_LISTED]],
        more=max(0, len(findings.slow) - SLOW_LISTED) + findings.dropped,
        figures=[(identity, title, caption) for identity, (title, caption, _) in drawn.items()],
        host=page.facts(findings.host),
        json=_json(findings),
    )


def rows(findings: WatchFindings) -> list[dict[str, Any]]:
    """One row for each disk, and one for each tenant on it, whose figures are a second's means."""
    if (whole := findings.whole) is None:
        return []
    seconds = whole.length_ns / 1e9
    every: list[dict[str, Any]] = [
        {
            "disk": disk.disk,
            "tenant": "all",
            "read_bps": disk.read_bytes / seconds,
            "write_bps": disk.write_bytes / seconds,
            "operations_per_s": disk.operations / seconds,
            "busy": disk.busy_ns / whole.length_ns,
            "queued": disk.queued(whole.length_ns),
            "read_latency_ns": disk.latency_ns("reads"),
            "write_latency_ns": disk.latency_ns("writes"),
            "slow_s": sum(slow.length_ns for slow in findings.slow_of(disk.disk)) / 1e9,
            "slow_times": len(findings.slow_of(disk.disk)),
            "saturated_s": disk.saturated_ns / 1e9,
            "unjudged_s": disk.unjudged_ns / 1e9,
        }
        for disk in whole.disks
    ]
    every += [
        {
            "disk": part.disk if part.disk in {disk.disk for disk in whole.disks} else "all",
            "tenant": part.tenant,
            "read_bps": part.read_bytes / seconds,
            "write_bps": part.write_bytes / seconds,
            "operations_per_s": None if part.operations is None else part.operations / seconds,
            "at_most": part.at_most,
            "read_bps_most": part.read_bytes_most / seconds,
            "write_bps_most": part.write_bytes_most / seconds,
        }
        for part in parts(whole)
    ]
    return every


def _json(findings: WatchFindings) -> str:
    """The findings without the spans, which the tables have."""
    content = findings.model_dump(mode="json", exclude={"spans", "whole", "host"})
    whole = findings.whole
    more = {
        "length_ns": whole.length_ns if whole else 0,
        "waited_ns": whole.waited_ns.get(HOST) if whole else None,
        "uses": rows(findings),
    }
    return json.dumps(content | more, indent=2) + "\n"


COMPARED = {
    "read_bps": ("read", "B/s"),
    "write_bps": ("written", "B/s"),
    "operations_per_s": ("operations", "/s"),
    "busy": ("busy", "%"),
    "queued": ("queued", ""),
    "read_latency_ns": ("time of a read", "ns"),
    "write_latency_ns": ("time of a write", "ns"),
    "slow_s": ("slow", "s"),
    "slow_times": ("times that it was slow", ""),
}

FILES: Files[WatchFindings] = Files(
    of="a watch",
    show=show,
    documents={"html": ("report.html", render), "json": ("findings.json", _json)},
    rows=rows,
    table="uses.csv",
    compared=lambda findings: figures_of(rows(findings), ("disk", "tenant"), COMPARED),
    charts=lambda findings: {
        identity: titled(chart, title) for identity, (title, _, chart) in all_charts(findings).items()
    },
    headline=headline,
    goals=lambda findings: int(findings.about.get("limit_ns") is not None),
)
"""Formats."""
