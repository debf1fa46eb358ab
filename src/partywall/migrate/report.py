"""A series of migrations as text for a terminal, as one page, and as files for other programs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.core.report import page
from partywall.core.report.charts import titled
from partywall.core.report.compared import figures_of
from partywall.core.report.files import Files
from partywall.core.stats.estimate import Estimate, Span
from partywall.migrate import charts
from partywall.migrate.document import (
    METRICS,
    CellFinding,
    Figure,
    HttpSpec,
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

COLUMNS = (
    *("workload", "method", "moves", "total", "QEMU's downtime", "guest stopped", "clients waited", "at the start"),
    "sent",
)
SHOWN = (2, 3, 4, 5, 6)
"""Columns that fit on a terminal."""
_KEYS = ("total_s", "downtime_s", "stopped_s", "clients_s", "start_s")


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


def show(findings: MigrationFindings, console: Console) -> None:
    """Everything, at the end."""
    console.print(Text(findings.headline, style="bold"), soft_wrap=True)
    table = Table("workload, method", *(COLUMNS[place] for place in SHOWN))
    for column in table.columns[1:]:
        column.justify = "right"
    for cell in findings.cells:
        texts = cell_texts(cell)
        table.add_row(", ".join(texts[:2]), *(texts[place] for place in SHOWN))
    if findings.moves:
        console.print(table)
        _show_measured(findings.cells, console)
    for each in findings.advice:
        console.print(Text(f"advice for {each.workload}: {each.text}"), soft_wrap=True)
    for note in findings.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _show_measured(cells: Sequence[CellFinding], console: Console) -> None:
    """Predicted and measured figures."""
    rows = _predictions(cells)
    table = Table("workload, method", "ends", "", "predicted (90 %)", "measured (90 %)", "moves inside")
    for workload, method, will_end, figures in rows:
        for place, texts in enumerate(figures or [["–"] * 4]):
            head = (f"{workload}, {method}", will_end) if place == 0 else ("", "")
            table.add_row(*head, *texts[:4], end_section=place == len(figures) - 1)
    if rows:
        console.print(table)


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


def move_rows(findings: MigrationFindings) -> list[dict[str, Any]]:
    """A move each, as flat values; times in seconds."""
    return [
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


def render(report: MigrationReport) -> str:
    """The whole page."""
    drawn = charts.all_charts(report.findings)
    return page.framed(
        "migration.html.j2",
        {identity: page.fluid(chart) for identity, (_, _, chart) in drawn.items()},
        findings=report.findings,
        badge=page.badge(report.findings.outcome, goals(report)),
        plan=report.plan,
        about=report.about,
        link=rate_text(report.plan),
        columns=COLUMNS,
        cells=[cell_texts(cell) for cell in report.findings.cells],
        ratios=_ratios(report.findings.cells),
        predictions=_predictions(report.findings.cells),
        curves=_curves(report.findings),
        passes=_passes(report.findings),
        ratio_names=RATIOS.values(),
        models=MODELS,
        users=_users(report.findings),
        waits=_waits(report.findings),
        phases=PHASES,
        numbers=_numbers(report.plan),
        figures=[(identity, title, caption) for identity, (title, caption, _) in drawn.items()],
        host=page.facts(report.host),
        json=report.findings.model_dump_json(indent=2, exclude=RAW),
    )


PHASES = ("before", "during", "after")
WAITS = {"longest_s", "users_longest_s"}


PASSES_MAX = 12
"""Passes of one move in the page; the JSON document has all."""


def _passes(findings: MigrationFindings) -> list[tuple[str, int, list[list[str]], int]]:
    """(combination, number of the move, a row a pass, how many more there were), of the move of median length."""
    tables = []
    for cell in findings.cells:
        own = [each for each in findings.moves if each.move.cell == (cell.workload, cell.method) and each.passes]
        if own:
            own.sort(key=lambda each: each.move.end_ns - each.move.begin_ns)
            middle = own[len(own) // 2]
            rows = [_pass(each) for each in middle.passes[:PASSES_MAX]]
            more = max(0, len(middle.passes) - PASSES_MAX)
            tables.append((f"{cell.workload}, {cell.method}", middle.move.number + 1, rows, more))
    return tables


def _pass(each: PassFinding) -> list[str]:
    rate = f"{units.format_bytes(each.sent / each.seconds)}/s" if each.seconds > 0 else "–"
    dirty = "–" if each.dirty_rate is None else f"{units.format_bytes(each.dirty_rate)}/s"
    return [
        str(each.number),
        f"{each.begin_s:.2f} s",
        _time(each.seconds),
        units.format_bytes(each.sent),
        rate,
        dirty,
    ]


def _curves(findings: MigrationFindings) -> tuple[list[str], list[list[str]]]:
    """Windows, and a row a workload: its name, its content, what it changed in each window, and how it was watched."""
    windows_s = sorted({window_s for curve in findings.curves for window_s in curve.windows_s})
    rows = []
    for curve in findings.curves:
        changed = dict(zip(curve.windows_s, curve.changed, strict=True))
        texts = [units.format_bytes(changed[window_s]) if window_s in changed else "–" for window_s in windows_s]
        rows.append([curve.workload, units.format_bytes(curve.content), *texts, curve.how])
    return list(map(_time, windows_s)), rows


def _users(findings: MigrationFindings) -> list[tuple[str, str, list[str]]]:
    """(workload, method, (mean, p99, answers a second) before, during and after), medians over moves."""
    rows = []
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
            rows.append((cell.workload, cell.method, texts))
    return rows


def _waits(findings: MigrationFindings) -> list[tuple[str, str, list[str]]]:
    """(workload, method, longest waits of datagrams and of users, their difference, timeouts), medians over moves."""
    rows = []
    for cell in findings.cells:
        own = [each.values for each in findings.moves if each.move.cell == (cell.workload, cell.method)]
        both = [(each["longest_s"], each["users_longest_s"]) for each in own if each.keys() >= WAITS]
        if both:
            waits = [statistics.median(column) for column in (*zip(*both, strict=True), [b - a for a, b in both])]
            timeouts = [each["users_timeouts"] for each in own if "users_timeouts" in each]
            count = f"{statistics.median(timeouts):g}" if timeouts else "–"
            rows.append((cell.workload, cell.method, [*map(_time, waits), count]))
    return rows


def _numbers(plan: MigrationPlan) -> dict[str, str]:
    """The virtual users of each workload."""
    usual = plan.clients.http
    numbers = {name: each.users(usual) if each else usual for name, each in plan.workloads.items()}
    return {name: _number(http) for name, http in numbers.items() if http is not None}


def _number(http: HttpSpec) -> str:
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


def _predictions(cells: Sequence[CellFinding]) -> list[tuple[str, str, str, list[list[str]]]]:
    """(workload, method, whether it ends, (figure, predicted, measured, moves inside, by simpler models) each)."""
    return [
        (cell.workload, cell.method, ends(cell.prediction), list(_figures(cell.prediction, cell.measured)))
        for cell in cells
        if cell.prediction is not None
    ]


def ends(forecast: Prediction) -> str:
    """Whether a move is predicted to end."""
    return "yes" if forecast.chance > 0.95 else "no" if forecast.chance < 0.05 else f"{100 * forecast.chance:.0f} %"


def _figures(forecast: Prediction, measured: Mapping[str, Measured]) -> Iterator[list[str]]:
    for key, name in PREDICTED.items():
        if key in forecast.spans:
            seen = measured.get(key)
            inside = f"{seen.inside} of {seen.n}" if seen else "–"
            models = [_span(key, forecast.others[model].get(key)) for model in MODELS]
            yield [name, _span(key, forecast.spans[key]), _measured(key, seen), inside, *models]


def show_predictions(predictions: Mapping[tuple[str, str], Prediction], console: Console) -> None:
    """What moves will cost, and what the simpler models say."""
    table = Table("workload, method", "ends", "", "predicted (90 %)", *(f"{model} model" for model in MODELS))
    for cell, forecast in predictions.items():
        figures = list(_figures(forecast, {})) or [["–"] * 6]
        for place, (name, span, _, _, *models) in enumerate(figures):
            head = (", ".join(cell), ends(forecast)) if place == 0 else ("", "")
            table.add_row(*head, name, span, *models, end_section=place == len(figures) - 1)
    console.print(table)


def _measured(key: str, measured: Measured | None) -> str:
    """A mean, with its interval if there are enough moves."""
    if measured is None:
        return "–"
    text = _plain(key, measured.value)
    return text if measured.low is None else f"{text} ({_plain(key, measured.low)} to {_plain(key, measured.high)})"


def _span(key: str, span: Span | None) -> str:
    return f"{_plain(key, span.value)} ({_plain(key, span.low)} to {_plain(key, span.high)})" if span else "–"


def _plain(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    # A figure stays with its unit.
    return (units.format_bytes(value) if key.endswith("bytes") else _time(value)).replace(" ", "\N{NO-BREAK SPACE}")


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


def _ratios(cells: Sequence[CellFinding]) -> list[tuple[str, str, list[str]]]:
    """Each method's figures as ratios to the first method's, for those that have them."""
    rows = []
    for cell in cells:
        ratios = [figure.ratio if (figure := cell.figures.get(key)) else None for key in RATIOS]
        if any(ratios):
            rows.append((cell.workload, cell.method, [_ratio(ratio) for ratio in ratios]))
    return rows


def _ratio(ratio: Estimate | None) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else "–"


def _charts(report: MigrationReport) -> dict[str, dict[str, Any]]:
    drawn = charts.all_charts(report.findings)
    return {name: titled(chart, title) for name, (title, _, chart) in drawn.items()}


RAW: Any = {"moves": {"__all__": {"timeline": True, "move": {"progress", "passes"}}}}
"""What is left out of findings: the record has it."""

UNITS = {"s": "s", "bytes": "B", "ratio": "times"}
COMPARED = {
    name: (text.removesuffix(", s").replace(", s:", ":"), UNITS.get(name.rpartition("_")[2], ""))
    for name, text in METRICS.items()
}


def goals(report: MigrationReport) -> int:
    """How many limits the plan's goal states."""
    return len(report.plan.goal.limits)


FILES: Files[MigrationReport] = Files(
    of="a migration",
    show=lambda report, console: show(report.findings, console),
    documents={
        "html": ("report.html", render),
        "json": ("findings.json", lambda report: report.findings.model_dump_json(indent=2, exclude=RAW) + "\n"),
    },
    rows=lambda report: move_rows(report.findings),
    table="moves.csv",
    charts=_charts,
    compared=lambda report: figures_of(move_rows(report.findings), ("workload", "method", "outcome"), COMPARED),
    headline=lambda report: report.findings.headline,
    goals=goals,
    usual=("html", "json"),
)
"""Formats; adding one is one function and one entry."""
