"""Migrations: guests that move while they are used."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from partywall import units
from partywall.core.capability import Capability, Options, Outline, expect_same
from partywall.core.record import stamped
from partywall.core.report.value import Report
from partywall.errors import Problem, UsageError
from partywall.events import Emit, Note
from partywall.migrate.document import (
    Forecast,
    MigrationEvidence,
    MigrationPlan,
    MigrationReport,
    MoveFinding,
    rate_text,
)
from partywall.migrate.job import MigrationJob
from partywall.migrate.record import CALIBRATION, MigrationDirectory

if TYPE_CHECKING:
    from partywall.migrate.measure import owned, series
    from partywall.migrate.measure.seen import Seen

RUNS = Path("runs")
OF_ITS_TIME = ("clocks_ahead_ns", "defaults")
"""Facts that may differ when a record is continued."""
NO_RECORD = "no prediction: no record in runs/ has the same guest, link and workloads; --advise makes one"


class Migrations(Capability[MigrationJob, MigrationDirectory, MigrationReport]):
    """Moves of guests while they are used."""

    jobs, record = (MigrationJob,), MigrationDirectory
    rows, doing = "moves", "moving"

    def outline(self, job: MigrationJob, options: Options) -> Outline:
        from partywall.migrate.measure import series
        from partywall.migrate.measure.seen import MOVE_S
        from partywall.migrate.measure.watching import SURVEY_S

        del options
        plan = job.plan
        moves = 0 if job.only_advise else len(plan.cells) * plan.moves
        watched_s = (plan.before + plan.after) / 1e9
        # Each family of methods is calibrated on its own.
        idle = plan.calibration * len(series.families_of(plan))
        survey_s = len(plan.workloads) * series.SURVEY_S if plan.calibration else 0.0
        link = rate_text(plan)
        if plan.hosts is not None:
            with_clients = f", clients at {plan.clients.address}" if plan.clients.address else ", without clients"
            moving = f"moves {units.counted(moves, 'time')}{with_clients}" if moves else "does not move"
            own = (
                f"a guest of your own is watched for {SURVEY_S:g} s, and {moving}",
                f"methods: {', '.join(plan.methods)}",
            )
            return Outline(own, SURVEY_S + moves * (watched_s + MOVE_S))
        lines = (
            f"a guest of {plan.guest.memory >> 20} MiB moves {moves + idle} times over a link, {link}",
            f"workloads: {', '.join(plan.workloads)}",
            f"methods: {', '.join(plan.methods)}",
        )
        return Outline(lines, survey_s + (moves + idle) * (watched_s + MOVE_S))

    def forecast(self, job: MigrationJob, known: Path | None, runs: Path) -> Forecast | None:
        """What the moves will cost, by a record whose guest, link and workloads are those of the job.

        known: the record; None for the newest that fits in `runs`. None if there is none. UsageError if `known` does
        not fit.
        """
        from partywall.migrate import known as known_moves

        if known is not None:
            forecast = _forecast(MigrationDirectory.open(known), job.plan)
            if isinstance(forecast, str):
                remedy = "make one: partywall migrate PLAN --advise"
                raise UsageError(Problem(f"nothing can be predicted from it: {forecast}", remedy, str(known)))
            return forecast
        for record in known_moves.newest_first(runs):
            # One that is damaged is passed over.
            with contextlib.suppress(UsageError):
                if isinstance(forecast := _forecast(record, job.plan), Forecast):
                    return forecast
        return None

    def foretell(self, job: MigrationJob, options: Options, emit: Emit) -> Outline:
        """Predicts from an earlier record, or from a look at a guest of the user's own."""
        from partywall.core import here
        from partywall.migrate import report
        from partywall.migrate.measure import series

        if job.plan.hosts is not None:
            forecast, why_not = self.look(job, options, emit), ""
        else:
            here.check_folder(options.work_root)
            series.check(options.host)
            forecast, why_not = self.forecast(job, job.known, RUNS), NO_RECORD
        return replace(self.outline(job, options), forecast=report.forecast(forecast, why_not))

    def check(self, job: MigrationJob, options: Options) -> None:
        from partywall.core import here
        from partywall.migrate.measure import owned, series

        here.check_folder(options.work_root)
        if job.plan.hosts is None:
            if job.known is not None:
                raise UsageError(Problem("--known is for --dry-run", "add --dry-run, or leave it out"))
            series.check(options.host)
            return
        # Looks at both ends, and changes nothing.
        with owned.OwnSeries(job.plan, stamped("migration-check"), options.work_root):
            pass

    def look(self, job: MigrationJob, options: Options, emit: Emit) -> Forecast | None:
        """Checks both ends, and watches a guest of the user's own for some seconds. None if it does not let itself."""
        from partywall.migrate import known as known_moves
        from partywall.migrate.measure import owned

        with owned.OwnSeries(job.plan, stamped("migration-look"), options.work_root) as moves:
            about = moves.about()
            earlier = known_moves.earlier_moves(job.plan, about, job.known, RUNS)
            if (survey := moves.survey(emit)) is None:
                return None
        calibration = tuple(each.move for each in earlier)
        evidence = MigrationEvidence(
            name="", plan=job.plan, host={}, about=about, moves=(), surveys=(survey,), calibration=calibration
        )
        return _from_survey(evidence, [each.finding() for each in earlier])

    def measure(self, record: MigrationDirectory, options: Options, emit: Emit) -> None:
        """Carries out the moves that the record lacks, with a new guest, or with the user's own where it is now."""
        job, known = record.job, record.about
        with _opened(job.plan, stamped(self.named(job, job.subject)), options, emit) as moves:
            about = moves.about()
            expect_same(record, known, {name: fact for name, fact in about.items() if name not in OF_ITS_TIME})
            record.learn(**{name: fact for name, fact in about.items() if name not in known})
            _go_on(moves, record, emit)

    def findings(self, record: MigrationDirectory) -> MigrationReport:
        from partywall.migrate.findings.cost import findings

        evidence = record.evidence()
        report = findings(evidence, record.table)
        return MigrationReport(findings=report, plan=evidence.plan, host=evidence.host, about=evidence.about)

    def report(self, findings: MigrationReport) -> Report:
        from partywall.migrate import report

        return report.report(findings)


def _opened(plan: MigrationPlan, name: str, options: Options, emit: Emit) -> series.Series | owned.OwnSeries:
    """The guest of a plan, ready to be moved. name: labels everything that is created."""
    from partywall.migrate.measure import owned, series

    if plan.hosts is not None:
        return owned.OwnSeries(plan, name, options.work_root)
    series.prepare(plan, options.host, emit)
    return series.Series(plan, options.host, name, options.work_root)


def _go_on(moves: series.Series | owned.OwnSeries, record: MigrationDirectory, emit: Emit) -> None:
    """Does what a record lacks: surveys, calibration moves, and moves."""
    from partywall.migrate.measure import owned

    evidence, job = record.evidence(), record.job
    done = frozenset(move.number for move in (*evidence.calibration, *evidence.moves))

    def keep(seen: Seen) -> None:
        record.append(seen.move, seen.tables)
        emit(Note(_said(seen)))

    if isinstance(moves, owned.OwnSeries):
        if not evidence.surveys:
            _add_survey(moves, record, emit)
        if not job.only_advise:
            moves.carry_out(emit, keep, done, _announce(record, emit))
        return
    if evidence.plan.calibration:
        surveyed = {survey.workload for survey in evidence.surveys}
        for workload in (name for name in evidence.plan.workloads if name not in surveyed):
            record.add_survey(moves.survey(workload, emit))
        moves.calibrate(emit, lambda seen: record.append(seen.move, seen.tables, CALIBRATION), done)
    if not job.only_advise:
        moves.carry_out(emit, keep, done)


def _said(seen: Seen) -> str:
    """A move in one line."""
    from partywall.migrate.findings import cost
    from partywall.migrate.report import line

    return line(cost.move_finding(seen.move, seen.tables))


def _add_survey(moves: owned.OwnSeries, record: MigrationDirectory, emit: Emit) -> None:
    """What predictions of a guest of the user's own rest on: a look at it, and its earlier moves."""
    from partywall.migrate import known as known_moves

    earlier = known_moves.earlier_moves(moves.plan, moves.about(), record.job.known, RUNS)
    if (survey := moves.survey(emit)) is None:
        return
    for each in earlier:
        record.append(each.move, each.tables, CALIBRATION)
    record.add_survey(survey)


def _announce(record: MigrationDirectory, emit: Emit) -> dict[str, float]:
    """Says what the moves of a guest of the user's own will cost, before the first one. Predicted s, by method."""
    from partywall.migrate.findings import cost

    evidence = record.evidence()
    earlier = [cost.move_finding(each, record.tables(each.number)) for each in evidence.calibration]
    forecast = _from_survey(evidence, earlier)
    for text in forecast.notes:
        emit(Note(text))
    if forecast.rests_on:
        emit(Note(f"{forecast.source}:"))
    for (_, method), each in forecast.predictions.items():
        emit(Note(f"  {method}: {cost.in_words(each, evidence.plan.give_up)}", is_warning=not each.converges))
    return {method: each.spans["total_s"].value for (_, method), each in forecast.predictions.items() if each.spans}


def _from_survey(evidence: MigrationEvidence, earlier: list[MoveFinding]) -> Forecast:
    """Of a guest of the user's own."""
    from partywall.migrate.findings import cost

    known = cost.basis(evidence, earlier)
    predictions = cost.predictions(evidence.plan, known)
    return Forecast(predictions, rests_on=known.rests_on, said=known.said, lacking=known.lacking)


def _forecast(record: MigrationDirectory, plan: MigrationPlan) -> Forecast | str:
    """Predictions for a plan by what a record knows; or why there are none."""
    from partywall.migrate import known as known_moves
    from partywall.migrate.findings import cost

    evidence = record.evidence()
    if why := known_moves.differs(evidence.plan, plan):
        return f"its {why} is not that of the plan"
    moves = [cost.move_finding(move, record.tables(move.number)) for move in evidence.calibration]
    forecast = cost.predictions(plan, cost.basis(evidence, moves))
    if not forecast:
        return "it has no completed calibration moves for these methods"
    return Forecast(forecast, record.path, str(evidence.about.get("started_at", "")))
