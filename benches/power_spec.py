"""Does the power model hold for machines with a real meter, which nobody here measured?

SPEC publishes metered watts of servers at 0 to 100 % of their load in steps of a tenth (SPECpower_ssj2008; the result
of each is named in specpower.csv). For each machine, every level between idle and full load is predicted by a model
fitted to the others (`power.findings.fitting`), with idle power and an increment for each further busy core. The load
spreads over all cores, so at a load u each core is busy for a share u of the time. A straight line from idle to full
load, which is what most simulations assume, predicts the same levels.

Bar: mean error of left-out levels at most 5 % on every machine, and less than the line's on each.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frame import Options, Outcome, bench
from partywall.power.findings.fitting import fitted

TABLE = Path(__file__).with_name("specpower.csv")
LOADS = np.arange(11) / 10
MEAN_MOST = 0.05
PLANTS = {"line": "the straight line in place of the model", "cores": "a machine with twice its watts at one level"}

Floats = NDArray[np.float64]


class Judged(NamedTuple):
    """Errors of a machine's left-out levels, as shares of the metered watts: of the model, and of the line."""

    machine: str
    model: Floats
    line: Floats


def machines() -> list[tuple[str, int, Floats]]:
    """(name, cores, watts at each load) as SPEC published them."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (row["machine"], int(row["cores"]), np.array([float(row[f"{load * 100:.0f}"]) for load in LOADS]))
        for row in rows
    ]


def busy(cores: int) -> Floats:
    """At each load, the probability that at least 1, 2, … cores are busy; shape (loads, cores)."""
    return np.array([binom.sf(np.arange(cores), cores, load) for load in LOADS])


def judged(name: str, cores: int, watts: Floats, *, plant: str = "") -> Judged:
    """The levels between idle and full load, each predicted by the others."""
    features = busy(cores)
    line = watts[0] + (watts[-1] - watts[0]) * LOADS
    between = range(1, len(LOADS) - 1)
    predicted = line[1:-1] if plant == "line" else [_left_out(features, watts, level) for level in between]
    known = watts[1:-1]
    return Judged(name, np.abs(np.array(predicted) / known - 1), np.abs(line[1:-1] / known - 1))


def _left_out(features: Floats, watts: Floats, level: int) -> float:
    kept = np.arange(len(watts)) != level
    points = fitted(features[kept], watts[kept])
    return float(points[0] + features[level] @ np.diff(points))


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    every = []
    for name, cores, watts in machines():
        if options.plant == "cores":
            watts[5] *= 2
        every.append(judged(name, cores, watts, plant=options.plant))
    for each in every:
        print(
            f"{each.machine}: mean {each.model.mean():.1%}, worst {each.model.max():.1%}; "
            f"line: mean {each.line.mean():.1%}, worst {each.line.max():.1%}"
        )
    means = [float(each.model.mean()) for each in every]
    worse = [each.machine for each in every if each.model.mean() >= each.line.mean()]
    figure = (
        f"left-out levels of {len(every)} metered machines within {min(means):.1%} to {max(means):.1%} on average, "
        f"worst {max(float(each.model.max()) for each in every):.0%}; {len(worse)} not better than a line"
    )
    return Outcome(figure, max(means) <= MEAN_MOST and not worse)


if __name__ == "__main__":
    main()
