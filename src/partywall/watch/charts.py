"""Charts of a watch: how long requests take, and who uses a disk, over time. From findings to an Altair chart."""

from __future__ import annotations

import json

import altair as alt

from partywall.core.report.charts import BAND, CATEGORIES, HEIGHT, MUTED, TREATED, WIDTH, AnyChart, inlined
from partywall.watch import sentences
from partywall.watch.findings import WatchFindings
from partywall.watch.record import UNKNOWN, WAYS, Disk, Share, Span, shares

TENANTS_DRAWN = 5
SLOW_DRAWN = 100
NOBODY, OTHERS = "no watched tenant", "other tenants"
LEAST_EXCESS = 1e-9
"""Sums of shares are wrong by less."""


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
        for slow in findings.slow_of(name)[:SLOW_DRAWN]
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
    if limit_ns := findings.job.limit_ns:
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
