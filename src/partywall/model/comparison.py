"""Two runs side by side: the same cells, how their effects differ, and which cells only one of them has."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from partywall.model.finding import Effect, Estimate, Outcome
from partywall.model.scenario import Frozen, Level


class Change(StrEnum):
    """How a cell differs from the reference. `same`: the whole interval lies within the tolerance."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


class ComparedCell(Frozen):
    """ratio: isolation factor over the reference's. latency: (1 + impact) over the reference's, by percentile.

    effect, reference_effect: whether each side shows an effect of the treatment at all.
    runs: how many runs the spread between runs rests on; 0 where it is not known and not in the interval. emulated: of
    either side.
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
    runs: int = 0
    emulated: bool = False


class Comparison(Frozen):
    """A run against a reference. only_run and only_reference name cells without a counterpart.

    tolerance, latency_tolerance: the change of an isolation factor, and of a 99th percentile, that does not matter;
    None if latencies are not judged. incomparable: cells whose workloads differ, and in what. incomplete: what a run of
    either side could not measure. host: in what the hosts differ. notes: what a reader must know of all intervals.
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

    @property
    def outcome(self) -> Outcome:
        """Violated if any cell got worse; inconclusive if any is too uncertain to tell, or could not be compared.

        What only the run has is new, and no worse than anything: it does not count, unless the reference failed at it.
        """
        found = {cell.change for cell in self.cells}
        if Change.WORSE in found:
            return Outcome.VIOLATED
        untold = self.only_reference or self.incomparable or self.incomplete
        if Change.INCONCLUSIVE in found or untold or not found:
            return Outcome.INCONCLUSIVE
        return Outcome.HOLDS
