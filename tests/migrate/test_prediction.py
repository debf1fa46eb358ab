"""The models of a move, against moves that a simulated QEMU makes of the same facts."""

import math

import numpy as np
import pytest

from partywall.migrate.document import Method, Move, MoveFinding, Progress, Survey
from partywall.migrate.findings import cost, prediction
from partywall.migrate.findings.prediction import Curve, Facts, Fixed
from partywall.migrate.findings.response import Service, p99_during, quantiles, until_answered

MIB = 1 << 20
EARLIER_WINDOWS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.4)
"""Of records that were made before shorter ones were watched."""
WINDOWS = (0.025, *EARLIER_WINDOWS)


def writer(rate, working_set, windows=WINDOWS):
    """A guest that goes round its working set at a rate: pages that change, up to all of them."""
    changed = [min(rate * window, working_set) for window in windows]
    return Curve(windows, np.array([changed]))


def simulated(facts, rate, working_set, limit_s):
    """QEMU's loop page by page: a bitmap, a writer that goes round, a look at what is left after every 50 ms.

    Content lies evenly among zero pages, and what the writer changes evenly among the content, in a mixed order.
    (converges, total s, bytes, downtime s)
    """
    pages, page = int(facts.memory // 65536), 65536
    numbers = np.arange(pages)
    content = (numbers + 1) * facts.content // facts.memory > numbers * facts.content // facts.memory
    places = np.flatnonzero(content)
    wide = int(working_set // page)
    written = np.random.default_rng(1).permutation(places[np.linspace(0, len(places) - 1, wide).astype(int)])
    dirty, seen = np.ones(pages, bool), np.zeros(pages, bool)
    threshold, spent, sent, writes, place, at = facts.rate * limit_s, 0.0, 0.0, 0.0, 0, 0
    while spent < 60:
        budget = facts.rate * 0.05
        while budget > 0 and dirty.any():
            ahead = np.flatnonzero(dirty[at:])
            at = at + int(ahead[0]) if len(ahead) else int(np.flatnonzero(dirty)[0])
            dirty[at] = False
            if content[at]:
                budget -= page
                sent += page
        took = 0.05 - max(0.0, budget) / facts.rate
        spent, writes = spent + took, writes + rate * took
        while writes >= page and wide:
            seen[written[place % wide]] = True
            place, writes = place + 1, writes - page
        if dirty.sum() * page <= threshold:
            dirty |= seen
            seen[:] = False
            if dirty.sum() * page < threshold:
                left = dirty[places].sum() * page
                return True, spent + left / facts.rate, sent + left, left / facts.rate
    return False, spent, sent, math.inf


@pytest.mark.parametrize("rate", [0, 2 * MIB, 10 * MIB, 30 * MIB, 45 * MIB, 80 * MIB])
@pytest.mark.parametrize("working_set", [8 * MIB, 16 * MIB, 64 * MIB])
@pytest.mark.parametrize("limit", [100, 300, 800])
@pytest.mark.parametrize("windows", [WINDOWS, EARLIER_WINDOWS], ids=["25 ms", "50 ms"])
def test_the_replay_follows_qemu_s_rule(rate, working_set, limit, windows):
    facts = Facts(256 * MIB, 100 * MIB, 50 * MIB, curve=writer(rate, working_set, windows))
    converges, total_s, sent, downtime_s = simulated(facts, rate, working_set, limit / 1000)
    method = Method(downtime=f"{limit}ms")
    courses = [prediction.replayed(facts, method, 60, overlap=overlap) for overlap in (0.0, 0.5, 1.0)]
    assert converges in [course.converges for course in courses]
    ended = [course for course in courses if course.converges]
    if converges:
        total, bytes_, down = ([getattr(each, name) for each in ended] for name in ("total_s", "bytes", "downtime_s"))
        assert 0.92 * min(total) < total_s < 1.08 * max(total)
        assert 0.92 * min(bytes_) < sent < 1.08 * max(bytes_)
        assert min(down) - 0.06 < downtime_s < max(down) + 0.06


def test_a_guest_that_changes_memory_faster_than_the_link_carries_never_converges():
    facts = Facts(256 * MIB, 100 * MIB, 50 * MIB, curve=writer(80 * MIB, 64 * MIB))
    assert not prediction.replayed(facts, Method(), 60).converges
    assert not prediction.piecewise(facts, Method(), 60).converges
    # A working set that can be sent within the limit does.
    small = Facts(256 * MIB, 100 * MIB, 50 * MIB, curve=writer(80 * MIB, 8 * MIB))
    assert prediction.replayed(small, Method(), 60).converges
    assert not prediction.geometric(small, Method(), 60).converges


def test_post_copy_always_ends_and_sends_what_changed_once_more():
    facts = Facts(256 * MIB, 100 * MIB, 50 * MIB, curve=writer(80 * MIB, 64 * MIB))
    course = prediction.replayed(facts, Method(postcopy={"after_passes": 1}), 60)
    assert course.converges
    assert course.bytes == pytest.approx(164 * MIB, rel=0.05)


def test_a_method_s_own_bandwidth_and_limit_count():
    facts = Facts(256 * MIB, 100 * MIB, 50 * MIB, curve=writer(10 * MIB, 64 * MIB))
    slow = prediction.replayed(facts, Method(bandwidth="200Mbit/s"), 60)
    assert slow.total_s > 1.9 * prediction.replayed(facts, Method(), 60).total_s
    short, long = (prediction.replayed(facts, Method(downtime=d), 60).downtime_s for d in ("20ms", "500ms"))
    assert short <= 0.02 < long


def test_beyond_the_longest_window_the_last_slope_goes_on():
    growing, saturated = writer(MIB, 100 * MIB), writer(100 * MIB, 16 * MIB)
    assert growing.at(10) == pytest.approx(10 * MIB)
    assert saturated.at(10) == pytest.approx(16 * MIB)


def test_the_working_set_is_unknown_while_the_curve_rises_and_known_once_it_bends():
    in_turn, gone_round = writer(10 * MIB, 512 * MIB), writer(60 * MIB, 64 * MIB)
    assert in_turn.working_set(256 * MIB, 0.0) == pytest.approx(10 * MIB * WINDOWS[-1])
    assert in_turn.working_set(256 * MIB, 1.0) == pytest.approx(256 * MIB)
    assert gone_round.working_set(256 * MIB, 1.0) == pytest.approx(64 * MIB)
    # At random: what is left to change decays exponentially. At first some more changes, such as the kernel's pages.
    changed = [MIB + 64 * MIB * -math.expm1(-24 / 64 * window) for window in WINDOWS]
    at_random = Curve(WINDOWS, np.array([changed]))
    assert at_random.working_set(256 * MIB, 1.0) == pytest.approx(65 * MIB, rel=0.1)


def test_the_shortest_window_counts_for_short_passes_and_neither_for_the_rate_nor_for_the_working_set():
    # 2 MiB of pages that the guest changes all the time, and a working set that it changes at random.
    def changed(window):
        return 2 * MIB + 64 * MIB * -math.expm1(-24 / 64 * window)

    short, earlier = (
        Curve(each, np.array([[changed(window) for window in each]])) for each in (WINDOWS, EARLIER_WINDOWS)
    )
    assert short.at(0.025) == pytest.approx(changed(0.025))
    assert earlier.at(0.025) == pytest.approx(changed(0.05) / 2), "it has to assume a straight line"
    assert short.rate == earlier.rate == pytest.approx(changed(0.05) / 0.05)
    for share in (0.0, 0.5, 1.0):
        assert short.working_set(256 * MIB, share) == earlier.working_set(256 * MIB, share)
    # One and two windows tell a rate and a working set too.
    assert Curve((0.025,), np.array([[MIB]])).rate == pytest.approx(40 * MIB)
    assert Curve((0.025, 0.05), np.array([[MIB, 2 * MIB]])).working_set(9 * MIB, 0.0) == 2 * MIB


def test_a_host_that_is_late_for_the_shortest_window_is_predicted_by_the_others():
    changed = [[None, 2.0 * MIB, None, 4.0 * MIB], [None, 2.0 * MIB, 3.0 * MIB, None]]
    windows_ns = tuple(round(window * 1e9) for window in WINDOWS[:4])
    seen = Survey(workload="late", memory=256 * MIB, content=MIB, windows_ns=windows_ns, changed=changed)
    curve = cost._curve(seen)
    assert curve.windows_s == (0.05, 0.1, 0.2)
    assert curve.rate == pytest.approx(40 * MIB)
    # Two of a hundred samples in time say nothing of that window.
    rows = [(5.0 * MIB if place < 2 else None, 2.0 * MIB, 3.0 * MIB, 4.0 * MIB) for place in range(100)]
    assert cost._curve(seen.model_copy(update={"changed": tuple(rows)})).windows_s == (0.05, 0.1, 0.2)


def test_rates_seen_while_zero_pages_pass_or_shortly_after_do_not_count():
    looks, sent, left = [], 0.0, 200 * MIB
    for number in range(40):
        empty = 15 * MIB if 10 <= number < 14 else 0.0
        sent, left = sent + MIB, left - MIB - empty
        rate = (20.0 if 10 <= number < 14 else 80.0 if number == 15 else 50.0 + number / 100) * MIB
        looks.append(Progress(at_ns=number * 50_000_000, sent=int(sent), left=int(left), passes=1, rate=rate))
    made = calibration(50 * MIB, 400 * MIB, 80 * MIB, 256 * MIB).model_copy(update={"progress": tuple(looks)})
    seen = prediction.rates_seen(made, 1.0)
    assert len(seen) > 10
    assert all(50 * MIB <= rate < 51 * MIB for rate in seen)


def calibration(rate, empty_rate, content, memory, setup_s=0.1, downtime_s=0.1):
    """A move whose first pass sends content at one rate and walks over zero pages at another, alternating."""
    looks, at_s, sent, left = [], setup_s, 1, memory
    for _ in range(50):
        looks.append(Progress(at_ns=int(at_s * 1e9), sent=int(sent), left=int(left), passes=1))
        part, empty = content / 50, (memory - content) / 50
        mixed = 1 if len(looks) % 2 else 0
        at_s += (part * mixed * 2) / rate + (empty * (1 - mixed) * 2) / empty_rate
        sent, left = sent + part * mixed * 2, left - part * mixed * 2 - empty * (1 - mixed) * 2
    return Move(
        workload="calibration", method="default", round=0, number=-1, source="a", outcome="completed", begin_ns=0,
        end_ns=int(at_s * 1e9), setup_ns=int(setup_s * 1e9), downtime_ns=int(downtime_s * 1e9),
        total_ns=int((at_s + downtime_s) * 1e9), progress=tuple(looks), memory={"transferred": content},
    )  # fmt: skip


def test_calibration_tells_the_link_s_rate_from_that_of_zero_pages():
    moves = [calibration(50 * MIB, 400 * MIB, 80 * MIB, 256 * MIB) for _ in range(3)]
    fixed = prediction.fixed_of([MoveFinding(move=each, values={"clients_s": 0.2}) for each in moves])
    assert fixed.rates == pytest.approx([50 * MIB] * 3, rel=0.05)
    assert fixed.empty_rates == pytest.approx([400 * MIB] * 2, rel=0.1), "the first one reads memory for the first time"
    assert fixed.waited_s == pytest.approx([0.1] * 3)


def test_without_a_completed_calibration_move_there_is_no_prediction():
    with pytest.raises(ValueError, match="none of the calibration moves"):
        prediction.fixed_of([])


def test_a_prediction_has_intervals_and_what_simpler_models_say():
    fixed = Fixed((0.1, 0.12), (0.005,), (50 * MIB, 55 * MIB), (400 * MIB, math.inf), (0.05, 0.07), (0.1, 0.15))
    facts = Facts(256 * MIB, 100 * MIB, math.inf, curve=writer(10 * MIB, 64 * MIB))
    told = prediction.predict(facts, fixed, Method(), 60)
    assert told.converges
    for span in told.spans.values():
        assert span.low <= span.value <= span.high
    assert told.spans["clients_s"].value > told.spans["downtime_s"].value
    assert set(told.others) == {"geometric", "piecewise"}
    for model in told.others.values():
        assert model["total_s"].low < model["total_s"].value < model["total_s"].high
        # They have no fixed costs.
        assert model["downtime_s"].value < told.spans["downtime_s"].value
    assert "p99_s" not in told.spans, "nobody watched the service"


@pytest.mark.parametrize("users", [None, 20])
def test_the_p99_response_during_a_move_is_that_of_a_simulated_service(users):
    """Requests on a schedule, or users who wait for their answer, against a service that stands still twice."""
    chance = np.random.default_rng(3)
    length_s, pauses, rate = 4.0, ((0.1, 0.15), (3.5, 0.25)), 500.0
    base = chance.lognormal(math.log(0.004), 0.5, 20_000)
    waits = []
    if users is None:
        due = np.arange(0, length_s, 1 / rate)
        waits = list(chance.choice(base, len(due)))
        for begin, spent in pauses:
            waits = [wait + max(0.0, begin + spent - at) * (begin <= at) * (at < begin + spent)
                     for wait, at in zip(waits, due, strict=True)]  # fmt: skip
    else:
        calm_s = length_s - sum(spent for _, spent in pauses)
        waits = list(chance.choice(base, int(calm_s * rate)))
        waits += [spent + wait for _, spent in pauses for wait in chance.choice(base, users)]
    service = Service(quantiles(base), rate, users)
    told = p99_during(service, [0.0] * 10, [spent for _, spent in pauses], length_s)
    assert told == pytest.approx(float(np.quantile(waits, 0.99)), rel=0.15)


def test_a_request_without_an_answer_waits_for_the_next_one():
    due = np.arange(5) * 10
    waits = until_answered(due, np.array([5, 0, 0, 45, 0]))
    assert list(waits) == [5, 35, 25, 15]


def test_a_prediction_tells_the_p99_of_the_service():
    fixed = Fixed(
        (0.1, 0.12), (0.005,), (50 * MIB, 55 * MIB), (400 * MIB, math.inf), (0.05, 0.07), (0.1, 0.15),
        start_s=(0.1, 0.12), slower_s=((0.0,) * 10, (0.001,) * 10),
    )  # fmt: skip
    service = Service((0.004,) * 10, 1000.0)
    facts = Facts(256 * MIB, 100 * MIB, math.inf, curve=writer(10 * MIB, 64 * MIB), service=service)
    spans = prediction.predict(facts, fixed, Method(), 60).spans
    assert 0.004 < spans["p99_s"].low < spans["p99_s"].value < spans["clients_s"].high


def test_few_calibration_moves_still_give_intervals_that_hold():
    """Three moves of a normal distribution; the next one lies within 90 % intervals about 90 times in 100."""
    chance = np.random.default_rng(1)
    held = 0
    for _ in range(250):
        seen, coming = chance.normal(1.0, 0.1, 3), chance.normal(1.0, 0.1)
        low, high = np.quantile([prediction._drawn(tuple(seen), chance) for _ in range(200)], (0.05, 0.95))
        held += low <= coming <= high
    assert 0.85 <= held / 250 <= 0.95


def test_a_move_that_never_ends_has_no_figures():
    rates = tuple(50 * MIB * factor for factor in (0.99, 1, 1.01))
    fixed = Fixed((0.1,) * 3, (0.0,) * 3, rates, (400 * MIB,) * 3, (0.05,) * 3, (0.1,) * 3)
    facts = Facts(256 * MIB, 100 * MIB, math.inf, curve=writer(90 * MIB, 128 * MIB))
    told = prediction.predict(facts, fixed, Method(), 20)
    assert told.chance < 0.01
    assert told.spans == {} or told.chance > 0


def test_where_content_lies_decides_what_is_left_at_the_hand_over():
    """QEMU stops when what it has not looked at yet could be sent in time, whether that is content or zeros."""
    first, last = ((64.0 * MIB,) * 2 + (0.0,) * 2, (0.0,) * 2 + (64.0 * MIB,) * 2)
    left = {}
    for name, layout in {"first": first, "even": (), "last": last}.items():
        facts = Facts(256 * MIB, 128 * MIB, 50 * MIB, layout=layout)
        left[name] = prediction.replayed(facts, Method(), 60).downtime_s
    assert left["first"] == 0
    assert 0.06 < left["even"] < 0.16
    assert 0.2 < left["last"] <= 0.3
