"""Are the bad hosts of a fleet found with half of the blocks, if blocks go where the answer is open? Simulated.

100 hosts that differ by 0 to 0.5 %, with heavy tails, in one cell or in 28, as many as a demo has. Three are bad in one
cell: 5 % slower, or without the limit that protects them (20 % slower). All blocks of a host tell each figure to 0.6 %.
Every host is measured for a quarter of its blocks first. Then the open ones go on, a quarter at a time. For comparison:
all blocks of every host, and half of them. --quick: fewer fleets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from frame import Options, Outcome, bench
from partywall.fleet.findings.allocating import is_open
from partywall.fleet.findings.judging import outliers
from partywall.fleet.findings.pooling import Floats, moderated
from partywall.testing.fleets import Fleet, drawn

HOSTS, BAD, BLOCKS, ROUNDS = 100, 3, 24, 4
ERROR, SPREADS = 0.006, (0.0, 0.0025, 0.005)
LOSSES = {"5 % slower": 0.05, "limit not enforced": 0.2}
TRIALS, QUICK_TRIALS = {1: 300, 28: 25}, {1: 25, 28: 2}
"""Fleets of each kind, by the number of cells."""
PLANTS = {
    "equal": "every host gets all of its blocks",
    "blind": "further blocks go to as many hosts, whatever they measure",
}


@dataclass
class Found:
    """What was found in several fleets. share: of the blocks of equal allocation."""

    bad: list[float] = field(default_factory=list)
    false: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)

    def take(self, cells: Sequence[Fleet], counts: Floats) -> None:
        seen = [_seen(fleet, counts) for fleet in cells]
        low = [values < np.median(values) for values, _ in seen]
        chances = zip(outliers(seen), low, strict=True)
        named = np.any([(chance <= 0.05) & is_low for chance, is_low in chances], axis=0)
        self.bad.append(float(named[:BAD].mean()))
        self.false.append(float(named[BAD:].sum() / max(1, named.sum())))
        self.share.append(float(counts.mean() / BLOCKS))

    def __str__(self) -> str:
        return (
            f"{np.mean(self.bad):.1%} found with {np.mean(self.share):.0%} of the blocks, false {self.false_share:.1%}"
        )

    @property
    def false_share(self) -> float:
        return float(np.mean(self.false))


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    found, shares, false = [], [], []
    for cells, trials in (QUICK_TRIALS if options.quick else TRIALS).items():
        for (number, (what, loss)), spread in itertools.product(enumerate(LOSSES.items()), SPREADS):
            chance = np.random.default_rng(number)
            whole, half, rounds = Found(), Found(), Found()
            for _ in range(trials):
                every = [_drawn(chance, spread, loss if cell == 0 else 0.0) for cell in range(cells)]
                whole.take(every, np.full(HOSTS, BLOCKS))
                half.take(every, np.full(HOSTS, BLOCKS // 2))
                rounds.take(every, _allocated(chance, every, options.plant))
            about = f"{what}, spread {spread:.2%}, {cells} cells"
            print(f"{about}: {rounds}; equal: {whole}; half: {half}", flush=True)
            found.append(float(np.mean(rounds.bad)))
            shares.append(float(np.mean(rounds.share)))
            false.append(rounds.false_share)
    figure = (
        f"simulated, {BAD} bad of {HOSTS} hosts, 1 and {max(TRIALS)} cells: found {min(found):.1%} with "
        f"{max(shares):.0%} of the blocks, false discoveries {np.mean(false):.1%}"
    )
    return Outcome(figure, min(found) >= 0.95 and max(shares) <= 0.5 and float(np.mean(false)) <= 0.05)


def _seen(fleet: Fleet, counts: Floats) -> tuple[Floats, Floats]:
    values, errors = fleet.after(counts)
    return values, moderated(errors, counts)


def _drawn(chance: np.random.Generator, spread: float, loss: float) -> Fleet:
    """One cell of a fleet. loss: of its bad hosts, the first ones."""
    bad = {"bad": BAD, "loss": -math.log1p(-loss)} if loss else {}
    return drawn(chance, HOSTS, spread / ERROR, blocks=BLOCKS, error=ERROR, **bad)


def _allocated(chance: np.random.Generator, cells: Sequence[Fleet], plant: str) -> Floats:
    """How many blocks of each host are measured."""
    counts = np.full(HOSTS, BLOCKS // ROUNDS)
    for done in range(1, ROUNDS):
        seen = [_seen(fleet, counts) for fleet in cells]
        is_left = np.any([is_open(*each, counts / BLOCKS, len(cells)) for each in seen], axis=0)
        goes_on = is_left & (counts == done * BLOCKS // ROUNDS)
        if plant == "equal":
            goes_on = np.ones(HOSTS, bool)
        elif plant == "blind":
            goes_on = chance.permutation(goes_on)
        counts[goes_on] += BLOCKS // ROUNDS
    return counts


if __name__ == "__main__":
    main()
