"""How punctually requests of the open model leave.

First the capacity of this host's nginx and generator is measured, closed, with 50 users. Then requests arrive at random
(Poisson) times at half of it, and how late each left after its intended start is counted.

Bar: 99 % leave within 50 µs, and every one that did not is counted as late.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from common import busy_cpu
from disturbance import undisturbed
from frame import Options, Outcome, bench
from generators import GENERATOR_CPU, load, nginx
from partywall.core.report.latency import quantiles
from partywall.core.stats.histogram import bucket_bounds
from partywall.load.quick import Quick, program
from partywall.load.second import histogram

SECOND = 1_000_000_000
LATE_NS = 50_000


@dataclass(frozen=True)
class Punctuality:
    """share: of the requests that left within LATE_NS. counted: whether each of the others was counted as late."""

    share: float
    counted: bool

    @property
    def met(self) -> bool:
        return self.share >= 0.99 and self.counted


@bench(plants={"shared": "another program on the generator's core"}, needs=("nginx",))
def main(options: Options) -> Outcome:
    seconds = 20 if options.quick else 60
    with nginx() as url:
        punctual = undisturbed(lambda: punctuality(url, seconds, shared=bool(options.plant)), lambda each: each.met)
    return Outcome(f"{punctual.share:.2%} of requests leave within 50 µs", punctual.met)


def punctuality(url: str, seconds: int, *, shared: bool) -> Punctuality:
    capacity = load(program(Quick(url=url, for_ns=3 * SECOND, users=50))).summary.rate
    quick = Quick(url=url, for_ns=seconds * SECOND, rate=capacity / 2, poisson=True, users=500)
    with busy_cpu(GENERATOR_CPU) if shared else contextlib.nullcontext():
        summary = load(program(quick)).summary
    lateness = histogram(summary.lateness)
    within = sum(count for bucket, count in summary.lateness.items() if bucket_bounds(bucket)[1] <= LATE_NS)
    beyond = sum(count for bucket, count in summary.lateness.items() if bucket_bounds(bucket)[0] > LATE_NS)
    print(f"capacity {capacity:.0f}/s; requested {capacity / 2:.0f}/s, answered {summary.rate:.0f}/s")
    for share, at in zip((0.5, 0.9, 0.99, 0.999), quantiles(lateness, (0.5, 0.9, 0.99, 0.999)), strict=True):
        print(f"{share:.1%} leave within {at / 1e3:.1f} µs")
    print(f"late: {summary.late} of {summary.timed}; doubtful seconds: {summary.seconds - summary.good}", flush=True)
    return Punctuality(within / summary.timed, beyond <= summary.late <= summary.timed - within)


if __name__ == "__main__":
    main()
