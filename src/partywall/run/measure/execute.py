"""The loop over turns, and the loop over blocks inside a turn."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partywall import units
from partywall.agent.memory_check import Checks
from partywall.clock import Clock, Monotonic
from partywall.errors import AgentError, RefusalError, TrialError
from partywall.events import Block, Doing, Emit, Left, Note
from partywall.host import Host
from partywall.host.label import Label
from partywall.host.settings import held
from partywall.run.document.scenario import SWITCH_AFTER_NS, Timing
from partywall.run.measure.limiter import Limiter
from partywall.run.measure.recorder import Recorder
from partywall.run.measure.stage import Stage, staged
from partywall.run.plan import extended, lay_out, order, shares, turns
from partywall.run.plan.pace import PLANNED, SLOW_SHARE, Forecast, Stretch, forecast
from partywall.run.plan.settings import MONITOR
from partywall.run.record import Blocks, RunDirectory, decided, observations_of
from partywall.run.values.finding import Precision
from partywall.run.values.observation import STRADDLE_MAX, Observations
from partywall.run.values.plan import Plan, Slot, Treatment, Trial
from partywall.sandbox.clock import Looks
from partywall.sandbox.own_threads import keep_on
from partywall.session import Session

# A block's schedule is sent this long before it begins. A delay of the controller up to this time is harmless.
LEAD_NS = 300_000_000
# Least time for a schedule to arrive.
LEAD_MIN_NS = 60_000_000
# Numbers of blocks (and of long blocks, if there are any) at which carry-over is tested. Fewer would not show it, and
# later a repetition is expensive. Effects slower than a short slot show only beside long ones.
PILOTS = ((20, 0), (60, 4), (180, 8))
# Schedules are sent for at least this much time at once, so that short blocks cost the controller little.
BATCH_NS = 250_000_000
# Blocks before the look at how often the victim reports.
COARSE_BLOCKS = 8
# Blocks from which on it is looked where intervals are wide, and by what observations grow between two looks.
LOOKS_FROM = 8
LOOKS_GROWTH = 1.05
# What a trial may get of the time that is left, as a multiple of its part.
WORTH_MIN, WORTH_MAX = 1 / 2, 2.0
ATTEMPTS = 2
# A guard time up to this share of the following window is short.
GUARD_SHARE = 0.25
# Least time for a turn of a trial that is decided already. A shorter one would be mostly set-up.
REFINING_NS = 3_000_000_000
# At the end of the budget, it grows if fewer effects are known, as a share of all.
KNOWN_SHARE = 0.8
# To reach the least number of blocks, a trial may exceed its share of the budget by this factor.
OVERTIME = 1.2


@dataclass(frozen=True)
class Decisions:
    """The statistical decisions that a run needs while it is in progress.

    enough: whether a trial is precise enough, and where time would narrow its intervals most. Its last argument names
    the treatments that get no more blocks.
    """

    enough: Callable[[Trial, Observations, Collection[str]], Precision]
    carries_over: Callable[[Trial, Observations], bool]


@dataclass
class Progress:
    """The progress of a trial: observations at the current slot length, and the total measured time.

    parts: the observations, of which each block is one until they are joined. held: blocks of each treatment and kind.
    void_ns: the part of the measured time that counts for nothing, since limits were late or slices were lost.
    turns_started: how often each turn was begun. pilots_had: how many of PILOTS, at the present length. precision: what
    was found at the last look. known, decided: neighbours whose effect is known, and those that need no more blocks
    (`Precision`), at that look. stopped: those that got none for a while, since they were decided once. next_look:
    observations at the next. unread: whether observations so far must be read from the run's directory, where they are
    between turns. resumed: whether tests so far are still to be counted.
    """

    trial: Trial
    parts: list[Observations] = field(default_factory=list)
    held: Counter[tuple[str, bool]] = field(default_factory=Counter)
    next_block: int = 0
    stretch: Stretch = PLANNED
    measured_ns: int = 0
    void_ns: int = 0
    failures: int = 0
    finished: bool = False
    turns_done: set[str] = field(default_factory=set)
    turns_started: Counter[str] = field(default_factory=Counter)
    pilots_had: int = 0
    coarse_tested: bool = False
    precision: Precision | None = None
    known: frozenset[str] = frozenset()
    decided: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    next_look: int = 0
    unread: bool = False
    resumed: bool = False

    @property
    def observations(self) -> Observations:
        """All of them, joined."""
        self.parts = self.parts if len(self.parts) == 1 else [Observations.joined(self.parts)]
        return self.parts[0]

    def add(self, block: Observations) -> None:
        self.parts.append(block)
        self.held.update(zip(block.treatment.tolist(), block.long.tolist(), strict=True))

    def drop(self) -> None:
        self.parts.clear()
        self.held.clear()

    def recall(self, observations: Observations) -> None:
        """Takes the observations so far, with slots of the present length.

        Carry-over tests that a resumed trial has already had at this number of blocks are not repeated, because each
        uses a part of the allowed error.
        """
        self.drop()
        self.add(observations)
        self.unread = False
        if self.resumed:
            self.pilots_had, self.coarse_tested = self.pilots_reached, self.blocks_short >= COARSE_BLOCKS
            self.resumed = False

    def forget(self) -> None:
        """Lets the observations go, which of a long run need much memory."""
        self.unread = bool(self.held)
        self.drop()

    @property
    def slow_share(self) -> float:
        """Of its time, what its slow treatments get."""
        share = self.precision.slow_share if self.precision else None
        return SLOW_SHARE if share is None else share

    def forecast(self, timing: Timing) -> Forecast:
        """Its next blocks: fewer long ones once the last of PILOTS has as many as it needs, as causes then have too."""
        longs = self._fewest()[1]
        watched = longs is not None and longs >= PILOTS[-1][1]
        return forecast(
            self.trial.treatments, timing, self.stretch, self.slow_share, watched=watched, decided=self.left_out
        )

    @property
    def neighbours(self) -> frozenset[str]:
        """The treatments that may be decided."""
        return frozenset(t.id for t in self.trial.treatments if t.role == "aggressor" and t.victim_limits is None)

    @property
    def is_decided(self) -> bool:
        """Whether all of its neighbours are. Limits are not decided, but get their blocks."""
        return self.neighbours == self.decided and bool(self.neighbours)

    @property
    def left_out(self) -> frozenset[str]:
        """The treatments that get no more blocks: those decided, so that others get more. All get some if all are."""
        return frozenset() if self.is_decided else self.decided

    @property
    def worth(self) -> float | None:
        """See `Precision.worth`."""
        return self.precision.worth if self.precision else None

    @property
    def blocks(self) -> int:
        """Number of blocks of the least measured treatment: short blocks, or long ones if it is slow."""
        return self._fewest()[0]

    @property
    def pilots_reached(self) -> int:
        """Number of PILOTS that its blocks have reached."""
        blocks, longs = self._fewest()
        return sum(blocks >= least and (longs is None or longs >= least_long) for least, least_long in PILOTS)

    @property
    def blocks_short(self) -> int:
        """The number of short blocks of the treatment with the fewest, among treatments that have any."""
        return min((count for (_, long), count in self.held.items() if not long), default=0)

    def _fewest(self) -> tuple[int, int | None]:
        """Blocks and long blocks of the treatment with the fewest; None if all blocks have the same length."""
        left = (t.id for t in self.trial.treatments if t.id not in self.left_out)
        counts = [(self.held[id_, False], self.held[id_, True]) for id_ in left]
        has_long = any(long for _, long in self.held)
        return min(short or long for short, long in counts), min(long for _, long in counts) if has_long else None


def execute(
    run: RunDirectory,
    label: Label,
    decisions: Decisions,
    emit: Emit,
    clock: Clock | None = None,
    sessions: Callable[[Label], Session] = Session,
    memory_wait_ns: int = 0,
) -> None:
    """Carries out the rest of the plan.

    clock, sessions: replaced by tests (`partywall.testing.SimulatedHost`). memory_wait_ns: how long guests may wait for
    free memory, if longer than usual.
    """
    run.compact()
    plan, events, done = run.plan, run.by_trial(), run.blocks()
    progress_by_trial = {
        trial.id: progress_of(trial, events.get(trial.id, ()), done.get(trial.id)) for trial in plan.trials
    }
    checks = Checks(emit, memory_wait_ns)
    taker = Turns(run, plan, label, decisions, emit, clock or Monotonic(), progress_by_trial, checks, sessions)
    run.append("run_started", wall_time=time.strftime("%Y-%m-%dT%H:%M:%S%z"), pid=os.getpid())
    taker.tell_left()
    try:
        # Failed turns are repeated once, unless the failure is lasting: an agent may have been killed. Finished work
        # is not repeated.
        for _ in range(ATTEMPTS):
            for round_, trial in turns(plan):
                taker.take_turn(round_, progress_by_trial[trial.id])
        if taker.grow():
            for round_, trial in turns(taker.plan):
                taker.take_turn(round_, progress_by_trial[trial.id])
        taker.tell_rest()
    finally:
        # The controller had left each victim's CPU; its caller may need all CPUs again.
        keep_on(all_cpus())
    run.append("run_ended")


def progress_of(trial: Trial, events: Sequence[dict[str, Any]], done: Blocks | None = None) -> Progress:
    """The progress of a trial, from its events and finished blocks. Its observations are read at its next turn."""
    stopped = decided(events)
    return Progress(
        trial=trial,
        next_block=int(done.columns.number.max()) + 1 if done else 0,
        stretch=_stretch(events),
        measured_ns=int(done.spent_ns.sum()) if done else 0,
        finished=_is_precise(events),
        known=stopped,
        decided=stopped,
        stopped=stopped,
        turns_done={event["visit"] for event in events if event["kind"] == "visit_ended"},
        turns_started=Counter(event["visit"].partition(".")[0] for event in events if event["kind"] == "visit"),
        unread=bool(done),
        resumed=bool(done),
    )


def _is_precise(events: Sequence[Mapping[str, Any]]) -> bool:
    """True if the trial reached the requested precision, and no better one was requested afterwards."""
    kinds = [event["kind"] for event in events if event["kind"] in ("trial_precise", "extended")]
    return kinds[-1:] == ["trial_precise"]


def _stretch(events: Sequence[Mapping[str, Any]]) -> Stretch:
    """How long a trial's slots and guards are by now; in older records both were always lengthened."""
    changes = [event for event in events if event["kind"] == "stretched"]
    return Stretch(changes[-1]["stretch"], changes[-1].get("guards", changes[-1]["stretch"])) if changes else PLANNED


@dataclass
class Turns:
    """Makes turns. Each gets a part of the remaining budget, according to the remaining turns."""

    run: RunDirectory
    plan: Plan
    label: Label
    decisions: Decisions
    emit: Emit
    clock: Clock
    progress_by_trial: dict[str, Progress]
    checks: Checks
    sessions: Callable[[Label], Session] = Session
    disturbed: Counter[str] = field(default_factory=Counter)
    """The number of calibrations that other processes disturbed, by trial."""

    def __post_init__(self) -> None:
        self._shares = shares(self.plan)

    def _tell_disturbed(self, trial: Trial, disturbed: Mapping[str, str]) -> None:
        """Shows the first calibration that was disturbed. `tell_rest` counts the others."""
        if not disturbed:
            return
        if not self.disturbed:
            name, text = next(iter(disturbed.items()))
            self.emit(Note(f"{trial.id}: aggressor {name}: {text}", is_warning=True))
        self.disturbed[trial.id] += len(disturbed)

    def tell_rest(self) -> None:
        """Says how many calibrations were disturbed, if it was more than the one that was shown."""
        if (number := self.disturbed.total()) > 1:
            trials = units.counted(len(self.disturbed), "trial")
            text = f"other processes disturbed {number} calibrations of aggressors, in {trials}"
            self.emit(Note(f"{text}; the report says where intensities are off", is_warning=True))

    def take_turn(self, round_: int, progress: Progress) -> None:
        """Makes one turn if the trial still needs it. After a failure, the run continues with other trials.

        If it is decided, the turn is put off while others need the time.

        A failed trial is repeated, unless an agent refused it for a lasting reason.
        """
        turn = str(round_)
        if progress.finished or progress.failures >= ATTEMPTS or turn in progress.turns_done:
            return
        share_ns = self._share_ns(round_, progress)
        if progress.is_decided and share_ns < REFINING_NS:
            return
        if progress.unread:
            progress.recall(observations_of(self.run, progress.trial, progress.stretch.slots))
        try:
            self._pay(turn, progress, share_ns, last=round_ == self.plan.rounds - 1)
        except (TrialError, AgentError) as error:
            progress.failures = ATTEMPTS if _is_lasting(error) else progress.failures + 1
            self.run.append("trial_failed", trial=progress.trial.id, visit=turn, reason=str(error))
            self.emit(Note(f"failed: {error}"))
        else:
            progress.turns_done.add(turn)
            self.run.append("visit_ended", trial=progress.trial.id, visit=turn)
        self.run.compact()
        progress.forget()

    def _share_ns(self, round_: int, progress: Progress) -> int:
        """The share of the remaining time, by the trials' parts of the budget and their remaining turns."""
        spent_ns = sum(progress.measured_ns for progress in self.progress_by_trial.values())
        going = [
            progress
            for progress in self.progress_by_trial.values()
            if not progress.finished and progress.failures < ATTEMPTS and self._turns_left(round_, progress)
        ]
        parts = {
            other.trial.id: self._shares[other.trial.id] * worth
            for other, worth in zip(going, worths(going), strict=True)
        }
        left = sum(parts[other.trial.id] * self._turns_left(round_, other) for other in going)
        return int(max(0, self.plan.scenario.budget - spent_ns) * parts[progress.trial.id] / max(1, left))

    def grow(self) -> bool:
        """Makes the budget larger once, if at its end many intervals are too wide. Returns whether it did.

        That must not depend on the effects that they show: it would be a second look at them.
        """
        scenario = self.plan.scenario
        grown_ns = int(scenario.budget * (1 + (scenario.budget_grows or 0.0)))
        going = [each for each in self.progress_by_trial.values() if each.failures < ATTEMPTS]
        neighbours, known = (sum(map(len, each)) for each in ([p.neighbours for p in going], [p.known for p in going]))
        if grown_ns == scenario.budget or known >= KNOWN_SHARE * neighbours or any(self.run.events("grown")):
            return False
        self.plan = extended(self.plan, grown_ns, scenario.precision)
        self._shares = shares(self.plan)
        self.run.append("grown", budget=grown_ns)
        self.run.replace(self.plan)
        longer = units.format_duration(grown_ns - scenario.budget)
        self.emit(
            Note(
                f"this host is too noisy for the budget: the intervals of {neighbours - known} of {neighbours} "
                f"neighbours are too wide yet, so the measurement takes up to {longer} longer"
            )
        )
        self.tell_left()
        return True

    def _turns_left(self, round_: int, progress: Progress) -> int:
        return sum(str(r) not in progress.turns_done for r in range(round_, self.plan.rounds))

    def _pay(self, turn: str, progress: Progress, share_ns: int, *, last: bool) -> None:
        trial = progress.trial
        self.emit(Doing(f"{trial.id}: starting {len(trial.aggressors) + 3} sandboxes"))
        host_cpus = controller_cpus(trial)
        keep_on(host_cpus)
        slice_ns = self.plan.timing.slice
        with (
            held.held(trial.host, self.label.work, Host.here()),
            staged(
                trial,
                self.sessions(self.label),
                slice_ns=slice_ns,
                seed=self.plan.seed,
                host_cpus=host_cpus,
                checks=self.checks,
            ) as stage,
        ):
            attempt = _attempt(progress, turn)
            self.run.append(
                "visit",
                trial=trial.id,
                visit=attempt,
                rate_max=stage.rate_max,
                facts=stage.facts,
                counters=stage.counters,
                missing=stage.missing,
                emulated=stage.emulated,
                disturbed=list(stage.disturbed),
                versions=stage.versions,
            )
            self._tell_disturbed(trial, stage.disturbed)
            pending = self.run.pending(trial.id, attempt)
            recorder = Recorder(stage, pending, attempt)
            try:
                self._blocks(stage, recorder, progress, share_ns, last=last)
            finally:
                facts = stage.finish()
                with contextlib.closing(pending):
                    recorder.take_rest()
                self.run.append("visit_left", trial=trial.id, visit=attempt, facts=facts, dropped=recorder.dropped)

    def _blocks(self, stage: Stage, recorder: Recorder, progress: Progress, share_ns: int, *, last: bool) -> None:
        self.emit(Doing(f"{progress.trial.id}: measuring"))
        recorder.wait_for_first(self.clock)
        start_ns = self.clock.now_ns() + LEAD_NS
        began_ns, before = start_ns, None
        limiter = Limiter(stage, self.clock)
        looks = self._look(stage, progress)
        while not progress.finished and self._goes_on(progress, start_ns - began_ns, share_ns, last=last):
            start_ns = max(start_ns, self.clock.now_ns() + LEAD_MIN_NS)
            slots, read, error_ns = self._batch(recorder, progress, start_ns, before, looks)
            send(stage, slots, read, error_ns)
            limiter.follow(slots)
            # The last switch is delayed by the clock error, and those of the next block follow it.
            start_ns = slots[-1].end_ns + 2 * error_ns
            before = progress.trial.treatment(slots[-1].treatment)
            self.clock.sleep_until(start_ns - LEAD_NS)
            # Before any result counts, because only now it shows whether a clock exceeded its bound.
            looks = self._look(stage, progress)
            self._settle(recorder, limiter, progress, looks)
            limiter.check()
        limiter.follow(())
        recorder.wait_for_all(self.clock)
        self.clock.sleep_until(start_ns)
        self._settle(recorder, limiter, progress, self._look(stage, progress))

    def _look(self, stage: Stage, progress: Progress) -> Looks:
        return stage.session.look(
            self.clock.now_ns(), LEAD_NS + max(BATCH_NS, progress.trial.block_ns * progress.stretch.slots)
        )

    def _batch(
        self, recorder: Recorder, progress: Progress, start_ns: int, before: Treatment | None, looks: Looks
    ) -> tuple[list[Slot], list[int], int]:
        """The next blocks, at least one: slots, times at which counters are read, and the clock error."""
        timing, slots, read = self.plan.timing, list[Slot](), list[int]()
        beat = progress.forecast(timing).beat
        at_ns, error_ns = start_ns, 0
        while not slots or at_ns - start_ns < BATCH_NS:
            number, stretch = progress.next_block, progress.stretch
            ids = [id_ for id_ in order(self.plan.seed, progress.trial, number) if beat.holds(number, id_)]
            treatments = [progress.trial.treatment(id_) for id_ in ids]
            least_ns = beat.slot_ns_min(number)
            laid = functools.partial(
                lay_out, treatments, at_ns, before, grid_ns=timing.slice, stretch=stretch, at_least_ns=least_ns
            )
            block, error_ns = guarded(laid, looks, at_ns)
            self._note_clock(progress, error_ns)
            recorder.expect(number, stretch.slots, block, long=beat.is_long(number), error_ns=error_ns)
            # A reading costs more than a short slot can bear.
            read += readings(block) if least_ns else []
            slots += block
            progress.next_block += 1
            at_ns, before = block[-1].end_ns, treatments[-1]
        return slots, read, error_ns

    def _note_clock(self, progress: Progress, error_ns: int) -> None:
        """Stores the clock error with the block, if sandboxes have their own clocks."""
        if error_ns:
            self.run.append("clock_bound", trial=progress.trial.id, block=progress.next_block, error_ns=error_ns)

    def _goes_on(self, progress: Progress, elapsed_ns: int, share_ns: int, *, last: bool) -> bool:
        if last and progress.blocks < self.plan.scenario.min_blocks:
            return progress.measured_ns < OVERTIME * self._shares[progress.trial.id]
        # Half of the next block, so that turns end as often a little late as early.
        next_ns = progress.forecast(self.plan.timing).block_ns(progress.next_block)
        return elapsed_ns + next_ns // 2 < share_ns

    def _settle(self, recorder: Recorder, limiter: Limiter, progress: Progress, looks: Looks) -> None:
        """Processes the blocks whose slices have all arrived, and decides how to continue."""
        shown: Sequence[tuple[str, int, float]] = ()
        for block, event in recorder.complete(looks):
            slots = [Slot.model_validate(slot) for slot in event["slots"]]
            progress.measured_ns += _spent_ns(event)
            if not block or limiter.was_late(slots):
                progress.void_ns += _spent_ns(event)
                self.run.append("block_void", **event)
                continue
            if event["stretch"] == progress.stretch.slots:
                progress.add(block)
            self.run.append("block_done", **event)
            shown = _shown(slots, block)
        self._decide(progress, shown)
        if (read := recorder.read()) is not None:
            self.emit(read)
        self.tell_left()

    def tell_left(self) -> None:
        """Reports the time left: measuring time that is not spent and still needed, and its share of set-up."""
        budget_ns = self.plan.scenario.budget
        left_ns = max(0, budget_ns - sum(progress.measured_ns for progress in self.progress_by_trial.values()))
        self.emit(Left(left_ns / budget_ns * max(self.plan.estimate_ns, budget_ns) / 1e9))

    def _decide(self, progress: Progress, slots: Sequence[tuple[str, int, float]] = ()) -> None:
        cells: Mapping[str, tuple[float, float, float]] = {}
        if too_short := self._too_short(progress):
            stretch, reason = too_short
            progress.stretch = stretch
            progress.drop()
            progress.pilots_had, progress.coarse_tested = 0, False
            progress.precision, progress.next_look = None, 0
            progress.known = progress.decided = progress.stopped = frozenset()
            factors = {"stretch": stretch.slots, "guards": stretch.guards}
            self.run.append("stretched", trial=progress.trial.id, reason=reason, **factors)
            self.emit(Note(f"{progress.trial.id}: {reason}; slots are now {stretch.slots} times as long"))
        elif progress.blocks >= LOOKS_FROM and progress.held.total() >= progress.next_look:
            progress.precision = self.decisions.enough(progress.trial, progress.observations, progress.left_out)
            cells = progress.precision.factors
            self._keep_decided(progress, progress.precision)
            progress.next_look = int(LOOKS_GROWTH * progress.held.total())
            progress.finished = progress.precision.reached and progress.blocks >= self.plan.scenario.min_blocks
            if progress.finished:
                self.run.append("trial_precise", trial=progress.trial.id, blocks=progress.blocks)
        self.emit(Block(progress.trial.id, progress.blocks, self._width(progress), cells, slots))

    def _keep_decided(self, progress: Progress, found: Precision) -> None:
        """Keeps what is decided, if the run aims at that and there are blocks enough for a verdict.

        A neighbour that is no longer decided gets blocks again. Its interval stays at the level of one that was.
        """
        scenario = self.plan.scenario
        if scenario.aim == "decision" and progress.blocks >= scenario.min_blocks:
            progress.decided = found.decided
            if not found.decided <= progress.stopped:
                progress.stopped |= found.decided
                self.run.append("decided", trial=progress.trial.id, treatments=sorted(progress.stopped))
        progress.known = progress.decided | found.known

    def _width(self, progress: Progress) -> str:
        """How precise a trial is, in words, once it has the least number of blocks."""
        half = progress.precision.half_width if progress.precision else None
        if half is None or progress.blocks < self.plan.scenario.min_blocks:
            return ""
        return f"widest interval ±{half:.1%} (requested ±{100 * self.plan.scenario.precision:g}%)"

    def _too_short(self, progress: Progress) -> tuple[Stretch, str] | None:
        """How long slots must be, and why; None if they are long enough. Each length is looked at a few times only."""
        coarser, slower = progress.stretch.coarser, progress.stretch.slower
        if (
            not progress.coarse_tested
            and progress.blocks_short >= COARSE_BLOCKS
            and self._may_begin_again(progress, coarser)
        ):
            progress.coarse_tested = True
            if _straddle(progress.observations) > STRADDLE_MAX:
                return coarser, "the victim reports too seldom for such short slots"
        if progress.pilots_had == len(PILOTS) or (reached := progress.pilots_reached) <= progress.pilots_had:
            return None
        if self._may_begin_again(progress, slower):
            progress.pilots_had = reached
            if self.decisions.carries_over(progress.trial, progress.observations):
                return slower, "effects carry over between slots"
        return None

    def _may_begin_again(self, progress: Progress, stretch: Stretch) -> bool:
        """Whether slots may be of that length, and the trial's time holds the least number of blocks of them.

        As large a part of the time as so far is taken to be void. Otherwise lengthening would leave no result, while
        the existing one stays valid with a warning.
        """
        if (
            max(treatment.slot_ns for treatment in progress.trial.treatments) * stretch.slots
            > self.plan.timing.slot_max
        ):
            return False
        longer = forecast(progress.trial.treatments, self.plan.timing, stretch)
        left_ns = OVERTIME * self._shares[progress.trial.id] - progress.measured_ns
        counting = 1 - progress.void_ns / max(1, progress.measured_ns)
        return longer.needed_ns(self.plan.scenario.min_blocks) <= counting * left_ns


def guarded(laid_out: Callable[..., tuple[Slot, ...]], looks: Looks, start_ns: int) -> tuple[tuple[Slot, ...], int]:
    """A block whose guard times cover the clock error until its last switch, which wider guard times delay. Pure."""
    error_ns = looks.error_ns(start_ns)
    while True:
        block = laid_out(clock_error_ns=error_ns)
        needed_ns = looks.error_ns(block[-1].end_ns + 2 * error_ns)
        if needed_ns <= error_ns:
            return block, error_ns
        error_ns = needed_ns


def worths(progress_by_trial: Sequence[Progress]) -> list[float]:
    """By what trials' parts of the time are multiplied: more for those in which it is worth more, within bounds.

    A run is precise only when its widest interval is, and half widths fall with the root of time, so parts in
    proportion to the time to a width make all equally wide. Where decisions count, parts are in proportion to how many
    a second brings. A decided trial gets nothing while others are not.
    """
    if any(each.is_decided for each in progress_by_trial) and not all(each.is_decided for each in progress_by_trial):
        others = iter(worths([each for each in progress_by_trial if not each.is_decided]))
        return [0.0 if each.is_decided else next(others) for each in progress_by_trial]
    found = [each.worth for each in progress_by_trial]
    known = [worth for worth in found if worth is not None]
    usual = statistics.fmean(known) if known else 0.0
    return [min(max(each / usual, WORTH_MIN), WORTH_MAX) if each is not None and usual else 1.0 for each in found]


def _is_lasting(error: TrialError | AgentError) -> bool:
    """True if a repetition would fail in the same way."""
    return isinstance(error, TrialError | RefusalError) and error.is_lasting


def _straddle(seen: Observations) -> float:
    """Share of the victim's work that belongs to another treatment, for the treatment with the largest share."""
    short = seen.take(np.flatnonzero(~seen.long))
    medians = (np.median(short.straddle[short.treatment == name]) for name in set(short.treatment))
    return float(max(medians, default=0.0))


def _shown(slots: Sequence[Slot], block: Observations) -> Sequence[tuple[str, int, float]]:
    """The slots of a block, for the journal: treatment, length, rate. A slot without an observation is left out."""
    rates = {observation.position: observation.rate for observation in block}
    return [
        (slot.treatment, slot.end_ns - slot.start_ns, rates[position])
        for position, slot in enumerate(slots)
        if position in rates
    ]


def _spent_ns(event: Mapping[str, Any]) -> int:
    """The part of the budget that a block used, from the end of the previous block."""
    slots: Sequence[Mapping[str, int]] = event["slots"]
    return slots[-1]["end_ns"] - slots[0]["start_ns"] + SWITCH_AFTER_NS


def _attempt(progress: Progress, turn: str) -> str:
    """The name of this turn's records. An interrupted turn keeps its own, because it has its own calibration."""
    before = progress.turns_started[turn]
    progress.turns_started[turn] += 1
    return f"{turn}.{before}" if before else turn


def controller_cpus(trial: Trial) -> tuple[int, ...]:
    """CPUs for controller and monitor: not the victim's, if there are others and the victim is on this host."""
    allowed = all_cpus() - set(trial.offline_cpus)
    if trial.victim.sandbox.machine:
        return tuple(sorted(allowed))
    return tuple(sorted(allowed - set(trial.victim_cpus))) or tuple(sorted(allowed))


def all_cpus() -> set[int]:
    """CPUs that this user may run on, whatever the controller is pinned to."""
    return set(_ALLOWED)


_ALLOWED = os.sched_getaffinity(0)


def send(stage: Stage, slots: Sequence[Slot], read_ns: Sequence[int], clock_error_ns: int = 0) -> None:
    """Sends switch times in these slots to every aggressor, and reading times to the monitor.

    clock_error_ns: the last switch is delayed after its slot by this much, like all others.
    """
    trial = stage.trial
    names = {name for slot in slots for name in trial.treatment(slot.treatment).intensities}
    for name in sorted(names):
        switches: list[tuple[int, float]] = []
        for slot in slots:
            intensity = trial.treatment(slot.treatment).intensities.get(name, 0.0)
            if intensity or (switches and switches[-1][1]):
                switches.append((slot.start_ns, intensity))
        if switches[-1][1]:
            switches.append((slots[-1].end_ns + 2 * clock_error_ns + SWITCH_AFTER_NS, 0.0))
        stage.schedule(name, switches)
    if read_ns and MONITOR in stage.session.sandboxes:
        stage.session.client(MONITOR).call("monitor.schedule", id=MONITOR, at_ns=list(read_ns))


def readings(slots: Sequence[Slot]) -> list[int]:
    """When counters are read: at each slot's end, and at its window's start if the guard time before it is long.

    A short guard time is included in its slot's difference, which saves half of the readings and their cost.
    """
    moments = {slot.end_ns for slot in slots} | {slots[0].measure_ns}
    moments |= {
        slot.measure_ns
        for slot in slots
        if slot.measure_ns - slot.start_ns > GUARD_SHARE * (slot.end_ns - slot.measure_ns)
    }
    return sorted(moments)
