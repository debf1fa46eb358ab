"""Is a bad host refused before it takes work, and a sound one admitted? On simulated fleets whose truth is known.

Fleets of 50, 100 and 200 hosts that differ by 0 to 1 %, with heavy tails; with many cells by 0 to 0.5 %. A new host is
measured as long as the tool itself advises for a loss of 5 %, or for a minute if that is longer. A minute tells one
cell to 0.7 %; with 28 cells, as many as a demo has, each gets a 28th of the time. The host is sound, or 5 % slower in
the cell that shows it least. Its errors are known from its own blocks and those of the fleet. For each kind of
fleet: how often it is refused, and how long it is measured. Where hosts of a fleet seem to differ so much that no time
would do, the tool says so; such fleets are counted apart.
--quick: fewer fleets.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from frame import Options, Outcome, bench
from partywall.core.stats.estimate import Outcome as Verdict
from partywall.fleet.findings.judging import FALSE_REJECTIONS, POWER, RESERVE, admit, exact, joined
from partywall.fleet.findings.pooling import Posterior, moderated
from partywall.testing.fleets import drawn

HOSTS, SPREADS = (50, 100, 200), {1: (0.0, 0.005, 0.01), 28: (0.0, 0.0025, 0.005)}
TRIALS, QUICK_TRIALS = {1: 4000, 28: 150}, {1: 500, 28: 10}
"""Fleets of each kind, by the number of cells."""
ERROR, LOSS, MARGIN = 0.007, 0.05, 0.05
FLEET_ERROR = 0.01
"""The standard error of each host of the fleet."""
PLANTS = {
    "exact": "the error of the new host's own measurement is ignored",
    "sound": "bad hosts are not bad",
}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    said, is_met, hopeless = [], True, 0.0
    for cells, trials in (QUICK_TRIALS if options.quick else TRIALS).items():
        power, false, minutes = [], [], []
        for number, (hosts, spread) in enumerate(itertools.product(HOSTS, SPREADS[cells])):
            chance = np.random.default_rng(number)
            sound, bad, took = np.array([_tried(chance, hosts, spread, cells, options.plant) for _ in range(trials)]).T
            is_told = np.isfinite(took)
            power.append(float(bad[is_told].mean()))
            false.append(float(sound[is_told].mean()))
            minutes.append(float(np.median(took[is_told])))
            hopeless = max(hopeless, float(1 - is_told.mean()))
            about = f"{cells} cells, {hosts} hosts, spread {spread:.2%}"
            print(
                f"{about}: {power[-1]:.1%} of bad hosts refused after {minutes[-1]:.1f} min; "
                f"in {1 - is_told.mean():.1%} no time would do",
                flush=True,
            )
        is_met = is_met and min(power) >= POWER - _luck(POWER, trials)
        is_met = is_met and np.mean(false) <= FALSE_REJECTIONS + _luck(FALSE_REJECTIONS, len(false) * trials)
        what = "one cell" if cells == 1 else f"{cells} cells"
        said.append(
            f"{100 * min(power):.1f} to {100 * max(power):.1f} % with {what}, after {min(minutes):.0f} to "
            f"{max(minutes):.0f} min, and {np.mean(false):.2%} of sound ones"
        )
    figure = (
        f"simulated, 50 to 200 hosts: of hosts that are 5 % slower in one cell, refused are {'; '.join(said)}; "
        f"in up to {hopeless:.0%} of fleets of one kind, the tool says that no time would do"
    )
    return Outcome(figure, bool(is_met))


def _luck(share: float, trials: int) -> float:
    """Three standard errors of a share of trials."""
    return 3 * math.sqrt(share * (1 - share) / trials)


def _tried(
    chance: np.random.Generator, hosts: int, spread: float, cells: int, plant: str | None
) -> tuple[bool, bool, float]:
    """Whether a sound host is refused, and a bad one; and after how many minutes."""
    fleets = [drawn(chance, hosts, spread / FLEET_ERROR, error=FLEET_ERROR) for _ in range(cells)]
    posteriors = [Posterior(each.values, moderated(each.errors, np.full(hosts, float(each.blocks)))) for each in fleets]
    needed = [exact(each, MARGIN, cells) for each in posteriors]
    if min(needed) == 0:
        return False, False, math.inf
    minutes = max(1.0, cells * RESERVE * (ERROR / min(needed)) ** 2)
    error = ERROR * math.sqrt(cells / minutes)
    loss = 0.0 if plant == "sound" else -math.log1p(-LOSS)
    verdicts: tuple[list[Verdict], list[Verdict]] = ([], [])
    for cell, (fleet, posterior) in enumerate(zip(fleets, posteriors, strict=True)):
        # The new host differs from the fleet by as much as its hosts do, whatever the error of its measurement.
        # Its blocks are as noisy as those of the fleet, so that a smaller error takes more of them.
        blocks = max(2, round(fleet.blocks * (FLEET_ERROR / error) ** 2))
        own = drawn(chance, 1, 0.0, error=error, blocks=blocks)
        value = float(own.values[0]) + spread * chance.standard_normal()
        counts = np.append(np.full(hosts, float(fleet.blocks)), float(blocks))
        every = moderated(np.append(fleet.errors, own.errors), counts)
        known = 0.0 if plant == "exact" else float(every[-1])
        for lost, outcomes in zip((0.0, loss if cell == np.argmin(needed) else 0.0), verdicts, strict=True):
            outcomes.append(admit(posterior, value - lost, known, MARGIN, cells).outcome)
    sound, bad = (joined(outcomes) is Verdict.VIOLATED for outcomes in verdicts)
    return sound, bad, minutes


if __name__ == "__main__":
    main()
