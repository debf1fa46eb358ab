"""The commands that measure nothing: they read records of fleets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from partywall.core.job import Action, Duration, Following, Option
from partywall.core.report.value import Column, Report, Table
from partywall.errors import Problem, TrialError, UsageError
from partywall.fleet.job import RunJob
from partywall.fleet.record import FleetRecord
from partywall.values import Share

if TYPE_CHECKING:
    from partywall.fleet.engines.engine import Engine

STOPPED_AT_ONCE = 32
RECORD = Option("A record of 'partywall fleet run'.", metavar="RECORD")


class OfRecord(Action):
    """What is known of the fleet of a record."""

    record: Annotated[Path, RECORD]

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.fleet import report
        from partywall.fleet.findings.findings import findings_of

        del host
        record = FleetRecord.open(self.record)
        return report.report(findings_of(record.measured, record.failed), {"name": record.name})


class ShowReport(OfRecord):
    """Show what is known of a fleet so far, while it is measured too. 'partywall report' also writes the page.

    Exit code: 0 no host differs, 1 a host isolates worse, 2 bad record, 3 too few hosts to tell.
    """

    verb: ClassVar[str] = "report"


class Watch(OfRecord, Following):
    """Follow a fleet while another terminal, or nobody, waits for it: the table of hosts, then the report.

    Ctrl-C ends only the watching. If the controller has ended before the fleet, this ends too: hosts measure on, and
    'partywall fleet run --resume RECORD' takes them over.

    Exit code: 0 no host differs, 1 a host isolates worse, 2 bad record, 3 too few hosts to tell, 130 Ctrl-C.
    """

    verb: ClassVar[str] = "watch"

    every_ns: Annotated[Duration, Option("Time between two looks at the record.", flag="--every", example="2s")] = (
        2_000_000_000
    )

    def follow(self) -> Iterator[Report]:
        from partywall.fleet import report

        record = FleetRecord.open(self.record)
        while True:
            # Asked for first: what is written after it is seen the next time.
            goes_on = record.is_written()
            yield report.live(record.standings())
            if not goes_on:
                return
            time.sleep(self.every_ns / 1e9)


class Gate(Action):
    """Decide whether a rollout may go on: are the canaries worse than the other hosts by more than a margin?

    \b
      partywall fleet gate runs/fleet-run-… --canaries 'new-kernel' --margin 3%
      partywall fleet gate runs/fleet-run-… --before runs/fleet-run-…

    The canaries are no worse only if the whole interval of every cell is above the margin (non-inferiority at 95 %).
    With --before, every host is compared with itself in an earlier record.

    Exit code: 0 no worse, 1 worse, 2 bad record or option, 3 not known.
    """  # noqa: D301 - Click keeps the lines after a backspace

    verb: ClassVar[str] = "gate"

    record: Annotated[Path, RECORD]
    canaries: Annotated[str, Option("Hosts or groups. Default: the canaries of the record.")] = ""
    before: Annotated[Path | None, Option("An earlier record of the same hosts.")] = None
    margin: Annotated[Share, Option("The largest loss that is accepted.", example="3%")] = 0.03

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.fleet import report
        from partywall.fleet.findings.findings import gated

        del host
        record = FleetRecord.open(self.record)
        if self.before is not None:
            judged = gated(record.measured, (), self.margin, FleetRecord.open(self.before).measured)
            return report.gate(judged, self.margin, "the hosts")
        job = record.job
        pattern = self.canaries or (job.canaries if isinstance(job, RunJob) else "")
        if not pattern:
            raise UsageError(Problem("no canaries are given", "name hosts or groups", key="--canaries"))
        names = [place.name for place in job.inventory.chosen(pattern)] if isinstance(job, RunJob) else []
        return report.gate(gated(record.measured, names, self.margin, None), self.margin, f"the canaries ({pattern})")


class Stop(Action):
    """End the runs of a fleet on all of its hosts. What they have measured is kept, and --resume goes on later.

    It may be called while 'partywall fleet run' measures, which then ends too.

    Exit code: 0 every host ended or had ended, 2 bad record, 5 a host did not answer.
    """

    verb: ClassVar[str] = "stop"

    record: Annotated[Path, RECORD]

    def act(self, host: Callable[[], Any]) -> Report:
        from partywall.fleet.engines.engine import named

        del host
        # Beside a controller, whose token is then an older one: every host refuses what it orders from now on.
        record = FleetRecord.open(self.record)
        token, tried = record.begin(), record.attempts()
        reached = named(record.job.engine)(record.job.places)
        names = [place.name for place in record.job.places]
        with ThreadPoolExecutor(min(STOPPED_AT_ONCE, len(names))) as pool:
            every = pool.map(lambda name: _stopped(reached, name, record.name, token), names)
            # A host that was never asked to measure does not matter if it does not answer.
            rows = [row for row in every if row["host"] in tried]
        if silent := [row["state"] for row in rows if row["silent"]]:
            raise TrialError("; ".join(silent))
        columns = (Column("host", "host", is_key=True), Column("state", "state"))
        return Report("", sections=(Table("hosts", "", columns, rows),), values={"hosts": rows})


def _stopped(reached: Engine, host: str, run: str, token: int) -> dict[str, Any]:
    from partywall.fleet.engines.engine import Unreachable

    try:
        phase = reached.stop(host, run, token).phase
    except Unreachable as error:
        return {"host": host, "state": str(error), "silent": True}
    return {"host": host, "state": "stopping" if phase.is_going else str(phase), "silent": False}
