"""The overhead model: exact on what it assumes, honest on noise, and its intervals cover what they say."""

import heapq
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partywall.core.stats.rounds import ratio, student
from partywall.load.overhead import HeldOut, Pair, coverage, demand, fit, held_out, mean_errors, response


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200), st.floats(0.01, 10), st.floats(1e-5, 1))
def test_a_response_time_tells_the_demand_it_came_from(users, think_s, demand_s):
    assert demand(users, think_s, response(users, think_s, demand_s)) == pytest.approx(demand_s, rel=1e-6)


def test_the_queue_of_one_user_is_empty_and_of_many_is_full():
    assert response(1, 1.0, 0.01) == pytest.approx(0.01)
    assert response(1000, 1.0, 0.01) == pytest.approx(1000 * 0.01 - 1.0, rel=0.01)


LIMIT = 0.75


def simulated(chance, levels=(10, 25, 50, 100, 150), rounds=4, noise=0.05):
    """A sandbox that may use three quarters of a CPU, of which an iteration takes 6 ms, and rounds that vary."""
    pairs = []
    for users in levels:
        for _ in range(rounds):
            own = 0.006 * chance.lognormvariate(0, noise)
            work = own * chance.lognormvariate(0, noise / 2)
            # Held back the more, the nearer it comes to its limit.
            held = 1 + (1 / LIMIT - 1) * min(1.0, users * own / 0.5) ** 4
            boxed_s, bare_s = response(users, 0.5, own * held), response(users, 0.5, own)
            rate = users / (boxed_s + 0.5)
            pairs.append(Pair(users, 0.5, boxed_s, work * rate / LIMIT, bare_s, users / (bare_s + 0.5)))
    return pairs


def test_without_noise_a_level_that_was_held_out_is_predicted_exactly():
    assert max(mean_errors(held_out(simulated(random.Random(1), noise=0.0)))) < 0.02


@pytest.mark.long
def test_ninety_percent_intervals_cover_about_ninety_percent_of_held_out_rounds():
    result = [coverage(held_out(simulated(random.Random(seed)))) for seed in range(20)]
    assert 0.8 <= statistics.fmean(result) <= 0.97


def with_odd_levels(chance, levels, rounds):
    """Each level is off by something of its own, which its rounds share."""
    for users in levels:
        odd = chance.gauss(0, 0.1)
        for _ in range(rounds):
            bare_s = response(users, 0.5, 0.003 * 2.718281828 ** (odd + chance.gauss(0, 0.01)))
            boxed_s = response(users, 0.5, 0.004)
            yield Pair(users, 0.5, boxed_s, users / (boxed_s + 0.5) * 0.003, bare_s, users / (bare_s + 0.5))


@pytest.mark.long
def test_intervals_cover_as_they_say_where_the_rounds_of_a_level_are_alike():
    def result(seed):
        return coverage(held_out(list(with_odd_levels(random.Random(seed), (20, 50, 80, 110, 140), 3))))

    assert 0.82 <= statistics.fmean(result(seed) for seed in range(20)) <= 0.97


def test_a_small_error_of_throughputs_does_not_hide_a_large_one_of_response_times():
    level = HeldOut(users=1, physical_s=1, forecast_s=1.2, physical_rate=10, forecast_rate=10, covered=0, rounds=1)
    assert mean_errors([level]) == (pytest.approx(0.2), 0)


def test_response_times_are_followed_where_cpu_time_tells_nothing():
    """The service gets slower with its load; the generator's work stays the same."""
    demands = {10: 0.003, 50: 0.0035, 100: 0.004, 150: 0.005}
    pairs = [
        Pair(n, 0.5, response(n, 0.5, d), 0.001 * n / (response(n, 0.5, d) + 0.5), response(n, 0.5, d), 1.0)
        for n, d in demands.items()
    ]
    model = fit(pairs)
    assert (model.line.a, model.line.weight) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6))


def test_cpu_time_is_followed_where_a_limit_holds_the_sandbox_back():
    assert fit(simulated(random.Random(1), noise=0.01)).line.weight > 0.9


@pytest.mark.parametrize("residual", [0.3, 0.5, 1.0, 2.0])
def test_a_demand_is_found_again_whatever_is_left_of_a_service(residual):
    for users in (1, 7, 140):
        assert demand(users, 0.5, response(users, 0.5, 0.004, residual), residual) == pytest.approx(0.004, rel=1e-6)


def test_users_wait_less_for_services_that_are_alike():
    times = [response(100, 0.5, 0.004, residual) for residual in (0.5, 1.0, 2.0)]
    assert times == sorted(times)


def test_too_few_levels_are_refused_in_words():
    with pytest.raises(ValueError, match="needs 3 numbers of users"):
        fit(simulated(random.Random(1), levels=(10, 20)))


def test_a_ratio_of_the_same_rounds_forgets_what_both_share():
    estimate = ratio([2.0, 20.0, 200.0], [1.0, 10.1, 99.0])
    assert estimate.value == pytest.approx(2.0, rel=0.01)
    assert estimate.low > 1.9
    with pytest.raises(ValueError, match="over 0"):
        ratio([0.0, 1.0], [1.0, 1.0])


def test_students_interval_is_that_of_the_textbook_and_needs_two_values():
    estimate = student([1.0, 2.0, 3.0])
    assert (estimate.value, estimate.high) == (2.0, pytest.approx(2 + 4.303 / 3**0.5, rel=1e-3))
    with pytest.raises(ValueError, match="two values"):
        student([1.0])


def measured(users, limit, work_s, seed, think_s=0.5):
    """(mean response time, throughput, share of its CPU used) of a core that serves one after another, by events.

    Each service takes work_s of CPU time; in each tenth of a second no more than `limit` of it may be used.
    """
    period_s, ends_s = 0.1, 4.0
    chances = [random.Random(seed * 1000 + user) for user in range(users)]
    coming = [(0.3 * user / users, user) for user in range(users)]
    free_s, period, left_s, times = 0.0, 0, limit * period_s, []
    while coming[0][0] < ends_s:
        at_s, user = heapq.heappop(coming)
        now_s, todo_s = max(at_s, free_s), work_s
        while todo_s > 1e-12:
            if int(now_s / period_s) != period:
                period, left_s = int(now_s / period_s), limit * period_s
            edge_s = (period + 1) * period_s
            done_s = min(todo_s, left_s, edge_s - now_s)
            left_s, todo_s = left_s - done_s, todo_s - done_s
            now_s = now_s + done_s if todo_s <= 1e-12 else edge_s + 1e-9
        free_s = now_s
        if at_s > 1.0:
            times.append(now_s - at_s)
        heapq.heappush(coming, (now_s + chances[user].expovariate(1 / think_s), user))
    mean_s = statistics.fmean(times)
    rate = users / (mean_s + think_s)
    return mean_s, rate, rate * work_s / limit


def test_a_generator_that_a_limit_holds_back_predicts_the_whole_core():
    """Constant services and a limit by periods: nothing of either is in the model's formulas."""
    chance, errors = random.Random(1), []
    for seed in range(2):
        pairs = []
        for users in range(20, 261, 30):
            works = [0.004 * chance.lognormvariate(0, 0.02) for _ in range(2)]
            (boxed_s, _, used), (bare_s, rate, _) = (
                measured(users, 0.75, works[0], seed),
                measured(users, 1, works[1], seed),
            )
            pairs.append(Pair(users, 0.5, boxed_s, used, bare_s, rate))
        errors.append(mean_errors(held_out(pairs)))
    times, rates = (statistics.fmean(values) for values in zip(*errors, strict=True))
    assert times < 0.12
    assert rates < 0.05
