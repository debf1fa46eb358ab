"""Is the power of a machine known after a load ladder?

A simulated machine of four cores has the power of table I of Cervera et al. (50, 72, 90, 100 and 110 W with 0 to 4 busy
cores), and leakage: 2 % of the power above idle, which follows it slowly. Its meter shows the mean of a refresh period,
late, with noise, in steps. Partywall estimates the meter's refresh and lag, fits a model to the ladder, predicts each
level from the others, and states the watts of a machine that has 0 to 4 cores busy all the time.

This truth has the form that the fit assumes: an increment for each further busy core, which does not grow. So the bar
judges delays, noise and heat, but not the form. The same load therefore also drives a second machine of another form:
its power depends on the total load, and rises steeply up to a knee at 1.5 cores and slowly beyond. The errors of its
model are printed, without a bar.

Bar: mean error of left-out levels at most 3 %; each row of table I within 2 %; the model's 95 % intervals hold at least
four of the five true values, which include the leakage.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import powers
from frame import Options, Outcome, bench
from partywall.power import ladder
from partywall.power.findings import fitting
from partywall.power.findings.meter import timing
from partywall.power.machine import Display, Machine
from partywall.power.values import Reading, Timing

DISPLAY = Display(lag_s=0.5, refresh_s=0.25, noise=0.5, step=0.5)
CORES = (0, 1, 2, 3)
FREE = 0.8
"""Share of this host's CPU time that the load may take. On a small host, the machine's cores are slower than CPUs."""
LEFT_OUT_LIMIT, TABLE_LIMIT, LEAST_HELD = 0.03, 0.02, 4


@dataclass
class Generous:
    """A meter that shows 5 % too much."""

    meter: powers.Shown

    def __post_init__(self) -> None:
        self.facts = self.meter.facts

    def read(self) -> Reading:
        true = self.meter.read()
        return true.model_copy(update={"watts": 1.05 * (true.watts or 0.0)})

    def close(self) -> None:
        pass


KNEE = 1.5
KNEE_SLOPES = (24.0, 7.0)
"""Watts of a busy core below and above the knee."""


class Bent(Machine):
    """A machine of another form than the fit: its power depends on the load of all cores together, with a knee."""

    def watts(self, shares: Sequence[float]) -> float:
        return self.at(sum(min(share, 1.0) for share in shares))

    def at(self, busy: float) -> float:
        below, above = KNEE_SLOPES
        return self.model.idle_watts + below * min(busy, KNEE) + above * max(0.0, busy - KNEE)

    def lasting(self, busy: float) -> float:
        return self.at(busy) + self.leakage * (self.at(busy) - self.model.idle_watts)


PLANTS = {
    "lag": "the fit takes the meter to show the present",
    "meter": "the meter shows 5 % too much",
}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    workers = [ladder.Worker(f"cpu{core}", (0, 1)) for core in CORES]
    blocks, slot_s = (2, 1.1) if options.quick else (10, 2.0)
    slower = max(1.0, len(CORES) / (FREE * len(os.sched_getaffinity(0))))
    with powers.rig(workers, DISPLAY, slower=slower) as rig:
        wrap = Generous if options.plant == "meter" else None
        bent = Bent(powers.PROFILE, rig.threads, cpus=powers.PROFILE.cpus)
        bent.start()
        try:
            trace = rig.trace(ladder.ladder(CORES, blocks, seed=3), slot_s, wrap, {"bent": bent})
        finally:
            bent.stop()
    delays = timing(trace.readings, trace.activity)
    if options.plant == "lag":
        delays = Timing(refresh_ms=delays.refresh_ms, lag_ms=delays.lag_ms.scaled(0.0) if delays.lag_ms else None)
    observed = fitting.observations(trace.slots, trace.readings, trace.activity, delays)
    fit = fitting.fit(powers.FACTS, observed, "bench")
    for rung in fit.rungs:
        print(
            f"{rung.level:>10}: {rung.busy:.2f} busy cores, {rung.mean_watts:6.2f} W, predicted without it "
            f"{rung.predicted or 0:6.2f} W ({rung.error or 0:+.1%})"
        )
    errors, held = list[float](), 0
    for core, printed in powers.PROFILE.points:
        estimate, true = fit.model.estimate(core), rig.machine.lasting(core)
        held += estimate.low <= true <= estimate.high
        errors.append(abs(estimate.value / true - 1))
        shown = f"{estimate.value:.1f} ± {estimate.half_width:.1f} W of {true:.1f}, printed {printed:g}"
        print(f"table I, {core:g} cores: {shown}")
    print(f"refresh {delays.refresh_ms}\nlag {delays.lag_ms}")
    print(f"another form (knee at {KNEE:g} cores): {of_another_form(trace, bent)}")
    return Outcome(
        f"left-out levels predicted within {fit.left_out_error:.1%} (worst {fit.worst_error:.1%}); table I within "
        f"{max(errors):.1%} in {len(errors)} rows; intervals hold {held} of {len(powers.PROFILE.points)}",
        fit.left_out_error <= LEFT_OUT_LIMIT and max(errors) <= TABLE_LIMIT and held >= LEAST_HELD,
    )


def of_another_form(trace: powers.Trace, machine: Bent) -> str:
    """The errors of a model whose form is not that of the machine, in words."""
    readings = trace.others["bent"]
    delays = timing(readings, trace.activity)
    observed = fitting.observations(trace.slots, readings, trace.activity, delays)
    fit = fitting.fit(powers.FACTS, observed, "bent")
    estimates = [(fit.model.estimate(core), machine.lasting(core)) for core, _ in powers.PROFILE.points]
    worst = max(abs(estimate.value / true - 1) for estimate, true in estimates)
    held = sum(estimate.low <= true <= estimate.high for estimate, true in estimates)
    return (
        f"left-out levels predicted within {fit.left_out_error:.1%} (worst {fit.worst_error:.1%}), watts of whole "
        f"cores within {worst:.1%}, intervals hold {held} of {len(estimates)}"
    )


if __name__ == "__main__":
    main()
