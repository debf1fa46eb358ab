"""Rows of a load's report: its headline, times and seconds, for text, page and other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from partywall import units
from partywall.core.report.compared import Figure
from partywall.core.report.latency import known_quantiles
from partywall.core.stats.histogram import Histogram, bucket_bounds
from partywall.model.load_run import LabelRow, LoadRun

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


def headline(run: LoadRun) -> str:
    """The result in one sentence."""
    total = _merged(label.corrected for label in run.labels if label.sort == "http")
    shares = zip(("half", "99 %"), known_quantiles(total.counts, (0.5, 0.99)), strict=True)
    times = "".join(f", {share} within {units.format_duration(at)}" for share, at in shares if at is not None)
    errors = sum(count for _, _, count in run.errors)
    failed = f", {units.counted(errors, 'error')}" if errors else ", no errors"
    early = ", ended early" if run.ended_early else ""
    return f"{units.format_number(run.rate)} responses/s{times}{failed}{early}"


def compared(run: LoadRun) -> list[Figure]:
    """The whole load in figures, to show beside those of another."""

    def figure(of: str, name: str, value: float, unit: str) -> Figure:
        return Figure(of, value, unit, *run.intervals.get(name, (None, None)))

    errors = sum(count for _, _, count in run.errors)
    figures = [
        figure("responses", "rate", run.rate, "/s"),
        Figure("errors", errors),
        Figure("errors, of all requests", errors / max(run.requests, errors, 1), "%"),
        Figure("seconds with a good generator", run.good / run.judged if run.judged else 0.0, "%"),
        *([] if run.available is None else [Figure("seconds in which the service was available", run.available, "%")]),
        Figure("length", run.length_s, "s"),
        *_times("", _merged(label.corrected for label in run.labels if label.sort == "http").counts, figure),
    ]
    for label in run.labels if len(run.labels) > 1 else ():
        about = label.name if label.sort == "http" else f"{label.sort} {label.name}"
        figures += _times(f"{about}: ", label.corrected, lambda of, _name, *rest: Figure(of, *rest))
    return figures + [
        Figure(f"{series.host}: {series.group}, {series.name}", series.mean, series.unit.replace("1/s", "/s"))
        for series in run.monitors
        if series.mean is not None
    ]


COMPARED = ("p50", "p90", "p99")


def _times(about: str, counts: Mapping[int, int], figure: Callable[[str, str, float, str], Figure]) -> list[Figure]:
    values = known_quantiles(counts, [SHARES[name] for name in COMPARED])
    return [
        figure(f"{about}response time {name}", name, value, "ns")
        for name, value in zip(COMPARED, values, strict=True)
        if value is not None
    ]


def _merged(histograms: Iterable[Mapping[int, int]]) -> Histogram:
    total: dict[int, int] = {}
    for counts in histograms:
        for bucket, count in counts.items():
            total[bucket] = total.get(bucket, 0) + count
    return Histogram(total)


def time_rows(label: LabelRow) -> list[tuple[str, ...]]:
    """(name, done, failed, mean, standard deviation, percentiles, longest), and a row for each part of the time."""
    head = (f"{label.done}", f"{label.failed}", _shown(label.mean_ns), _shown(label.deviation_ns))
    name = label.name if label.sort == "http" else f"{label.sort} {label.name}"
    rows = [(name, *head, *_tops(label.corrected))]
    parts = (("raw", label.raw), ("first byte", label.first_byte), ("body", label.body))
    # If all bodies arrived with their headers, their times are 0 and the row is left out.
    return rows + [(f"\u2003{what}", "", "", "", "", *_tops(counts)) for what, counts in parts if any(counts)]


def other_rows(run: LoadRun) -> list[tuple[str, ...]]:
    others = (("connecting", run.connect), ("TLS", run.tls), ("lateness", run.lateness))
    return [(what, "", "", "", "", *_tops(counts)) for what, counts in others if counts]


GENERATOR_HEADS = ("generator", "requests", "failed", "p50", "p99", "busy cores", "good seconds", "clock within")


def generator_rows(run: LoadRun) -> list[tuple[str, ...]]:
    """A row for each of several generators, under GENERATOR_HEADS."""
    rows: list[tuple[str, ...]] = []
    for each in run.generators:
        p50, p99 = (_shown(at) for at in known_quantiles(each.corrected, (0.5, 0.99)))
        clock = "–" if each.clock_error_ns is None else units.format_duration(each.clock_error_ns)
        about = [each.place] if each.place not in ("", each.name) else []
        about += ["emulated"] if each.emulated else []
        name = f"{each.name} ({', '.join(about)})" if about else each.name
        busy, good = units.format_number(each.busy, 2), f"{each.good} of {each.judged}"
        rows.append((name, str(each.requests), str(each.failed), p50, p99, busy, good, clock))
    return rows


def _tops(counts: Mapping[int, int]) -> list[str]:
    longest = bucket_bounds(max(counts))[1] if counts else None
    return [_shown(value) for value in [*known_quantiles(counts, SHARES.values()), longest]]


def _shown(value: float | None) -> str:
    return "–" if value is None else units.format_duration(value)


def second_rows(run: LoadRun) -> list[dict[str, Any]]:
    """One flat row for each second, with the hosts' figures in that second. Unknown values are None."""
    monitors: dict[float, dict[str, float]] = {}
    for series in run.monitors:
        for at_s, value in series.points:
            monitors.setdefault(round(at_s), {})[f"{series.host}: {series.group}, {series.name} ({series.unit})"] = (
                value
            )
    plain = ("at_s", "length_s", "users", "in_flight", "waiting", "rate", "transactions", "errors")
    columns = [f"{series.host}: {series.group}, {series.name} ({series.unit})" for series in run.monitors]
    return [
        {name: getattr(second, name) for name in (*plain, "received_bytes", "sent_bytes", "busy")}
        | {f"response_ns_{name}": second.quantiles_ns.get(name) for name in SHARES}
        | {f"raw_ns_{name}": second.raw_ns.get(name) for name in SHARES}
        | {"good": not second.doubts, "doubts": "; ".join(f"{w} ({f})" for w, f in second.doubts.items())}
        | {column: monitors.get(round(second.at_s), {}).get(column) for column in columns}
        for second in run.seconds
    ]
