"""Findings of simulated runs of one host, which differ by more than their own intervals.

No block is simulated: a run draws each cell's figures around their true values. What is drawn is known, so comparisons
of runs can be judged by how often they are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach
from partywall.run.findings.latency import JUDGED
from partywall.run.findings.states import LATENCY_BOUND
from partywall.run.values.finding import Cell, Effect, Findings

FACTORS = (1.0, 1.0, 0.99, 0.93, 0.8, 0.5)
BLOCKS, WORTH = 120, 40.0
BOUND = 0.05

Between = Callable[[np.random.Generator, int], np.ndarray]
"""Standard deviations between runs of so many cells, as multiples of those within a run."""


def as_recorded(random: np.random.Generator, cells: int) -> np.ndarray:
    """As twenty demos of one host showed it (benches/results.jsonl, 2026-11-27).

    In 6.4 % of the pairs of runs, a cell's intervals exclude each other. Two of 26 cells differ between runs.
    """
    spread = np.sqrt(random.exponential(0.15, cells))
    spread[random.choice(cells, max(1, cells // 13), replace=False)] = 1.5
    return np.asarray(spread)


class VariedHost:
    """A host with cells of known effects. Runs of it are drawn one by one.

    within: the median standard deviation of a cell's logarithm in a run; cells differ by about a factor of 2. shared:
    correlation between the cells of one victim, which have a baseline in common. between: what differs between runs.
    """

    def __init__(
        self,
        seed: int,
        *,
        victims: int = 4,
        neighbours: int = 6,
        within: float = 0.015,
        shared: float = 1 / 3,
        between: Between = as_recorded,
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._shape, self._shared = (victims, neighbours), shared
        self._within = within * np.exp(0.7 * self._random.standard_normal(self._shape))
        self._between = self._within * between(self._random, victims * neighbours).reshape(self._shape)
        self._runs = 0

    def precise(self, limit: float) -> list[tuple[int, int]]:
        """The cells whose standard deviation within a run is at most `limit`."""
        return [(int(v), int(n)) for v, n in np.argwhere(self._within <= limit)]

    def run(self, keeps: float = 1.0, cell: tuple[int, int] | None = None) -> Findings:
        """A run in which every cell, or this one alone, keeps this share of its usual isolation factor."""
        self._runs += 1
        planted = np.full(self._shape, keeps if cell is None else 1.0)
        if cell is not None:
            planted[cell] = keeps
        cells = tuple(self._cells(np.log(planted)))
        return Findings(
            run=f"run-{self._runs}", scenario="varied", headline="", cells=cells, bands=(), curves=(), verdicts=()
        )

    def _cells(self, planted: np.ndarray) -> Iterator[Cell]:
        victims, neighbours = self._shape
        baseline = self._random.standard_normal((victims, 1))
        own = self._random.standard_normal(self._shape)
        noise = math.sqrt(self._shared) * baseline + math.sqrt(1 - self._shared) * own
        moved = planted + noise * self._within + self._random.standard_normal(self._shape) * self._between
        for victim in range(victims):
            for neighbour in range(neighbours):
                within = float(self._within[victim, neighbour])
                factor = self._estimate(math.log(FACTORS[neighbour % len(FACTORS)]) + moved[victim, neighbour], within)
                late = self._estimate(4 * within * float(self._random.standard_normal()), 4 * within)
                impact = late.model_copy(update={end: getattr(late, end) - 1 for end in ("value", "low", "high")})
                yield _cell(f"v{victim}", f"n{neighbour}", factor, impact)

    def _estimate(self, log: float, within: float) -> Estimate:
        error = within * math.sqrt(self._random.chisquare(WORTH - 1) / (WORTH - 1))
        half = student_reach(0.95, WORTH - 1) * error
        low, value, high = (math.exp(log + side * half) for side in (-1, 0, 1))
        return Estimate(value=value, low=low, high=high, n=BLOCKS, n_effective=WORTH, method="drawn")


def _cell(victim: str, neighbour: str, factor: Estimate, impact: Estimate) -> Cell:
    rate = Estimate(value=1e6, low=0.99e6, high=1.01e6, n=BLOCKS, method="drawn")
    return Cell(
        trial=victim,
        victim=victim,
        treatment=neighbour,
        label=neighbour,
        role="aggressor",
        aggressor=neighbour,
        intensity=1.0,
        baseline_rate=rate,
        rate=rate,
        isolation=factor,
        latency={JUDGED: impact},
        effect=_effect(factor.low - 1, factor.high - 1, BOUND),
        latency_effect={JUDGED: _effect(impact.low, impact.high, LATENCY_BOUND)},
    )


def _effect(low: float, high: float, bound: float) -> Effect:
    if not low <= 0 <= high:
        return Effect.SEEN
    return Effect.NONE if max(-low, high) <= bound else Effect.NOT_KNOWN
