"""The capability: hosts of an inventory, measured, compared and reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partywall import units
from partywall.core.capability import Capability, Options, Outline
from partywall.errors import Exit, Problem, TrialError, UsageError
from partywall.events import Emit
from partywall.fleet.actions import Gate, ShowReport, Stop, Watch
from partywall.fleet.job import AdmitJob, FleetJob, RunJob
from partywall.fleet.record import Fleet, FleetRecord, Measured

if TYPE_CHECKING:
    from partywall.core.report.value import Report
    from partywall.fleet.findings.findings import Admission, FleetFindings, Reading


@dataclass(frozen=True)
class Judged:
    """What is known of a record: of a fleet, or of one host against a fleet."""

    name: str
    started_at: str
    fleet: FleetFindings | None = None
    admitted: Admission | None = None
    against: str = ""
    pages: Mapping[str, str] = field(default_factory=dict)


class Fleets(Capability[FleetJob, FleetRecord, Judged]):
    """Measure the same thing on many hosts of an Ansible inventory, and compare them (docs/fleet.md)."""

    jobs, record = (RunJob, AdmitJob), FleetRecord
    actions = (Watch, ShowReport, Gate, Stop)
    rows, doing = "figures", "measuring"
    keeps = "the measurement goes on"
    disturbs = False

    def outline(self, job: FleetJob, options: Options) -> Outline:
        """Says which hosts would measure what, how many at a time. No host is contacted."""
        from partywall.fleet.engines import engine
        from partywall.fleet.findings.judging import MIN_HOSTS

        engine.named(job.engine)
        places, first, subject = job.places, job.first, job.scenario.subject
        waves = -(-len(first) // job.at_once) + -(-(len(places) - len(first)) // job.at_once)
        seconds = job.seconds or _of_study(job, options)
        each = units.format_duration(round(seconds * 1e9))
        parts = f" in {job.rounds} rounds at most" if job.rounds > 1 else ""
        lines = [
            f"{subject.name}: loads each host while it is measured: {subject.loads}",
            f"{len(places)} hosts by {job.engine}, {job.at_once} at a time, {each} each{parts}: {_names(places)}",
            f"a host that hears nothing from here measures on for {units.format_duration(job.lease_ns)} at most",
        ]
        if first:
            goals = "" if subject.goals else f" ({subject.name} has no goals, so they only need to be measurable)"
            lines.append(f"first, as canaries: {', '.join(first)}{goals}")
        if isinstance(job, AdmitJob):
            lines.append(_needed(job))
        elif len(places) < MIN_HOSTS:
            lines.append(f"hosts are compared from {MIN_HOSTS} on")
        if folders := job.unread:
            lines.append(f"not read: {' and '.join(folders)} beside the inventory; `ansible-inventory --list` has them")
        return Outline(tuple(lines), waves * seconds)

    def check(self, job: FleetJob, options: Options) -> None:
        from partywall.fleet.engines import engine
        from partywall.run.plan.requirements import check_commands

        del options
        engine.named(job.engine)
        # An admission that goes on has its fleet in its own record, wherever that of the fleet is now.
        if isinstance(job, AdmitJob) and job.against.exists():
            _predicting(job)
        if not job.scenario.is_study:
            check_commands(job.scenario.scenario, allowed=job.allow_commands)

    def measure(self, record: FleetRecord, options: Options, emit: Emit) -> None:
        from partywall.fleet.engines import engine
        from partywall.fleet.measure.controlling import Controller

        del options
        job = record.job
        if isinstance(job, AdmitJob) and record.fleet is None:
            of = FleetRecord.open(job.against)
            hosts = tuple(host for host in of.measured.values() if host.host != job.host)
            record.stream.append(Fleet(name=of.name, hosts=hosts))
        Controller(record, engine.named(job.engine)(job.places), emit).run()

    def findings(self, record: FleetRecord) -> Judged:
        from partywall.fleet.findings.findings import admitted, findings_of

        job, measured, failed = record.job, record.measured, record.failed
        started_at = str(record.about["started_at"])
        if not isinstance(job, AdmitJob):
            return Judged(record.name, started_at, findings_of(measured, failed), pages=record.pages())
        if job.host not in measured or (fleet := record.fleet) is None:
            raise TrialError(failed.get(job.host, f"{job.host} was not measured"))
        admission = admitted(measured[job.host], fleet.hosts, job.seconds, job.margin)
        return Judged(record.name, started_at, admitted=admission, against=fleet.name)

    def report(self, findings: Judged) -> Report:
        from partywall.fleet import report

        about = {"name": findings.name, "started_at": findings.started_at}
        if findings.fleet is not None:
            return report.report(findings.fleet, about, findings.pages)
        assert findings.admitted is not None  # noqa: S101 - a record is of a fleet or of a host
        return report.admission(findings.admitted, findings.against, about)

    def outcome(self, findings: Judged) -> Exit:
        """A host that could not be measured counts as a failed trial, unless another one is worse."""
        code = super().outcome(findings)
        is_failed = findings.fleet is not None and bool(findings.fleet.failed)
        return Exit.FAILED if is_failed and code is not Exit.VIOLATED else code

    def live(self, seen: Any) -> Report | None:
        from partywall.fleet import report

        return report.live(seen)


def _of_study(job: FleetJob, options: Options) -> float:
    """How long a study would take on this host, for want of the others."""
    from partywall.study.document import StudyRequest

    kind, study = job.scenario.study
    request = StudyRequest(folder=str(Path(job.scenario.path).parent))
    return kind.outline(study, request, options.host).seconds


def _needed(job: AdmitJob) -> str:
    """How long the host has to be measured. UsageError if the fleet cannot predict anything."""
    from partywall.fleet.findings.findings import needed_s, usual_errors

    of, hosts, readings = _predicting(job)
    wanted = f"a loss of {100 * job.margin:g} % in any of {len(readings)} cells"
    needed = needed_s(readings, usual_errors(readings, hosts, of.job.seconds), job.margin)
    if math.isinf(needed):
        return f"{wanted} will not show: the hosts of {of.name} differ as much; give a larger --margin"
    time = units.format_duration(math.ceil(needed) * 10**9)
    too_short = "; with less, the answer may be 'not known'" if needed > job.seconds else ""
    return f"{wanted} shows after {time} or so, by the errors of {of.name}{too_short}"


def _predicting(job: AdmitJob) -> tuple[FleetRecord, dict[str, Measured], list[Reading]]:
    """The record of the fleet, its other hosts, and their cells. UsageError if they cannot predict anything."""
    from partywall.fleet.findings.findings import predicting
    from partywall.fleet.findings.judging import MIN_HOSTS

    of = FleetRecord.open(job.against)
    hosts = {name: host for name, host in of.measured.items() if name != job.host}
    if not (readings := predicting(hosts.values())):
        said = f"{of.name} has no cell that {MIN_HOSTS} other hosts measured"
        raise UsageError(Problem(said, "measure more hosts with partywall fleet run", key="--against"))
    return of, hosts, readings


def _names(places: Any) -> str:
    names = [place.name for place in places]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
