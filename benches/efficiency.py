"""How much better switching is than measuring one after the other, at equal wall time on this host.

For each victim/aggressor pair both methods measure, again and again and in turn, what the aggressor does and what the
null aggressor does. *Sequential* runs the baseline for a third of its time, between a third with the one and a third
with the other. *Switched* spends the same time as a run does: short random blocks of all three, some long blocks for
counters among them, guards paid for. The figure is the ratio of the variances of the two
estimates, read from successive repeats (half the mean square of their differences, so that an effect which wanders over
minutes counts against neither), with a bootstrap interval. What both methods see alike from repeat to
repeat is the effect itself moving, not a method's noise; it is shown beside. Also checked: that the intervals which the
switched method states are honest: over null effects they must include no effect, and over real effects, which drift,
those of every second block and of the blocks between, which met the same effect, must allow for each other.

Bar: variance of the null effect ≤ 1/100 in the median of the pairs and ≤ 1/50 of each, of real effects ≤ 1/5 in the
median; at most 8 % (quick: 15 %) of the intervals exclude what they should include. The short form measures one pair.
It judges the null effect and the intervals. Ten repeats give a ratio of variances within a factor of four, so the short
form judges the upper end of the ratio's interval.

With --folder, each call measures halves of pairs, of some four minutes each, until --minutes are over.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frame import Options, Outcome, bench, in_parts
from partywall.clock import Monotonic
from partywall.core import here
from partywall.core.stats.estimate import Estimate
from partywall.host.label import WORK_ROOT, Label
from partywall.run import stages
from partywall.run.document.scenario import Scenario, Timing
from partywall.run.findings.series import Measured, Series
from partywall.run.measure.execute import BATCH_NS, PILOTS, controller_cpus, readings, send
from partywall.run.measure.recorder import Recorder
from partywall.run.measure.stage import Stage, staged
from partywall.run.plan import lay_out
from partywall.run.plan.pace import rhythm
from partywall.run.record import RunDirectory
from partywall.run.values.observation import Observation
from partywall.run.values.plan import Slot, Treatment, Trial
from partywall.sandbox import reap, reaper
from partywall.session import Session


@dataclass(frozen=True)
class Contention:
    """A victim and what presses on it. cpus: the neighbour's, seen from the victim."""

    victim: str
    params: dict[str, object]
    aggressor: str
    pressed: dict[str, object]
    cpus: str = "auto"


# One for each shared resource, whatever the method gains there.
PAIRS = {
    "memory: memory-copy beside memory-copy": Contention("memory-copy", {}, "memory-copy", {}),
    "cache: cache (L2) beside memory-copy": Contention("cache", {"level": "L2"}, "memory-copy", {}),
    "disk: direct reads beside direct writes": Contention(
        "disk-direct-read",
        {"order": "random", "request_bytes": 8192, "file_bytes": 64 << 20},
        "disk-direct-write",
        {"request_bytes": 131072, "file_bytes": 64 << 20},
    ),
    "CPU: integer beside integer on its core": Contention("integer", {}, "integer", {}, "same"),
    "network stack: udp-send beside tcp-stream": Contention("udp-send", {"datagram_bytes": 1024}, "tcp-stream", {}),
}
SETTLE_OF_DISK = "2ms"
"""Direct requests end within that on a disk without moving parts; the kernels' own word is for any disk."""
BASELINE, NULL, REAL = "baseline", "null", "neighbour@1"
LEAST = {NULL: 100, REAL: 5}
LEAST_OF_EACH = 50
SETTLED_NS = 100_000_000
"""Guard of the sequential method's windows, which have no need to be short."""


def resource(pair: str) -> str:
    return pair.partition(":")[0]


RESOURCES = [resource(pair) for pair in PAIRS]


def trial_of(pair: Contention) -> Trial:
    victim: dict[str, object] = {"probe": pair.victim, "params": pair.params}
    neighbour: dict[str, object] = {
        "stressor": pair.aggressor,
        "params": pair.pressed,
        "sandbox": {"cpus": pair.cpus},
    }
    if pair.aggressor.startswith("disk"):
        neighbour["settle"] = victim["settle"] = SETTLE_OF_DISK
    scenario = Scenario.model_validate(
        {
            "partywall": 1,
            "name": "efficiency",
            "victims": {"victim": victim},
            "aggressors": {"neighbour": neighbour},
        }
    )
    return stages.plan(scenario, here.this_host()).trials[0]


Repeat = dict[str, dict[str, float]]
"""By treatment: the isolation factors of both methods, and whether the interval is honest. Plain values, to be kept."""


def factor(series: Series, treatment: str) -> Estimate:
    """As a run states it: a neighbour beside baseline and null, a null beside the baseline."""
    return series.pair(treatment, BASELINE, *(() if treatment == NULL else (NULL,))).factor()


def is_honest(series: Series, treatment: str) -> bool:
    """Whether the stated interval includes what it should include.

    Nobody knows what a real effect is, but every second block and those between met the same one, however it drifts.
    The values of the two halves may differ by no more than their intervals allow together.
    """
    if treatment == NULL:
        null = factor(series, NULL)
        return null.low <= 1 <= null.high
    halves = (factor(series.kept(np.arange(at, len(series), 2)), treatment) for at in (0, 1))
    lower, higher = sorted(halves, key=lambda half: half.value)
    return higher.value - lower.value <= math.hypot(lower.high - lower.value, higher.value - higher.low)


class Bench:
    """One pair of victim and aggressor, resident, measured by both methods in turn."""

    def __init__(self, trial: Trial, recorder: Recorder, stage: Stage, total_ns: int) -> None:
        self.trial, self.recorder, self.stage, self.total_ns = trial, recorder, stage, total_ns
        self.timing = Timing()
        self.clock = Monotonic()
        self.number = 0

    def repeats(self, count: int, seed: int, plant: str) -> Iterator[Repeat]:
        chance = random.Random(seed)
        for _ in range(count):
            switched_first = chance.random() < 0.5
            switched = self.switched(chance, plant) if switched_first else {}
            sequential = self.sequential(chance)
            yield {"sequential": sequential, **(switched or self.switched(chance, plant))}

    def sequential(self, chance: random.Random) -> dict[str, float]:
        """The baseline in the middle, so that both treatments are next to it."""
        first, last = chance.sample([NULL, REAL], 2)
        window_ns = self.total_ns // 3 - SETTLED_NS
        update = {"slot_ns": window_ns, "guard_ns": SETTLED_NS, "release_ns": 0}
        order = [self.trial.treatment(name).model_copy(update=update) for name in (first, BASELINE, last)]
        block = self.lay_out(order, self.clock.now_ns() + BATCH_NS, None, long=False)
        send(self.stage, block, readings(block))
        rates = {o.treatment: o.rate for o in self.observed()}
        return {name: rates[name] / rates[BASELINE] for name in (NULL, REAL)}

    def switched(self, chance: random.Random, plant: str) -> Repeat:
        if plant:
            return {"switched": self.sequential(chance), "honest": dict.fromkeys((NULL, REAL), True)}
        series = self.series(chance)
        return {
            "switched": {name: factor(series, name).value for name in (NULL, REAL)},
            "honest": {name: is_honest(series, name) for name in (NULL, REAL)},
        }

    def series(self, chance: random.Random) -> Series:
        """As a run measures: see `partywall.run.measure.execute`."""
        began = at = self.clock.now_ns() + BATCH_NS
        number, longs, seen, before = 0, 0, list[Observation](), None
        while at - began < self.total_ns:
            beat = rhythm(self.trial.treatments, self.timing, watched=longs >= PILOTS[-1][1])
            assert beat.quick in ({BASELINE, NULL, REAL}, set()), "all are measured in blocks of one kind"
            batch, read, first = list[Slot](), list[int](), at
            while at - first < BATCH_NS and at - began < self.total_ns:
                order = [self.trial.treatment(name) for name in chance.sample([BASELINE, NULL, REAL], 3)]
                long = beat.is_long(number)
                block = self.lay_out(order, at, before, long=long, at_least_ns=beat.slot_ns_min(number))
                batch, before = [*batch, *block], order[-1]
                read += readings(block) if beat.slot_ns_min(number) else []
                number, longs, at = number + 1, longs + long, block[-1].end_ns
            send(self.stage, batch, read)
            self.clock.sleep_until(at - BATCH_NS)
            seen += self.taken()
        return Measured.of([*seen, *self.observed()], self.trial.treatments).short

    def lay_out(
        self, order: Sequence[Treatment], at: int, before: Treatment | None, *, long: bool, at_least_ns: int = 0
    ) -> tuple[Slot, ...]:
        slots = lay_out(order, at, before, grid_ns=self.timing.slice, at_least_ns=at_least_ns)
        self.recorder.expect(self.number, 1, slots, long=long)
        self.number += 1
        return slots

    def observed(self) -> list[Observation]:
        self.recorder.wait_for_all(self.clock)
        return self.taken()

    def taken(self) -> list[Observation]:
        looks = self.stage.session.look(self.clock.now_ns())
        return [observation for block, _ in self.recorder.complete(looks) for observation in block]


@dataclass(frozen=True)
class Gain:
    """How many times less the switched estimate varies.

    steps: from each repeat to the next of the same part, of the sequential and the switched estimate.
    """

    steps: np.ndarray

    def squares(self) -> np.ndarray:
        """Of the steps, halved."""
        return self.steps**2 / 2

    @property
    def value(self) -> float:
        sequential, switched = self.squares().mean(axis=1)
        return float(sequential / switched)

    def interval(self) -> tuple[float, float]:
        squares = self.squares()
        drawn = np.random.default_rng(1).integers(0, squares.shape[1], (4000, squares.shape[1]))
        sequential, switched = squares[:, drawn].mean(axis=-1)
        low, high = np.quantile(sequential / switched, [0.025, 0.975])
        return float(low), float(high)

    @property
    def alike(self) -> float:
        """Standard deviation that both methods see: the effect itself changes from repeat to repeat."""
        return math.sqrt(max(0.0, float((self.steps[0] * self.steps[1]).mean()) / 2))

    def __str__(self) -> str:
        low, high = self.interval()
        sequential, switched = np.sqrt(self.squares().mean(axis=1))
        spreads = f"sd {sequential:.4f} sequential, {switched:.4f} switched, {self.alike:.4f} alike in both"
        return f"{spreads}; variance 1/{self.value:.1f} (1/{low:.1f} to 1/{high:.1f})"


def gain(parts: Sequence[Sequence[Repeat]], treatment: str) -> Gain:
    logs = (
        [[math.log(each[method][treatment]) for each in part] for method in ("sequential", "switched")]
        for part in parts
    )
    return Gain(np.concatenate([np.diff(np.array(part)) for part in logs], axis=1))


def alone(_trial: Trial, _label: Label) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


Beside = Callable[[Trial, Label], contextlib.AbstractContextManager[Any]]
"""What else runs on the host meanwhile."""


def measured(pair: str, count: int, total_ns: int, seed: int, beside: Beside, plant: str) -> list[Repeat]:
    trial = trial_of(PAIRS[pair])
    label = Label.create(f"efficiency-{list(PAIRS).index(pair)}", WORK_ROOT)
    directory = RunDirectory(Path(label.work) / "run")
    directory.path.mkdir()
    session = Session(label)
    try:
        with (
            beside(trial, label),
            staged(trial, session, slice_ns=Timing().slice, seed=1, host_cpus=controller_cpus(trial)) as stage,
        ):
            recorder = Recorder(stage, directory.pending(trial.id, "0"), "0")
            recorder.wait_for_first(Monotonic())
            return list(Bench(trial, recorder, stage, total_ns).repeats(count, seed, plant))
    finally:
        reaper.clean(label)


def judge(measured: dict[str, list[list[Repeat]]], setting: str, *, quick: bool) -> tuple[str, bool]:
    """Prints each pair; returns the figures of the bar and whether it is met.

    measured: the repeats of each part of each pair.
    """
    gains: dict[str, list[float]] = {NULL: [], REAL: []}
    judged: dict[str, list[float]] = {NULL: [], REAL: []}
    honest: list[float] = []
    for pair, parts in measured.items():
        repeats = [each for part in parts for each in part]
        for name, values in gains.items():
            gained = gain(parts, name)
            values.append(gained.value)
            judged[name].append(gained.interval()[1] if quick else gained.value)
            effect = statistics.median(each["switched"][name] for each in repeats)
            print(f"{pair}, {name}: isolation factor {effect:.4f}; {gained}", flush=True)
            honest += [each["honest"][name] for each in repeats]
    wrong = 1 - sum(honest) / len(honest)
    null, real = (statistics.median(values) for values in gains.values())
    figure = (
        f"{setting}: variance of switched against sequential: "
        f"null 1/{null:.0f} (worst pair 1/{min(gains[NULL]):.0f}), "
        f"real effects 1/{real:.1f} (worst pair 1/{min(gains[REAL]):.1f}); "
        f"{wrong:.1%} of {len(honest)} intervals exclude the truth"
    )
    names = [NULL] if quick else [NULL, REAL]
    better = all(statistics.median(judged[name]) >= LEAST[name] for name in names)
    better = better and min(judged[NULL]) >= LEAST_OF_EACH
    return figure, better and wrong <= (0.15 if quick else 0.08)


PLANTS = {"sequential": "the switched method measures one after the other, too"}


def compare(options: Options, beside: Beside = alone) -> tuple[str, bool]:
    """Measures by both methods; the figures of the bar, and whether it is met."""
    count, total_ns = (5, 2_100_000_000) if options.quick else (10, 12_000_000_000)
    pairs = list(PAIRS)[:1] if options.quick else list(PAIRS)
    pairs = [pair for pair in PAIRS if resource(pair) in options.only] if options.only else pairs
    parts: dict[str, Any] = {
        f"{resource(pair)} {half}": functools.partial(measured, pair, count, total_ns, half, beside, options.plant)
        for pair in pairs
        for half in (1, 2)
    }
    reap()
    done = in_parts(parts, options)
    only = f"{', '.join(options.only)} alone, " if options.only else ""
    setting = f"{only}{2 * count} repeats of {total_ns / 1e9:g} s"
    halves = {pair: [done[f"{resource(pair)} {half}"] for half in (1, 2)] for pair in pairs}
    return judge(halves, setting, quick=options.quick)


@bench(parts=RESOURCES, plants=PLANTS, folder=True, unjudged="real effects")
def main(options: Options) -> Outcome:
    figure, met = compare(options)
    return Outcome(figure, met)


if __name__ == "__main__":
    main()
