"""Whether the advised settings serve the goal better than QEMU's defaults, for guests that were not moved before.

Guests change memory at several rates and in several working sets. The advice rests on a survey of each guest and on
moves of the idle guest. Then each guest moves by QEMU's defaults and by the advised method, in random order in rounds.
There are two kinds of goals. A limit states the longest time without an answer, and then the move should take as
little time as possible. Of two methods, the one that keeps the limit more often is better, then the one by which more
moves end, and then the one whose moves take less time; of two that do not always keep the limit, the one with the
shorter wait. Without a limit, the shorter time without an answer is better. Differences below the spread of the same
method between rounds count as noise. No limit is near the time that clients wait by QEMU's defaults (0.35 to 0.45 s),
for then it is chance whether these keep it.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import moves
from frame import Options, Outcome, bench, in_parts
from migrate_predict import writer
from partywall.events import silent
from partywall.migrate.document import Advice, Method, MigrationEvidence, MigrationPlan
from partywall.migrate.findings import cost
from partywall.migrate.measure.seen import Seen
from partywall.migrate.measure.series import Series

WRITERS = {"slow": ((2, 16), (8, 32)), "fast": ((16, 64), (24, 128), (32, 32))}
GOALS_MS = (150, None, 1500)
"""The longest time without an answer; None: as short as possible."""
QUICK_WRITERS, QUICK_GOALS_MS = {"quick": ((8, 32),)}, (150,)
ROUNDS, QUICK_ROUNDS = 3, 2


@dataclass(frozen=True)
class Taken:
    """The longest time without an answer and the time of a move, in s; infinite if the move did not end."""

    wait_s: float
    move_s: float

    def __str__(self) -> str:
        return f"{self.wait_s:.3f} s of {self.move_s:.2f} s"


@bench(plants={"stop": "a stop before any memory is sent is advised"}, folder=True, lacking=moves.lacking)
def main(options: Options) -> Outcome:
    writers, goals = (QUICK_WRITERS, QUICK_GOALS_MS) if options.quick else (WRITERS, GOALS_MS)
    parts = {
        f"{name}, {goal_text(goal_ms)}": functools.partial(judged_part, goal_ms, chosen, options)
        for goal_ms in goals
        for name, chosen in writers.items()
    }
    outcomes = [outcome for part in in_parts(parts, options).values() for outcome in part]
    if not outcomes:
        return Outcome("nothing was advised: no calibration move was completed", False)
    share = sum(each in ("better", "default") for each in outcomes) / len(outcomes)
    worse = outcomes.count("worse")
    return Outcome(
        f"of {len(outcomes)} cases better in {outcomes.count('better')}, the default in {outcomes.count('default')}, "
        f"as good in {outcomes.count('same')}, worse beyond noise in {worse}",
        share >= 0.8 and not worse,
    )


def goal_text(goal_ms: int | None) -> str:
    return "no limit" if goal_ms is None else f"{goal_ms} ms"


def judged_part(goal_ms: int | None, writers: Sequence[tuple[int, int]], options: argparse.Namespace) -> list[str]:
    """The outcome for each writer."""
    plan = moves.plan(
        guest={"memory": "256MiB"}, link={"rate": "400Mbit/s"}, clients={"pings": 500},
        workloads={f"{rate}-over-{wide}": writer(rate, wide) for rate, wide in writers},
        goal={"downtime": f"{goal_ms}ms"} if goal_ms else {}, calibration=2 if options.quick else 5,
        before="1s", after="1s", moves=QUICK_ROUNDS if options.quick else ROUNDS, give_up="20s",
    )  # fmt: skip
    outcomes = []
    with moves.series(plan) as series:
        for advice in map(stopped, advised(series)) if options.plant else advised(series):
            outcome, text = tried(series, plan, advice)
            outcomes.append(outcome)
            print(f"{advice.workload}, goal {goal_text(goal_ms)}: {advice.text}: {outcome}: {text}", flush=True)
    return outcomes


def advised(series: Series) -> Sequence[Advice]:
    """What is advised, before any guest at work has moved."""
    surveys = [series.survey(workload, silent) for workload in series.plan.workloads]
    seen: dict[int, Seen] = {}
    series.calibrate(silent, lambda each: seen.update({each.move.number: each}))
    calibration = tuple(each.move for each in seen.values())
    evidence = MigrationEvidence(
        name="bench", plan=series.plan, host={}, about={}, moves=(), surveys=tuple(surveys), calibration=calibration
    )
    return cost.findings(evidence, lambda name, number: seen[number].tables[name]).advice


def stopped(advice: Advice) -> Advice:
    """The guest stands still while all of its memory is sent, instead of the advice."""
    if advice.chosen is None:
        return advice
    method = Method(stop_after=0)
    return advice.model_copy(update={"chosen": advice.chosen.model_copy(update={"method": method})})


def tried(series: Series, plan: MigrationPlan, advice: Advice) -> tuple[str, str]:
    """Moves a guest by QEMU's defaults and as advised: better, worse, same or default, and the times."""
    methods = dict(plan.methods)
    if advice.chosen is not None and advice.chosen.method != plan.methods["default"]:
        methods["advised"] = advice.chosen.method
    workloads = {advice.workload: plan.workloads[advice.workload]}
    series.plan = plan.model_copy(update={"methods": methods, "workloads": workloads})
    taken: dict[str, list[Taken]] = {name: [] for name in methods}

    def keep(seen: Seen) -> None:
        values = cost.move_finding(seen.move, seen.tables).values
        ended = seen.move.outcome == "completed"
        times = [values.get(name, math.inf) if ended else math.inf for name in ("longest_s", "total_s")]
        taken[seen.move.method].append(Taken(*times))

    series.carry_out(silent, keep)
    text = "; ".join(f"{name} {', '.join(map(str, own))}" for name, own in taken.items())
    if advice.chosen is None:
        return "better" if all(math.isinf(each.move_s) for each in taken["default"]) else "worse", text
    if "advised" not in taken:
        return "default", text
    return judged(taken["default"], taken["advised"], (plan.goal.downtime or 0) / 1e9), text


def judged(default: Sequence[Taken], advised: Sequence[Taken], goal_s: float) -> str:
    """better, worse or same. goal_s: the limit; 0 for none."""
    both = (default, advised)
    reached = [sum(each.wait_s <= goal_s for each in own) / len(own) for own in both]
    ended = [sum(math.isfinite(each.move_s) for each in own) / len(own) for own in both]
    for before, after in (reached, ended):
        if before != after:
            return "better" if after > before else "worse"
    name = "move_s" if min(reached) == 1 else "wait_s"
    times = [[getattr(each, name) for each in own] for own in both]
    if any(map(math.isinf, (*times[0], *times[1]))):
        return "same"
    difference = statistics.median(times[0]) - statistics.median(times[1])
    if abs(difference) <= max(max(own) - min(own) for own in times):
        return "same"
    return "better" if difference > 0 else "worse"


if __name__ == "__main__":
    main()
