"""The report for a terminal, with the same findings as the page, in the available width.

Treatments are rows and victims are columns, because there are more treatments. Columns that do not fit go into another
table. Colour only repeats what a mark says, so nothing is lost with NO_COLOR or in a pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.core.report import figures
from partywall.core.report.page import BADGES
from partywall.core.stats.estimate import Outcome
from partywall.run.report.html import goal_text, warned
from partywall.run.report.matrix import (
    LIMIT_COLUMNS,
    Matrix,
    Row,
    Severity,
    band_title,
    cell_title,
    emulated,
    is_failed,
    legend,
    limit_texts,
    matrix,
    severity,
    severity_words,
)
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Cell, Effect, Findings

STYLES = {
    Severity.NONE: "dim",
    Severity.NOT_KNOWN: "magenta",
    Severity.GAIN: "cyan",
    Severity.SLIGHT: "yellow",
    Severity.CLEAR: "bold yellow",
    Severity.SEVERE: "bold red",
}
LATENCY_LEVELS = {Effect.NONE: Severity.NONE, Effect.NOT_KNOWN: Severity.NOT_KNOWN}
OUTCOMES = {Outcome.HOLDS: "bold green", Outcome.VIOLATED: "bold red", Outcome.INCONCLUSIVE: "bold magenta"}
CAUSES_SHOWN = 5
VERDICTS_SHOWN = 8
PLAIN_SHOWN = 6
_UNTOLD_MEANS = "not known: the interval includes a rise and a fall, and spans a factor of ten or more"

Shown = Callable[[Cell], Text]


def show(findings: Findings, evidence: Evidence, console: Console) -> None:
    """Prints the report to `console`."""
    for part in parts(findings, evidence, console.width):
        console.print(part)


def parts(findings: Findings, evidence: Evidence, width: int) -> Iterator[RenderableType]:
    """The report's parts in order, each after an empty line."""
    yield Text()
    yield Text(findings.headline, style="bold")
    yield _outcome(findings, evidence)
    grid = matrix(findings)
    if grid.rows:
        yield from _tables(
            "Isolation factor: rate beside the neighbour / rate without (1 = unharmed; ±: 95 % interval)",
            grid,
            isolation_text,
            width,
        )
        yield _legend(findings)
    if any(_with_p99(grid)):
        yield from _tables("Latency impact at the 99th percentile", grid, latency_text, width)
        if any(figures.impact(cell.latency["p99"]) == figures.UNTOLD for cell in _with_p99(grid)):
            yield Text(_UNTOLD_MEANS, style="dim")
        if marks := _latency_legend(grid):
            yield Text(marks, style="dim")
    yield from _limits(findings)
    yield _bands(findings)
    yield from _verdicts(findings)
    yield from _causes(findings)
    yield from _warnings(findings, evidence)


def _with_p99(grid: Matrix) -> list[Cell]:
    return [cell for cell in grid.cells.values() if "p99" in cell.latency]


def isolation_text(cell: Cell) -> Text:
    """'0.82 ± 0.01 ▼▼', with E if emulated."""
    level = severity(cell)
    return Text(f"{figures.ratio(cell.isolation)} {level.mark}{' E' if emulated(cell) else ''}", style=STYLES[level])


def latency_text(cell: Cell) -> Text:
    """'+12 % ± 2', with the mark for no effect or an unknown one if the impact is not outside the A/A band."""
    impact = cell.latency.get("p99")
    if impact is None:
        return Text("not measured", style="dim")
    level = LATENCY_LEVELS.get(cell.latency_effect.get("p99", Effect.NOT_KNOWN))
    mark, style = (f" {level.mark}", STYLES[level]) if level else ("", "")
    return Text(f"{figures.impact(impact)}{mark}{' E' if emulated(cell) else ''}", style=style)


def _tables(title: str, grid: Matrix, shown: Shown, width: int) -> Iterator[RenderableType]:
    """As many tables as needed to fit all victims."""
    names = [column.title for column in grid.columns]
    left = max(map(len, [*names, "beside"])) + 2
    sizes = [max(_wide(row, grid, shown), min(len(row.title), 18)) + 2 for row in grid.rows]
    rows: list[Row] = []
    taken, first = left, True
    for row, size in zip(grid.rows, sizes, strict=True):
        if rows and taken + size > width:
            yield _table(title if first else "", grid, tuple(rows), shown)
            rows, taken, first = [], left, False
        rows.append(row)
        taken += size
    yield _table(title if first else "", grid, tuple(rows), shown)


def _wide(row: Row, grid: Matrix, shown: Shown) -> int:
    return max((len(shown(cell)) for column in grid.columns if (cell := grid.at(row, column))), default=0)


def _table(title: str, grid: Matrix, rows: tuple[Row, ...], shown: Shown) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("beside", no_wrap=True)
    for row in rows:
        table.add_column(row.title, overflow="fold")
    for column in grid.columns:
        cells = [grid.at(row, column) for row in rows]
        table.add_row(column.title, *(Text("not run", style="dim") if cell is None else shown(cell) for cell in cells))
    return Group(Text(f"\n{title}", style="bold") if title else Text(), table)


def _outcome(findings: Findings, evidence: Evidence) -> Text:
    """The verdict, and everything that qualifies the whole run."""
    judged = findings.verdicts or findings.incomplete
    badge = Text(BADGES[findings.outcome], style=OUTCOMES[findings.outcome]) if judged else Text("no goals set")
    notes = [
        "EMULATED" if any(map(emulated, findings.cells)) else "",
        "interrupted" if evidence.interrupted else "",
        f"{len(findings.incomplete)} incomplete" if findings.incomplete else "",
        "idle CPUs polled" if evidence.plan.scenario.idle == "poll" else "",
        f"{findings.scenario}, seed {evidence.plan.seed}",
    ]
    return Text.assemble(badge, *(part for note in notes if note for part in ("  ·  ", note)))


def _legend(findings: Findings) -> Text:
    used = {severity(cell) for cell in findings.cells if cell.role != "limit"}
    parts = [f"{level.mark} {words}" for level, words in legend(findings) if level in used]
    return Text("   ".join([*parts, *(["E emulated"] if any(map(emulated, findings.cells)) else [])]), style="dim")


def _latency_legend(grid: Matrix) -> str:
    """The marks behind latency impacts. Their bound differs from that of throughput."""
    used = {LATENCY_LEVELS.get(cell.latency_effect.get("p99", Effect.NOT_KNOWN)) for cell in _with_p99(grid)}
    bound = next((cell.latency_bound for cell in _with_p99(grid) if cell.latency_bound is not None), None)
    return "   ".join(f"{level.mark} {severity_words(level, bound)}" for level in Severity if level in used)


def _limits(findings: Findings) -> Iterator[RenderableType]:
    cells = [cell for cell in findings.cells if cell.role == "limit"]
    if not cells:
        return
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="bold")
    for name in LIMIT_COLUMNS:
        table.add_column(name)
    for cell in cells:
        *first, last = limit_texts(cell)
        table.add_row(*first, f"{last}{' E' if emulated(cell) else ''}")
    yield Group(Text("\nLimits: what they promise and give", style="bold"), table)


def _bands(findings: Findings) -> RenderableType:
    """The A/A check in a line. What it rests on is in the page."""
    if not findings.bands:
        return Text("\nNo null aggressor was measured: there is no A/A check of this run.", style="bold magenta")
    count = len(findings.bands)
    failed = [band for band in findings.bands if is_failed(band, findings)]
    if not failed:
        widest = max(max(1 - band.low, band.high - 1) for band in findings.bands)
        checks = f"{units.counted(count, 'check')}, the widest known within ±{figures.bare_percent(widest)}"
        return Text.assemble(("\nA/A check", "bold"), f": an idle neighbour changed nothing beyond chance ({checks})")
    names = "; ".join(f"{band_title(band, findings)} {figures.span(band.low, band.high)}" for band in failed)
    text = f" for {len(failed)} of {count}: {names}. These bands widen the intervals that decide about their victims."
    return Text.assemble(("\nA/A check failed", "bold magenta"), text)


def _verdicts(findings: Findings) -> Iterator[RenderableType]:
    if not findings.verdicts:
        return
    yield Text("\nGoals", style="bold")
    titles = {(cell.trial, cell.treatment): cell_title(cell) for cell in findings.cells}
    open_ends = [verdict for verdict in findings.verdicts if verdict.outcome is not Outcome.HOLDS]
    for verdict in sorted(open_ends, key=lambda verdict: verdict.outcome is not Outcome.VIOLATED)[:VERDICTS_SHOWN]:
        about = f"{verdict.goal.victim} beside {verdict.goal.aggressor}"
        title = titles.get((verdict.trial, verdict.treatment), about)
        badge = BADGES[verdict.outcome], OUTCOMES[verdict.outcome]
        yield _indented(badge, f"  {title}: {goal_text(verdict)}. {verdict.reason}")
    if len(open_ends) > VERDICTS_SHOWN:
        yield _indented((f"and {len(open_ends) - VERDICTS_SHOWN} more, in the page", "dim"))
    if holding := len(findings.verdicts) - len(open_ends):
        badge = BADGES[Outcome.HOLDS], OUTCOMES[Outcome.HOLDS]
        yield _indented(
            badge, f"  in {holding} of {len(findings.verdicts)} cells that goals speak of{_rough(findings)}"
        )


def _rough(findings: Findings) -> str:
    """The number of verdicts that rest on too few blocks for reliable intervals.

    Other reasons are shown with each verdict.
    """
    blocks = [v.blocks for v in findings.verdicts if v.outcome is Outcome.HOLDS and v.rough and v.blocks is not None]
    if not blocks:
        return ""
    fewest = f"{min(blocks)}" if min(blocks) == max(blocks) else f"{min(blocks)} to {max(blocks)}"
    return f", {len(blocks)} of them from so few blocks ({fewest}) that the interval may be too narrow"


def _causes(findings: Findings) -> Iterator[RenderableType]:
    harmed = sorted((cell for cell in findings.cells if cell.causes), key=lambda cell: cell.isolation.value)
    if not harmed:
        return
    yield Text("\nLikely causes (evidence, not proof)", style="bold")
    for cell in harmed[:CAUSES_SHOWN]:
        cause = cell.causes[0]
        yield _indented(f"{cell_title(cell)}: ", (cause.resource.replace("_", " "), "bold"), f" – {cause.text}")
    if len(harmed) > CAUSES_SHOWN:
        yield _indented((f"and {len(harmed) - CAUSES_SHOWN} more, in the page", "dim"))


def _warnings(findings: Findings, evidence: Evidence) -> Iterator[RenderableType]:
    warnings = warned(findings)
    unfinished = (f"not finished: {text}" for text in (*findings.incomplete, *evidence.incomplete))
    plain = tuple(dict.fromkeys((*findings.warnings, *evidence.plan.warnings, *unfinished)))
    if not warnings and not plain:
        return
    yield Text("\nWarnings", style="bold")
    for _, advice, cells in warnings:
        where = cell_title(cells[0]) + (f" and {len(cells) - 1} more" if len(cells) > 1 else "")
        yield _indented(("! ", "bold yellow"), (advice.title, "bold"), f" ({where}). {advice.remedy}")
    for text in plain[:PLAIN_SHOWN]:
        yield _indented(("! ", "bold yellow"), text)
    if len(plain) > PLAIN_SHOWN:
        yield _indented((f"and {len(plain) - PLAIN_SHOWN} more, in the page", "dim"))


def _indented(*pieces: str | tuple[str, str]) -> Padding:
    return Padding(Text.assemble(*pieces), (0, 0, 0, 2))
