"""The matrix of victims and treatments, shared by terminal, HTML and charts, and the severity of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from partywall.agent.catalogue import Warn
from partywall.core.report import figures
from partywall.core.report.wording import levels_text
from partywall.run.values.finding import BASELINE, Band, Cell, Effect, Findings

Key = tuple[str, str, float, str]

REASONS_SHOWN = 3
"""Reasons in a legend why cells are not known. Each cell has its own in its details."""


class Severity(Enum):
    """How much throughput a neighbour costs, as words and a mark, so that colour is never the only sign."""

    NONE = ("no effect", "·")
    NOT_KNOWN = ("not known", "?")
    GAIN = ("gain", "▲")
    SLIGHT = ("slight: under 5 %", "▼")
    CLEAR = ("clear: 5 to 20 %", "▼▼")
    SEVERE = ("severe: over 20 %", "▼▼▼")

    def __init__(self, words: str, mark: str) -> None:
        self.words = words
        self.mark = mark


def severity(cell: Cell) -> Severity:
    """The severity of a cell's effect. The effect of a limit is not a harm."""
    return Severity.NONE if cell.role == "limit" else severity_of(cell.effect, cell.isolation.value)


def severity_of(effect: Effect, factor: float) -> Severity:
    """The severity of an effect on throughput, if there is one (`partywall.run.findings.states`)."""
    lost = 1 - factor
    if effect is Effect.NONE:
        return Severity.NONE
    if effect is Effect.NOT_KNOWN:
        return Severity.NOT_KNOWN
    if lost < 0:
        return Severity.GAIN
    if lost < 0.05:
        return Severity.SLIGHT
    return Severity.CLEAR if lost < 0.2 else Severity.SEVERE


def severity_words(level: Severity, bound: float | None) -> str:
    """The meaning of a mark, including the bound of "no effect"."""
    return (
        level.words
        if bound is None or level is not Severity.NONE
        else f"no effect above ±{figures.bare_percent(bound)}"
    )


def latency_words(cell: Cell, name: str) -> str:
    """The evidence for a latency impact, as text."""
    effect = cell.latency_effect.get(name, Effect.NOT_KNOWN)
    if effect is Effect.SEEN:
        return "an effect"
    return severity_words(Severity.NONE if effect is Effect.NONE else Severity.NOT_KNOWN, cell.latency_bound)


@dataclass(frozen=True)
class Row:
    """A trial: a victim, and the levels that distinguish it from its other trials."""

    trial: str
    victim: str
    detail: str

    @property
    def title(self) -> str:
        return f"{self.victim} ({self.detail})" if self.detail else self.victim


@dataclass(frozen=True)
class Column:
    """A treatment that all trials share."""

    key: Key
    group: str
    detail: str

    @property
    def title(self) -> str:
        return f"{self.group} {self.detail}".strip()


@dataclass(frozen=True)
class Matrix:
    """Rows and columns in planned order. A cell may be missing."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: dict[tuple[str, Key], Cell]

    def at(self, row: Row, column: Column) -> Cell | None:
        return self.cells.get((row.trial, column.key))


def matrix(findings: Findings, *, limits: bool = False) -> Matrix:
    """The aggressors and the null aggressor; with `limits`, the treatments that switch the victim's own limits."""
    cells = [cell for cell in findings.cells if (cell.role == "limit") == limits]
    columns = {key_of(cell): Column(key_of(cell), *_heading(cell)) for cell in cells}
    ordered = sorted(columns.values(), key=lambda column: column.key[0] != "null")
    groups = list(dict.fromkeys(column.group for column in ordered))
    return Matrix(
        rows=tuple(dict.fromkeys(Row(cell.trial, cell.victim, levels_text(cell.levels)) for cell in cells)),
        columns=tuple(sorted(ordered, key=lambda column: (groups.index(column.group), column.key[2]))),
        cells={(cell.trial, key_of(cell)): cell for cell in cells},
    )


def key_of(cell: Cell) -> Key:
    """The key by which cells of different trials belong to the same treatment."""
    own_limits = cell.label if cell.role == "limit" else cell.label.partition(", ")[2]
    return cell.role, cell.aggressor or "", cell.intensity or 0.0, own_limits


def emulated(cell: Cell) -> bool:
    return Warn.EMULATED in cell.warnings


def victim_title(cell: Cell) -> str:
    """The victim with its levels, marked if emulated."""
    detail = levels_text(cell.levels)
    return f"{cell.victim} ({detail})" if detail else cell.victim


def cell_title(cell: Cell) -> str:
    """A cell as text: 'ring beside memory-copy at 50 %'."""
    joint = "under" if cell.role == "limit" else "beside"
    return f"{victim_title(cell)} {joint} {treatment_title(cell)}{' (emulated)' if emulated(cell) else ''}"


def sentence(cell: Cell) -> str:
    """A cell in one line."""
    return f"{cell_title(cell)}: isolation factor {figures.ratio(cell.isolation)}, {describe(cell)}"


def describe(cell: Cell) -> str:
    """The meaning of a cell's figure in a few words."""
    return (
        "rate with the limit / rate without"
        if cell.role == "limit"
        else severity_words(severity(cell), cell.effect_bound) + (f": {cell.why}" if cell.why else "")
    )


def band_title(band: Band, findings: Findings) -> str:
    """The title of an A/A band: the victim, and its limit."""
    cell = next((cell for cell in findings.cells if cell.trial == band.trial), None)
    name = band.trial if cell is None else f"{victim_title(cell)}{' (emulated)' if emulated(cell) else ''}"
    own = name if band.baseline == BASELINE else f"{name}, {band.baseline}"
    return f"{own} (long blocks)" if band.long else own


def is_failed(band: Band, findings: Findings) -> bool:
    """True if the A/A check of a band failed, by the warnings of its cells."""
    failed = {Warn.NULL_EFFECT, Warn.NULL_LATENCY}
    return any(band.of(cell) and not failed.isdisjoint(cell.warnings) for cell in findings.cells)


LIMIT_COLUMNS = ("victim", "limit", "promised", "CPU time", "of promise", "efficiency q")


def limit_texts(cell: Cell) -> tuple[str, ...]:
    """A limit as a row of LIMIT_COLUMNS. The CPU time is what a CPU limit is judged by."""
    given, q = cell.cpu_time, cell.efficiency
    return (
        victim_title(cell),
        treatment_title(cell),
        "nothing" if cell.promised is None else figures.bare_percent(given.promised if given else cell.promised),
        figures.percent(given.judged) if given else "–",
        figures.percent(given.of_promise) if given else "–",
        "not known" if q is None else figures.ratio(q),
    )


def legend(findings: Findings) -> list[tuple[Severity, str]]:
    """The marks of a matrix and their meaning, with the reasons why cells are not known."""
    bound = next((cell.effect_bound for cell in findings.cells if cell.effect_bound is not None), None)
    reasons = dict.fromkeys(c.why for c in findings.cells if severity(c) is Severity.NOT_KNOWN and c.why)
    why = f": {', or '.join(list(reasons)[:REASONS_SHOWN])}" if reasons else ""
    return [(each, severity_words(each, bound) + (why if each is Severity.NOT_KNOWN else "")) for each in Severity]


def uncontrolled(findings: Findings) -> dict[str, tuple[str, ...]]:
    """Differences between aggressors and the null aggressor other than their load, by name, over all trials.

    Aggressors with the same differences are grouped: {"memory, disk": ("guard 10 ms, not 2 or 5",)}.
    """
    labels: dict[str, dict[str, dict[str, None]]] = {}
    for cell in findings.cells:
        for difference in cell.uncontrolled if cell.aggressor is not None else ():
            own, _, null = difference.partition(", not ")
            labels.setdefault(cell.aggressor or "", {}).setdefault(own, {})[null] = None
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, differences in labels.items():
        texts = tuple(f"{own}, not {' or '.join(nulls)}" for own, nulls in differences.items())
        alike.setdefault(texts, []).append(name)
    return {", ".join(names): texts for texts, names in alike.items()}


def treatment_title(cell: Cell) -> str:
    return " ".join(_heading(cell)).strip()


def _heading(cell: Cell) -> tuple[str, str]:
    if cell.role == "null":
        return "null (A/A)", cell.label.partition(", ")[2]
    if cell.role == "limit" or cell.aggressor is None:
        return cell.label, ""
    # An aggressor whose only intensity is 1 is labelled by its name, see `partywall.run.plan.make`.
    label, _, limits = cell.label.partition(", ")
    varied = label != cell.aggressor and cell.intensity is not None
    at = f"at {figures.bare_percent(cell.intensity or 0.0)}" if varied else ""
    return cell.aggressor, ", ".join(part for part in (at, limits) if part)
