"""Comparing settings of migration, beside QEMU's guestperf: an interval for each in no more time than its one run.

guestperf moves one guest once for each setting, in fixed order, and waits 15 s before and 15 s after each move (its
`Engine`, `sleep=15`). So a setting takes 30 s and the move, and there is no interval. Here every setting is moved three
times, in random order in rounds, and its figures come with intervals. The time of guestperf's run is reckoned from its
two waits and the moves seen here. The start of guests is left out on both sides; guestperf starts one for each move.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import moves
from frame import Options, Outcome, bench
from partywall.agent.catalogue import shipped
from partywall.core.here import this_host
from partywall.events import silent
from partywall.migrate import check as plans
from partywall.migrate.document import MigrationPlan
from partywall.migrate.findings.cost import findings
from partywall.migrate.job import MigrationJob
from partywall.migrate.measure.seen import Seen
from partywall.migrate.record import MigrationDirectory

GUESTPERF_S = 30.0
QUICK = ("default", "post-copy-after-1")


@bench(plants={"once": "one move a setting, as guestperf makes"}, lacking=moves.lacking)
def main(options: Options) -> Outcome:
    plan = plans.load(plans.find("comparisons"), shipped())
    if options.quick:
        plan = plan.model_copy(update={"methods": {name: plan.methods[name] for name in QUICK}})
    if options.plant:
        plan = plan.model_copy(update={"moves": 1})
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        record, all_s = carried_out(plan, Path(folder))
        derived = findings(record.evidence(), record.table)
    spent_s = all_s / len(plan.methods)
    their_s = []
    lacking = []
    for cell in derived.cells:
        own = [each for each in derived.moves if each.move.method == cell.method]
        their_s.append(GUESTPERF_S + statistics.median((each.move.end_ns - each.move.begin_ns) / 1e9 for each in own))
        total, downtime = cell.figures.get("total_s"), cell.figures.get("downtime_s")
        ended = cell.outcomes.get("completed") == plan.moves
        if ended and not (total and total.interval and downtime and downtime.interval):
            lacking.append(cell.method)
        text = f"{total.value:.2f} ± {total.interval.half_width:.2f} s" if total and total.interval else "no interval"
        print(f"{cell.method:20} {cell.outcomes} {text}; guestperf's run {their_s[-1]:.1f} s", flush=True)
    theirs = statistics.mean(their_s)
    return Outcome(
        f"{len(plan.methods)} settings, {plan.moves} moves each, {spent_s:.1f} s a setting; guestperf {theirs:.1f} s "
        f"for one move without an interval; without an interval here: {', '.join(lacking) or 'none'}",
        spent_s <= theirs and not lacking,
    )


def carried_out(plan: MigrationPlan, folder: Path) -> tuple[MigrationDirectory, float]:
    """The moves of a plan, as the command keeps them, and how many seconds they took."""
    host = this_host()
    record = MigrationDirectory.create(folder / "record", MigrationJob(plan=plan), host.facts)

    def keep(seen: Seen) -> None:
        record.append(seen.move, seen.tables)

    with moves.series(plan) as series:
        began = time.monotonic()
        series.carry_out(silent, keep)
        spent_s = time.monotonic() - began
    record.end()
    return record, spent_s


if __name__ == "__main__":
    main()
