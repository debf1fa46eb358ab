"""Migrations: guests that move while they are used."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partywall import __version__, units
from partywall.agent.catalogue import shipped
from partywall.core import here
from partywall.core.capability import EXITS, Options, Outline, expect_same, finished
from partywall.core.record import stamped
from partywall.errors import Exit, Problem, UsageError
from partywall.events import Emit, Note, Started
from partywall.migrate import check as plans
from partywall.migrate import known as known_moves
from partywall.migrate import record as store
from partywall.migrate.document import (
    MigrationEvidence,
    MigrationPlan,
    MigrationReport,
    MoveFinding,
    Prediction,
    rate_text,
)
from partywall.migrate.measure import owned, series
from partywall.migrate.measure.seen import MOVE_S, Seen
from partywall.migrate.measure.watching import SURVEY_S
from partywall.migrate.record import MigrationDirectory

if TYPE_CHECKING:
    from partywall.core.report.files import Files

RUNS = Path("runs")
OF_ITS_TIME = ("clocks_ahead_ns", "defaults")
"""Facts that may differ when a record is continued."""


@dataclass(frozen=True)
class MigrationJob:
    """A plan to be carried out. only_advise: without its moves, for predictions and advice.

    known: the record that predictions for a guest of the user's own rest on; None for those in runs/ that fit.
    """

    plan: MigrationPlan
    only_advise: bool = False
    known: Path | None = None

    @classmethod
    def read(cls, file: Path, *, only_advise: bool = False, known: Path | None = None) -> MigrationJob:
        """A plan file. UsageError with all that is wrong with it."""
        plan = plans.load(file, shipped())
        if only_advise and plan.hosts is None and not plan.calibration:
            problem = Problem("calibration is 0, so nothing can be predicted", "set it to 3, for example", str(file))
            raise UsageError(problem)
        return cls(plan, only_advise, known)


@dataclass(frozen=True)
class Forecast:
    """Predictions by workload and method. record, started: what they rest on, and when it was measured.

    rests_on, said, lacking: of a guest that was watched for them, see `migrate.findings.cost.Basis`.
    """

    predictions: Mapping[tuple[str, str], Prediction]
    record: Path | None = None
    started: str = ""
    rests_on: str = ""
    said: tuple[str, ...] = ()
    lacking: str = ""


class Migrations:
    record = MigrationDirectory

    def outline(self, job: MigrationJob, options: Options) -> Outline:
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

    def check(self, job: MigrationJob, options: Options) -> None:
        here.check_folder(options.work_root)
        if job.plan.hosts is None:
            series.check(options.host)
            return
        # Looks at both ends, and changes nothing.
        with owned.OwnSeries(job.plan, stamped("migration-check"), options.work_root):
            pass

    def look(self, job: MigrationJob, options: Options, emit: Emit) -> Forecast | None:
        """Checks both ends, and watches a guest of the user's own for some seconds. None if it does not let itself."""
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

    def measure(self, job: MigrationJob, options: Options, emit: Emit) -> MigrationDirectory:
        name = stamped(f"migration-{job.plan.name}")
        # Before a guest is started.
        MigrationDirectory.expect_none(options.folder(name))
        self.check(job, options)
        with _opened(job.plan, name, options, emit) as moves:
            about = _about(moves) | ({"only_advise": True} if job.only_advise else {})
            if job.known is not None:
                # A record that does not fit is refused before there is one of this series.
                known_moves.earlier_moves(job.plan, about, job.known, RUNS)
                about |= {"known": str(job.known)}
            record = MigrationDirectory.create(options.folder(name), job.plan, options.host.facts, about)
            with record.exclusive():
                _go_on(moves, record, emit, job.known)
        return record

    def continued_by(self, record: MigrationDirectory) -> tuple[str, ...]:
        return ("migrate", "--resume", str(record.path))

    def resume(self, record: MigrationDirectory, options: Options, emit: Emit) -> None:
        """Carries out the moves that the record lacks, with a new guest, or with the user's own where it is now."""
        with record.exclusive():
            evidence = record.evidence()
            if not evidence.interrupted:
                finished(record, emit)
                return
            job = MigrationJob(evidence.plan)
            self.check(job, options)
            with _opened(job.plan, stamped(f"migration-{job.plan.name}"), options, emit) as moves:
                about = {name: fact for name, fact in moves.about().items() if name not in OF_ITS_TIME}
                expect_same(record, evidence.about, about)
                known = evidence.about.get("known")
                _go_on(moves, record, emit, None if known is None else Path(known))

    def findings(self, record: MigrationDirectory) -> MigrationReport:
        from partywall.migrate.findings.cost import findings

        evidence = record.evidence()
        report = findings(evidence, record.table)
        return MigrationReport(findings=report, plan=evidence.plan, host=evidence.host, about=evidence.about)

    def outcome(self, findings: MigrationReport) -> Exit:
        return EXITS[findings.findings.outcome]

    def files(self) -> Files[MigrationReport]:
        from partywall.migrate.report import FILES

        return FILES


def _opened(plan: MigrationPlan, name: str, options: Options, emit: Emit) -> series.Series | owned.OwnSeries:
    """The guest of a plan, ready to be moved. name: labels everything that is created."""
    if plan.hosts is not None:
        return owned.OwnSeries(plan, name, options.work_root)
    series.prepare(plan, options.host, emit)
    return series.Series(plan, options.host, name, options.work_root)


def _go_on(
    moves: series.Series | owned.OwnSeries, record: MigrationDirectory, emit: Emit, known: Path | None = None
) -> None:
    """Does what a record lacks: surveys, calibration moves, and moves. known: see `MigrationJob`."""
    evidence = record.evidence()
    done = frozenset(move.number for move in (*evidence.calibration, *evidence.moves))
    emit(Started(record.path, moves.about()))

    def keep(seen: Seen) -> None:
        record.append(seen.move, seen.tables)
        emit(Note(_said(seen)))

    if isinstance(moves, owned.OwnSeries):
        if not evidence.surveys:
            _add_survey(moves, record, emit, known)
        if not evidence.about.get("only_advise"):
            moves.carry_out(emit, keep, done, _announce(record, emit))
        record.end()
        return
    if evidence.plan.calibration:
        surveyed = {survey.workload for survey in evidence.surveys}
        for workload in (name for name in evidence.plan.workloads if name not in surveyed):
            record.add_survey(moves.survey(workload, emit))
        moves.calibrate(emit, lambda seen: record.append(seen.move, seen.tables, store.CALIBRATION), done)
    if not evidence.about.get("only_advise"):
        moves.carry_out(emit, keep, done)
    record.end()


def _said(seen: Seen) -> str:
    """A move in one line."""
    from partywall.migrate.findings import cost
    from partywall.migrate.report import line

    return line(cost.move_finding(seen.move, seen.tables))


def _add_survey(moves: owned.OwnSeries, record: MigrationDirectory, emit: Emit, known: Path | None) -> None:
    """What predictions of a guest of the user's own rest on: a look at it, and its earlier moves."""
    earlier = known_moves.earlier_moves(moves.plan, moves.about(), known, RUNS)
    if (survey := moves.survey(emit)) is None:
        return
    for each in earlier:
        record.append(each.move, each.tables, store.CALIBRATION)
    record.add_survey(survey)


def _announce(record: MigrationDirectory, emit: Emit) -> dict[str, float]:
    """Says what the moves of a guest of the user's own will cost, before the first one. Predicted s, by method."""
    from partywall.migrate.findings import cost

    evidence = record.evidence()
    tables = {
        move.number: {name: record.table(name, move.number) for name in store.COLUMNS} for move in evidence.calibration
    }
    forecast = _from_survey(evidence, [cost.move_finding(each, tables[each.number]) for each in evidence.calibration])
    for text in (*forecast.said, forecast.lacking):
        if text:
            emit(Note(text))
    if forecast.rests_on:
        emit(Note(f"Predictions rest on {forecast.rests_on}:"))
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
    from partywall.migrate.findings import cost

    evidence = record.evidence()
    if why := known_moves.differs(evidence.plan, plan):
        return f"its {why} is not that of the plan"
    moves = [
        cost.move_finding(move, {name: record.table(name, move.number) for name in store.COLUMNS})
        for move in evidence.calibration
    ]
    forecast = cost.predictions(plan, cost.basis(evidence, moves))
    if not forecast:
        return "it has no completed calibration moves for these methods"
    return Forecast(forecast, record.path, str(evidence.about.get("started_at", "")))


def _about(moves: series.Series | owned.OwnSeries) -> dict[str, Any]:
    started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"partywall": __version__, "started_at": started, **moves.about()}
