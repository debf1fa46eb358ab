"""Does a 95 % interval cover 95 times in 100? By simulation, for noise like a host's and worse; prints a table.

`--quick` uses fewer replications. The promise begins at 150 blocks, for every noise. It holds under sequential stopping
too, whether the requested precision is reached early (what 200 blocks give) or later (400). Exits 0 if every such cell
of the table lies within 93 to 97 %, allowing for the simulation's own chance (two standard errors). What fewer blocks
give is shown beside.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from partywall.run.execute import LOOKS_FROM
from partywall.stats import FEWEST_WORTH, FIRST_LOOK, checkpoints
from partywall.stats.interval import PROMISED, blocks_worth, error_of_mean, linearised_ratio
from partywall.stats.speed import rates_of

Array = NDArray[np.float64]
Shape = tuple[int, int]
LOW, HIGH = 0.93, 0.97
BLOCKS = (20, 50, 100, PROMISED, 400, 1000)
SEQUENTIAL_MOST = 1000
SEQUENTIAL_USUAL = (200, 400)
_WARM_UP = 200


@dataclass(frozen=True)
class Row:
    """Coverage in one situation. blocks: how many, or for how many the precision is usual at which it was stopped.

    width: mean half width over √(1/n).
    """

    noise: str
    blocks: int
    stopped: bool
    coverage: float
    width: float
    replications: int

    @property
    def promised(self) -> bool:
        """Whether this is among what docs/statistics.md promises."""
        return self.blocks >= PROMISED

    @property
    def chance(self) -> float:
        """Two standard errors of a coverage of 95 % at this many replications."""
        return 2 * math.sqrt(0.95 * 0.05 / self.replications)

    @property
    def honest(self) -> bool:
        """Within 93 to 97 %, but for the simulation's own chance."""
        return LOW - self.chance <= self.coverage <= HIGH + self.chance


@dataclass(frozen=True)
class Noise:
    """Something drawn, shape (…, replications, blocks), of known truth."""

    name: str
    draw: Callable[[np.random.Generator, Shape], Array]
    truth: float = 0.0
    replications: tuple[int, int] = (400, 10_000)
    """Of the short form, and of the long form."""

    def values(self, drawn: Array) -> Array:
        """Block values whose mean is the estimate."""
        return drawn


@dataclass(frozen=True)
class Rates(Noise):
    """Treated and baseline rates, shape (2, replications, blocks). truth: the isolation factor."""

    def values(self, drawn: Array) -> Array:
        return linearised_ratio(drawn[0], drawn[1])


@dataclass(frozen=True)
class Slots(Noise):
    """Rates of treatments and their positions in blocks, shape (2 · treatments, replications, blocks).

    The isolation factor of the last treatment against the first two, without the host's speed, as in a run. A fit for
    each replication takes its time, so there are fewer.
    """

    replications: tuple[int, int] = (100, 1000)

    def values(self, drawn: Array) -> Array:
        count = len(drawn) // 2
        names = tuple(map(str, range(count)))
        return np.stack([_against_two(drawn[:count, at], drawn[count:, at], names) for at in range(drawn.shape[1])])


def _against_two(rates: Array, position: Array, names: Sequence[str]) -> Array:
    count, blocks = rates.shape
    moment = (position + count * np.arange(blocks)).ravel()
    order = np.argsort(moment)
    place, block = (np.indices(rates.shape)[axis].ravel()[order] for axis in (0, 1))
    fit = rates_of(rates.ravel()[order], place, moment[order], names)
    return fit.ratio(names[-1], names[:2], block, blocks)


def _white(random: np.random.Generator, shape: Shape) -> Array:
    return random.standard_normal(shape)


def _heavy(random: np.random.Generator, shape: Shape) -> Array:
    return random.standard_t(3, shape)


def _contaminated(random: np.random.Generator, shape: Shape) -> Array:
    return random.standard_normal(shape) * np.where(random.random(shape) < 0.05, 10, 1)


def _one_sided(random: np.random.Generator, shape: Shape) -> Array:
    return random.standard_normal(shape) - np.where(random.random(shape) < 0.05, 10, 0) + 0.5


def _lognormal(random: np.random.Generator, shape: Shape) -> Array:
    return np.exp(0.5 * random.standard_normal(shape)) - math.exp(0.125)


def _persistent(
    coefficient: float, innovation: Callable[[np.random.Generator, Shape], Array] = _white
) -> Callable[[np.random.Generator, Shape], Array]:
    def draw(random: np.random.Generator, shape: Shape) -> Array:
        steps = innovation(random, (shape[0], shape[1] + _WARM_UP))
        return np.asarray(signal.lfilter([1], [1, -coefficient], steps, axis=1)[:, _WARM_UP:])

    return draw


def _effect_and_noise(random: np.random.Generator, shape: Shape) -> Array:
    return 0.6 * _persistent(0.8)(random, shape) + random.standard_normal(shape)


def _rates(random: np.random.Generator, shape: Shape) -> Array:
    """Two slots of a block: the host's level wanders by a tenth, each slot has 5 % noise of its own."""
    host = 0.03 * _persistent(0.95)(random, shape)
    return np.exp(host + 0.05 * random.standard_normal((2, *shape)))


def _stalls(share: float, rest: float) -> Callable[[np.random.Generator, Shape], Array]:
    """The victim falls to `rest` of its rate in a share of the treated slots; the host hits 2 % of all slots."""

    def draw(random: np.random.Generator, shape: Shape) -> Array:
        rates = np.exp(0.01 * random.standard_normal((2, *shape)) - 0.15 * (random.random((2, *shape)) < 0.02))
        rates[0] *= np.where(random.random(shape) < share, rest, 1)
        return rates

    return draw


def _slots(
    treatments: int, kept: float, speed: Callable[[np.random.Generator, Shape], Array], stalls: float = 0.0
) -> Callable[[np.random.Generator, Shape], Array]:
    """Slots in random order on a host whose speed is drawn slot by slot, with 1.4 % of noise in each.

    The last treatment keeps a share of its rate, and stands still in a share of its slots.
    """

    def draw(random: np.random.Generator, shape: Shape) -> Array:
        replications, blocks = shape
        host = 0.04 * speed(random, (replications, blocks * treatments)).reshape(replications, blocks, treatments)
        position = random.permuted(np.broadcast_to(np.arange(treatments), host.shape), axis=-1)
        rates = 1 + np.take_along_axis(host, position, axis=-1) + 0.014 * random.standard_normal(host.shape)
        rates[..., -1] *= kept * (random.random(shape) >= stalls)
        return np.moveaxis(np.concatenate([rates, position], axis=-1), -1, 0)

    return draw


def _wandering(random: np.random.Generator, shape: Shape) -> Array:
    """As between windows some milliseconds apart on a cloud host: persistent over tens of slots, of variance 1."""
    return math.sqrt(1 - 0.9**2) * _persistent(0.9)(random, shape)


NOISES = (
    Noise("white", _white),
    Noise("AR(1) 0.3", _persistent(0.3)),
    Noise("AR(1) 0.5", _persistent(0.5)),
    Noise("AR(1) 0.7", _persistent(0.7)),
    Noise("t(3)", _heavy),
    Noise("t(3), AR(1) 0.5", _persistent(0.5, _heavy)),
    Noise("5 % of blocks 10×", _contaminated),
    Noise("lognormal 0.5", _lognormal),
    Noise("AR(1) 0.9", _persistent(0.9)),
    Noise("AR(1) 0.8 + white", _effect_and_noise),
    Noise("5 % of blocks −10σ", _one_sided),
    Rates("rates, 5 %", _rates, truth=1.0),
    Rates("8 % of slots at 3 %", _stalls(0.08, 0.03), truth=1 - 0.08 * 0.97),
    Rates("8 % of slots at 0", _stalls(0.08, 0.0), truth=0.92),
    Slots("slots, steady host", _slots(4, 0.8, _white), truth=0.8),
    Slots("slots, host drifts", _slots(4, 0.8, _wandering), truth=0.8),
    Slots("slots, 8 treatments", _slots(8, 1.0, _wandering), truth=1.0),
    Slots("slots, 8 % at 0", _slots(4, 1.0, _wandering, stalls=0.08), truth=0.92),
)


def coverage_table(*, quick: bool, seed: int = 2026) -> list[Row]:
    """Coverage for every noise at every number of blocks, and under sequential stopping."""
    random = np.random.default_rng(seed)
    many = {noise: noise.replications[0 if quick else 1] for noise in NOISES}
    fixed = [_fixed(noise, n, many[noise], random) for noise in NOISES for n in BLOCKS]
    return fixed + [_sequential(noise, n, many[noise], random) for noise in NOISES for n in SEQUENTIAL_USUAL]


def _fixed(noise: Noise, n: int, replications: int, random: np.random.Generator) -> Row:
    values = noise.values(noise.draw(random, (replications, n)))
    half = error_of_mean(values).half_width(0.95)
    covered = float((np.abs(values.mean(axis=-1) - noise.truth) <= half).mean())
    return Row(noise.name, n, False, covered, float(half.mean() * math.sqrt(n)), replications)


def _sequential(noise: Noise, usual: int, replications: int, random: np.random.Generator) -> Row:
    """Stops at the first checkpoint at which the interval is as narrow as so many blocks usually make it."""
    drawn = noise.draw(random, (replications, SEQUENTIAL_MOST))
    target = float(np.median(error_of_mean(noise.values(drawn[..., :usual])).half_width(0.95)))
    going = np.ones(replications, dtype=bool)
    covered = np.zeros(replications, dtype=bool)
    width = np.zeros(replications)
    for n in (at for at in checkpoints(LOOKS_FROM) if at >= FIRST_LOOK):
        last = n > SEQUENTIAL_MOST
        upto = min(n, SEQUENTIAL_MOST)
        values = noise.values(drawn[..., going, :upto])
        half = error_of_mean(values).half_width(0.95)
        believed = blocks_worth(values, half) >= FEWEST_WORTH
        stop = ((half <= target) & believed) | last
        at = np.flatnonzero(going)[stop]
        covered[at] = np.abs(values[stop].mean(axis=-1) - noise.truth) <= half[stop]
        width[at] = half[stop] * math.sqrt(upto)
        going[at] = False
        if last or not going.any():
            break
    return Row(noise.name, usual, True, float(covered.mean()), float(width.mean()), replications)


def _of(noise: Noise, rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.noise == noise.name]


def _column(row: Row) -> str:
    return f"stopped {row.blocks}" if row.stopped else str(row.blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer replications")
    rows = coverage_table(quick=parser.parse_args().quick)
    print(f"{'coverage in %, by blocks':<26}" + "".join(f"{_column(row):>13}" for row in _of(NOISES[0], rows)))
    for noise in NOISES:
        print(f"{noise.name:<26}" + "".join(f"{100 * row.coverage:>13.1f}" for row in _of(noise, rows)))
    promised = [row for row in rows if row.promised]
    low, high = (100 * pick(row.coverage for row in promised) for pick in (min, max))
    failed = [row for row in promised if not row.honest]
    for row in failed:
        print(f"outside 93 to 97 %: {row.noise}, {_column(row)}: {100 * row.coverage:.1f} %")
    print(
        f"coverage of 95 % intervals from {PROMISED} blocks on: {low:.1f} to {high:.1f} %, {len(promised)} situations"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
