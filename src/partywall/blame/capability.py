"""The capability: an experiment on this host, outlined, carried out, derived and reported."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from partywall import units
from partywall.blame.job import BlameJob
from partywall.blame.record import Began, BlameRecord, Stopped
from partywall.core.capability import Capability, Options, Outline
from partywall.events import Emit, Note

if TYPE_CHECKING:
    from partywall.blame.findings import BlameFindings
    from partywall.core.report.value import Report


class Blames(Capability[BlameJob, BlameRecord, "BlameFindings"]):
    """Experiments on who slows a victim down."""

    jobs, record = (BlameJob,), BlameRecord
    rows, doing = "suspects", "pulsing"
    cannot_resume = "suspects and what they use have changed since"

    def outline(self, job: BlameJob, options: Options) -> Outline:
        """Says what would be touched, how deep, and for how long. A victim that would have to be started is not."""
        from partywall.blame.findings import rule_of
        from partywall.blame.measure import suspects, victim

        victim.check(job, options.host)
        is_started = job.victim or job.probe or job.url
        with contextlib.nullcontext() if is_started else victim.started(job, options.host) as one:
            found = suspects.find(job, options.host, one.pids() if one else [])
        rule, pulse = rule_of(job, len(found.suspects)), units.format_duration(job.pulse_ns)
        lines = [
            f"{each.name}: {each.lever.kind} lever, pulses of {pulse}, half of the time {job.depth:.0%} off its use, "
            f"later {job.deepest:.0%}: writes {each.lever.owner.writes}"
            for each in found.suspects
        ]
        lines += [f"not touched: {text}" for text in found.left_out]
        lines.append(
            f"ends when all are judged, when each suspect may have lost {job.harm:.1%} of its work over "
            f"{units.format_duration(job.budget_ns)}, or after that time"
        )
        if job.apply:
            lines.append(f"keeps the limit that helps most{f' until {job.until}' if job.until else ''}")
        return Outline(tuple(lines), rule.blocks_most * rule.code.block_slots * job.pulse_ns / 1e9)

    def measure(self, record: BlameRecord, options: Options, emit: Emit) -> None:
        from partywall.blame.findings import rule_of
        from partywall.blame.measure import keeping, suspects, victim
        from partywall.blame.measure.experiment import Experiment

        job = record.job
        with victim.started(job, options.host) as one:
            found = suspects.find(job, options.host, one.pids())
            names = tuple(each.name for each in found.suspects)
            places = tuple(each.place for each in found.suspects)
            record.stream.append(
                Began(names=names, places=places, unit=one.unit, is_weak=one.is_weak, left_out=found.left_out)
            )
            emit(Note(f"suspects: {', '.join(names)}"))
            if one.is_weak:
                emit(Note("the victim's rate is only how long it waits for a CPU; a log or a command says more"))
            rule = rule_of(job, len(names))
            why = Experiment(job, rule, one, found.suspects, record, emit, options.host).run()
            record.stream.append(Stopped(why=why))
            if job.apply:
                keeping.keep(record, found.suspects, emit)

    def findings(self, record: BlameRecord) -> BlameFindings:
        from partywall.blame.findings import findings_of

        return findings_of(record)

    def report(self, findings: BlameFindings) -> Report:
        from partywall.blame import report

        return report.report(findings)

    def live(self, seen: Any) -> Report | None:
        from partywall.blame import report

        return report.live(seen)
