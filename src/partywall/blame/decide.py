"""When an experiment may end, and whom it names: sequential looks, with the error of all names held. Pure.

The error of 5 % is shared equally by all looks. At each look, Holm's rule (Scandinavian Journal of Statistics 6, 1979)
selects among the suspects, as it does among the cells of a run. So an innocent suspect is named in at most 5 % of
experiments, and the false discovery rate is at most 5 % too. The dummy suspect is never a candidate: it is the A/A
check.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from partywall.blame.code import Array, Code
from partywall.blame.effects import Effects, effects, gained, reductions, taken
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach

ALPHA = 0.05
FIRST_SLOTS = 60
GROWTH = 1.35
"""The growth of the data between two looks."""
DUMMY_ALPHA = 0.01
LEAST_HELD = 0.1
"""A suspect that surely loses less of its work than this part of a pulse's depth is not held by its lever."""
POORLY_KNOWN = 0.3
"""If the reduction of a suspect's work is known with a larger error, the depth is taken for it."""
DEEPEN_AT = 0.25
"""The part of the longest time after which pulses are as deep as allowed, if not all suspects are decided."""
PULSED = 0.5
"""The share of the time in which each suspect is pulsed."""


Chosen = NDArray[np.bool_]


class State(StrEnum):
    """What is known of a suspect. UNHELD: its lever did not slow it down, so its pulses say nothing."""

    GUILTY = "guilty"
    CLEARED = "cleared"
    OPEN = "open"
    UNHELD = "unheld"


@dataclass(frozen=True)
class Standing:
    """One suspect at one look.

    gain: of the victim while the suspect is pulsed at the first depth. taken: the share of what the victim would do
    without the suspect, if the effect is proportional to what the suspect does. p: corrected for delays. held: the part
    of a pulse's depth that the suspect loses of its work.
    """

    suspect: str
    state: State
    gain: Estimate
    taken: Estimate
    p: float
    held: float
    delay_ns: int = 0


@dataclass(frozen=True)
class Look:
    """The standing of all suspects after some blocks, the most suspicious first. seconds: of data so far.

    dummy_fails: the dummy suspect, which nobody touched, has an effect: the method does not hold here. seconds_needed:
    the time after which all suspects would be decided at this noise; None if they are.
    """

    standings: tuple[Standing, ...]
    dummy: Estimate
    dummy_fails: bool
    seconds: float
    seconds_needed: float | None
    enough: bool

    @property
    def guilty(self) -> tuple[Standing, ...]:
        """The suspects that are named."""
        return tuple(each for each in self.standings if each.state is State.GUILTY)


@dataclass(frozen=True)
class Rule:
    """When to look and what is enough.

    slot_ns: length of a slot. per_slot: ticks of a slot. least: the share taken below which a suspect does not matter.
    precision: the half width of a named effect, as a share of it, at which the experiment may end. depth: of the first
    pulses. deepest: of those after a part of the longest time. harm: the share of its work in the time of the budget
    that a suspect may lose. delays: in ticks. moves: a pulse moves a suspect, which may do as much elsewhere.
    """

    code: Code
    slot_ns: int
    budget_ns: int
    per_slot: int = 4
    least: float = 0.05
    precision: float = 0.5
    depth: float = 0.3
    deepest: float = 0.6
    harm: float = 1.0
    alpha: float = ALPHA
    delays: tuple[int, ...] = (0, 1, 2, 4)
    moves: bool = False

    @property
    def block_s(self) -> float:
        """The length of a block."""
        return self.code.block_slots * self.slot_ns / 1e9

    @property
    def budget_s(self) -> float:
        return self.budget_ns / 1e9

    @property
    def blocks_in_budget(self) -> int:
        """The number of blocks that fit into the budget."""
        return int(self.budget_ns // (self.code.block_slots * self.slot_ns))

    @cached_property
    def blocks_most(self) -> int:
        """The number of blocks after which the budget, or what suspects may lose, is used up; at least one."""
        numbers = range(1, self.blocks_in_budget + 1)
        return max(1, bisect_right(numbers, self.harm * self.budget_s * (1 + 1e-9), key=self.lost_s))

    @property
    def ends_by(self) -> Literal["budget", "harm"]:
        """What ends the experiment if not all suspects are decided before."""
        return "harm" if self.blocks_most < self.blocks_in_budget else "budget"

    @property
    def longest_s(self) -> float:
        return self.blocks_most * self.block_s

    def lost_s(self, blocks: int) -> float:
        """The work that each suspect may lose in an experiment of so many blocks, as seconds of its work."""
        light = self._light(blocks)
        return PULSED * self.block_s * (light * self.depth + (blocks - light) * self.deepest)

    def _light(self, blocks: int) -> int:
        """How many of so many blocks have the first depth: at least those before the first look."""
        return min(blocks, max(self.blocks_least, math.ceil(DEEPEN_AT * blocks)))

    @property
    def deepens_s(self) -> float | None:
        """The time after which pulses are as deep as allowed; None if it never comes."""
        light = self._light(self.blocks_most)
        return light * self.block_s if light < self.blocks_most and self.deepest > self.depth else None

    def options_for(self, seconds: float) -> tuple[float, float]:
        """The budget in seconds and the harm with which an experiment may last for this time. Neither is smaller."""
        blocks = math.ceil(seconds / self.block_s)
        budget_s = max(self.budget_s, blocks * self.block_s)
        return budget_s, max(self.harm, self.lost_s(blocks) / budget_s)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of blocks after which to look."""
        at, most, found = self.blocks_least, self.blocks_most, list[int]()
        while at < most:
            found.append(at)
            at = max(at + 1, int(at * GROWTH))
        return (*found, most)

    @property
    def blocks_least(self) -> int:
        """The number of blocks before the first look. With fewer, fitted noise makes small probabilities too small."""
        return -(-max(FIRST_SLOTS, 5 * self.code.columns + 24) // self.code.block_slots)

    def depths(self, blocks: int) -> Array:
        """Returns the depths of the pulses of the first blocks, shape (slots, columns); 0: not pulsed."""
        block = np.arange(blocks * self.code.block_slots) // self.code.block_slots
        depth = np.where(block < self._light(self.blocks_most), self.depth, self.deepest)
        return np.asarray(self.code.blocks(blocks) * depth[:, None])

    def look(
        self,
        names: Sequence[str],
        ticks: Array,
        use: Array,
        depths: Array | None = None,
        before: Collection[str] = (),
    ) -> Look:
        """Judges all suspects after some whole blocks. names: without the dummy.

        ticks: the victim's rate. use: what each suspect did in each slot, shape (slots, names). depths: of the pulses
        as they were; None: as planned. before: suspects that an earlier look has named. They stay named, because the
        error is shared by all looks, and what happened then does not end with what happens now.
        """
        depths = self.depths(len(use) // self.code.block_slots) if depths is None else depths
        found = effects(ticks, depths, self.code.block_slots, self.delays, self.per_slot)
        count = len(names)
        held, error = reductions(use, depths[:, :count], self.code.block_slots)
        is_held = ~(held + 2 * error < LEAST_HELD)
        held = np.where(error < POORLY_KNOWN, held, 1.0)
        if self.moves:
            # The kernel moves a suspect whatever it uses.
            held, is_held = np.ones_like(held), np.ones_like(is_held)
        level, mean = self.alpha / len(self.looks), depths.mean(axis=0)
        named = selected(np.where(is_held, found.p[:count], 1.0), level) | np.isin(names, list(before))
        standings = [
            self._standing(name, column, found, float(held[column]), float(mean[column]), state)
            for column, (name, state) in enumerate(zip(names, map(_known, named, is_held), strict=True))
        ]
        standings.sort(key=lambda each: (each.state is not State.GUILTY, -each.gain.value / _deviation(each)))
        seconds = len(use) * self.slot_ns / 1e9
        shown = student_reach(0.95, found.dof)
        needed = max(
            (_needed(each, self.least, seconds, self._reach(found) / shown) for each in standings), default=0.0
        )
        return Look(
            standings=tuple(standings),
            dummy=found.estimate(count).scaled(self.depth),
            dummy_fails=bool(_dummy_p(found, count, len(self.delays)) < DUMMY_ALPHA / len(self.looks)),
            seconds=seconds,
            seconds_needed=needed if needed > seconds else None,
            enough=all(self._is_decided(each) for each in standings),
        )

    def _standing(
        self, name: str, column: int, found: Effects, held: float, depth: float, known: State | None
    ) -> Standing:
        """The standing of one suspect. depth: the mean of its pulses. known: what is known already."""
        full, held = found.estimate(column), max(held, LEAST_HELD)
        half = self._reach(found) * float(found.error[column])
        upper = taken(full.mapped(lambda value: value + half), held, depth).value
        state = known or (State.CLEARED if upper < self.least else State.OPEN)
        delay_ns = int(found.delay[column]) * self.slot_ns // self.per_slot
        gain, share = gained(full, self.depth, depth), taken(full, held, depth)
        return Standing(name, state, gain, share, float(found.p[column]), held, delay_ns)

    def _reach(self, found: Effects) -> float:
        """The standard errors that an effect must be below `least` by. Suspects and looks share the error."""
        return student_reach(1 - 2 * self.alpha / (self.code.columns - 1) / len(self.looks), found.dof)

    def _is_decided(self, standing: Standing) -> bool:
        if standing.state is State.GUILTY:
            return standing.gain.half_width <= self.precision * standing.gain.value
        return standing.state is not State.OPEN


def selected(p: Array, level: float) -> Chosen:
    """Holm's selection: by rising probability, as long as each is at most `level` by the number of those left."""
    order = np.argsort(p)
    passes = np.logical_and.accumulate(p[order] <= level / np.arange(len(p), 0, -1))
    out = np.zeros(len(p), dtype=bool)
    out[order[passes]] = True
    return out


def _known(named: np.bool_, is_held: np.bool_) -> State | None:
    """What is known of a suspect whatever its interval."""
    if named:
        return State.GUILTY
    return None if is_held else State.UNHELD


def _deviation(standing: Standing) -> float:
    return max(standing.gain.half_width, 1e-12)


def _dummy_p(found: Effects, column: int, delays: int) -> float:
    """The dummy's probability, of both signs, corrected for the delays tried."""
    ratio = abs(float(found.effect[column])) / max(float(found.error[column]), 1e-12)
    return float(min(1.0, 2 * special.stdtr(found.dof, -ratio) * delays))


def _needed(standing: Standing, least: float, seconds: float, reach: float) -> float:
    """The time after which an open suspect is cleared or named, whichever is sooner, if its effect stays as it is.

    reach: the half width of the interval that decides, in those of the interval that is shown.
    """
    if standing.state is not State.OPEN:
        return 0.0
    value = standing.taken.value
    return seconds * max(1.0, (reach * standing.taken.half_width / max(least - value, value / 2)) ** 2)
