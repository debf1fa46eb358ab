"""As `efficiency.py`, on a host that drifts because of another tenant.

The gain of switching depends on the host: nothing is gained on one whose speed stays the same. Here the host has one
more tenant, which does the same work as the aggressor, on the aggressor's CPU. It comes and goes: it works for half to
two and a half seconds, then it pauses for as long. The methods, their time and the bars are those of `efficiency.py`.

The short form does not judge the real effect: the tenant may be on or off for a whole repeat of two seconds.

With --folder, each call measures halves of pairs, of some four minutes each, until --minutes are over.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

from agents import Kernel, Resident, now_ns
from efficiency import PLANTS, RESOURCES, compare
from frame import Options, Outcome, bench
from partywall.host.label import Label
from partywall.run.values.plan import Trial

STAY_S = (0.5, 2.5)
"""Shortest and longest time that the tenant works or pauses."""
FOR_S = 1200


@contextlib.contextmanager
def tenant(trial: Trial, label: Label) -> Iterator[None]:
    """Another tenant like the aggressor."""
    (name, aggressor), *_ = trial.aggressors.items()
    kernel = Kernel(aggressor.stressor, aggressor.params)
    with Resident(label, kernel, trial.aggressor_cpus[name]) as resident:
        resident.schedule(list(stays(now_ns(), random.Random(trial.id))))
        yield


def stays(at_ns: int, chance: random.Random) -> Iterator[tuple[int, float]]:
    end_ns, intensity = at_ns + FOR_S * 1_000_000_000, 1.0
    while at_ns < end_ns:
        yield at_ns, intensity
        at_ns += int(chance.uniform(*STAY_S) * 1e9)
        intensity = 1.0 - intensity
    yield at_ns, 0.0


@bench(parts=RESOURCES, plants=PLANTS, folder=True, unjudged="real effects")
def main(options: Options) -> Outcome:
    figure, met = compare(options, tenant)
    return Outcome(figure, met)


if __name__ == "__main__":
    main()
