"""The matrix of victims and treatments that terminal, HTML and charts all show, and how severe a cell is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from partywall.model.finding import BASELINE, Band, Cell, Effect, Findings, Warn
from partywall.report import figures

Key = tuple[str, str, float, str]


class Severity(Enum):
    """How much throughput a neighbour costs: words and a mark, so that colour is never alone."""

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
    """The size of an effect, where there is one (`partywall.stats.states`); a limit's own doing is not a harm."""
    lost = 1 - cell.isolation.value
    if cell.effect is Effect.NONE or cell.role == "limit":
        return Severity.NONE
    if cell.effect is Effect.NOT_KNOWN:
        return Severity.NOT_KNOWN
    if lost < 0:
        return Severity.GAIN
    if lost < 0.05:
        return Severity.SLIGHT
    return Severity.CLEAR if lost < 0.2 else Severity.SEVERE


def severity_words(level: Severity, bound: float | None) -> str:
    """What a mark means, with the bound that "no effect" names."""
    if bound is None or level not in (Severity.NONE, Severity.NOT_KNOWN):
        return level.words
    above = f"above ±{figures.bare_percent(bound)}"
    return f"no effect {above}" if level is Severity.NONE else f"not known: an effect {above} is not excluded"


def latency_words(cell: Cell, name: str) -> str:
    """What is known of a latency impact."""
    effect = cell.latency_effect.get(name, Effect.NOT_KNOWN)
    if effect is Effect.SEEN:
        return "an effect"
    return severity_words(Severity.NONE if effect is Effect.NONE else Severity.NOT_KNOWN, cell.latency_bound)


@dataclass(frozen=True)
class Row:
    """A trial: a victim, and the levels that set it apart from its other trials."""

    trial: str
    victim: str
    detail: str

    @property
    def title(self) -> str:
        return f"{self.victim} ({self.detail})" if self.detail else self.victim


@dataclass(frozen=True)
class Column:
    """A treatment as all trials share it."""

    key: Key
    group: str
    detail: str

    @property
    def title(self) -> str:
        return f"{self.group} {self.detail}".strip()


@dataclass(frozen=True)
class Matrix:
    """Rows and columns in the order they were planned; a cell may be missing."""

    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: dict[tuple[str, Key], Cell]

    def at(self, row: Row, column: Column) -> Cell | None:
        return self.cells.get((row.trial, column.key))


def matrix(findings: Findings, *, limits: bool = False) -> Matrix:
    """Aggressors and the null one; with `limits` the treatments that switch the victim's own limits instead."""
    cells = [cell for cell in findings.cells if (cell.role == "limit") == limits]
    columns = {key_of(cell): Column(key_of(cell), *_heading(cell)) for cell in cells}
    ordered = sorted(columns.values(), key=lambda column: column.key[0] != "null")
    groups = list(dict.fromkeys(column.group for column in ordered))
    return Matrix(
        rows=tuple(dict.fromkeys(Row(cell.trial, cell.victim, levels_text(cell)) for cell in cells)),
        columns=tuple(sorted(ordered, key=lambda column: (groups.index(column.group), column.key[2]))),
        cells={(cell.trial, key_of(cell)): cell for cell in cells},
    )


def key_of(cell: Cell) -> Key:
    """What makes two cells of different trials the same treatment."""
    own_limits = cell.label if cell.role == "limit" else cell.label.partition(", ")[2]
    return cell.role, cell.aggressor or "", cell.intensity or 0.0, own_limits


def levels_text(cell: Cell) -> str:
    """The levels of a trial, by the last part of their path."""
    return ", ".join(f"{path.rsplit('.', 1)[-1]} {level}" for path, level in cell.levels.items())


def emulated(cell: Cell) -> bool:
    return Warn.EMULATED in cell.warnings


def victim_title(cell: Cell) -> str:
    """Victim with its levels, marked where it is emulated."""
    detail = levels_text(cell)
    return f"{cell.victim} ({detail})" if detail else cell.victim


def cell_title(cell: Cell) -> str:
    """A cell in words: 'ring beside memory-copy at 50 %'."""
    joint = "under" if cell.role == "limit" else "beside"
    return f"{victim_title(cell)} {joint} {treatment_title(cell)}{' (emulated)' if emulated(cell) else ''}"


def sentence(cell: Cell) -> str:
    """A cell in one line."""
    return f"{cell_title(cell)}: isolation factor {figures.ratio(cell.isolation)}, {describe(cell)}"


def describe(cell: Cell) -> str:
    """What a cell's figure amounts to, in a few words."""
    return (
        "rate under the limit over the rate without"
        if cell.role == "limit"
        else severity_words(severity(cell), cell.effect_bound)
    )


def band_title(band: Band, findings: Findings) -> str:
    """Whose A/A band it is: the victim, and the limit it was under."""
    cell = next((cell for cell in findings.cells if cell.trial == band.trial), None)
    name = band.trial if cell is None else f"{victim_title(cell)}{' (emulated)' if emulated(cell) else ''}"
    own = name if band.baseline == BASELINE else f"{name}, {band.baseline}"
    return f"{own} (long blocks)" if band.long else own


def legend(findings: Findings) -> list[tuple[Severity, str]]:
    """The marks of a matrix and what they mean."""
    bound = next((cell.effect_bound for cell in findings.cells if cell.effect_bound is not None), None)
    return [(level, severity_words(level, bound)) for level in Severity]


def uncontrolled(findings: Findings) -> dict[str, tuple[str, ...]]:
    """In what aggressors differ from the null aggressor besides their pressure, by name; all trials together.

    Aggressors that differ in the same are named together: {"memory, disk": ("guard 10 ms, not 2 or 5",)}.
    """
    found: dict[str, dict[str, dict[str, None]]] = {}
    for cell in findings.cells:
        for difference in cell.uncontrolled if cell.aggressor is not None else ():
            own, _, null = difference.partition(", not ")
            found.setdefault(cell.aggressor or "", {}).setdefault(own, {})[null] = None
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, differences in found.items():
        told = tuple(f"{own}, not {' or '.join(nulls)}" for own, nulls in differences.items())
        alike.setdefault(told, []).append(name)
    return {", ".join(names): told for told, names in alike.items()}


def treatment_title(cell: Cell) -> str:
    return " ".join(_heading(cell)).strip()


def _heading(cell: Cell) -> tuple[str, str]:
    if cell.role == "null":
        return "null (A/A)", cell.label.partition(", ")[2]
    if cell.role == "limit" or cell.aggressor is None:
        return cell.label, ""
    # An aggressor with no intensity but 1 is labelled by its name alone, see `partywall.plan.make`.
    label, _, limits = cell.label.partition(", ")
    varied = label != cell.aggressor and cell.intensity is not None
    at = f"at {figures.bare_percent(cell.intensity or 0.0)}" if varied else ""
    return cell.aggressor, ", ".join(part for part in (at, limits) if part)
