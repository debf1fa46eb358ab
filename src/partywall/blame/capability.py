"""Blames: which neighbour slows a victim down, found by short, shallow pulses."""

from __future__ import annotations

import contextlib
import datetime
from typing import TYPE_CHECKING

from partywall import __version__, units
from partywall.blame.findings import BlameFindings, Verdict, findings_of, rule_of
from partywall.blame.job import BlameJob
from partywall.blame.measure import suspects, victim
from partywall.blame.measure.experiment import Experiment
from partywall.blame.record import BlameDirectory
from partywall.core.capability import NeverContinued, Options, Outline
from partywall.core.record import stamped
from partywall.errors import Exit
from partywall.events import Emit, Note, Started

if TYPE_CHECKING:
    from partywall.core.report.files import Files

EXITS = {
    Verdict.NEIGHBOUR: Exit.VIOLATED,
    Verdict.OWN: Exit.HOLDS,
    Verdict.HOST: Exit.HOLDS,
    Verdict.NOBODY: Exit.HOLDS,
    Verdict.UNKNOWN: Exit.INCONCLUSIVE,
}
"""A neighbour that harms the victim is what other commands call violated."""


class Blames(NeverContinued):
    record = BlameDirectory
    why_not = "suspects and their use have changed since"

    def outline(self, job: BlameJob, options: Options) -> Outline:
        """Says what would be touched, how deep, and for how long. A victim that is a command is not started."""
        job.check()
        with contextlib.nullcontext() if job.command else victim.started(job, options.host) as one:
            found = suspects.find(job, options.host, one.pids() if one else [])
        rule = rule_of(job, len(found.suspects))
        pulse = units.format_duration(job.pulse_ns)
        lines = [
            f"{each.name}: {each.lever.kind} lever, pulses of {pulse}, half of the time {job.depth:.0%} off its use, "
            f"later {job.deepest:.0%}: writes {', '.join(str(path) for path in each.lever.before)}"
            for each in found.suspects
        ]
        lines += [f"not touched: {text}" for text in found.left_out]
        lines.append(
            f"ends when all are judged, when each suspect may have lost {job.harm:.1%} of its work over "
            f"{units.format_duration(job.budget_ns)}, or after that time"
        )
        return Outline(tuple(lines), rule.blocks_most * rule.code.block_slots * job.pulse_ns / 1e9)

    def check(self, job: BlameJob, options: Options) -> None:
        self.outline(job, options)

    def measure(self, job: BlameJob, options: Options, emit: Emit) -> BlameDirectory:
        job.check()
        with victim.started(job, options.host) as one:
            found = suspects.find(job, options.host, one.pids())
            names = [each.name for each in found.suspects]
            started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            about = {"partywall": __version__, "started_at": started, **job.facts(), "names": names}
            about |= {"unit": one.unit, "is_weak": one.is_weak, "left_out": list(found.left_out)}
            record = BlameDirectory.create(options.folder(stamped("blame")), about, options.host.facts)
            with record.exclusive():
                emit(Started(record.path))
                emit(Note(f"suspects: {', '.join(names)}"))
                if one.is_weak:
                    emit(Note("the victim's rate is only how long it waits for a CPU; a log or a command says more"))
                why = Experiment(job, rule_of(job, len(names)), one, found.suspects, record, emit, options.host).run()
                record.say("ended", why=why)
        return record

    def findings(self, record: BlameDirectory) -> BlameFindings:
        return findings_of(record)

    def outcome(self, findings: BlameFindings) -> Exit:
        return EXITS[findings.verdict]

    def files(self) -> Files[BlameFindings]:
        from partywall.blame.report import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES
