"""Do the watts of each tenant equal what the meter sees when the tenant is switched on?

Four tenants with different kernels and intensities make up a simulated machine of four cores, which costs less for each
further busy core. First a load ladder of other intensities gives a power model. Then the tenants are switched on one
after the other, in a new random order in each block: the mean that a tenant added is its switched watts. They are
compared with its attributed watts in the slots in which all tenants run. The meter lags, averages and is noisy.

The rule that many tools use (idle = total × (1 − utilisation), the rest by CPU time) is applied to the same trace.

Bar: attributed within 5 % of switched for every tenant, sum within 1 % of the total. --quick, with an eighth of the
time: within 10 % and 2 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import powers
from frame import Options, Outcome, bench
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.rounds import student
from partywall.power import ladder
from partywall.power.findings import fitting, sharing
from partywall.power.findings.meter import timing
from partywall.power.machine import Display
from partywall.power.values import Activity, Attribution, Slot

TENANTS = {
    "api": ("integer", 0.35),
    "batch": ("float", 0.25),
    "copy": ("memory-copy", 0.2),
    "solver": ("matrix-vector", 0.15),
}
CPUS = (0, 1)
DISPLAY = Display(lag_s=0.06, refresh_s=0.12, noise=0.2, step=0.1)
LIMIT, QUICK_LIMIT = 0.05, 0.10
SUM_LIMIT, QUICK_SUM_LIMIT = 0.01, 0.02
PLANTS = {"rule": "the common rule in place of the attribution", "swap": "two tenants' CPU times are swapped"}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    workers = [ladder.Worker(name, CPUS, kernel) for name, (kernel, _) in TENANTS.items()]
    with powers.rig(workers, DISPLAY) as rig:
        levels = rig.trace(learnt(2 if options.quick else 8), 0.7)
        blocks, slot_s = (9, 0.7) if options.quick else (40, 1.5)
        tenants = {name: intensity for name, (_, intensity) in TENANTS.items()}
        trace = rig.trace(ladder.switching(tenants, blocks, seed=2), slot_s)
    delays = timing([*levels.readings, *trace.readings], [*levels.activity, *trace.activity])
    print(f"refresh {delays.refresh_ms}, lag {delays.lag_ms}")
    samples = fitting.observations(levels.slots, levels.readings, levels.activity, delays)
    # The tenants' machine has more cores than this host.
    model = fitting.fit(powers.FACTS, samples, "bench").model
    print("levels:", ", ".join(f"{each.slot.level} {each.busy:.2f}" for each in samples[:9]))
    print("model:", ", ".join(f"{watts:.1f} W with {core:g}" for core, watts in model.points))
    observed = fitting.observations(trace.slots, trace.readings, trace.activity, delays)
    switched = sharing.judged(observed, list(TENANTS))
    together = [each for each in observed if len(each.slot.on) == len(TENANTS)]
    activity = swapped(trace.activity) if options.plant == "swap" else trace.activity
    total = student([each.watts for each in together])
    shares = attributed(activity, [each.slot for each in together], model, total)
    return judge(shares, switched, options)


def learnt(blocks: int) -> list[ladder.Step]:
    """A ladder of other combinations and intensities than those that are judged."""
    names, chance = list(TENANTS), np.random.default_rng(1)
    levels = [(count, intensity) for count in range(1, 5) for intensity in (0.15, 0.4)] + [(0, 0.0)]
    steps = []
    for block in range(blocks):
        for place in chance.permutation(len(levels)):
            count, intensity = levels[place]
            chosen = chance.choice(names, count, replace=False)
            steps.append(ladder.Step(block, ladder.level_name(count, intensity), dict.fromkeys(chosen, intensity)))
    return steps


def swapped(activity: Sequence[Activity]) -> list[Activity]:
    """The CPU times of the first and the last tenant by name, exchanged."""
    first, last = min(TENANTS), max(TENANTS)
    return [
        each.model_copy(
            update={"consumers_s": each.consumers_s | {first: each.consumers_s[last], last: each.consumers_s[first]}}
        )
        for each in activity
    ]


def attributed(activity: Sequence[Activity], slots: Sequence[Slot], model, total: Estimate) -> Attribution:  # noqa: ANN001
    used = sharing.usage(activity)
    return sharing.attribution(model, used.during(sharing.within(activity, slots)), total)


def judge(shares: Attribution, switched: dict[str, Estimate], options: argparse.Namespace) -> Outcome:
    """Prints each tenant's watts beside what was switched, and concludes."""
    limit, sum_limit = (QUICK_LIMIT, QUICK_SUM_LIMIT) if options.quick else (LIMIT, SUM_LIMIT)
    errors, others, sound = [], [], True
    for share in shares.shares:
        if share.name not in switched:
            continue
        truth = switched[share.name]
        value = share.common if options.plant == "rule" else share.active.value
        errors.append(value / truth.value - 1)
        others.append(share.common / truth.value - 1)
        within = abs(errors[-1]) <= limit
        sound &= within
        print(
            f"{'ok  ' if within else 'FAIL'} {share.name}: attributed {value:.2f} ± {share.active.half_width:.2f} W, "
            f"switched {truth.value:.2f} ± {truth.half_width:.2f} W ({errors[-1]:+.1%}); "
            f"common rule {share.common:.2f} W ({others[-1]:+.0%})"
        )
    # The shares are scaled to the total, so the model's own sum is what can be wrong.
    gap = abs(shares.model_error if shares.model_error is not None else 1.0)
    return Outcome(
        f"attributed within {max(map(abs, errors)):.1%} of switched (mean {np.mean(np.abs(errors)):.1%}), sum within "
        f"{gap:.2%} of the total; common rule off by {np.mean(np.abs(others)):.0%}",
        bool(sound and gap <= sum_limit and len(errors) == len(TENANTS)),
    )


if __name__ == "__main__":
    main()
