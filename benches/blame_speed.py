"""How soon is a small effect found among 15 suspects, and what do codes gain over one at a time? Simulated.

The victim's rate varies by 2.5 % from slot to slot (100 ms), and the host's speed by 5 % over 3 s. One of 15 suspects
takes 5 %. The experiment has a budget of 30 s. In the same labs without a guilty one, the error of all effects is
compared with that of an experiment of the same length that pulses one suspect at a time, and nobody in one slot of 16.

Bar: the guilty one is the first that is named, within 30 s, in at least 95 % of labs; of all that are named, at most
5 % are innocent, give or take twice the chance of so many labs; the variance is at most 1/6.
"""

from __future__ import annotations

import numpy as np

from frame import Options, Outcome, bench
from partywall.blame.code import Array
from partywall.blame.corpus.detectors import experiment, rule_of
from partywall.blame.corpus.lab import Lab, Neighbour
from partywall.blame.corpus.simulate import PER_SLOT, simulate
from partywall.blame.effects import fit

SUSPECTS, EFFECT, BUDGET_NS = 15, 0.05, 30_000_000_000
LABS, QUICK = 200, 24
PLANTS = {"single": "suspects are pulsed one at a time"}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    seeds = range(QUICK if options.quick else LABS)
    single = options.plant == "single"
    errors = np.array([[np.square(_errors(seed, single=each)).mean() for each in (single, True)] for seed in seeds])
    ratio = float(errors[:, 0].mean() / errors[:, 1].mean())
    found = [experiment(_lab(seed, EFFECT), rule_of(_lab(seed, EFFECT), BUDGET_NS)) for seed in seeds]
    right = [each.first == "n01" and "n01" in (each.blamed or ()) for each in found]
    named = [name == "n01" for each in found for name in each.blamed or ()]
    times = [each.named_s for each, is_right in zip(found, right, strict=True) if is_right and each.named_s is not None]
    share, innocent = float(np.mean(right)), 1 - float(np.mean(named))
    figure = (
        f"simulated, {len(right)} labs: named within 30 s in {share:.0%}, median {np.median(times):.1f} s, "
        f"95 % within {np.quantile(times, 0.95):.1f} s; {innocent:.1%} of the named are innocent; "
        f"variance 1/{1 / ratio:.1f} of one at a time"
    )
    return Outcome(
        figure, share >= 0.95 and innocent <= 0.05 + 2 * (0.05 * 0.95 / len(named)) ** 0.5 and ratio <= 1 / 6
    )


def _lab(seed: int, effect: float) -> Lab:
    names = [f"n{at + 1:02d}" for at in range(SUSPECTS)]
    neighbours = [Neighbour(name=name, resource="memory", effect=effect * (name == "n01"), cpu=0.5) for name in names]
    return Lab(name="speed", seed=seed, neighbours=tuple(neighbours), noise=0.025, drift=0.05, drift_s=3.0)


def _errors(seed: int, *, single: bool) -> Array:
    """The effects found where there are none, in as many slots of either design."""
    lab = _lab(seed, 0.0)
    rule = rule_of(lab, BUDGET_NS)
    slots = rule.blocks_most * rule.code.block_slots // (SUSPECTS + 1) * (SUSPECTS + 1)
    code = _one_at_a_time(seed, slots) if single else rule.code.blocks(rule.blocks_most)[:slots].astype(float)
    rate = simulate(lab, slots * PER_SLOT, code * rule.depth).rate.reshape(slots, PER_SLOT).mean(axis=1)
    return fit(rate, code, SUSPECTS + 1 if single else rule.code.block_slots).effect[:SUSPECTS]


def _one_at_a_time(seed: int, slots: int) -> Array:
    random = np.random.default_rng(seed)
    orders = [random.permutation(SUSPECTS + 1) for _ in range(slots // (SUSPECTS + 1))]
    return np.concatenate([np.eye(SUSPECTS + 1)[order][:, :SUSPECTS] for order in orders])


if __name__ == "__main__":
    main()
