"""Do intervals of many hosts cover what they promise? On simulated fleets whose truth is known.

Fleets of 5 to 1,000 hosts, each measured in 10 blocks with heavy tails (Student's distribution with 4 degrees of
freedom). Hosts differ by 0 to 2 standard errors, and the speed of each drifts by a standard deviation while it is
measured. For each kind of fleet: how often the interval of the mean holds the truth, how often that for an unseen host
holds what a measurement of a new one gives, and its true figure, and how often a sound host is named. Then fleets with
3 bad hosts of 100. --quick: fewer and smaller fleets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from frame import Options, Outcome, bench
from partywall.fleet.findings.judging import outliers
from partywall.fleet.findings.pooling import Fit, Floats, Posterior, fitted, moderated
from partywall.testing.fleets import drawn

HOSTS, SPREADS = (5, 10, 30, 100, 1000), (0.0, 0.5, 1.0, 2.0)
QUICK_HOSTS, QUICK_SPREADS = (5, 10, 100), (0.0, 0.5, 2.0)
TRIALS, QUICK_TRIALS = 2000, 300
FALSE_TRIALS, QUICK_FALSE_TRIALS = 400, 40
ERROR = 0.01
FEW = 5
PLANTS = {
    "textbook": "the interval for an unseen host is Student's with k - 2 degrees of freedom",
    "fixed": "the interval of the mean ignores that hosts differ",
    "each": "each host is judged at 5 % by itself",
}


@dataclass
class Coverage:
    """Shares of fleets of one kind. true, measured: of an unseen host."""

    hosts: int
    spread: float
    mean: float
    true: float
    measured: float
    false: float


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    chosen = (QUICK_HOSTS, QUICK_SPREADS) if options.quick else (HOSTS, SPREADS)
    kinds = [(hosts, spread) for hosts in chosen[0] for spread in chosen[1]]
    every = []
    for number, (hosts, spread) in enumerate(kinds):
        every.append(_covered(np.random.default_rng(number), hosts, spread, options))
        print(every[-1], flush=True)
    discovered = _discovered(np.random.default_rng(99), options)
    # Five hosts say too little about the spread for an interval that is never too wide.
    narrow = [each.measured for each in every if each.hosts > FEW]
    ranges = {name: [float(getattr(each, name)) for each in every] for name in ("mean", "true", "measured", "false")}
    slack = 0.0 if not options.quick else 3 * math.sqrt(0.95 * 0.05 / QUICK_TRIALS)
    met = (
        0.93 - slack <= min(ranges["mean"])
        and max(ranges["mean"]) <= 0.97 + slack
        and min(ranges["true"]) >= 0.93 - slack
        and 0.93 - slack <= min(ranges["measured"])
        and max(narrow) <= 0.99 + slack
        and float(np.mean(ranges["false"])) <= 0.05
        and discovered <= 0.05
    )
    figure = (
        f"simulated, {kinds[0][0]} to {kinds[-1][0]} hosts: fleet {_range(ranges['mean'])}, unseen host measured "
        f"{_range(ranges['measured'])}, true figure {_range(ranges['true'])}; sound fleets with a host named "
        f"{np.mean(ranges['false']):.1%}, false discoveries beside 3 bad hosts {discovered:.1%}"
    )
    return Outcome(figure, met)


def _range(shares: list[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


def _covered(chance: np.random.Generator, hosts: int, spread: float, options: Options) -> Coverage:
    trials = QUICK_TRIALS if options.quick else TRIALS
    named_in = min(trials, QUICK_FALSE_TRIALS if options.quick else FALSE_TRIALS)
    hits = {"mean": 0, "true": 0, "measured": 0, "false": 0}
    for number in range(trials):
        fleet = drawn(chance, hosts, spread, drift=1.0)
        new = drawn(chance, 1, spread, drift=1.0)
        errors = moderated(fleet.errors, np.full(hosts, float(fleet.blocks)))
        low, high = _mean(fleet.values, errors, options.plant)
        hits["mean"] += bool(low <= fleet.centre <= high)
        (low, high), (least, most) = _unseen(fleet.values, errors, options.plant)
        hits["true"] += bool(low <= new.truth[0] <= high)
        hits["measured"] += bool(least <= new.values[0] <= most)
        if number < named_in:
            hits["false"] += bool(_named(fleet.values, errors, options.plant).any())
    return Coverage(
        hosts, spread, *(hits[name] / trials for name in ("mean", "true", "measured")), hits["false"] / named_in
    )


def _mean(values: Floats, errors: Floats, plant: str | None) -> tuple[float, float]:
    if plant == "fixed":
        half = 1.96 / math.sqrt(float((1 / errors**2).sum()))
        middle = float(np.average(values, weights=1 / errors**2))
        return middle - half, middle + half
    estimate = fitted(values, errors).contrast(np.ones(1))
    return estimate.low, estimate.high


def _unseen(values: Floats, errors: Floats, plant: str | None) -> tuple[tuple[float, float], tuple[float, float]]:
    """The intervals for the true figure of a new host, and for what its measurement gives."""
    if plant == "textbook":
        fit = fitted(values, errors)
        return _textbook(fit, len(values), 0.0), _textbook(fit, len(values), ERROR)
    posterior = Posterior(values, errors)
    return posterior.predicted(), posterior.predicted(error=ERROR)


def _textbook(fit: Fit, hosts: int, error: float) -> tuple[float, float]:
    half = stats.t.ppf(0.975, hosts - 2) * math.sqrt(fit.spread**2 + fit.covariance[0, 0] + error**2)
    return float(fit.means[0] - half), float(fit.means[0] + half)


def _named(values: Floats, errors: Floats, plant: str | None) -> Floats:
    if plant == "each":
        return Posterior(values, errors).chance_beyond(values, errors, np.ones(len(values))) <= 0.05
    return outliers([(values, errors)])[0] <= 0.05


def _discovered(chance: np.random.Generator, options: Options) -> float:
    """The share of false ones among the hosts that are named beside 3 bad ones of 100, on average."""
    trials, shares = QUICK_FALSE_TRIALS if options.quick else FALSE_TRIALS, []
    for number in range(trials):
        fleet = drawn(chance, 100, SPREADS[number % len(SPREADS)], drift=1.0, bad=3, loss=0.05)
        errors = moderated(fleet.errors, np.full(100, float(fleet.blocks)))
        named = _named(fleet.values, errors, options.plant)
        shares.append(named[3:].sum() / max(1, named.sum()))
    return float(np.mean(shares))


if __name__ == "__main__":
    main()
