"""Does a goal in delay hold? A link that carries a tenth less than its policy says, and two tenants that fill it.

Delay is measured by probes that share neither a counter nor a clock of the guard's: stamped when they are sent, and by
the kernel when they arrive. The same policy without the goal, and no guard at all, stand beside.
"""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

from frame import Options, Outcome, bench
from partywall.guard.document import Policy
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.resolve import resolve, resolve_links
from partywall.guard.measure.run import keep
from partywall.sandbox.lab import Lab, lab, sender
from partywall.sandbox.networks import NETNS
from partywall.study.promises import delay
from partywall.study.promises.lab import policy

GOAL_MS = 3.0
VIFS = {
    "gold": {"service_class": "gold", "send": {"guarantee": "60Mbit/s", "ceiling": "60Mbit/s"}},
    "bulk": {"send": {"guarantee": "50Mbit/s"}},
}


def flat(made: Lab, goal: str | None) -> Flat:
    classes: dict[str, Any] = {"gold": {"priority": 2} | ({"delay": goal} if goal else {}), "silver": 1}
    kept_policy = Policy.model_validate(policy(made, VIFS, "200Mbit/s") | {"service_classes": classes})
    return flatten(kept_policy, resolve(kept_policy), links=resolve_links(kept_policy))


def waits(
    made: Lab, probe: delay.Probe, goal: str | None, *, guarded: bool, seconds: float
) -> tuple[float, float, float]:
    """(median delay in ms, jitter in ms, Mb/s delivered of both)."""
    with keep(flat(made, goal)) if guarded else contextlib.nullcontext():
        delay.run([probe], 4.0)
        probe.take()
        before = made.read()
        delay.run([probe], seconds)
        rates = before.rates(made.read())
    median, jitter = probe.take()
    lost = float("nan")
    shown_ms = [value / 1e6 if value is not None else lost for value in (median, jitter)]
    return shown_ms[0], shown_ms[1], sum(bps for bps, _ in rates.values()) / 1e6


@bench(plants={"forgotten": "the guard does not get the goal"})
def main(options: Options) -> Outcome:
    seconds, rounds = (3.0, 2) if options.quick else (20.0, 5)
    goal = None if options.plant else "3ms"
    ways: dict[str, tuple[str | None, bool]]
    ways = {"no guard": (None, False), "no goal": (None, True), "a goal of 3 ms": (goal, True)}
    measured: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    with lab(list(VIFS), "180mbit") as made, sender(made, "gold", 1514, 4800), sender(made, "bulk", 1514, 20_000):
        sink = NETNS / made.namespace("gold-sink")
        probe = delay.Probe(NETNS / made.namespace("gold"), sink, made.address("gold", counted=False))
        for _ in range(rounds):
            for way, (goal, guarded) in ways.items():
                measured[way].append(waits(made, probe, goal, guarded=guarded, seconds=seconds))
        probe.close()
    for way, rows in measured.items():
        delays, jitters, rates = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{way}: waits {delays:.2f} ms, jitter {jitters:.2f} ms, {rates:.0f} of 180 Mb/s used")
    goal_ms, _, used = (statistics.median(column) for column in zip(*measured["a goal of 3 ms"], strict=True))
    without = statistics.median(row[0] for row in measured["no goal"])
    figure = (
        f"waits {goal_ms:.2f} ms with a goal of {GOAL_MS:g}, {without:.2f} without; {used / 180:.0%} of the link used"
    )
    # Nothing would be shown if there had been nothing to wait for, or if the link were left idle.
    return Outcome(figure, goal_ms <= GOAL_MS < without and used >= 0.85 * 180)


if __name__ == "__main__":
    main()
