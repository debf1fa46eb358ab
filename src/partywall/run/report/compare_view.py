"""A comparison of two runs as text: changes first, then unchanged cells, then cells that cannot be compared."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from partywall import units
from partywall.core.report import figures
from partywall.core.stats.estimate import Outcome
from partywall.run.report.matrix import Severity
from partywall.run.values.comparison import NAMED, Change, ComparedCell, Comparison
from partywall.run.values.finding import Effect

MARKS = {
    Change.WORSE: "▼ worse",
    Change.INCONCLUSIVE: "? inconclusive",
    Change.BETTER: "▲ better",
    Change.SAME: "= same",
}
EFFECTS = {Effect.NONE: f" {Severity.NONE.mark}", Effect.NOT_KNOWN: f" {Severity.NOT_KNOWN.mark}"}
STYLES = {Change.WORSE: "bold red", Change.BETTER: "bold green", Change.INCONCLUSIVE: "magenta", Change.SAME: "dim"}
ORDER = tuple(MARKS)
WIDE = 96
"""Terminal width, in columns, from which latencies, and what the comparison finds, are shown too."""

REASONS_SHOWN = 8
FOUND_MOST = 0.9
"""A loss of more than this share says only that the comparison finds hardly anything."""


def show(comparison: Comparison, console: Console) -> None:
    """Prints the comparison."""
    for part in parts(comparison, console.width):
        console.print(part)


def parts(comparison: Comparison, width: int) -> Iterator[RenderableType]:
    """The outcome in one line, one row for each cell, and the cells without a counterpart."""
    change = worst(comparison)
    yield Text.assemble((MARKS[change], STYLES[change]), f"  ·  {headline(comparison)}")
    yield Text(f"run {comparison.run}, reference {comparison.reference}", style="dim", overflow="fold")
    for text in in_words(comparison):
        yield Text(text, style="bold", overflow="fold")
    for text in comparison.host:
        yield _remark(f"The hosts differ: {text}. A change may be due to the host.")
    for text in comparison.notes:
        yield _remark(f"{text[0].upper()}{text[1:]}.")
    if comparison.cells:
        yield Group(Text(), _table(comparison, latency=width >= WIDE))
        yield from _legend(comparison, wide=width >= WIDE)
        yield from _reasons(comparison)
    for name, cells in ((comparison.run, comparison.only_run), (comparison.reference, comparison.only_reference)):
        if cells:
            yield Text(f"\nOnly in {name}: {', '.join(cells)}", overflow="fold")
    for text in comparison.incomparable:
        yield _remark(f"Not compared, {text}")
    for text in comparison.unfinished:
        yield _remark(f"Not finished, {text}")


def _remark(text: str) -> Text:
    return Text.assemble(("! ", "bold yellow"), text, overflow="fold")


def worst(comparison: Comparison) -> Change:
    """The most important change: any worsening, then anything inconclusive, including cells that cannot be compared."""
    changes = {cell.change for cell in comparison.cells}
    changes |= {Change.INCONCLUSIVE} if comparison.outcome is Outcome.INCONCLUSIVE else set()
    return next(change for change in ORDER if change in changes)


def headline(comparison: Comparison) -> str:
    """The number of cells for each kind of change."""
    if not comparison.cells:
        return "the runs share no cell, so there is nothing to compare"
    counts = {change: sum(cell.change is change for cell in comparison.cells) for change in ORDER}
    texts = ", ".join(f"{count} {change.value}" for change, count in counts.items() if count)
    within = figures.bare_percent(comparison.tolerance)
    if comparison.latency_tolerance is not None and any("p99" in cell.latency for cell in comparison.cells):
        within += f", p99 latency within {figures.bare_percent(comparison.latency_tolerance)},"
    lost = {"missing": len(comparison.only_reference), "not comparable": len(comparison.incomparable)}
    missing = "".join(f"; of the reference's {count} {what}" for what, count in lost.items() if count)
    return (
        f"of {units.counted(len(comparison.cells), 'cell')} {texts} (same: within {within} of the reference){missing}"
    )


def in_words(comparison: Comparison) -> Iterator[str]:
    """A sentence for each changed cell whose isolation factor shows the change: 'api isolates 3.1 % ± 0.4 worse …'."""
    for cell in _ordered(comparison):
        if cell.change in (Change.WORSE, Change.BETTER) and not cell.ratio.low <= 1 <= cell.ratio.high:
            is_worse = cell.ratio.value < 1
            size = figures.loss(cell.ratio) if is_worse else cell.ratio.mapped(lambda times: times - 1)
            way = "worse" if is_worse else "better"
            yield f"{_name(cell)}: isolates {figures.percent(size)} {way} than {comparison.reference}"


def _reasons(comparison: Comparison) -> Iterator[RenderableType]:
    """Why cells changed, then each reason why cells are inconclusive, with the cells."""
    changed = [cell for cell in _ordered(comparison) if cell.change in (Change.WORSE, Change.BETTER)]
    texts = [(cell.change, f"{_name(cell)}: {cell.reason}") for cell in changed[:REASONS_SHOWN]]
    if len(changed) > REASONS_SHOWN:
        texts.append((changed[-1].change, f"and {len(changed) - REASONS_SHOWN} more"))
    for reason, cells in comparison.doubts.items():
        names = [_name(cell) for cell in cells[:NAMED]]
        more = [f"{len(cells) - NAMED} more"] if len(cells) > NAMED else []
        who = "every cell" if len(cells) == len(comparison.cells) > 1 else "; ".join([*names, *more])
        texts.append((Change.INCONCLUSIVE, f"{who}: {reason}"))
    for number, (change, text) in enumerate(texts):
        mark = (f"{MARKS[change].split()[0]} ", STYLES[change])
        yield Text.assemble("" if number else "\n", mark, text, overflow="fold")


def _effect_mark(effect: Effect | None) -> str:
    return EFFECTS.get(effect, "") if effect else ""


def _legend(comparison: Comparison, *, wide: bool) -> Iterator[RenderableType]:
    """The meaning of a column, and of the marks behind the factors of both runs."""
    used = {effect for cell in comparison.cells for effect in (cell.effect, cell.reference_effect)}
    words = {Effect.NONE: "no effect in that run", Effect.NOT_KNOWN: "not known whether that run shows an effect"}
    if wide and any(cell.found_from is not None for cell in comparison.cells):
        yield Text("finds: a further loss that nine of ten comparisons like this call worse", style="dim")
    if texts := [f"{EFFECTS[effect].strip()} {text}" for effect, text in words.items() if effect in used]:
        yield Text("   ".join(texts), style="dim")


def _ordered(comparison: Comparison) -> list[ComparedCell]:
    return sorted(comparison.cells, key=lambda cell: (ORDER.index(cell.change), cell.ratio.value))


def _table(comparison: Comparison, *, latency: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("", "cell", "reference", "run", "ratio", *(["p99 ratio", "finds"] if latency else [])):
        table.add_column(name, no_wrap=name != "cell", overflow="fold")
    for cell in _ordered(comparison):
        impact = cell.latency.get("p99")
        is_known = cell.found_from is not None and cell.found_from < FOUND_MOST
        finds = f"−{figures.bare_percent(cell.found_from or 0.0, 0)}" if is_known else "–"
        more = [figures.multiple(impact) if impact else "", finds] if latency else []
        shown = [
            figures.ratio(cell.reference_isolation) + _effect_mark(cell.reference_effect),
            figures.ratio(cell.isolation) + _effect_mark(cell.effect),
            figures.ratio(cell.ratio),
        ]
        mark = Text(MARKS[cell.change].split()[0], style=STYLES[cell.change])
        table.add_row(mark, _name(cell), *shown, *more)
    return table


def _name(cell: ComparedCell) -> str:
    levels = ", ".join(f"{path.rsplit('.', 1)[-1]} {level}" for path, level in cell.levels.items())
    emulated = " (emulated)" if cell.emulated else ""
    return f"{cell.victim}{f' ({levels})' if levels else ''}, {cell.label}{emulated}"
