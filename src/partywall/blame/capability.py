"""The capability: an experiment on this host, outlined, carried out, derived and reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partywall.blame.job import BlameJob
from partywall.blame.record import Began, BlameRecord, Stopped
from partywall.core.capability import Capability, Options, Outline
from partywall.events import Emit, Note

if TYPE_CHECKING:
    from partywall.blame.decide import Rule
    from partywall.blame.findings import BlameFindings
    from partywall.core.report.value import Report


class Blames(Capability[BlameJob, BlameRecord, "BlameFindings"]):
    """Experiments on who slows a victim down."""

    jobs, record = (BlameJob,), BlameRecord
    rows, doing = "suspects", "pulsing"
    cannot_resume = "suspects and what they use have changed since"

    def outline(self, job: BlameJob, options: Options) -> Outline:
        """Says what is slow, what would be touched, how deep, and for how long. A victim is not started."""
        from partywall.blame.findings import duration, expect_depth, expect_enough, rule_of
        from partywall.blame.measure import groups, suspects, victim

        expect_depth(job)
        victim.check(job, options.host)
        with victim.outlined(job, options.host) as (named, pids):
            found = suspects.find(job, options.host, pids)
        if not (job.victim or job.probe):
            suspects.expect_moves(job, found)
        rule, pulse = rule_of(job, len(found.suspects)), duration(job.pulse_ns / 1e9)
        expect_enough(rule, job)
        later = rule.deepens_s
        deeper = "" if later is None else f", after {duration(later)} {job.deepest:.0%}"
        off = {"cpuset": "off the victim's CPUs", "freeze": "stopped"}.get(job.lever, f"{job.depth:.0%} off its use")
        names = groups.shown([each.name for each in found.suspects], options.host)
        lines = [
            f"{name}: {each.lever.kind} lever, pulses of {pulse}, half of the time {off}"
            f"{deeper}: writes {each.lever.owner.writes}"
            for name, each in zip(names, found.suspects, strict=True)
        ]
        lines += [f"not touched: {text}" for text in found.left_out]
        lines.append(end_of(rule, job))
        if job.apply:
            lines.append(f"keeps the limit that helps most{f' until {job.until}' if job.until else ''}")
        return Outline((named, *lines), rule.longest_s)

    def measure(self, record: BlameRecord, options: Options, emit: Emit) -> None:
        from partywall.blame.findings import expect_enough, rule_of
        from partywall.blame.measure import keeping, suspects, victim
        from partywall.blame.measure.experiment import Experiment

        job = record.job
        with victim.started(job, options.host) as one:
            found = suspects.find(job, options.host, one.pids())
            names = tuple(each.name for each in found.suspects)
            rule = rule_of(job, len(names))
            expect_enough(rule, job)
            suspects.expect_moves(job, found)
            places = tuple(each.place for each in found.suspects)
            record.stream.append(
                Began(names=names, places=places, unit=one.unit, is_weak=one.is_weak, left_out=found.left_out)
            )
            emit(Note(f"suspects: {', '.join(names)}"))
            if one.is_weak:
                emit(Note("the victim's rate is only how long it waits for a CPU; a log or a command says more"))
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


def end_of(rule: Rule, job: BlameJob) -> str:
    """When an experiment ends, as a line of its outline."""
    from partywall.blame.findings import duration, share

    longest, budget = duration(rule.longest_s), duration(job.budget_ns / 1e9)
    if rule.ends_by == "budget":
        return f"ends when all are judged, after {longest} at the latest (--budget {budget})"
    return (
        f"ends when all are judged, after {longest} at the latest: each suspect may then have lost "
        f"{share(job.harm)} of its work over {budget}; a larger --harm goes on for longer and finds smaller effects"
    )
