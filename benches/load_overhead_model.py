"""How well the overhead model tells what the bare host would have measured from what a container measured.

Users ask nginx (on another core) for a page and then compress a file, so that the generator itself works, from 20 to
260 of them on one core, which carries some 140 before they queue: from a seventh of its capacity to nearly twice
that. Each number of users is measured from a process and from a container that may use three quarters of the core, in
random order, several rounds. Rounds are so long that the bare host repeats itself: near the knee a queue takes a second
to forget what it was, and with windows of 2.5 s a round was 33 % off the mean of its others. Each number in turn is
held out: a model of the others predicts it from its container rounds and its own CPU counters.

Bar: mean error on held-out levels at most 10 % of response times, and at most 10 % of throughputs; 80 to 97 % of
held-out rounds in their 90 % intervals. Five levels cannot tell such a share (five of five is too many, and three too
few), so the quick form shows the coverage and judges errors only: its single rounds of three seconds differ by a fifth
from each other near the knee, and its bar is 30 % of response times and 15 % of throughputs.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common import busy_cpu
from frame import Options, Outcome, bench
from generators import GENERATOR_CPU, load, nginx
from partywall.load import check
from partywall.load.compiling import program
from partywall.load.measure import Setup
from partywall.load.overhead import Pair, coverage, held_out, mean_errors
from partywall.load.second import Timing

LEVELS_QUICK = (20, 80, 140, 200, 260)
LEVELS = tuple(range(20, 261, 20))
ROUNDS = 8
THINK_S = 0.5
LIMIT = 0.75
RAMP_S, SETTLE_S = 0.3, 0.7
HOLD_S, HOLD_QUICK_S = 8.2, 3.2
COVERED = (0.80, 0.97)
ERRORS, ERRORS_QUICK = (0.10, 0.10), (0.30, 0.15)


def compiled(url: str, users: int, hold_s: float) -> Mapping[str, Any]:
    steps = [{"http": "/"}, {"compress": {"size": "100kB"}}]
    actions = [{"transaction": {"name": "iteration", "steps": steps}}, {"think": {"exponential": f"{THINK_S}s"}}]
    text = {
        "partywall_load": 1,
        "name": "overhead",
        "base": url,
        "users": {"user": {"actions": actions}},
        "closed": {"users": users, "ramp_up": f"{RAMP_S}s", "hold": f"{hold_s}s"},
        "grace": "3s",
    }
    return program(check.loads(json.dumps(text).encode(), "bench", Path()))


def observe(url: str, users: int, backend: str, hold_s: float) -> tuple[float, float, float]:
    """(response time in s, iterations a second, CPU time used a second at that rate)."""
    limit = LIMIT if backend == "container" else None
    setup = Setup(name="bench", cpus=(GENERATOR_CPU,), backend=backend, cpu_limit=limit)
    measured = load(compiled(url, users, hold_s), setup)
    begin_ns = measured.begin_ns + int((RAMP_S + SETTLE_S) * 1e9)
    end_ns = measured.begin_ns + int((RAMP_S + hold_s) * 1e9)
    inside = [s for s in measured.seconds if s.start_ns >= begin_ns and s.end_ns <= end_ns]
    labels = measured.started["labels"]
    total = Timing()
    for second in inside:
        for number, timing in second.timings.items():
            if labels[number]["sort"] == "transaction":
                total.merge(timing)
    length_s = sum(second.length_s for second in inside)
    assert total.mean_ns is not None, "nothing was measured: is the hold too short?"
    # Of all iterations, for so is the CPU time: each of the load's, ramp and grace included, costs the same.
    every = sum(t.done for s in measured.seconds for n, t in s.timings.items() if labels[n]["sort"] == "transaction")
    mean_s = total.mean_ns / 1e9
    return mean_s, total.done / length_s, measured.cpu_ns / 1e9 / every * users / (mean_s + THINK_S)


def measured(url: str, numbers: Sequence[int], rounds: int, hold_s: float, *, shared: int | None = None) -> list[Pair]:
    """shared: with so many users, the process has to share its core."""
    chance = random.Random(1)
    pairs = []
    for _ in range(rounds):
        for users in chance.sample(numbers, len(numbers)):
            by_users = {}
            for backend in chance.sample(["process", "container"], 2):
                others = users == shared and backend == "process"
                with busy_cpu(GENERATOR_CPU) if others else contextlib.nullcontext():
                    by_users[backend] = observe(url, users, backend, hold_s)
            boxed, bare = by_users["container"], by_users["process"]
            pairs.append(Pair(users, THINK_S, boxed[0], boxed[2] / LIMIT, bare[0], bare[1]))
            print(f"{users} users: process {bare[0] * 1e3:.2f} ms, container {boxed[0] * 1e3:.2f} ms", flush=True)
    return pairs


def repeats(pairs: Sequence[Pair]) -> float:
    """How far a round of the bare host is off the mean of its others, over all levels: no model could be nearer."""
    errors = []
    for users in {pair.users for pair in pairs}:
        times = [pair.physical_s or 0 for pair in pairs if pair.users == users]
        errors += [abs((sum(times) - t) / (len(times) - 1) / t - 1) for t in times if len(times) > 1]
    return statistics.fmean(errors) if errors else float("nan")


@bench(plants={"shared": "another program on the core, at one number of users"}, unjudged="coverage", needs=("nginx",))
def main(options: Options) -> Outcome:
    quick = options.quick
    with nginx() as url:
        extent = (LEVELS_QUICK, 1, HOLD_QUICK_S) if quick else (LEVELS, ROUNDS, HOLD_S)
        pairs = measured(url, *extent, shared=140 if options.plant else None)
    levels = held_out(pairs)
    for level in levels:
        print(
            f"held out {level.users} users: predicted {level.forecast_s * 1e3:.2f} ms and {level.forecast_rate:.1f}/s, "
            f"measured {level.physical_s * 1e3:.2f} ms and {level.physical_rate:.1f}/s; "
            f"{level.covered} of {level.rounds} rounds inside"
        )
    if not quick:
        print(f"a round of the bare host is {repeats(pairs):.1%} off the mean of its other rounds")
    apart = statistics.fmean(pair.sandbox_s / (pair.physical_s or 1) for pair in pairs) - 1
    rounds = sum(level.rounds for level in levels)
    time_error, rate_error = mean_errors(levels)
    share = coverage(levels)
    most = ERRORS_QUICK if quick else ERRORS
    met = time_error <= most[0] and rate_error <= most[1] and (quick or COVERED[0] <= share <= COVERED[1])
    figure = (
        f"mean error on held-out levels {time_error:.1%} of response times and {rate_error:.1%} of throughputs, "
        f"{share:.0%} of {rounds} rounds of {len(levels)} levels inside 90 % intervals; "
        f"the container's response times are {apart:+.0%} of the process's"
    )
    return Outcome(figure, met)


if __name__ == "__main__":
    main()
