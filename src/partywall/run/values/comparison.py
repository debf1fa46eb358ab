"""Two runs compared: common cells with the difference of their effects, and cells that only one of them has."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from partywall.core.stats.estimate import Estimate, Outcome
from partywall.run.values.finding import Effect
from partywall.values import Frozen, Level

NAMED = 3
"""The most cells, or parts of a run, that are named in one line."""


class Change(StrEnum):
    """How a cell differs from the reference. `same`: the whole interval is within the tolerance."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


class ComparedCell(Frozen):
    """One cell of both runs.

    ratio: isolation factor divided by the reference's. latency: (1 + impact) divided by the reference's, by percentile.
    effect, reference_effect: whether each side shows an effect of the treatment. reason: of the change, for people;
    why: what keeps a change from being told, in words that many cells may share. runs: number of runs that the spread
    between runs is derived from; 0 if the spread is unknown and not in the interval. found_from: the smallest further
    loss that nine of ten comparisons as precise as this call worse; None if the spread is unknown. emulated: of either
    side.
    """

    victim: str
    label: str
    treatment: str
    levels: dict[str, Level] = Field(default_factory=dict)
    isolation: Estimate
    reference_isolation: Estimate
    effect: Effect | None = None
    reference_effect: Effect | None = None
    ratio: Estimate
    latency: dict[str, Estimate] = Field(default_factory=dict)
    change: Change
    reason: str
    why: tuple[str, ...] = ()
    runs: int = 0
    found_from: float | None = None
    emulated: bool = False


class Comparison(Frozen):
    """A run compared with a reference. only_run and only_reference name cells without a counterpart.

    tolerance, latency_tolerance: the largest change of an isolation factor, and of a 99th percentile, that does not
    matter; None if latencies are not judged. incomparable: cells with different workloads, and the differences.
    incomplete: what could not be measured in a run of either side. host: differences between the hosts. notes:
    qualifications of all intervals. drifted: victims whose own rate, without a neighbour, differs by more than the
    tolerance, with its ratio.
    """

    run: str
    reference: str
    tolerance: float
    latency_tolerance: float | None = None
    cells: tuple[ComparedCell, ...]
    only_run: tuple[str, ...] = ()
    only_reference: tuple[str, ...] = ()
    incomparable: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    drifted: dict[str, Estimate] = Field(default_factory=dict)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """What could not be measured, a line for each run."""
        by_run: dict[str, list[str]] = {}
        for run, _, text in (entry.partition(": ") for entry in self.incomplete):
            by_run.setdefault(run, []).append(text)
        return tuple(
            f"{run}: {'; '.join(texts[:NAMED])}{f'; and {len(texts) - NAMED} more' if len(texts) > NAMED else ''}"
            for run, texts in by_run.items()
        )

    @property
    def doubts(self) -> dict[str, tuple[ComparedCell, ...]]:
        """The inconclusive cells by each reason for it, the most frequent reason first."""
        by_reason: dict[str, list[ComparedCell]] = {}
        for cell in self.cells:
            if cell.change is Change.INCONCLUSIVE:
                for text in cell.why:
                    by_reason.setdefault(text, []).append(cell)
        return {text: tuple(cells) for text, cells in sorted(by_reason.items(), key=lambda pair: -len(pair[1]))}

    def __repr__(self) -> str:
        changes = [cell.change for cell in self.cells]
        counts = ", ".join(f"{changes.count(change)} {change}" for change in Change if change in changes)
        return f"<Comparison of {self.run} with {self.reference}: {self.outcome}; cells: {counts or 'none in common'}>"

    __str__ = __repr__

    @property
    def outcome(self) -> Outcome:
        """Violated if any cell got worse; inconclusive if any is too uncertain or could not be compared.

        Cells that only the run has do not count, unless the reference failed to measure them.
        """
        changes = {cell.change for cell in self.cells}
        if Change.WORSE in changes:
            return Outcome.VIOLATED
        untold = self.only_reference or self.incomparable or self.incomplete
        if Change.INCONCLUSIVE in changes or untold or not changes:
            return Outcome.INCONCLUSIVE
        return Outcome.HOLDS
