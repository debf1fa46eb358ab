"""A load as a report: what a terminal, a page, a notebook and a spreadsheet show of it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from partywall import units
from partywall.core.report.figures import bare_percent
from partywall.core.report.latency import known_quantiles
from partywall.core.report.page import BADGES
from partywall.core.report.value import Chart, Column, Lines, On, Report, Row, Section, Table, shown
from partywall.core.stats.histogram import Histogram, bucket_bounds
from partywall.load.values import GeneratorRow, LabelRow, LoadRun, Series

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
COMPARED = ("p50", "p90", "p99")
ERRORS_SHOWN = 20
TERMS_BRIEF = (
    "response: from the intended start to the last byte; raw: from the actual start; lateness: how late a request left"
)
TERMS = {
    "Response": "From the intended start, when a request was meant to leave, to its last byte. A service that stalls "
    "cannot hide behind a generator that waits for it. Raw: from when its sending began.",
    "Lateness": "How late a request left that had a time to leave at, after its user was free: the generator's fault, "
    "not the service's.",
    "Doubtful": "In that second the generator added to what it measured, for the reason stated. Do not take its "
    "figures for the service's.",
    "Percentiles": "From histograms whose buckets are 0.4 % wide and which merge without loss; mean and standard "
    "deviation are exact.",
}


def _known(key: str, unit: str | None) -> Callable[[Row], str]:
    """The cell of a row that has the figure; empty if the row is not about it."""
    return lambda row: shown(row[key], unit) if key in row else ""


def _compared(key: str, title: str, unit: str) -> Column:
    return Column(key, title, unit, on=On.COMPARISON)


BOUNDS = (Column("asked", "threshold"), Column("found", "found"), Column("verdict", "verdict"))
TIMES = (
    Column("what", ""),
    Column("done", "done", "", on=On.PAGE, text=_known("done", "")),
    Column("failed", "failed", "", on=On.PAGE, text=_known("failed", "")),
    *(Column(key, title, "ns", text=_known(key, "ns")) for key, title in (("mean_ns", "mean"), ("deviation_ns", "sd"))),
    *(Column(name, name, "ns") for name in (*SHARES, "longest")),
)
GENERATORS = (
    Column("generator", "generator"),
    Column("requests", "requests", ""),
    Column("failed", "failed", ""),
    Column("p50", "p50", "ns"),
    Column("p99", "p99", "ns"),
    Column("busy", "busy cores", "", text=lambda row: units.format_number(row["busy"], 2)),
    Column("good", "good seconds", text=lambda row: f"{row['good']} of {row['judged']}"),
    Column("clock_error_ns", "clock within", "ns"),
)
DOUBTFUL = (Column("why", "why doubtful"), Column("helps", "what helps"), Column("seconds", "seconds", ""))
FACTS = (Column("what", ""), Column("value", ""))
WHOLE = (
    Column("what", "", on=On.COMPARISON, is_key=True),
    _compared("rate", "responses", "/s"),
    _compared("errors", "errors", ""),
    _compared("failed", "errors, of all requests", "%"),
    _compared("good", "seconds with a good generator", "%"),
    _compared("available", "seconds in which the service was available", "%"),
    _compared("length_s", "length", "s"),
    *(_compared(name, f"response time {name}", "ns") for name in COMPARED),
)


def report(run: LoadRun) -> Report:
    """Everything that a load found."""
    doubtful = run.judged - run.good
    late = (
        f"requests were sent late: p{late.share * 100:.0f} is {units.format_duration(late.measured_ns)}; if sent on "
        f"time: {units.format_duration(late.on_time_ns)}"
        for late in run.late_effects
    )
    return Report(
        f"{run.title}: {headline(run)}",
        run.outcome,
        goals=len(run.bounds),
        sections=tuple(_sections(run)),
        notes=(*late, *run.notes, *([run.failure] if run.failure else [])),
        warnings=(f"{doubtful} of {run.judged} seconds doubtful",) if doubtful else (),
        terms=TERMS,
        values={each.name: getattr(run, each.name) for each in dataclasses.fields(run)},
        name=run.run,
        about=run.title,
        started_at=run.started,
    )


def headline(run: LoadRun) -> str:
    """The result in one sentence."""
    shares = zip(("half", "99 %"), known_quantiles(_all_requests(run), (0.5, 0.99)), strict=True)
    times = "".join(f", {share} within {units.format_duration(at)}" for share, at in shares if at is not None)
    errors = sum(count for _, _, count in run.errors)
    failed = f", {units.counted(errors, 'error')}" if errors else ", no errors"
    early = ", ended early" if run.ended_early else ""
    return f"{units.format_number(run.rate)} responses/s{times}{failed}{early}"


def _sections(run: LoadRun) -> Iterator[Section]:
    # Of what cannot be divided into seconds, programs have the values.
    bounds = [{"asked": each.asked, "found": each.found, "verdict": BADGES[each.outcome]} for each in run.bounds]
    yield Table("whole", "The whole load", WHOLE, list(_whole(run)), in_rows=False)
    yield Table("bounds", "Thresholds", BOUNDS, bounds, in_rows=False)
    yield Table("times", "Times", TIMES, list(_times(run)), in_rows=False)
    yield Table("generators", "Generators", GENERATORS, list(map(generator_row, run.generators)), in_rows=False)
    rows = [{"why": why, "helps": helps, "seconds": seconds} for why, helps, seconds in run.doubtful]
    yield Table("doubtful", "Doubtful seconds", DOUBTFUL, rows, in_rows=False)
    servers = [f"{what}: {text}" for what, text in run.facts if what == "server"]
    yield Lines("extent", "What was sent", [_extent(run), *servers, TERMS_BRIEF])
    yield Lines("errors", "Errors", list(_errors(run)), more=max(0, len(run.errors) - ERRORS_SHOWN))
    yield Lines("generator-judged", "Can it be believed?", [run.believed])
    from partywall.load import charts  # noqa: PLC0415 - Altair is slow to import

    for id_, (title, caption, draw) in charts.all_charts(run).items():
        yield Chart(id_, title, caption, draw)
    means, columns = _means(run.monitors)
    yield Table("means", "Means of all counters", columns, means, brief=0, in_rows=False)
    facts = [*run.facts, ("timed requests", f"{run.timed}, of them late {run.late}")]
    rows = [{"what": what, "value": text} for what, text in facts]
    yield Table("facts", "How it was carried out", FACTS, rows, brief=0, in_rows=False)
    yield Table("seconds", "Every second", (), second_rows(run))


def _extent(run: LoadRun) -> str:
    deviation = run.rate_deviation
    spread = "" if deviation is None else f", ±{units.format_number(deviation, 2)}/s between seconds"
    seconds = "" if run.available is None else bare_percent(run.available, 2)
    available = seconds and f"; at least half of the requests succeeded in {seconds} of seconds"
    statuses = ", ".join(f"{status} × {count}" for status, count in sorted(run.statuses.items())) or "none"
    return (
        f"{run.responses} responses in {units.format_duration(run.length_s * 1e9)}{spread}; statuses: {statuses}; "
        f"{units.format_bytes(run.received_bytes)} received, {units.format_bytes(run.sent_bytes)} sent{available}"
    )


def _errors(run: LoadRun) -> Iterator[str]:
    if not run.errors:
        yield "errors: none"
    for what, of, count in run.errors[:ERRORS_SHOWN]:
        yield f"error: {count} × {what}{f' of {of}' if of else ''}"


def _times(run: LoadRun) -> Iterator[Row]:
    """A row for each request and transaction, for each part of its time, and for what all have in common."""
    for label in run.labels:
        head = {
            "done": label.done,
            "failed": label.failed,
            "mean_ns": label.mean_ns,
            "deviation_ns": label.deviation_ns,
        }
        yield {"what": _name(label), **head, **_tops(label.corrected)}
        # If all bodies arrived with their headers, their times are 0 and the row is left out.
        parts = (("raw", label.raw), ("first byte", label.first_byte), ("body", label.body))
        yield from ({"what": f"\u2003{what}", **_tops(counts)} for what, counts in parts if any(counts))
    others = (("connecting", run.connect), ("TLS", run.tls), ("lateness", run.lateness))
    yield from ({"what": what, **_tops(counts)} for what, counts in others if counts)


def _name(label: LabelRow) -> str:
    return label.name if label.sort == "http" else f"{label.sort} {label.name}"


def _tops(counts: Mapping[int, int]) -> dict[str, Any]:
    tops = dict(zip(SHARES, known_quantiles(counts, SHARES.values()), strict=True))
    return tops | {"longest": bucket_bounds(max(counts))[1] if counts else None}


def generator_row(each: GeneratorRow) -> Row:
    about = [each.place] if each.place not in ("", each.name) else []
    about += ["emulated"] if each.emulated else []
    p50, p99 = known_quantiles(each.corrected, (0.5, 0.99))
    named = {"generator": f"{each.name} ({', '.join(about)})" if about else each.name, "p50": p50, "p99": p99}
    return named | {
        key: getattr(each, key) for key in ("requests", "failed", "busy", "good", "judged", "clock_error_ns")
    }


def _whole(run: LoadRun) -> Iterator[Row]:
    """The whole load in figures, to show beside those of another, and the times of each name if there are several."""
    errors = sum(count for _, _, count in run.errors)
    low = {f"{name}_low": ends[0] for name, ends in run.intervals.items()}
    high = {f"{name}_high": ends[1] for name, ends in run.intervals.items()}
    whole: dict[str, Any] = {
        "what": "",
        "rate": run.rate,
        "errors": errors,
        "failed": errors / max(run.requests, errors, 1),
        "good": run.good / run.judged if run.judged else 0.0,
        "available": run.available,
        "length_s": run.length_s,
    }
    yield whole | low | high | _tops(_all_requests(run))
    for label in run.labels if len(run.labels) > 1 else ():
        yield {"what": _name(label), **_tops(label.corrected)}


def _all_requests(run: LoadRun) -> Mapping[int, int]:
    return _merged(label.corrected for label in run.labels if label.sort == "http").counts


def _merged(histograms: Iterable[Mapping[int, int]]) -> Histogram:
    total: dict[int, int] = {}
    for counts in histograms:
        for bucket, count in counts.items():
            total[bucket] = total.get(bucket, 0) + count
    return Histogram(total)


def _means(monitors: Iterable[Series]) -> tuple[list[Row], tuple[Column, ...]]:
    """A row for each figure of a host, and a column for each unit, because a column has one."""
    rows: list[Row] = [
        {"figure": f"{each.host}: {each.group}, {each.name}", "shown": f"{units.format_number(each.mean)} {each.unit}"}
        | {f"in {each.unit}": each.mean}
        for each in monitors
        if each.mean is not None
    ]
    every = dict.fromkeys(each.unit for each in monitors)
    compared = (_compared(f"in {unit}", "", unit.replace("1/s", "/s")) for unit in every)
    return rows, (Column("figure", "figure", is_key=True), Column("shown", "mean"), *compared)


def second_rows(run: LoadRun) -> list[dict[str, Any]]:
    """One flat row for each second, with the hosts' figures in that second. Unknown values are None."""
    monitors: dict[float, dict[str, float]] = {}
    columns = [f"{series.host}: {series.group}, {series.name} ({series.unit})" for series in run.monitors]
    for column, series in zip(columns, run.monitors, strict=True):
        for at_s, value in series.points:
            monitors.setdefault(round(at_s), {})[column] = value
    plain = ("at_s", "length_s", "users", "in_flight", "waiting", "rate", "transactions", "errors")
    return [
        {name: getattr(second, name) for name in (*plain, "received_bytes", "sent_bytes", "busy")}
        | {f"response_ns_{name}": second.quantiles_ns.get(name) for name in SHARES}
        | {f"raw_ns_{name}": second.raw_ns.get(name) for name in SHARES}
        | {"good": not second.doubts, "doubts": "; ".join(f"{w} ({f})" for w, f in second.doubts.items())}
        | {column: monitors.get(round(second.at_s), {}).get(column) for column in columns}
        for second in run.seconds
    ]
