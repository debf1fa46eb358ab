"""Is a CPU limit called violated only where it does not give what it states, whatever else runs on the host?

A container computes under a limit of 10, 30 and 50 % of a CPU, and another program uses that CPU for a while, sleeps,
and comes again, all at random. Each run asks with a goal whether the limit gives 95 to 105 % of what it states. Then
the same with limits that are planted wrong by a tenth: the sandbox is given 9 % or 11 % of what the report takes for
10 %.

--quick: one run of the true and of a wrong limit of 10 %, in a minute.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

from common import measure, program
from frame import Options, Outcome, Plant, bench, in_parts
from partywall.core.stats import estimate
from partywall.sandbox.container import Container

Part = dict[str, Any]

LIMITS = (0.1, 0.3, 0.5)
WRONG = (0.9, 1.1)
GOAL = (0.95, 1.05)
RUNS = 20
ATTEMPTS = 3
"""Of a run whose sandboxes somebody else ended."""
SECONDS = {True: 24, False: 60}
COMES_AND_GOES = """
import os, random, time
os.sched_setaffinity(0, {0})
draw = random.Random(SEED).uniform
while True:
    end = time.monotonic() + draw(0.2, 4)
    while time.monotonic() < end:
        pass
    time.sleep(draw(0.5, 4))
"""


def scenario(limit: float, seconds: int) -> dict[str, Any]:
    """One container under one limit."""
    return {
        "name": "limit-truth",
        "victims": {"mine": {"probe": "integer", "sandbox": {"backend": "container", "cpus": "0"}}},
        "factors": {"victim.sandbox.cpu_limit": [limit]},
        "goals": [{"victim": "mine", "efficiency": list(GOAL)}],
        "min_blocks": 8,
        "precision": 0.001,
        "budget": f"{seconds}s",
    }


def others(seed: int) -> contextlib.AbstractContextManager[object]:
    """A program on the victim's CPU that comes and goes."""
    return program(sys.executable, "-c", COMES_AND_GOES.replace("SEED", str(seed)))


@contextlib.contextmanager
def wrong(factor: float) -> Iterator[None]:
    """Containers are given this multiple of the limits that they are asked to have."""
    hold = Container._hold_cpu  # noqa: SLF001 - the fault is planted where the kernel is told

    def planted(self: Container, limit: float | None, weight: float | None) -> None:
        hold(self, limit if limit is None else limit * factor, weight)

    with mock.patch.object(Container, "_hold_cpu", planted):
        yield


@contextlib.contextmanager
def by_ratio() -> Iterator[None]:
    """Limits are judged by the rate over that of the baseline, whoever slowed it down."""
    rate_alone = mock.patch("partywall.run.findings.limits._cpu_time", return_value=None)
    with rate_alone, mock.patch("partywall.run.findings.verdicts.DISTURBED", frozenset()):
        yield


def outcome(limit: float, factor: float, seed: int, seconds: int) -> Part:
    """One run: its outcome, printed with its reason."""
    for _ in range(ATTEMPTS):
        with others(seed), wrong(factor):
            _, findings = measure(scenario(limit, seconds), seed)
        if not findings.incomplete:
            break
        print(f"measured again: {findings.incomplete[0]}", flush=True)
    (verdict,) = findings.verdicts
    print(f"{limit:.0%}, given {factor:g} of it, run {seed}: {verdict.outcome}: {verdict.reason}", flush=True)
    print(f"  {findings.headline}", flush=True)
    return {"factor": factor, "outcome": verdict.outcome.value}


@bench(
    plants={"ratio": Plant("limits are judged by the rate over the baseline's", around=by_ratio)},
    folder=True,
    more={"--runs": {"type": int, "default": RUNS, "help": "runs of each limit"}},
)
def main(options: Options) -> Outcome:
    cases = [(LIMITS[0], 1.0, 1), (LIMITS[0], WRONG[1], 1)] if options.quick else [
        (limit, factor, run)
        for run, limit in itertools.product(range(1, options.runs + 1), LIMITS)
        for factor in (1.0, WRONG[run % 2])
    ]  # fmt: skip
    parts = {
        f"{limit:.0%}-{factor:g}-{run}": functools.partial(outcome, limit, factor, run, SECONDS[options.quick])
        for limit, factor, run in cases
    }
    results = list(in_parts(parts, options).values())
    true = Counter(part["outcome"] for part in results if part["factor"] == 1)
    false = Counter(part["outcome"] for part in results if part["factor"] != 1)
    figure = f"of {true.total()} runs with true limits {said(true)}; of {false.total()} wrong by a tenth {said(false)}"
    met = not true["violated"] and true["holds"] > 0 and false["violated"] == false.total()
    return Outcome(figure, met)


def said(outcomes: Counter[str]) -> str:
    return ", ".join(f"{outcomes[each.value]} {each.value}" for each in estimate.Outcome)


if __name__ == "__main__":
    main()
