"""Is a bad host refused before it takes work, and a sound one admitted? On simulated fleets whose truth is known.

Fleets of 50, 100 and 200 hosts that differ by 0 to 1 standard errors, with heavy tails. A new host is measured as
exactly as a minute allows (0.7 %). It is sound, or 5 % slower. For each kind of fleet: how often it is refused. With
20 hosts that differ by a standard error, less is known of the spread, and only 89 % of the bad ones are refused.
--quick: fewer fleets.
"""

from __future__ import annotations

import math

import numpy as np

from frame import Options, Outcome, bench
from partywall.core.stats.estimate import Outcome as Verdict
from partywall.fleet.findings.judging import admit
from partywall.fleet.findings.pooling import Posterior, moderated
from partywall.testing.fleets import drawn

KINDS = [(hosts, spread) for hosts in (50, 100, 200) for spread in (0.0, 0.5, 1.0)]
TRIALS, QUICK_TRIALS = 5000, 600
ERROR, LOSS, MARGIN = 0.007, 0.05, 0.05
PLANTS = {
    "exact": "the error of the new host's own measurement is ignored",
    "sound": "bad hosts are not bad",
}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    trials = QUICK_TRIALS if options.quick else TRIALS
    false, power = [], []
    for number, (hosts, spread) in enumerate(KINDS):
        chance = np.random.default_rng(number)
        refused = [_refused(chance, hosts, spread, options.plant) for _ in range(trials)]
        false.append(float(np.mean([sound for sound, _ in refused])))
        power.append(float(np.mean([bad for _, bad in refused])))
        print(
            f"{hosts} hosts, spread {spread}: {false[-1]:.2%} of sound, {power[-1]:.1%} of bad hosts refused",
            flush=True,
        )
    slack = 3 * math.sqrt(0.01 * 0.99 / (trials * len(KINDS)))
    figure = (
        f"simulated, 50 to 200 hosts: refused are {100 * min(power):.1f} to {100 * max(power):.1f} % of hosts that are "
        f"5 % slower, {np.mean(false):.2%} of sound ones"
    )
    return Outcome(figure, min(power) >= 0.9 and float(np.mean(false)) <= 0.01 + slack)


def _refused(chance: np.random.Generator, hosts: int, spread: float, plant: str | None) -> tuple[bool, bool]:
    """Whether a sound host is refused, and a bad one."""
    fleet = drawn(chance, hosts, spread)
    posterior = Posterior(fleet.values, moderated(fleet.errors, np.full(hosts, float(fleet.blocks))))
    # Hosts differ by as much as in the fleet, whatever the error of the new one's measurement.
    share = spread * 0.01 / ERROR
    loss = 0.0 if plant == "sound" else -math.log1p(-LOSS)
    new = [drawn(chance, 1, share, error=ERROR), drawn(chance, 1, share, bad=1, loss=loss, error=ERROR)]
    known = 0.0 if plant == "exact" else ERROR
    sound, bad = (admit(posterior, float(each.values[0]), known, MARGIN).outcome is Verdict.VIOLATED for each in new)
    return sound, bad


if __name__ == "__main__":
    main()
