"""How much better switching is than measuring one after the other, at equal wall time on this host.

For each victim/aggressor pair, and for the null aggressor beside each, both methods measure the same effect again and
again, in turn: *sequential* spends the first half of its time on the baseline and the second on the treatment;
*switched* spends the same time in random blocks of short slots. The figure is the ratio of the variances of the two
estimates over the repeats. Guards are paid for out of the time of each method. Also checked: that the intervals which
the switched method states are honest: over null effects they must include no effect, and over real effects, which
drift, the intervals of the difference between alternate blocks must include zero.

Bar: variance of the null effect ≤ 1/50, of real effects ≤ 1/3; at most 8 % (quick: 15 %) of the intervals exclude what
they should include.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from common import arguments, conclude
from partywall import pipeline
from partywall.clock import Monotonic
from partywall.model.plan import Trial
from partywall.model.scenario import Scenario
from partywall.plan.timing import lay_out
from partywall.run.execute import aside, send
from partywall.run.recorder import Recorder
from partywall.run.stage import staged
from partywall.sandbox import Label, reap, reaper
from partywall.stats.interval import factor_interval
from partywall.store import RunDirectory

PAIRS = {
    "memory-copy beside memory-copy": ("memory-copy", {}, "memory-copy", {}),
    "cache (L3) beside cache (L3)": ("cache", {"level": "L3"}, "cache", {"level": "L3"}),
    "direct disk reads beside direct disk writes": (
        "disk-direct-read",
        {"order": "random", "request_bytes": 8192, "file_bytes": 64 << 20},
        "disk-direct-write",
        {"request_bytes": 131072, "file_bytes": 64 << 20},
    ),
}
SLOT_NS = 100_000_000
GUARD_NS = 20_000_000
GRID_NS = 10_000_000


def trial_of(victim: str, params: dict[str, object], aggressor: str, pressed: dict[str, object]) -> Trial:
    scenario = Scenario.model_validate(
        {
            "partywall": 1,
            "name": "efficiency",
            "victims": {"victim": {"probe": victim, "params": params}},
            "aggressors": {"neighbour": {"stressor": aggressor, "params": pressed, "settle": "20ms"}},
        }
    )
    return pipeline.plan(scenario, pipeline.host_facts()).trials[0]


class Bench:
    """One pair of victim and aggressor, resident, measured by both methods in turn."""

    def __init__(self, trial: Trial, recorder: Recorder, stage: object) -> None:
        self.trial, self.recorder, self.stage = trial, recorder, stage
        self.clock = Monotonic()
        self.number = 0

    def blocks(self, orders: Sequence[Sequence[str]], slot_ns: int) -> list[list[float]]:
        """Measures blocks with these treatments in this order.

        Returns for each the rate of its treatments by order of name.
        """
        at = self.clock.now_ns() + 80_000_000
        for order in orders:
            treatments = [
                self.trial.treatment(name).model_copy(update={"slot_ns": slot_ns, "guard_ns": GUARD_NS})
                for name in order
            ]
            slots = lay_out(treatments, at, None, grid_ns=GRID_NS)
            self.recorder.expect(self.number, 1, slots)
            send(self.stage, slots)
            self.number += 1
            at = slots[-1].end_ns
        self.recorder.wait_for_all(self.clock)
        return [
            [o.rate for o in sorted(block, key=lambda o: o.treatment != "baseline")]
            for block, _ in self.recorder.complete()
        ]

    def sequential(self, treatment: str, total_ns: int) -> float:
        """Log ratio of the treatment, measured second, to the baseline, measured first."""
        (base, treated), *_ = self.blocks([["baseline", treatment]], total_ns // 2 - GUARD_NS)
        return math.log(treated / base)

    def switched(self, treatment: str, total_ns: int, chance: random.Random) -> np.ndarray:
        """Log ratios, block by block."""
        count = total_ns // (2 * (SLOT_NS + GUARD_NS))
        orders = [chance.sample(["baseline", treatment], 2) for _ in range(count)]
        return np.array([math.log(treated / base) for base, treated in self.blocks(orders, SLOT_NS)])


def repeats(bench: Bench, count: int, total_ns: int, seed: int) -> Iterator[tuple[str, float, np.ndarray]]:
    """(treatment, sequential estimate, switched blocks), the four measurements of a repeat in random order."""
    chance = random.Random(seed)
    for _ in range(count):
        treatments = ["null", "neighbour@1"]
        sequential, switched = {}, {}
        jobs = [(kind, name) for kind in ("sequential", "switched") for name in treatments]
        for kind, name in chance.sample(jobs, len(jobs)):
            if kind == "sequential":
                sequential[name] = bench.sequential(name, total_ns)
            else:
                switched[name] = bench.switched(name, total_ns, chance)
        yield from ((name, sequential[name], switched[name]) for name in treatments)


def dishonest(name: str, blocks: np.ndarray) -> bool:
    """Whether the stated interval excludes what it should include."""
    if name != "null":
        even = len(blocks) // 2 * 2
        blocks = blocks[:even:2] - blocks[1:even:2]
    estimate = factor_interval(blocks)
    return not estimate.low <= 1 <= estimate.high


def main() -> None:
    options = arguments(__doc__ or "")
    count, total_ns = (12, 1_000_000_000) if options.quick else (24, 2_000_000_000)
    pairs = dict(list(PAIRS.items())[:1]) if options.quick else PAIRS
    allowed = 0.15 if options.quick else 0.08
    reap()
    null_ratios, real_ratios, wrong = [], [], []
    for pair, (victim, params, aggressor, pressed) in pairs.items():
        trial = trial_of(victim, params, aggressor, pressed)
        label = Label.create(f"efficiency-{abs(hash(pair)) % 10**6}", pipeline.WORK_ROOT)
        directory = RunDirectory(Path(label.work) / "run")
        directory.path.mkdir()
        try:
            with staged(trial, label, slice_ns=GRID_NS, seed=1, host_cpus=aside(trial)) as stage:
                recorder = Recorder(stage, directory.pending(trial.id, "0"), "0")
                seen = list(repeats(Bench(trial, recorder, stage), count, total_ns, seed=1))
        finally:
            reaper.clean(label)
        for name, ratios in (("null", null_ratios), ("neighbour@1", real_ratios)):
            sequential = [s for n, s, _ in seen if n == name]
            switched = [float(blocks.mean()) for n, _, blocks in seen if n == name]
            ratio = statistics.variance(sequential) / statistics.variance(switched)
            ratios.append(ratio)
            effect = math.exp(statistics.mean(switched))
            spreads = f"sd sequential {statistics.stdev(sequential):.4f}, switched {statistics.stdev(switched):.4f}"
            text = f"isolation factor {effect:.4f}; {spreads}; variance ratio {ratio:.1f}"
            print(f"{pair}, {name}: {text}", flush=True)
        wrong += [dishonest(name, blocks) for name, _, blocks in seen]
    share = sum(wrong) / len(wrong)
    null, real = statistics.median(null_ratios), statistics.median(real_ratios)
    figure = (
        f"variance of switched against sequential: null 1/{null:.0f} (worst pair 1/{min(null_ratios):.0f}), "
        f"real effects 1/{real:.1f} (worst pair 1/{min(real_ratios):.1f}); "
        f"{share:.1%} of {len(wrong)} intervals exclude the truth"
    )
    conclude("efficiency", figure, met=null >= 50 and real >= 3 and share <= allowed)


if __name__ == "__main__":
    main()
