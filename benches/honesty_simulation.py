"""Does a 95 % interval cover 95 times in 100? By simulation, for noise like a host's and worse.

The promise begins at 150 blocks, for every noise. It holds under sequential stopping too, whether the requested
precision is reached early (what 200 blocks give) or later (400). Every such cell of the table must lie within 93 to
97 %, allowing for the simulation's own chance (two standard errors). What fewer blocks give is shown beside. honesty.py
judges it.

Neighbours may also take a share of their loss from the slots after their own, in blocks of three treatments and of
eight. Coverage is promised if this lasts one slot, and in blocks of eight also if it lasts two or three and is at most
a tenth of the loss. In runs of 400 blocks, carry-over must be reported in at least 95 % if it is more than a tenth of
the loss, and in at most 5 % if there is none. Where nothing is promised, the table shows coverage and the part of the
loss that estimates miss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from partywall.core.stats.histogram import Histogram
from partywall.core.stats.interval import PROMISED, blocks_worth, error_of_mean, linearised_ratio
from partywall.run.findings.analysis import FEWEST_WORTH, FIRST_LOOK, carry_over, checkpoints
from partywall.run.findings.carryover import NEGLIGIBLE_SHARE
from partywall.run.findings.speed import rates_of
from partywall.run.measure.execute import LOOKS_FROM
from partywall.run.values.observation import Observation, Places
from partywall.run.values.plan import Treatment

Array = NDArray[np.float64]
Shape = tuple[int, int]
LOW, HIGH = 0.93, 0.97
BLOCKS = (20, 50, 100, PROMISED, 400, 1000)
SEQUENTIAL_MOST = 1000
SEQUENTIAL_USUAL = (200, 400)
AFTER_BLOCKS = (PROMISED, 400, 1000)
REPORTED, FALSE_ALARMS, REPORTED_FROM = 0.95, 0.05, 400
SLOT_NS, GUARD_NS = 4_000_000, 2_000_000
_WARM_UP = 200


@dataclass(frozen=True)
class Row:
    """Coverage in one situation. blocks: how many, or for how many the precision is usual at which it was stopped.

    width: mean half width over √(1/n). error: the mean of the estimates minus the truth. covers: whether coverage is
    promised for this noise.
    """

    noise: str
    blocks: int
    stopped: bool
    coverage: float
    width: float
    replications: int
    error: float
    covers: bool

    @property
    def promised(self) -> bool:
        """Whether this is among what docs/statistics.md promises."""
        return self.covers and self.blocks >= PROMISED

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
    """Something drawn, shape (…, replications, blocks), of known truth.

    blocks, stops: the numbers of blocks, and those that usually give the precision at which a run stops. covers:
    whether coverage is promised.
    """

    name: str
    draw: Callable[[np.random.Generator, Shape], Array]
    truth: float = 0.0
    replications: tuple[int, int] = (400, 10_000)
    """Of the short form, and of the long form."""
    blocks: Sequence[int] = BLOCKS
    stops: Sequence[int] = SEQUENTIAL_USUAL
    covers: bool = True

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

    The isolation factor of the last treatment against the first two, without the host's speed and after-effects, as in
    a run. A fit for each replication takes its time, so there are fewer.
    """

    replications: tuple[int, int] = (100, 1000)

    def values(self, drawn: Array) -> Array:
        return np.stack([_against_two(*_ordered(drawn[:, at])) for at in range(drawn.shape[1])])


@dataclass(frozen=True)
class After(Slots):
    """The same, with after-effects. after: how much of a neighbour's loss the next slots lose."""

    replications: tuple[int, int] = (100, 400)
    blocks: Sequence[int] = AFTER_BLOCKS
    stops: Sequence[int] = ()
    after: Sequence[float] = ()

    def must_report(self, blocks: int) -> bool | None:
        """Whether a run must report carry-over; None if either is right."""
        if not self.after:
            return False
        return True if max(self.after) > NEGLIGIBLE_SHARE and blocks >= REPORTED_FROM else None


def _ordered(drawn: Array) -> tuple[Array, Places, Places]:
    """Rates of slots, their treatments and their blocks, in order of time."""
    rates, position = np.split(drawn, 2)
    order = np.argsort((position + len(rates) * np.arange(rates.shape[1])).ravel())
    place, block = (at.ravel()[order] for at in np.indices(rates.shape))
    return rates.ravel()[order], place, block


def _against_two(rates: Array, place: Places, block: Places) -> Array:
    names = tuple(map(str, range(int(place.max()) + 1)))
    fit = rates_of(rates, place, np.arange(len(rates), dtype=np.float64), names, names[2:])
    return fit.ratio(names[-1], names[:2], block, int(block.max()) + 1)


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
    kept: Sequence[float],
    speed: Callable[[np.random.Generator, Shape], Array],
    stalls: float = 0.0,
    after: Sequence[float] = (),
) -> Callable[[np.random.Generator, Shape], Array]:
    """Slots in random order on a host whose speed is drawn slot by slot, with 1.4 % of noise in each.

    kept: what each treatment keeps of the rate. The last one stands still in a share of its slots. after: what each
    takes of its loss from the next slots, if they hold another treatment.
    """
    treatments = len(kept)

    def draw(random: np.random.Generator, shape: Shape) -> Array:
        replications, blocks = shape
        host = 0.04 * speed(random, (replications, blocks * treatments)).reshape(replications, blocks, treatments)
        position = random.permuted(np.broadcast_to(np.arange(treatments), host.shape), axis=-1)
        held = np.argsort(position, axis=-1).reshape(replications, -1)
        late = np.ones(held.shape)
        for lag, share in enumerate(after, start=1):
            loss = share * (1 - np.asarray(kept)[held[:, :-lag]])
            late[:, lag:] -= np.where(held[:, lag:] == held[:, :-lag], 0, loss)
        speeds = np.take_along_axis(host + late.reshape(host.shape), position, axis=-1)
        rates = (speeds + 0.014 * random.standard_normal(host.shape)) * kept
        rates[..., -1] *= random.random(shape) >= stalls
        return np.moveaxis(np.concatenate([rates, position], axis=-1), -1, 0)

    return draw


def _wandering(random: np.random.Generator, shape: Shape) -> Array:
    """As between windows some milliseconds apart on a cloud host: persistent over tens of slots, of variance 1."""
    return math.sqrt(1 - 0.9**2) * _persistent(0.9)(random, shape)


def _of_long_slots(random: np.random.Generator, shape: Shape) -> Array:
    """The same between slots of 60 ms instead of 4."""
    return math.sqrt(1 - 0.3**2) * _persistent(0.3)(random, shape)


THREE, FOUR, EIGHT = (1, 1, 0.8), (1, 1, 1, 0.8), (1, 1, 1, 1, 0.95, 0.9, 0.5, 0.8)
"""What is kept beside the treatments of a block: a baseline, a null and neighbours, of which the last one is judged."""


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
    Slots("slots, steady host", _slots(FOUR, _white), truth=0.8),
    Slots("slots, host drifts", _slots(FOUR, _wandering), truth=0.8),
    Slots("slots, 8 % at 0", _slots((1, 1, 1, 1), _wandering, stalls=0.08), truth=0.92),
    Slots("slots, 8 treatments", _slots(EIGHT, _wandering), truth=0.8),
    Slots("slots, 3 treatments", _slots(THREE, _wandering), truth=0.8),
    Slots("slots of 60 ms, 3 treatments", _slots(THREE, _of_long_slots), truth=0.8),
)


def _after(kept: Sequence[float], *after: float) -> After:
    """Coverage is promised after one slot, and in large blocks after several if carry-over need not be reported."""
    name = " + ".join(f"{share:.0%}" for share in after) or "none"
    draw = _slots(kept, _wandering, after=after)
    covers = len(after) < 2 or (len(kept) == len(EIGHT) and max(after) <= NEGLIGIBLE_SHARE)
    return After(f"{len(kept)} treatments, {name} after", draw, kept[-1], covers=covers, after=after)


AFTER_EFFECTS = ((), (0.04,), (0.08,), (0.16,), (0.08, 0.04), (0.08, 0.04, 0.02), (0.16, 0.08), (0.32, 0.16, 0.08))
AFTER = tuple(_after(kept, *after) for kept in (THREE, EIGHT) for after in AFTER_EFFECTS)


def coverage_table(every: Sequence[Noise] = (*NOISES, *AFTER), *, quick: bool, seed: int = 2026) -> list[Row]:
    """Coverage for each noise at each of its numbers of blocks, and under sequential stopping."""
    random = np.random.default_rng(seed)
    many = {noise.name: noise.replications[0 if quick else 1] for noise in every}
    fixed = [_fixed(noise, n, many[noise.name], random) for noise in every for n in noise.blocks]
    return fixed + [_sequential(noise, n, many[noise.name], random) for noise in every for n in noise.stops]


@dataclass(frozen=True)
class Report:
    """In what share of runs carry-over was reported. must: whether it must be; None if either is right."""

    noise: str
    blocks: int
    share: float
    must: bool | None
    runs: int

    @property
    def right(self) -> bool:
        """Reported often enough, or seldom enough, but for the simulation's own chance."""
        chance = 2 * math.sqrt(REPORTED * (1 - REPORTED) / self.runs)
        if self.must is None:
            return True
        return self.share >= REPORTED - chance if self.must else self.share <= FALSE_ALARMS + chance


def carry_over_table(every: Sequence[After] = AFTER, *, quick: bool, seed: int = 2026) -> list[Report]:
    """How often a run's own test, of quiet slots by what came before, reports the after-effects of its last neighbour.

    Without long blocks, which have a test of their own.
    """
    random = np.random.default_rng(seed)
    runs = 40 if quick else 400
    return [_reports(noise, blocks, runs, random) for noise in every for blocks in (PROMISED, REPORTED_FROM)]


def _reports(noise: After, blocks: int, runs: int, random: np.random.Generator) -> Report:
    drawn = noise.draw(random, (runs, blocks))
    share = float(np.mean([_reported(drawn[:, at]) for at in range(runs)]))
    return Report(noise.name, blocks, share, noise.must_report(blocks), runs)


def _reported(drawn: Array) -> bool:
    rates, place, block = _ordered(drawn)
    count = int(place.max()) + 1
    treatments = [_treatment(str(at), ("baseline", "null")[at] if at < 2 else "aggressor") for at in range(count)]
    starts = np.arange(len(rates)) * (SLOT_NS + GUARD_NS)
    observations = [
        Observation("t", int(b), at % count, str(p), int(s), int(s) + SLOT_NS, r, r, r, None, Histogram({}))
        for at, (b, p, s, r) in enumerate(zip(block, place, starts, rates.tolist(), strict=True))
    ]
    return carry_over(observations, treatments)[str(count - 1)].present


def _treatment(name: str, role: Literal["baseline", "null", "aggressor"]) -> Treatment:
    aggressor = name if role == "aggressor" else None
    return Treatment(id=name, label=name, role=role, aggressor=aggressor, guard_ns=GUARD_NS, slot_ns=SLOT_NS)


def _fixed(noise: Noise, n: int, replications: int, random: np.random.Generator) -> Row:
    values = noise.values(noise.draw(random, (replications, n)))
    half = error_of_mean(values).half_width(0.95)
    errors = values.mean(axis=-1) - noise.truth
    covered, error = float((np.abs(errors) <= half).mean()), float(errors.mean())
    return Row(noise.name, n, False, covered, float(half.mean() * math.sqrt(n)), replications, error, noise.covers)


def _sequential(noise: Noise, usual: int, replications: int, random: np.random.Generator) -> Row:
    """Stops at the first checkpoint at which the interval is as narrow as so many blocks usually make it."""
    drawn = noise.draw(random, (replications, SEQUENTIAL_MOST))
    target = float(np.median(error_of_mean(noise.values(drawn[..., :usual])).half_width(0.95)))
    going = np.ones(replications, dtype=bool)
    covered = np.zeros(replications, dtype=bool)
    width, errors = np.zeros((2, replications))
    for n in (at for at in checkpoints(LOOKS_FROM) if at >= FIRST_LOOK):
        last = n > SEQUENTIAL_MOST
        upto = min(n, SEQUENTIAL_MOST)
        values = noise.values(drawn[..., going, :upto])
        half = error_of_mean(values).half_width(0.95)
        believed = blocks_worth(values, half) >= FEWEST_WORTH
        stop = ((half <= target) & believed) | last
        at = np.flatnonzero(going)[stop]
        errors[at] = values[stop].mean(axis=-1) - noise.truth
        covered[at] = np.abs(errors[at]) <= half[stop]
        width[at] = half[stop] * math.sqrt(upto)
        going[at] = False
        if last or not going.any():
            break
    share, error = float(covered.mean()), float(errors.mean())
    return Row(noise.name, usual, True, share, float(width.mean()), replications, error, noise.covers)
