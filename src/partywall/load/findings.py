"""Reads a load's directory for reports: sums its Parquet files, and judges them by the plan's thresholds.

Only reads files, so it can be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from partywall import units
from partywall.agent import memory_check
from partywall.core.report.latency import quantiles
from partywall.errors import TrialError
from partywall.load import monitors
from partywall.load.availability import availability
from partywall.load.document import LoadPlan
from partywall.load.health import ADVICE, Health, Reason
from partywall.load.intervals import intervals
from partywall.load.record import SHARED, LoadDirectory
from partywall.load.second import HISTOGRAMS, Error, Second, Timing, add_pairs, histogram
from partywall.load.summary import Summary, summarise
from partywall.load.thresholds import judge, overall
from partywall.load.values import GeneratorRow, LabelRow, Late, LoadRun, SecondPoint, Series

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
_COUNTS = ("users", "in_flight", "waiting", "iterations", "requests", "sent_bytes", "received_bytes")
_THREAD = ("timed", "late", "busy_ns", "cpu_ns", "run_delay_ns", "stall_ns_max", "back_pressure", *SHARED)


def load_run(directory: LoadDirectory) -> LoadRun:
    """The findings of a finished or aborted load. TrialError if its tables are missing or empty."""
    about = directory.about()
    seconds, healths = _seconds(directory, about["started"]["labels"])
    if not seconds:
        raise TrialError(f"{directory.path}: the load ended within its first second")
    begin_ns = about.get("begin_ns") or seconds[0].start_ns
    summary = summarise(seconds, healths, begin_ns, about["started"]["stages_ns"])
    plan = LoadPlan.model_validate(about["plan"]) if about.get("plan") else None
    kept = judge(plan.thresholds if plan else (), summary, about["started"]["labels"])
    labels = about["started"]["labels"]
    read = monitors.series(directory.table("samples"), begin_ns)
    requests = [number for number, label in enumerate(labels) if label["sort"] == "http"]
    return LoadRun(
        run=directory.path.resolve().name,
        title=about.get("title", ""),
        started=about.get("started_at", ""),
        length_s=summary.length_s,
        ended_early=summary.ended_early,
        responses=summary.responses,
        requests=summary.requests,
        rate=summary.rate,
        rate_deviation=summary.rate_deviation,
        received_bytes=summary.received_bytes,
        sent_bytes=summary.sent_bytes,
        seconds=tuple(_point(s, h, begin_ns, labels) for s, h in zip(seconds, healths, strict=True)),
        labels=tuple(_label(labels[number], timing) for number, timing in sorted(summary.timings.items())),
        connect=summary.connect,
        tls=summary.tls,
        lateness=summary.lateness,
        timed=summary.timed,
        late=summary.late,
        errors=tuple(_errors(summary, labels)),
        statuses=summary.statuses,
        monitors=read,
        bounds=tuple(kept),
        outcome=overall(kept, summary, plan.good_seconds if plan else 0.5),
        good=summary.good,
        judged=summary.seconds,
        doubtful=tuple((*ADVICE[reason], n) for reason, n in sorted(summary.doubtful.items(), key=lambda p: -p[1])),
        facts=tuple(_facts(about)),
        notes=(
            *memory_check.warnings(about.get("memory_checked", ())),
            *_early(summary),
            *_repaired(summary),
            *_left_out(about["started"]["origins"]),
            *_dropped(read),
            *about.get("notes", ()),
        ),
        program=about["program"],
        available=availability(summary.full, requests),
        intervals=intervals(summary.full, requests),
        generators=tuple(_generators(directory, about, begin_ns, summary.length_s)),
        late_effects=tuple(
            Late(late.share, late.reported_ns, late.undelayed_ns) for late in summary.late_effects if late.matters
        ),
    )


def _dropped(read: Iterable[Series]) -> Iterable[str]:
    """The hosts whose listeners dropped connections, and how long."""
    for series in read:
        if series.name == monitors.LISTEN_DROPS and (seconds := sum(value > 0 for _, value in series.points)):
            yield (
                f"Connections were dropped before they were accepted in {seconds} of {len(series.points)} seconds "
                f"({series.host}): the server's listen backlog was full. Its clients tried again after a second or "
                "more; that time is the service's. Raise its listen backlog, or use fewer users"
            )


def _early(summary: Summary) -> Iterable[str]:
    if summary.ended_early:
        planned, length = (units.format_duration(s * 1e9) for s in (summary.planned_s, summary.length_s))
        yield f"It ended early, after {length} of {planned}; rates refer to that time, and no threshold counts as kept"


def _repaired(summary: Summary) -> Iterable[str]:
    """What the generator put right by itself, as clients do, and does not count as an error."""
    if summary.resent:
        yield (
            f"{units.counted(summary.resent, 'request')} had to be sent once more, because the server had closed the "
            "kept connection; each counts once, from its first start. Raise the server's keep-alive timeout, or set "
            "keep_alive: false"
        )
    if summary.rerouted:
        yield (
            f"{units.counted(summary.rerouted, 'attempt')} to connect went on to the server's next address, because "
            "one did not answer; the time until then counts"
        )


def _left_out(origins: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Addresses of servers that could not be reached before the start."""
    for origin in origins:
        for reason in origin.get("unreachable", ()):
            yield f"{origin['name']} is not used at {reason}"


def _seconds(directory: LoadDirectory, labels: list[dict[str, str]]) -> tuple[list[Second], list[Health]]:
    seconds: dict[int, Second] = {}
    healths: list[Health] = []
    for row in directory.table("seconds"):
        second = Second(row["start_ns"], row["end_ns"], **{name: row[name] for name in _COUNTS})
        second.connections_opened, second.connections_open = row["connections_opened"], row["connections_open"]
        # Older records do not have them.
        second.resent, second.rerouted = row.get("resent") or 0, row.get("rerouted") or 0
        second.connect, second.tls = _counts(row["connect"]), _counts(row["tls"])
        thread = {name: row[name] for name in _THREAD} | {
            name: _counts(row[name]).items() for name in ("lateness", "undelayed")
        }
        second.threads = [thread | {"length_ns": row["end_ns"] - row["start_ns"]}]
        seconds[row["start_ns"]] = second
        figures = row.get("doubt_figures") or [""] * len(row["doubts"])
        healths.append(Health({Reason(name): text for name, text in zip(row["doubts"], figures, strict=True)}))
    numbers = {(label["name"], label["sort"]): number for number, label in enumerate(labels)}
    for row in directory.table("timings"):
        second = seconds[row["start_ns"]]
        timing = Timing(row["done"], row["failed"], row["sum_ns"], row["sum_squares_s2"])
        for name in HISTOGRAMS:
            setattr(timing, name, _counts(row[name]))
        second.timings[numbers[row["label"], row["sort"]]].merge(timing)
    by_name = {label["name"]: number for number, label in enumerate(labels)}
    for row in directory.table("errors"):
        error = Error(by_name.get(row["label"]), row["kind"], row["detail"])
        seconds[row["start_ns"]].errors[error] += row["count"]
    for row in directory.table("statuses"):
        seconds[row["start_ns"]].statuses[row["status"]] += row["count"]
    return list(seconds.values()), healths


def _generators(
    directory: LoadDirectory, about: Mapping[str, Any], begin_ns: int, length_s: float
) -> Iterable[GeneratorRow]:
    """Each of several generators."""
    elsewhere = {each["name"]: each for each in about.get("generators", ())}
    rows = directory.table("generators") if directory.has("generators") else []
    end_ns = begin_ns + about["started"]["stages_ns"]
    for name in dict.fromkeys(row["generator"] for row in rows):
        own = [row for row in rows if row["generator"] == name]
        inside = [row for row in own if row["start_ns"] < end_ns]
        corrected: dict[int, int] = {}
        for row in own:
            add_pairs(corrected, _counts(row["corrected"]).items())
        sums = {key: sum(row[key] for row in own) for key in ("requests", "responses", "failed")}
        yield GeneratorRow(
            name=name,
            place=elsewhere.get(name, {}).get("place", ""),
            corrected=corrected,
            busy=sum(row["busy_ns"] for row in inside) / 1e9 / length_s if length_s else 0.0,
            good=sum(not row["doubts"] for row in inside),
            judged=len(inside),
            clock_error_ns=elsewhere.get(name, {}).get("clock_error_ns"),
            emulated=elsewhere.get(name, {}).get("emulated", False),
            **sums,
        )


def _counts(pairs: Iterable[Mapping[str, int]]) -> dict[int, int]:
    return {pair["bucket"]: pair["count"] for pair in pairs}


def _point(second: Second, health: Health, begin_ns: int, labels: list[dict[str, str]]) -> SecondPoint:
    total, transactions = Timing(), 0
    for number, timing in second.timings.items():
        if labels[number]["sort"] == "http":
            total.merge(timing)
        elif labels[number]["sort"] == "transaction":
            transactions += timing.done
    busy = [thread["busy_ns"] for thread in second.threads if thread["busy_ns"] is not None]
    return SecondPoint(
        at_s=(second.start_ns - begin_ns) / 1e9,
        length_s=second.length_s,
        users=second.users,
        in_flight=second.in_flight,
        waiting=second.waiting,
        rate=sum(second.statuses.values()) / second.length_s,
        transactions=transactions / second.length_s,
        errors=sum(second.errors.values()),
        received_bytes=second.received_bytes,
        sent_bytes=second.sent_bytes,
        quantiles_ns=_quantiles(total.corrected),
        raw_ns=_quantiles(total.raw),
        busy=sum(busy) / second.length_s / 1e9 if busy else None,
        doubts={ADVICE[reason][0]: figure for reason, figure in health.doubts.items()},
    )


def _quantiles(counts: Mapping[int, int]) -> dict[str, float]:
    # In a second with few responses, these are the slowest. Without them, a stall would look like a gap.
    values = quantiles(histogram(counts), QUANTILES.values())
    return dict(zip(QUANTILES, values, strict=False))


def _label(label: Mapping[str, str], timing: Timing) -> LabelRow:
    return LabelRow(
        name=label["name"],
        sort=label["sort"],
        done=timing.done,
        failed=timing.failed,
        mean_ns=timing.mean_ns,
        deviation_ns=timing.deviation_ns,
        corrected=timing.corrected,
        raw=timing.raw,
        first_byte=timing.first_byte,
        body=timing.body,
    )


def _errors(summary: Summary, labels: list[dict[str, str]]) -> Iterable[tuple[str, str, int]]:
    """(error, request, count), the most frequent first."""
    for error, count in sorted(summary.errors.items(), key=lambda pair: -pair[1]):
        of = labels[error.label]["name"] if error.label is not None else ""
        yield f"{error.kind.replace('_', ' ')} {error.detail}".strip(), of, count


def _facts(about: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    model, said = next(iter(about["program"]["pacing"].items()))
    level = "users" if model == "closed" else "arrivals/s"
    stages = ", ".join(f"to {s['to']:g} {level} in {units.format_duration(s['for_ns'])}" for s in said["stages"])
    yield "model", f"{model}: {stages}"
    for origin in about["started"]["origins"]:
        yield "server", f"{origin['name']}, {origin['protocol']}, at {', '.join(origin['addresses'])}"
    yield (
        "generator",
        about.get("generator") or f"CPUs {', '.join(map(str, about['cpus']))}, {about['threads']} threads",
    )
    if checks := about.get("memory_checked"):
        yield "memory checked", memory_check.summary(checks)
    yield "seed", str(about["seed"])
    yield "Partywall", str(about["partywall"])
