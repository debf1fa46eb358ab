"""How far a trial has come is told by its events alone."""

from dataclasses import replace

import pytest

from partywall.agent.catalogue import shipped
from partywall.agent.client import refused
from partywall.agent.memory_check import Checks
from partywall.core.stats.histogram import Histogram
from partywall.errors import AgentError, TrialError
from partywall.events import Note, silent
from partywall.run.document.scenario import SWITCH_AFTER_NS, Scenario
from partywall.run.findings.analysis import FIRST_LOOK
from partywall.run.measure.execute import (
    ATTEMPTS,
    COARSE_BLOCKS,
    PILOTS,
    Decisions,
    Progress,
    Turns,
    _attempt,
    progress_of,
)
from partywall.run.plan import Topology, make
from partywall.run.plan.pace import BlockKind, Stretch, forecast, rhythm
from partywall.run.record import Blocks
from partywall.run.values.finding import Precision
from partywall.run.values.observation import Observation, Observations

SCENARIO = {"partywall": 1, "name": "t", "victims": {"v": {"probe": "integer"}}}
TWO = Topology((0, 1))
UNKNOWN = Precision(reached=False, half_width=None, treatment="", blocks=0, next_blocks=8)
(TRIAL,) = make(Scenario.model_validate(SCENARIO), TWO, shipped()).trials


def test_a_resumed_trial_knows_its_blocks_turns_and_length_of_slots():
    slots = [{"start_ns": 10, "end_ns": 30}, {"start_ns": 30, "end_ns": 60}]
    events = [
        {"kind": "visit", "visit": "0"},
        {"kind": "stretched", "stretch": 4},
        {"kind": "visit_ended", "visit": "0"},
        {"kind": "visit", "visit": "1"},
        {"kind": "visit", "visit": "1.1"},
    ]
    result = progress_of(TRIAL, events, Blocks.of([{"block": 7, "slots": slots, "stretch": 4}]))
    assert (result.next_block, result.stretch, result.measured_ns) == (8, Stretch(4, 4), 50 + SWITCH_AFTER_NS)
    assert (result.finished, result.turns_done, dict(result.turns_started)) == (False, {"0"}, {"0": 1, "1": 2})


@pytest.mark.parametrize(("stretched", "left_out"), [([], {"n@1"}), ([{"kind": "stretched", "stretch": 4}], set())])
def test_a_resumed_trial_knows_what_was_decided_with_its_present_slots(stretched, left_out):
    made, _ = visitor("1min", aggressors={name: {"stressor": "memory-copy"} for name in ("n", "m")})
    (trial,) = made.plan.trials
    events = [{"kind": "decided", "treatments": ["n@1"]}, *stretched]
    assert progress_of(trial, events).left_out == left_out


def test_each_payment_of_a_turn_has_records_of_its_own():
    result = progress_of(TRIAL, [{"kind": "visit", "visit": "1"}])
    assert [_attempt(result, turn) for turn in ("1", "1", "2")] == ["1.1", "1.2", "2"]


def measured(trial, blocks, stretch=1, long=0):
    """So many short blocks and so many long ones, in which all treatments are, and their observations."""
    numbers = range(blocks + long)
    slots = [{"start_ns": 0, "end_ns": 10_000_000}]
    done = Blocks.of([{"block": n, "slots": slots, "stretch": stretch} for n in numbers])
    seen = [
        Observation(trial.id, n, 0, t.id, 0, 10_000_000, 1.0, 1.0, 1.0, None, Histogram({}), long=n >= blocks)
        for n in numbers
        for t in trial.treatments
    ]
    return done, seen


@pytest.mark.parametrize(
    ("blocks", "long", "looked"),
    [(7, 0, 0), (20, 0, 1), (61, 0, 2), (500, 0, 3), (61, 3, 1), (61, 4, 2), (500, 7, 2), (500, 8, 3), (100, 40, 2)],
)
def test_a_resumed_trial_has_had_the_looks_at_carry_over_that_its_blocks_came_to(blocks, long, looked):
    done, seen = measured(TRIAL, blocks, long=long)
    result = progress_of(TRIAL, [], done)
    result.recall(Observations.of(seen))
    assert result.pilots_had == looked <= len(PILOTS)
    assert result.coarse_tested == (blocks >= COARSE_BLOCKS)


@pytest.mark.parametrize("neighbours", [1, 9])
def test_a_trial_has_had_all_looks_before_it_may_stop_for_being_precise(neighbours):
    made, _ = visitor("10min", aggressors={f"n{n}": {"stressor": "memory-copy"} for n in range(neighbours)})
    (result,) = made.progress_by_trial.values()
    cycle = rhythm(result.trial.treatments, made.plan.timing).cycle
    blocks, longs = PILOTS[-1]
    assert max(blocks, (longs - 1) * cycle.count(BlockKind.SHORT) / cycle.count(BlockKind.LONG)) < FIRST_LOOK


@pytest.mark.parametrize(
    ("straddle", "budget", "lengthened"), [(0.04, "1min", []), (0.09, "1min", [2]), (0.09, "800ms", [])]
)
def test_slots_are_lengthened_for_a_victim_that_is_coarse_beside_one_neighbour(straddle, budget, lengthened):
    made, _ = visitor(budget)
    (result,) = made.progress_by_trial.values()
    seen = measured(result.trial, COARSE_BLOCKS)[1]
    # Half of the slots beside it are so; a slot now and then beside nobody is the host's.
    coarse = [o for o in seen if o.treatment == "n@1"][::2] + [o for o in seen if o.treatment == "baseline"][:2]
    worse = [replace(o, straddle=2 * straddle if o in coarse else 0.0) for o in seen]
    result.add(Observations.of(worse))
    made._decide(result)
    assert made.run.stretched == lengthened
    assert result.stretch == (Stretch(2, 1) if lengthened else Stretch())
    # Where longer slots do not fit, what was measured stays.
    assert list(result.observations) == ([] if lengthened else worse)


def test_a_coarse_victim_is_known_from_its_short_blocks_alone():
    made, _ = visitor(
        "1min", aggressors={"n": {"stressor": "memory-copy"}, "slow": {"stressor": "syscall", "settle": "100ms"}}
    )
    (result,) = made.progress_by_trial.values()
    seen = measured(result.trial, COARSE_BLOCKS)[1]
    result.add(Observations.of(replace(o, straddle=0.1) for o in seen if o.treatment != "slow@1"))
    made._decide(result)
    assert result.stretch == Stretch(2, 1)


def test_guards_of_a_resumed_trial_are_as_long_as_they_were_made():
    changes = [{"kind": "stretched", "stretch": 2, "guards": 1}, {"kind": "stretched", "stretch": 4, "guards": 2}]
    assert progress_of(TRIAL, changes).stretch == Stretch(4, 2)


def test_what_was_measured_before_slots_were_lengthened_does_not_count_in_a_resumed_trial():
    done, _ = measured(TRIAL, 30)
    result = progress_of(TRIAL, [{"kind": "stretched", "stretch": 2}], done)
    assert not done.kept(done.stretch == result.stretch.slots)
    result.recall(Observations.of(()))
    assert (result.stretch, result.blocks, result.pilots_had) == (Stretch(2, 2), 0, 0)


REFUSED = refused("victim", {"code": 3, "message": "parameter size: 0 is too small"})
BUSY = refused("victim", {"code": 5, "message": "it is in use"})


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (REFUSED, 1),
        (BUSY, ATTEMPTS),
        (AgentError("agent victim: it was killed by signal 9"), ATTEMPTS),
        (TrialError("v: the victim could not start", is_lasting=True), 1),
        (TrialError("v: the victim ended during the trial"), ATTEMPTS),
    ],
)
def test_a_trial_is_tried_again_unless_an_agent_refused_it_for_a_reason_that_lasts(monkeypatch, error, tries):
    made, _ = visitor("1min")
    (result,) = made.progress_by_trial.values()
    paid = []

    def fail(_visitor, turn, *_, **__):
        paid.append(turn)
        raise error

    monkeypatch.setattr(Turns, "_pay", fail)
    for _ in range(ATTEMPTS + 1):
        made.take_turn(0, result)
    assert len(paid) == tries


class Nowhere:
    """A run directory that keeps nothing but what was lengthened."""

    def __init__(self):
        self.stretched = []

    def append(self, kind, **event):
        self.stretched += [event["stretch"]] if kind == "stretched" else []

    def compact(self):
        pass


def visitor(budget, *names, **content):
    victims = {name: {"probe": "integer", "sandbox": {"backend": "container"}} for name in names or ("v",)}
    requested = (
        SCENARIO | {"budget": budget, "victims": victims, "aggressors": {"n": {"stressor": "memory-copy"}}} | content
    )
    plan = make(Scenario.model_validate(requested), TWO, shipped())
    looks = []

    def carries_over(_trial, observations):
        looks.append(len(observations))
        return True

    made = Turns(
        Nowhere(), plan, None, Decisions(lambda *_: UNKNOWN, carries_over), silent, None,
        {t.id: Progress(t) for t in plan.trials}, Checks(silent),
    )  # fmt: skip
    return made, looks


@pytest.mark.parametrize(("budget", "lengthened"), [("800ms", []), ("1min", [2])])
def test_slots_are_lengthened_only_where_the_time_still_holds_the_least_number_of_blocks(budget, lengthened):
    made, looks = visitor(budget)
    (result,) = made.progress_by_trial.values()
    result.add(Observations.of(measured(result.trial, 20)[1]))
    made._decide(result)
    assert made.run.stretched == lengthened
    assert len(looks) == len(lengthened)


def test_a_trial_of_slow_treatments_gets_the_time_that_its_blocks_need():
    made, _ = visitor("10min", "quick", "slow", factors={"victims.slow.sandbox.cpu_limit": [0.25, 0.75]})
    quick, slow = made.progress_by_trial.values()
    got = [made._share_ns(0, each) * made.plan.rounds for each in (quick, slow)]
    assert sum(got) == pytest.approx(600e9, rel=1e-6)
    # Each has the same beyond what its least number of blocks needs: 146 s and 1 s.
    assert got[1] - got[0] == pytest.approx(146e9, rel=0.02)


def test_time_that_a_finished_trial_leaves_goes_to_the_others_by_their_parts():
    made, _ = visitor("4min", "one", "two", "three")
    each, two, three = made.progress_by_trial.values()
    each.finished, each.measured_ns = True, 20_000_000_000
    assert made._share_ns(0, two) == made._share_ns(0, three)
    assert made._share_ns(0, two) * made.plan.rounds * 2 == pytest.approx(220e9, rel=1e-6)


@pytest.mark.parametrize(
    ("efforts", "parts"), [((1, 1, 1), (1, 1, 1)), ((3, 3, 4), (9, 9, 16)), ((1, 1, 100), (1, 1, 4))]
)
def test_time_goes_to_trials_whose_intervals_are_wide_within_bounds(efforts, parts):
    made, _ = visitor("4min", "one", "two", "three")
    for each, effort in zip(made.progress_by_trial.values(), efforts, strict=True):
        each.precision = UNKNOWN.model_copy(update={"worth": effort**2})
    got = [made._share_ns(0, each) * made.plan.rounds for each in made.progress_by_trial.values()]
    assert got == [pytest.approx(240e9 * part / sum(parts), rel=1e-3) for part in parts]


def test_time_within_a_trial_goes_to_the_kind_of_block_whose_intervals_are_wide():
    made, _ = visitor(
        "1min", aggressors={"n": {"stressor": "memory-copy"}, "slow": {"stressor": "syscall", "settle": "100ms"}}
    )
    (result,) = made.progress_by_trial.values()
    shares = {}
    for requested in (None, 0.1, 0.6, 0.9):
        result.precision = UNKNOWN.model_copy(update={"slow_share": requested})
        beat = forecast(result.trial.treatments, made.plan.timing, slow_share=result.slow_share)
        took = {kind: beat.beat.cycle.count(kind) * ns for kind, ns in beat.took_ns.items()}
        shares[requested] = took[BlockKind.SLOW] / sum(took.values())
    expected = {None: 0.625, 0.1: 1 / 6, 0.6: 0.6, 0.9: 0.75}
    assert shares == {requested: pytest.approx(share, abs=0.02) for requested, share in expected.items()}


def test_long_blocks_become_rare_once_there_are_enough_for_carry_over():
    made, _ = visitor("10min")
    (result,) = made.progress_by_trial.values()
    shares = []
    for longs in (PILOTS[-1][1] - 1, PILOTS[-1][1]):
        result.drop()
        result.add(Observations.of(measured(result.trial, 20, long=longs)[1]))
        blocks = result.forecast(made.plan.timing)
        took = {kind: blocks.beat.cycle.count(kind) * ns for kind, ns in blocks.took_ns.items()}
        shares.append(took[BlockKind.LONG] / sum(took.values()))
    assert shares == [pytest.approx(1 / 4, abs=0.02), pytest.approx(1 / 8, abs=0.02)]


def test_a_turn_goes_on_while_half_of_its_next_block_fits_whichever_kind_that_is():
    made, _ = visitor("10min", factors={"victim.sandbox.cpu_limit": [0.25]})
    (result,) = made.progress_by_trial.values()
    blocks = forecast(result.trial.treatments, made.plan.timing)
    assert blocks.beat.cycle[:3] == (BlockKind.LONG, BlockKind.SLOW, BlockKind.SHORT)
    slow_ns, short_ns = blocks.took_ns[BlockKind.SLOW], blocks.took_ns[BlockKind.SHORT]
    assert short_ns < slow_ns / 10
    share_ns = 60_000_000_000

    def goes_on(left_ns):
        return made._goes_on(result, share_ns - left_ns, share_ns, last=False)

    result.next_block = 1
    assert not goes_on(slow_ns // 2)
    assert goes_on(slow_ns // 2 + 1)
    # Time in which no slow one fits is not left unused where short ones follow.
    result.next_block = 2
    assert goes_on(short_ns)
    assert not goes_on(short_ns // 2)


SLOW = {"stressor": "syscall", "settle": "100ms"}


def decided(made, result, names):
    """The trial's next blocks once these neighbours are decided."""
    precision = UNKNOWN.model_copy(update={"decided": frozenset(names), "known": frozenset(names)})
    made.decisions = Decisions(lambda *_: precision, made.decisions.carries_over)
    result.add(Observations.of(measured(result.trial, 10, long=10)[1]))
    made._decide(result)
    return result.forecast(made.plan.timing)


@pytest.mark.parametrize("aim", ["precision", "decision"])
def test_a_decided_neighbour_leaves_its_slots_to_the_others_if_the_run_aims_at_decisions(aim):
    aggressors = {name: {"stressor": "memory-copy"} for name in ("n", "m")} | {"slow": SLOW}
    made, _ = visitor("10min", aggressors=aggressors, aim=aim, min_blocks=10)
    (result,) = made.progress_by_trial.values()
    before = result.forecast(made.plan.timing)
    after = decided(made, result, ["n@1"])
    kinds = {kind: after.beat.cycle.index(kind) for kind in (BlockKind.SHORT, BlockKind.LONG, BlockKind.SLOW)}
    held = {kind: {t.id for t in result.trial.treatments if after.beat.holds(at, t.id)} for kind, at in kinds.items()}
    short = {"baseline", "null", "m@1"} | ({"n@1"} if aim == "precision" else set())
    # Counters and the test of carry-over need it in long blocks.
    assert held == {
        BlockKind.SHORT: short,
        BlockKind.LONG: {"baseline", "null", "n@1", "m@1"},
        BlockKind.SLOW: {"baseline", "null", "slow@1"},
    }
    assert (after.took_ns[BlockKind.SHORT] < before.took_ns[BlockKind.SHORT]) == (aim == "decision")


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["slow@1"], {BlockKind.SHORT, BlockKind.LONG}),
        (["n@1"], {BlockKind.SLOW, BlockKind.LONG}),
        # If all are, all get more.
        (["n@1", "slow@1"], {BlockKind.SHORT, BlockKind.SLOW, BlockKind.LONG}),
    ],
)
def test_a_kind_of_block_in_which_every_neighbour_is_decided_gets_no_time(names, kinds):
    made, _ = visitor(
        "10min", aggressors={"n": {"stressor": "memory-copy"}, "slow": SLOW}, aim="decision", min_blocks=10
    )
    (result,) = made.progress_by_trial.values()
    assert set(decided(made, result, names).beat.cycle) == kinds


def test_nothing_is_decided_on_fewer_blocks_than_a_verdict_needs():
    made, _ = visitor("10min", aggressors={"n": {"stressor": "memory-copy"}, "slow": SLOW}, aim="decision")
    (result,) = made.progress_by_trial.values()
    decided(made, result, ["n@1"])
    assert not result.decided


def test_a_decided_trial_leaves_its_time_to_the_others_until_all_are_decided():
    made, _ = visitor("4min", "one", "two", "three", aim="decision")
    one, two, three = made.progress_by_trial.values()
    one.decided = one.neighbours
    assert [made._share_ns(0, each) * made.plan.rounds for each in (one, two, three)] == [0, 120e9, 120e9]
    two.decided, three.decided = two.neighbours, three.neighbours
    assert made._share_ns(0, one) * made.plan.rounds == pytest.approx(80e9)


@pytest.mark.parametrize(
    ("grows", "known", "events", "grown"),
    [(0.5, 7, [], True), (0.5, 8, [], False), (None, 0, [], False), (0.5, 0, ["grown"], False)],
)
def test_the_budget_grows_once_by_up_to_half_while_many_intervals_are_too_wide(grows, known, events, grown):
    aggressors = {f"n{number}": {"stressor": "memory-copy"} for number in range(10)}
    made, _ = visitor("2min", aggressors=aggressors, budget_grows=grows)
    notes = []
    made.emit = notes.append
    made.run.events = lambda *_: events
    made.run.replace = lambda plan: notes.append(plan.scenario.budget)
    (result,) = made.progress_by_trial.values()
    result.known = frozenset(sorted(result.neighbours)[:known])
    rounds = made.plan.rounds
    assert made.grow() == grown
    assert made.plan.scenario.budget == (180e9 if grown else 120e9)
    assert (made.plan.rounds > rounds) == grown
    said = [each.text for each in notes if isinstance(each, Note)]
    assert said == (
        ["this host is too noisy for the budget: the intervals of 3 of 10 neighbours are too wide yet, "
         "so the measurement takes up to 1 min longer"] if grown else []
    )  # fmt: skip
    assert (180_000_000_000 in notes) == grown
