"""How many blocks fit into a budget, how much time trials need, and each trial's share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from partywall.run.document.scenario import Timing
from partywall.run.plan.pace.rhythm import PLANNED, SLOW_SHARE, BlockKind, Rhythm, Stretch, block_ns, lengths_ns, rhythm
from partywall.run.values.plan import Treatment


@dataclass(frozen=True)
class Forecast:
    """The length of a trial's blocks. took_ns: by kind, for the kinds that the trial has."""

    beat: Rhythm
    took_ns: Mapping[BlockKind, int] = field(hash=False)

    def block_ns(self, number: int) -> int:
        """What one block takes, by its number."""
        return self.took_ns[self.beat.kind(number)]

    @property
    def judging(self) -> list[BlockKind]:
        """The kinds by which some treatment is judged: all but long blocks."""
        return [kind for kind in self.took_ns if kind is not BlockKind.LONG]

    def blocks(self, time_ns: int) -> dict[BlockKind, int]:
        """About how many blocks of each kind are measured in a time."""
        cycles, rest_ns = divmod(time_ns, self._cycle_ns)
        counts = {kind: cycles * self.beat.cycle.count(kind) for kind in self.took_ns}
        for kind in self.beat.cycle:
            rest_ns -= self.took_ns[kind]
            if rest_ns < 0:
                break
            counts[kind] += 1
        return counts

    def fewest(self, time_ns: int) -> int:
        """Blocks of the treatment that is measured least in a time."""
        blocks = self.blocks(time_ns)
        return min(blocks[kind] for kind in self.judging)

    def needed_ns(self, blocks: int) -> int:
        """The time in which each treatment is measured so often, in blocks of the kind by which it is judged."""
        return max(self._until_ns(kind, blocks) for kind in self.judging)

    @property
    def _cycle_ns(self) -> int:
        return sum(self.took_ns[kind] for kind in self.beat.cycle)

    def _until_ns(self, kind: BlockKind, blocks: int) -> int:
        """When so many blocks of a kind are over."""
        places = [at for at, slot in enumerate(self.beat.cycle) if slot is kind]
        cycles, last = divmod(blocks - 1, len(places))
        return cycles * self._cycle_ns + sum(self.took_ns[slot] for slot in self.beat.cycle[: places[last] + 1])


def forecast(
    treatments: Sequence[Treatment],
    timing: Timing,
    stretch: Stretch = PLANNED,
    slow_share: float = SLOW_SHARE,
    *,
    watched: bool = False,
    decided: Collection[str] = (),
) -> Forecast:
    """The blocks of a trial with these treatments. Its parameters are those of `rhythm`."""
    beat = rhythm(treatments, timing, stretch, slow_share, watched=watched, decided=decided)
    quick, slow, short = ([t for t in treatments if t.id in held] for held in (beat.quick, beat.slow, beat.short))
    if not quick:
        return Forecast(beat, {BlockKind.WHOLE: block_ns(slow, timing.slice, stretch, timing.long)})
    return Forecast(beat, lengths_ns(quick, slow, short, timing, stretch))


def needed_ns(forecasts: Sequence[Forecast], blocks: int) -> list[int]:
    """The time each trial needs for its least number of blocks."""
    return [forecast.needed_ns(blocks) for forecast in forecasts]


def shares(budget_ns: int, needed: Sequence[int]) -> list[int]:
    """Each trial's share of a budget: the time it needs, and an equal part of the rest.

    Equal shares of the whole would give a trial of slow treatments too few blocks while others have more than they
    need. If the budget is too small, shares are proportional to the need.
    """
    rest_ns = budget_ns - sum(needed)
    if rest_ns < 0:
        return [budget_ns * share // sum(needed) for share in needed]
    return [share + rest_ns // len(needed) for share in needed]
