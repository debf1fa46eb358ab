"""A series of migrations as a report: what a terminal, a page, a notebook and a spreadsheet show of it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from partywall import units
from partywall.core.report.value import Column, Lines, On, Report, Section, Table, of_texts, shown, spread
from partywall.core.stats.estimate import Estimate, Span
from partywall.migrate.document import (
    METRICS,
    CellFinding,
    Figure,
    Forecast,
    Measured,
    MigrationFindings,
    MigrationPlan,
    MigrationReport,
    MoveFinding,
    PassFinding,
    Prediction,
    Responses,
    rate_text,
)

_KEYS = ("total_s", "downtime_s", "stopped_s", "clients_s", "start_s")
COLUMNS = (
    *("workload", "method", "moves", "total", "QEMU's downtime", "guest stopped", "clients waited", "at the start"),
    "sent",
)
PHASES = ("before", "during", "after")
WAITS = {"longest_s", "users_longest_s"}
PASSES_MAX = 12
"""Passes of one move in the page; the JSON document has all."""
RAW: Any = {"moves": {"__all__": {"timeline": True, "move": {"progress", "passes"}}}}
"""What is left out of findings: the record has it."""
UNITS = {"s": "s", "bytes": "B", "ratio": "times"}
ON_PAGE = {"total_s": "total", "clients_s": "clients waited", "brownout_s": "slowed down for"}
"""Figures of each move that the page shows, and how they are called there."""


def line(finding: MoveFinding) -> str:
    """A move in one line."""
    move = finding.move
    text = f"{move.workload}, {move.method}: {move.outcome}"
    if move.total_ns is not None:
        text += f" in {_time(move.total_ns / 1e9)}, {units.format_bytes(move.memory.get('transferred', 0))}"
    if finding.clients_ns is not None:
        text += f"; clients waited {_time(finding.clients_ns / 1e9)}"
    if move.downtime_ns is not None:
        text += f" (QEMU says {_time(move.downtime_ns / 1e9)})"
    return text


def report(whole: MigrationReport) -> Report:
    """Everything that a record of moves shows."""
    found, plan, about = whole.findings, whole.plan, whole.about
    guest = f"guest of {units.format_bytes(about['memory_bytes'])} on QEMU {about['qemu']}; " if "qemu" in about else ""
    return Report(
        found.headline,
        found.outcome,
        len(plan.goal.limits),
        sections=tuple(_sections(found, plan)),
        notes=found.notes,
        warnings=("emulated",) if about.get("emulated") else (),
        terms=_terms(plan),
        values=found.model_dump(mode="json", exclude=RAW),
        name=found.name,
        about=f"{plan.name} · {guest}link: {rate_text(plan)}",
        started_at=str(about.get("started_at", "")),
        host=whole.host,
    )


def _sections(found: MigrationFindings, plan: MigrationPlan) -> Iterator[Section]:
    cells, brief = found.cells, None if found.moves else 0
    rows = map(cell_texts, cells)
    lead = plan.description
    yield of_texts("cells", "Workloads and methods", COLUMNS, rows, only_page=COLUMNS[-2:], lead=lead, brief=brief)
    yield of_texts(
        "ratios",
        f"Compared with {next(iter(plan.methods))}",
        ("workload", "method", *RATIOS.values()),
        _ratios(cells),
        lead="Ratios within rounds, with 95 % intervals.",
        brief=0,
    )
    yield of_texts("users", "Virtual users", USERS, _users(found, plan), lead=USERS_LEAD, brief=0)
    yield of_texts("waits", "How long one user waited", WAITED, _waits(found), lead=WAITED_LEAD, brief=0)
    advice = [f"advice for {each.workload}: {each.text}" for each in found.advice]
    yield Lines("advice", "Which method to use", advice)
    yield _curves(found)
    yield _predictions(cells, found.rests_on, brief)
    from partywall.migrate import charts  # noqa: PLC0415 - Altair is slow to import

    yield from charts.all_charts(found)
    yield _moves(found)
    yield _passes(found)


def cell_texts(cell: CellFinding) -> list[str]:
    """A cell's row under COLUMNS."""
    outcomes = ", ".join(f"{count} {name}" for name, count in cell.outcomes.items())
    figures = [_figure(cell.figures.get(key)) for key in _KEYS]
    sent = cell.figures.get("sent_bytes")
    return [cell.workload, cell.method, outcomes, *figures, units.format_bytes(sent.value) if sent else "–"]


def _figure(figure: Figure | None) -> str:
    """A time with its interval, in one unit."""
    if figure is None:
        return "–"
    if figure.interval is None:
        return _time(figure.value)
    unit, factor = ("s", 1.0) if figure.value >= 1 else ("ms", 1e3)
    half = figure.interval.half_width * factor
    decimals = max(0, 1 - units.magnitude(half)) if half else 0
    return f"{figure.value * factor:.{decimals}f} ± {half:.{decimals}f} {unit}"


def _time(seconds: float) -> str:
    return units.format_duration(seconds * 1e9)


def _moves(findings: MigrationFindings) -> Table:
    """All moves, of which programs get each figure."""
    by_number = {finding.move.number: finding for finding in findings.moves}

    def of(title: str, text: Callable[[MoveFinding], str]) -> Column:
        return Column(title, title, on=On.PAGE, text=lambda row: text(by_number[row["number"]]))

    keys = (Column(name, name, on=On.PAGE, is_key=True) for name in ("workload", "method", "outcome"))
    columns = (
        of("move", lambda finding: str(finding.move.number + 1)),
        *keys,
        of("from", lambda finding: f"host {finding.move.source}"),
        *map(_metric, METRICS),
        of("p99 before → during", _slower),
        of("lost requests", _lost),
        of("reason", lambda finding: finding.move.reason),
    )
    rows = [
        {
            "number": finding.move.number,
            "round": finding.move.round,
            "workload": finding.move.workload,
            "method": finding.move.method,
            "outcome": finding.move.outcome,
            **{name: finding.values.get(name) for name in METRICS},
        }
        for finding in findings.moves
    ]
    return Table("moves", "All moves", columns, rows, brief=0)


def _metric(key: str) -> Column:
    name = METRICS[key].removesuffix(", s").replace(", s:", ":")
    where = On.PAGE if key in ON_PAGE else On.COMPARISON
    return Column(key, ON_PAGE.get(key, name), UNITS.get(key.rpartition("_")[2], ""), where, name=name)


def _slower(finding: MoveFinding) -> str:
    """The p99 of responses before and during a move."""
    seen = [finding.responses[phase] for phase in PHASES[:2] if phase in finding.responses]
    return " → ".join("never" if each.p99_ns is None else _time(each.p99_ns / 1e9) for each in seen if each.sent)


def _lost(finding: MoveFinding) -> str:
    during = finding.responses.get("during")
    return f"{during.lost} of {during.sent}" if during and during.sent else ""


def _passes(findings: MigrationFindings) -> Table:
    """Passes of each combination's move of median length."""
    rows = []
    for cell in findings.cells:
        own = [each for each in findings.moves if each.move.cell == (cell.workload, cell.method) and each.passes]
        if own:
            own.sort(key=lambda each: each.move.end_ns - each.move.begin_ns)
            middle = own[len(own) // 2]
            about = (f"{cell.workload}, {cell.method}", str(middle.move.number + 1))
            rows += [(*about, *_pass(each)) for each in middle.passes[:PASSES_MAX]]
    titles = ("workload, method", "move", "pass", "began after", "took", "sent", "at", "guest changed")
    return of_texts("passes", "Passes over the memory", titles, rows, lead=PASSES_LEAD, brief=0)


def _pass(each: PassFinding) -> tuple[str, ...]:
    rate = f"{units.format_bytes(each.sent / each.seconds)}/s" if each.seconds > 0 else "–"
    dirty = "–" if each.dirty_rate is None else f"{units.format_bytes(each.dirty_rate)}/s"
    return str(each.number), f"{each.begin_s:.2f} s", _time(each.seconds), units.format_bytes(each.sent), rate, dirty


def _curves(findings: MigrationFindings) -> Table:
    """What each workload changed in windows of several lengths."""
    windows_s = sorted({window_s for curve in findings.curves for window_s in curve.windows_s})
    rows = []
    for curve in findings.curves:
        changed = dict(zip(curve.windows_s, curve.changed, strict=True))
        texts = [units.format_bytes(changed[window_s]) if window_s in changed else "–" for window_s in windows_s]
        rows.append((curve.workload, units.format_bytes(curve.content), *texts, curve.how))
    titles = ("workload", "content", *(f"in {_time(window_s)}" for window_s in windows_s), "how it was watched")
    return of_texts("curves", "What the guest changed before it moved", titles, rows, lead=CURVES_LEAD, brief=0)


USERS = (
    "workload", "method", "users",
    *(f"{figure} {phase}" for figure in ("mean response", "p99", "answers") for phase in PHASES),
)  # fmt: skip
USERS_LEAD = (
    "Users of the web server in the guest. Medians over moves. An answer counts in the second in which it came; the "
    "second after a move belongs to the move."
)
WAITED = ("workload", "method", "datagrams waited", "slowest user", "longer by", "TCP timers that ran out")
WAITED_LEAD = (
    "A datagram that the stop swallows is followed by the next. TCP sends lost data again when a timer runs out: after "
    "200 ms or more, and each time after twice as long. So a user may wait on after the guest answers again. Timers of "
    "the users’ machine are counted, and not those of the guest, which sends lost answers again. The rest is the queue "
    "at the server."
)
CURVES_LEAD = (
    "Memory with content, and how much of it changed within windows of several lengths. Pages that change twice in a "
    "window count once. Predictions rest on this."
)
PASSES_LEAD = (
    "Of each combination, the move of median length. QEMU sends the whole memory first, and then again what the guest "
    f"has changed meanwhile. Short passes between two looks at QEMU are missing. Passes beyond {PASSES_MAX} are in the "
    "JSON document."
)


def _users(findings: MigrationFindings, plan: MigrationPlan) -> Iterator[tuple[str, ...]]:
    """(workload, method, users, (mean, p99, answers a second) before, during and after), medians over moves."""
    for cell in findings.cells:
        own = [
            finding for finding in findings.moves if finding.move.cell == (cell.workload, cell.method) and finding.users
        ]
        texts = [
            _users_text([finding.users[phase] for finding in own if phase in finding.users], figure)
            for figure in ("mean_ns", "p99_ns", "rate")
            for phase in PHASES
        ]
        if own:
            yield cell.workload, cell.method, _number(plan, cell.workload), *texts


def _waits(findings: MigrationFindings) -> Iterator[tuple[str, ...]]:
    """(workload, method, longest waits of datagrams and of users, their difference, timeouts), medians over moves."""
    for cell in findings.cells:
        own = [each.values for each in findings.moves if each.move.cell == (cell.workload, cell.method)]
        both = [(each["longest_s"], each["users_longest_s"]) for each in own if each.keys() >= WAITS]
        if both:
            waits = [statistics.median(column) for column in (*zip(*both, strict=True), [b - a for a, b in both])]
            timeouts = [each["users_timeouts"] for each in own if "users_timeouts" in each]
            count = f"{statistics.median(timeouts):g}" if timeouts else "–"
            yield cell.workload, cell.method, *map(_time, waits), count


def _number(plan: MigrationPlan, workload: str) -> str:
    """The virtual users of a workload."""
    usual, activity = plan.clients.http, plan.workloads[workload]
    http = activity.users(usual) if activity else usual
    if http is None:
        return "–"
    who = f"{http.rate:g} arrivals/s" if http.rate is not None else units.counted(http.users, "user")
    return who if http.keep_alive else f"{who}, a new connection for each request"


def _users_text(responses: Sequence[Responses], figure: str) -> str:
    values = [value for each in responses if (value := getattr(each, figure)) is not None]
    if not values:
        return "–"
    middle = statistics.median(values)
    return f"{middle:.0f}/s" if figure == "rate" else units.format_duration(middle)


PREDICTED = {
    "total_s": "time of the move",
    "sent_bytes": "bytes sent",
    "downtime_s": "QEMU's downtime",
    "clients_s": "clients waited",
    "p99_s": "p99 response",
}
"""Figures that are predicted, and how they are called."""
MODELS = ("geometric", "piecewise")
MODEL_TITLES = tuple(f"{model} model" for model in MODELS)
MEASURED = ("measured (90 %)", "moves inside")
PREDICTIONS_LEAD = (
    "Predicted intervals should hold 90 of 100 moves; “moves inside” counts those that they held. The measured figure "
    "is a mean with its 90 % interval. The simpler models get the same facts, but know of no fixed costs and no "
    "clients."
)


def forecast(predicted: Forecast | None, why_not: str) -> Report:
    """What moves will cost, before they are carried out. why_not: what is said if it is not known."""
    if predicted is None:
        return Report("", notes=tuple(filter(None, (why_not,))), values={"forecast": None})
    titles = ("workload, method", "figure", "predicted (90 %)", *MODEL_TITLES)
    rows = [
        (", ".join(cell), *texts[:2], *texts[4:])
        for cell, each in predicted.predictions.items()
        for texts in _figures(each, {})
    ]
    tables = (of_texts("predictions", f"{predicted.source}:", titles, rows),) if rows else ()
    return Report("", sections=tables, notes=predicted.notes, values={"forecast": predicted})


def _predictions(cells: Sequence[CellFinding], rests_on: str, brief: int | None) -> Table:
    """Predicted and measured figures."""
    rows = [
        (f"{cell.workload}, {cell.method}", *texts)
        for cell in cells
        if cell.prediction is not None
        for texts in _figures(cell.prediction, cell.measured)
    ]
    titles = ("workload, method", "figure", "predicted (90 %)", *MEASURED, *MODEL_TITLES)
    lead = f"Predictions rest on {rests_on}. {PREDICTIONS_LEAD}"
    title = "Predicted and measured"
    return of_texts("predictions", title, titles, rows, only_page=MODEL_TITLES, lead=lead, brief=brief)


def ends(forecast: Prediction) -> str:
    """Whether a move is predicted to end."""
    return "yes" if forecast.chance > 0.95 else "no" if forecast.chance < 0.05 else f"{100 * forecast.chance:.0f} %"


def _figures(forecast: Prediction, measured: Mapping[str, Measured]) -> Iterator[tuple[str, ...]]:
    """(figure, predicted, measured, moves inside, by simpler models) each. First, whether the move ends."""
    yield "it ends", ends(forecast), *["–"] * (2 + len(MODELS))
    for key, name in PREDICTED.items():
        if key in forecast.spans:
            seen = measured.get(key)
            inside = f"{seen.inside} of {seen.n}" if seen else "–"
            models = [_span(key, forecast.others[model].get(key)) for model in MODELS]
            yield name, _span(key, forecast.spans[key]), _measured(key, seen), inside, *models


def _measured(key: str, measured: Measured | None) -> str:
    """A mean, with its interval if there are enough moves."""
    if measured is None or measured.low is None or measured.high is None:
        return shown(measured.value if measured else None, _unit(key))
    return spread(Span(value=measured.value, low=measured.low, high=measured.high), _unit(key))


def _span(key: str, span: Span | None) -> str:
    return spread(span, _unit(key)) if span else "–"


def _unit(key: str) -> str:
    return "B" if key.endswith("bytes") else "s"


RATIOS = {
    "total_s": "time of the move",
    "clients_s": "clients waited",
    "sent_bytes": "bytes sent",
    "link_bytes": "bytes on the link",
    "p99_ratio": "p99 response",
    "work_ratio": "work done",
    "bystander_ratio": "work of the neighbour",
    "source_cpu_s": "CPU of the source",
}
"""Figures that are compared with the first method, and how they are called."""


def _ratios(cells: Sequence[CellFinding]) -> Iterator[tuple[str, ...]]:
    """Each method's figures as ratios to the first method's, for those that have them."""
    for cell in cells:
        ratios = [figure.ratio if (figure := cell.figures.get(key)) else None for key in RATIOS]
        if any(ratios):
            yield cell.workload, cell.method, *map(_ratio, ratios)


def _ratio(ratio: Estimate | None) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else "–"


def _terms(plan: MigrationPlan) -> dict[str, str]:
    start = "“At the start” is the longest such time while the move begins." if len(plan.methods) > 1 else ""
    return {
        "QEMU's downtime": "From when the source stops the guest until the source has sent everything. Data may still "
        "be on its way then, and the destination still has to load the state of the devices.",
        "STOP to RESUME": "Between QEMU's events on the source and on the destination: how long no CPU of the guest "
        "ran.",
        "Guest's clock stopped": "How far the guest's clock fell back behind the host's. A guest's clocks stand still "
        "with it, so it cannot see its own blackout.",
        "Clients waited": "The longest time between two answers at the hand-over. Requests without an answer count as "
        "slower than any other, so a percentile can be “never”. Clients send "
        f"{plan.clients.pings:g} requests a second on a fixed schedule and do not wait for answers. {start}".rstrip(),
        "Bytes on the link": "What the network cards of both hosts sent over the link during the move. QEMU's “bytes "
        "sent” counts pages before several connections compress them.",
        "Slowed down for": "How long, from the start of the move on, half of the answers took over twice as long as "
        "before. The pauses are not counted.",
        "Intervals": "95 %, Student's t over moves. Each combination was moved once a round, in random order.",
    }
