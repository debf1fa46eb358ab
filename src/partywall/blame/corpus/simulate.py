"""Simulates a lab, with pulses or without: what a victim does and what counters show, tick by tick. Pure.

What a neighbour takes is proportional to its work of the moment. A pulse reduces its work by depth × grip; of the work
that is delayed, the share `rebound` is done one slot later. The same seed gives the same demands and the same noise
with pulses and without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import signal

from partywall.blame.code import Array
from partywall.blame.corpus.lab import WORST, Lab, Neighbour

TICK_NS = 25_000_000
PER_SLOT = 4
CALIBRATED = 24_000
"""Ticks from which the mean effect of a neighbour is set."""


@dataclass(frozen=True)
class Observed:
    """What can be seen of a lab, by tick: shape (ticks) or (ticks, neighbours).

    rate: the victim's. use: CPU time of each neighbour, as a share of a CPU. waited: the share of the tick in which the
    victim waited for a CPU or a disk (what PSI counts). own: in which its own limit stopped it. steal: of the host.
    beside: in which a neighbour ran while the victim waited for a CPU.
    """

    rate: Array
    use: Array
    waited: Array
    own: Array
    steal: Array
    beside: Array


def simulate(lab: Lab, ticks: int, depths: Array | None = None) -> Observed:
    """Simulates some ticks. depths: of pulses, shape (slots, neighbours or more), for all ticks; None: no pulses."""
    random = np.random.default_rng(lab.seed)
    shared = {each.clock: _clocked(each, ticks, random) for each in lab.neighbours if each.clock < 10}
    load = _wander(random, ticks, 2.0)
    demand = np.column_stack([
        _demand(each, ticks, np.random.default_rng([lab.seed, at]), shared, load)
        for at, each in enumerate(lab.neighbours)
    ])  # fmt: skip
    done = demand if depths is None else _held(lab, demand, depths)
    losses = np.column_stack([_loss(each, done[:, at], demand[:, at]) for at, each in enumerate(lab.neighbours)])
    kept = np.prod(1 - losses, axis=1)
    own = _own_limit(lab, ticks, random)
    steal = np.clip(lab.steal * (1 + _wander(random, ticks, 1.0)), 0, 0.9) if lab.steal else np.zeros(ticks)
    noise = lab.noise * np.sqrt(PER_SLOT) * random.standard_normal(ticks)
    speed = np.exp(lab.drift * _wander(random, ticks, lab.drift_s) + 0.02 * load)
    stalls = random.random(ticks) < lab.stalls
    rate = 1000 * speed * kept * (1 - own) * (1 - steal) * np.clip(1 + noise, 0.05, None) * ~stalls
    queue = np.array([each.resource == "cpu" for each in lab.neighbours])
    waits = np.array([each.resource in ("cpu", "disk", "locks") for each in lab.neighbours])
    use = done * [each.cpu for each in lab.neighbours]
    waited = np.clip(1 - np.prod(1 - losses * waits, axis=1) + own + steal, 0, 1)
    ran = use / np.maximum(use.sum(axis=1, keepdims=True), 1e-9)
    queued = np.clip(1 - np.prod(1 - losses * queue, axis=1) + steal, 0, 1)
    return Observed(rate, use, waited, own, steal, ran * queued[:, None])


def _wander(random: np.random.Generator, ticks: int, seconds: float) -> Array:
    """A slow random course with a standard deviation of 1."""
    kept = float(np.exp(-TICK_NS / 1e9 / seconds))
    steps = np.sqrt(1 - kept * kept) * random.standard_normal(ticks + 400)
    return np.asarray(signal.lfilter([1], [1, -kept], steps)[400:])


def _demand(each: Neighbour, ticks: int, random: np.random.Generator, shared: dict[int, Array], load: Array) -> Array:
    """The work that a neighbour wants to do, with a mean of about 1."""
    match each.rhythm:
        case "clocked":
            busy = shared[each.clock] if each.clock in shared else _clocked(each, ticks, random)
        case "bursty":
            busy = _bursts(each, ticks, random)
        case "follows":
            # It serves the same users as the victim.
            busy = np.clip(1 + 0.6 * load, 0.05, None)
        case _:
            busy = np.ones(ticks)
    wobble = np.clip(1 + 0.15 * _wander(random, ticks, 0.3), 0.1, None)
    return np.asarray(busy * wobble)


def _clocked(each: Neighbour, ticks: int, random: np.random.Generator) -> Array:
    phase = (np.arange(ticks) * TICK_NS / 1e9 / each.period_s + random.random()) % 1
    return np.where(phase < each.duty, 1 / each.duty, 0.0)


def _bursts(each: Neighbour, ticks: int, random: np.random.Generator) -> Array:
    period = max(2.0, each.period_s * 1e9 / TICK_NS)
    busy = np.zeros(ticks)
    at = 0.0
    while at < ticks:
        length = random.exponential(period * each.duty)
        busy[int(at) : int(at + length) + 1] = 1 / each.duty
        at += length + random.exponential(period * (1 - each.duty)) + 1
    return busy


def _held(lab: Lab, demand: Array, depths: Array) -> Array:
    count = len(lab.neighbours)
    held = np.repeat(depths[:, :count], PER_SLOT, axis=0)[: len(demand)]
    cut = demand * held * [each.grip for each in lab.neighbours]
    later = np.zeros_like(cut)
    later[PER_SLOT:] = cut[:-PER_SLOT] * [each.rebound for each in lab.neighbours]
    return np.asarray(demand - cut + later)


def _loss(each: Neighbour, done: Array, demand: Array) -> Array:
    """The share of the victim's work that a neighbour takes in each tick."""
    if each.effect <= 0:
        return np.zeros_like(done)
    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        mean = np.minimum(WORST, middle * demand[:CALIBRATED]).mean()
        low, high = (middle, high) if mean < each.effect else (low, middle)
    lag = round(each.lag_ms * 1e6 / TICK_NS)
    late = np.concatenate([np.full(lag, done[0]), done[: len(done) - lag]])
    return np.asarray(np.minimum(WORST, low * late))


def _own_limit(lab: Lab, ticks: int, random: np.random.Generator) -> Array:
    """A limit stops the victim at the end of some of its periods of 100 ms, the more the more it has to do."""
    if not lab.throttled:
        return np.zeros(ticks)
    periods = -(-ticks // PER_SLOT)
    share = np.clip(lab.throttled * (1 + 0.8 * random.standard_normal(periods)), 0, 0.9)
    place = np.arange(PER_SLOT)
    stopped = np.clip(share[:, None] * PER_SLOT - (PER_SLOT - 1 - place), 0, 1)
    return np.asarray(stopped.ravel()[:ticks])
