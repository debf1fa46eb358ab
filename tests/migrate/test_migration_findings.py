"""Blackouts, response times and work of moves whose truth is known."""

import numpy as np
import pytest

from partywall.migrate.document import MigrationEvidence, MigrationPlan, Move, Progress
from partywall.migrate.findings import cost

MS = 1_000_000
PERIOD = MS
NOTHING = np.zeros((0, 3), np.int64)


def pings(pauses, length_ms=6000, answer_ns=MS // 2):
    """Requests every ms; those during a pause are answered at its end. pauses: (begin, end) in ns."""
    intended = np.arange(length_ms, dtype=np.int64) * PERIOD + MS
    answered = intended + answer_ns
    for begin, end in pauses:
        waiting = (answered > begin) & (answered < end)
        answered[waiting] = end + np.arange(waiting.sum())
    return np.column_stack([intended, intended, answered])


def move(**fields):
    base = {
        "workload": "idle", "method": "default", "round": 0, "number": 0, "source": "a", "outcome": "completed",
        "begin_ns": 2000 * MS, "end_ns": 4000 * MS, "setup_ns": 100 * MS, "total_ns": 1900 * MS,
        "downtime_ns": 150 * MS, "paused_ns": 3700 * MS, "resumed_ns": 3900 * MS,
        "stopped_ns": 200 * MS, "offset_ns": 0,
    }  # fmt: skip
    return Move(**(base | fields))


def test_both_pauses_of_a_move_are_found_and_reported_apart():
    result = cost.move_finding(move(), {"pings": pings([(2010 * MS, 2110 * MS), (3700 * MS, 3950 * MS)])})
    assert result.clients_ns == pytest.approx(250 * MS, abs=2 * PERIOD)
    assert result.start_ns == pytest.approx(100 * MS, abs=2 * PERIOD)
    assert result.events_ns == 200 * MS


def test_the_parts_add_up_to_what_clients_waited():
    result = cost.move_finding(move(), {"pings": pings([(3700 * MS, 3950 * MS)])})
    assert sum(part.ns for part in result.parts) == result.clients_ns
    assert [round(part.ns / MS) for part in result.parts][1:] == [150, 50, 50]


@pytest.mark.parametrize(
    ("announced", "expected"),
    [
        ([3920], ["until the network knows the guest's new place (ARP)", 20, "until the first answer", 30]),
        # By its QEMU, before it goes on.
        ([3850, 3920], ["until the network knows the guest's new place (ARP)", 0, "until the first answer", 50]),
        # Of another time.
        ([1000, 5000], ["RESUME to the first answer", 50]),
    ],
)
def test_the_wait_for_the_network_is_told_apart(announced, expected):
    table = np.array(announced, np.int64).reshape(-1, 1) * MS
    result = cost.move_finding(move(), {"pings": pings([(3700 * MS, 3950 * MS)]), "announced": table})
    assert sum(part.ns for part in result.parts) == result.clients_ns
    assert [value for part in result.parts[3:] for value in (part.name, round(part.ns / MS))] == expected


def test_the_slowest_user_and_tcp_s_timers_are_figures_of_a_move():
    users = np.array([(1.0e9, 2.0e9, 3 * MS, 9), (2.0e9, 3.0e9, 3 * MS, 9), (3.0e9, 4.0e9, 700 * MS, 1)])
    result = cost.move_finding(move(timeouts=2), {"pings": pings([(3700 * MS, 3950 * MS)]), "users": users})
    assert result.values["users_longest_s"] == pytest.approx(0.7)
    assert result.values["users_timeouts"] == 2


def test_a_brown_out_is_the_time_of_slow_answers_without_the_pauses():
    table = pings([(3700 * MS, 3950 * MS)])
    slow = (table[:, 0] >= 2400 * MS) & (table[:, 0] < 3000 * MS)
    table[slow, 2] += 2 * MS
    result = cost.move_finding(move(), {"pings": table})
    assert result.values["brownout_s"] == pytest.approx(0.6, abs=0.1)
    assert cost.move_finding(move(), {"pings": pings([])}).values["brownout_s"] == 0


def test_each_pass_has_its_bytes_and_what_the_guest_changed_meanwhile():
    looks = [
        Progress(at_ns=(2100 + 100 * at) * MS, sent=sent, left=9, passes=number, dirty_rate=rate)
        for at, (sent, number, rate) in enumerate(
            [(5, 1, 0.0), (50, 1, 0.0), (100, 2, 7e6), (130, 2, 7e6), (140, 3, 8e6), (150, 3, 8e6)]
        )
    ]
    result = cost.move_finding(move(progress=tuple(looks)), {"pings": pings([])})
    assert [(each.number, each.sent, each.dirty_rate) for each in result.passes] == [
        (1, 100, 7e6), (2, 40, 8e6), (3, 10, None),
    ]  # fmt: skip
    assert [each.seconds for each in result.passes] == pytest.approx([0.2, 0.2, 0.1])
    assert result.passes[0].begin_s == pytest.approx(0.1)


def test_a_cancelled_move_has_no_hand_over():
    cancelled = move(outcome="cancelled", paused_ns=None, resumed_ns=None, downtime_ns=None, total_ns=None)
    result = cost.move_finding(cancelled, {"pings": pings([(2010 * MS, 2060 * MS)])})
    assert result.clients_ns is None
    assert result.parts == ()
    assert result.start_ns == pytest.approx(50 * MS, abs=2 * PERIOD)


def test_answers_that_never_come_are_counted_in_their_phase():
    table = pings([])
    lost = (table[:, 0] > 3000 * MS) & (table[:, 0] <= 3010 * MS)
    table[lost, 2] = 0
    result = cost.move_finding(move(), {"pings": table})
    assert result.responses["during"].lost == 10
    assert result.responses["before"].lost == result.responses["after"].lost == 0


def test_requests_without_an_answer_are_the_slowest():
    """Of 2000 requests during the move 100 are lost: the 99th percentile is one of them."""
    table = pings([])
    table[(table[:, 0] > 3000 * MS) & (table[:, 0] <= 3100 * MS), 2] = 0
    during = cost.move_finding(move(), {"pings": table}).responses["during"]
    assert during.p50_ns == pytest.approx(MS / 2)
    assert during.p99_ns is None
    assert during.max_ns == pytest.approx(MS / 2)


def test_the_time_in_which_disks_are_copied_is_not_before_the_move():
    table = pings([])
    copying = (table[:, 0] >= 1000 * MS) & (table[:, 0] < 2000 * MS)
    table[copying, 2] += 50 * MS
    slow, usual = (
        cost.move_finding(move(storage_ns=storage_ns), {"pings": table}).responses["before"]
        for storage_ns in (None, 1000 * MS)
    )
    assert slow.max_ns > 50 * MS
    assert usual.max_ns < MS


def test_work_is_laid_on_the_host_s_time_across_the_stop():
    """The guest works evenly on its own clock, which stands still for 200 ms: it loses 10 % of two seconds."""
    ends = np.arange(20 * MS, 5800 * MS, 20 * MS, dtype=np.float64)
    work = np.column_stack([ends - 20 * MS, ends, np.full(len(ends), 20.0)])
    result = cost.move_finding(move(), {"pings": pings([]), "work": work})
    assert result.work["before"] == pytest.approx(1000, rel=0.02)
    assert result.work["during"] == pytest.approx(900, rel=0.02)
    assert result.work["after"] == pytest.approx(1000, rel=0.02)


def evidence(moves, **plan):
    content = {"partywall_migration": 1, "name": "x", "methods": {"default": {}, "fast": {}}, **plan}
    return MigrationEvidence(
        name="x", plan=MigrationPlan.model_validate(content), host={}, about={}, moves=tuple(moves)
    )


def series(waits):
    """waits: (method, milliseconds) of each move, two a round."""
    tables, moves = {}, []
    for number, (method, ms) in enumerate(waits):
        end = (3700 + ms) * MS
        moves.append(move(number=number, method=method, round=number // 2, resumed_ns=end - 10 * MS))
        tables[number] = pings([(3700 * MS, end)])
    return moves, lambda name, number: tables.get(number, NOTHING) if name == "pings" else cost.EMPTY[name]


def test_methods_are_compared_within_rounds():
    """The level wanders from round to round, and the ratio stays: its interval is narrow where the means' are wide."""
    moves, table = series(
        [("default", 100), ("fast", 50), ("default", 200), ("fast", 100), ("default", 300), ("fast", 150)]
    )
    result = cost.findings(evidence(moves), table)
    fast = next(cell for cell in result.cells if cell.method == "fast")
    ratio = fast.figures["clients_s"].ratio
    assert ratio.low < 0.5 < ratio.high
    assert ratio.high - ratio.low < 0.1
    assert fast.figures["clients_s"].interval.half_width > 0.1


def test_two_moves_have_no_interval():
    moves, table = series([("default", 100), ("fast", 50)] * 2)
    result = cost.findings(evidence(moves), table)
    assert all(cell.figures["clients_s"].interval is None for cell in result.cells)


@pytest.mark.parametrize(("limit", "reached"), [("500ms", True), ("1ms", False)])
def test_a_goal_can_be_the_p99_of_the_move(limit, reached):
    requested = evidence([move()], goal={"p99": limit}, methods={"default": {}})
    table = pings([(3700 * MS, 3950 * MS)])
    result = cost.findings(requested, lambda name, _: table if name == "pings" else cost.EMPTY[name])
    assert [cell.reaches_goal for cell in result.cells] == [reached]


@pytest.mark.parametrize(("goal", "outcome"), [("60ms", "holds"), ("20ms", "violated")])
def test_the_goal_is_reached_if_one_method_always_does(goal, outcome):
    moves, table = series([("default", 100), ("fast", 50)] * 3)
    result = cost.findings(evidence(moves, goal={"downtime": goal}), table)
    assert result.outcome.value == outcome
    assert [cell.reaches_goal for cell in result.cells] == [False, goal == "60ms"]


def test_a_lost_guest_is_the_headline_and_a_violation():
    moves, table = series([("default", 100), ("fast", 50)])
    moves.append(move(number=2, outcome="lost", reason="no answer"))
    result = cost.findings(evidence(moves), table)
    assert result.headline.startswith("1 move of 3 lost the guest")
    assert result.outcome.value == "violated"


def test_virtual_users_are_reported_by_phase():
    """Seconds of 100 responses: 10 ms before and after, 50 ms and some failures during the move.

    The second after the move belongs to it, because what waited for the hand-over is answered then.
    """
    rows = []
    for second in range(6):
        during = 2 <= second < 4
        rows.append((second * 1000.0 * MS, (second + 1) * 1000.0 * MS, (50.0 if during else 10.0) * MS, 100.0))
        if during:
            rows.append((second * 1000.0 * MS, (second + 1) * 1000.0 * MS, -1.0, 5.0))
    result = cost.move_finding(move(), {"users": np.array(rows)})
    assert {phase: each.rate for phase, each in result.users.items()} == {"before": 100, "during": 100, "after": 100}
    assert result.users["during"].lost == 10
    assert result.values["users_mean_ratio"] == pytest.approx((50 + 50 + 10) / 3 / 10)
    assert [each.at_s for each in result.users_timeline] == [-1.5, -0.5, 0.5, 1.5, 2.5, 3.5]


def test_a_second_without_an_answer_is_time_too():
    rows = [(second * 1e9, (second + 1) * 1e9, 10.0 * MS, 100.0) for second in range(6) if second not in (2, 3)]
    result = cost.move_finding(move(), {"users": np.array(rows)})
    assert result.users["during"].rate == pytest.approx(100 / 3)


def test_a_guest_that_never_answers_again_did_not_reach_the_goal():
    """Nobody answers after STOP, though QEMU says RESUME: that is no short wait."""
    table = pings([])
    table[table[:, 0] > 3700 * MS, 2] = 0
    result = cost.move_finding(move(), {"pings": table})
    assert result.clients_ns is None
    assert result.parts == ()
    assert result.longest_s == float("inf")
    silent = evidence([move()], goal={"downtime": "500ms"}, methods={"default": {}})
    findings = cost.findings(silent, lambda name, _: table if name == "pings" else cost.EMPTY[name])
    assert findings.outcome.value == "violated"


def test_the_pause_at_the_start_counts_for_the_goal():
    table = pings([(2010 * MS, 2400 * MS), (3700 * MS, 3750 * MS)])
    requested = evidence([move()], goal={"downtime": "200ms"}, methods={"default": {}})
    result = cost.findings(requested, lambda name, _: table if name == "pings" else cost.EMPTY[name])
    assert result.cells[0].reaches_goal is False


def test_no_part_is_negative_and_each_is_what_happened():
    """Answers from 3.65 s on are delayed: the gap begins before STOP and ends after RESUME."""
    result = cost.move_finding(move(), {"pings": pings([(3650 * MS, 3960 * MS)])})
    assert [round(part.ns / MS) for part in result.parts] == [50, 150, 50, 60]


def test_a_memory_that_changed_is_a_violation_and_the_headline():
    moves, table = series([("default", 100), ("fast", 50)] * 3)
    moves[2] = moves[2].model_copy(update={"intact": False})
    result = cost.findings(evidence(moves), table)
    assert result.outcome.value == "violated"
    assert "memory or disk was not what it had been" in result.headline


def test_moves_that_failed_are_not_all_is_well():
    moves, table = series([("default", 100), ("fast", 50)] * 3)
    moves[0] = moves[0].model_copy(update={"outcome": "failed", "reason": "refused"})
    assert cost.findings(evidence(moves), table).outcome.value == "inconclusive"
