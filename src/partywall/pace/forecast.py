"""How many blocks a budget holds, how much its trials need, and what each of them gets of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partywall.model.plan import Treatment
from partywall.model.scenario import Timing
from partywall.pace.rhythm import Rhythm, block_ns, rhythm


@dataclass(frozen=True)
class Forecast:
    """What a trial's blocks take.

    whole_ns: one that holds all treatments. short_ns: one of the others; None if there are none. slow: whether some
    treatments are measured in whole blocks alone.
    """

    beat: Rhythm
    whole_ns: int
    short_ns: int | None
    slow: bool

    def block_ns(self, number: int) -> int:
        """What one block takes, by its number."""
        return self.whole_ns if self.short_ns is None or self.beat.is_long(number) else self.short_ns

    def blocks(self, time_ns: int) -> tuple[int, int]:
        """About how many whole and how many short blocks are measured in a time."""
        if self.short_ns is None:
            return time_ns // self.whole_ns, 0
        shorts = self.beat.every - 1
        rounds, rest_ns = divmod(time_ns, self.whole_ns + shorts * self.short_ns)
        started = rest_ns >= self.whole_ns
        return rounds + started, rounds * shorts + (rest_ns - self.whole_ns) // self.short_ns * started

    def needed_ns(self, blocks: int) -> int:
        """The time in which each treatment is measured so often: in short blocks, or if it is slow in whole ones."""
        if self.short_ns is None:
            return blocks * self.whole_ns
        shorts = self.beat.every - 1
        if self.slow:
            return blocks * self.whole_ns + (blocks - 1) * shorts * self.short_ns
        return (1 + (blocks - 1) // shorts) * self.whole_ns + blocks * self.short_ns


def forecast(treatments: Sequence[Treatment], timing: Timing, stretch: int = 1) -> Forecast:
    """The blocks of a trial with these treatments. stretch: how much longer its slots are than planned."""
    beat = rhythm(treatments, timing, stretch)
    quick = [t for t in treatments if t.id in beat.quick]
    return Forecast(
        beat=beat,
        whole_ns=block_ns(treatments, timing.slice, stretch, timing.long),
        short_ns=block_ns(quick, timing.slice, stretch) if quick else None,
        slow=len(quick) < len(treatments),
    )


def needed_ns(forecasts: Sequence[Forecast], blocks: int) -> list[int]:
    """What each trial needs for its least number of blocks."""
    return [one.needed_ns(blocks) for one in forecasts]


def shares(budget_ns: int, needed: Sequence[int]) -> list[int]:
    """What each trial gets of a budget: what it needs, and an equal part of the rest.

    Equal parts of the whole would give a trial of slow treatments too few blocks while others have more than they need.
    Of a budget that does not suffice each gets in proportion to its need.
    """
    rest_ns = budget_ns - sum(needed)
    if rest_ns < 0:
        return [budget_ns * one // sum(needed) for one in needed]
    return [one + rest_ns // len(needed) for one in needed]
