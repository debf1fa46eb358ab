"""Statistics of many hosts, by simulation: intervals cover what they promise, and few sound hosts are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from partywall.core.stats.estimate import Outcome
from partywall.fleet.findings import judging, sharing
from partywall.fleet.findings.allocating import is_open
from partywall.fleet.findings.pooling import Posterior, fitted, moderated
from partywall.testing.fleets import Fleet, drawn

pytestmark = pytest.mark.long


def errors(fleet: Fleet):
    return moderated(fleet.errors, np.full(len(fleet.values), float(fleet.blocks)))


def test_the_mean_of_equal_hosts_has_no_spread_and_the_narrowest_interval():
    fit = fitted(np.array([1.0, 1.0, 1.0]), np.array([0.1, 0.1, 0.1]))
    assert fit.spread == 0
    assert fit.contrast(np.ones(1)).value == 1


def test_the_spread_is_that_of_paule_and_mandel():
    """It is the variance at which the weighted sum of squares is its number of degrees of freedom."""
    values, variances = np.array([0.2, 0.6, 1.1, 0.1]), np.array([0.01, 0.02, 0.04, 0.01])
    between = fitted(values, np.sqrt(variances)).spread ** 2
    weights = 1 / (variances + between)
    mean = weights @ values / weights.sum()
    assert weights @ (values - mean) ** 2 == pytest.approx(3, rel=1e-6)


def test_standard_errors_borrow_from_each_other_only_as_far_as_chance_explains():
    chance = np.random.default_rng(5)
    same = 0.01 * np.sqrt(chance.chisquare(9, 200) / 9)
    assert np.std(moderated(same, np.full(200, 10.0))) < 0.35 * np.std(same)
    other = np.where(np.arange(200) < 100, 0.1, 1.0) * same
    kept = moderated(other, np.full(200, 10.0))
    assert np.median(kept[100:]) / np.median(kept[:100]) > 5


def test_further_blocks_may_decide_about_hosts_that_are_neither_named_nor_sound():
    values = np.concatenate([np.linspace(-0.002, 0.002, 20), [-0.3, -0.03, 0.03]])
    left = is_open(values, np.full(23, 0.01), np.full(23, 0.8))
    assert list(np.flatnonzero(left)) == [21]
    assert not is_open(values, np.full(23, 0.01), np.ones(23)).any()
    assert is_open(values[:2], np.full(2, 0.01), np.array([0.25, 1.0])).tolist() == [True, False]


def test_a_host_that_is_left_out_says_nothing():
    fleet = drawn(np.random.default_rng(1), 20, 1.0, bad=2, loss=0.2)
    own, others = errors(fleet), np.delete(np.arange(20), [0, 7])
    posterior, expected = Posterior(fleet.values, own), Posterior(fleet.values[others], own[others])
    assert posterior.shrunk[0].shape == (20,)
    posterior.leave_out(7)
    posterior.leave_out(0)
    assert posterior.predicted() == pytest.approx(expected.predicted())
    assert posterior.shrunk[0] == pytest.approx(expected.shrunk[0])


@pytest.mark.parametrize("hosts", [5, 30])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_intervals_cover_the_fleet_and_an_unseen_host(hosts: int, spread: float):
    chance, trials = np.random.default_rng(hosts), 300
    mean = true = measured = 0
    for _ in range(trials):
        fleet = drawn(chance, hosts, spread, drift=1.0)
        own, new = errors(fleet), drawn(chance, 1, spread, drift=1.0)
        estimate = fitted(fleet.values, own).contrast(np.ones(1))
        mean += estimate.low <= fleet.centre <= estimate.high
        posterior = Posterior(fleet.values, own)
        low, high = posterior.predicted()
        true += low <= new.truth[0] <= high
        low, high = posterior.predicted(error=0.01)
        measured += low <= new.values[0] <= high
    # Three standard errors of 300 trials.
    assert 0.95 - 0.038 <= mean / trials <= 0.95 + 0.038
    assert true / trials >= 0.95 - 0.038
    assert measured / trials >= 0.95 - 0.038


def test_the_textbook_interval_for_an_unseen_host_is_too_narrow():
    chance, trials, covered = np.random.default_rng(1), 600, 0
    for _ in range(trials):
        fleet, new = drawn(chance, 10, 0.5), drawn(chance, 1, 0.5)
        fit = fitted(fleet.values, errors(fleet))
        half = stats.t.ppf(0.975, 8) * math.hypot(fit.spread, math.sqrt(fit.covariance[0, 0]))
        covered += abs(new.truth[0] - fit.means[0]) <= half
    assert covered / trials < 0.9


@pytest.mark.parametrize(("hosts", "trials"), [(5, 200), (20, 40), (100, 200)])
def test_sound_hosts_are_rarely_named(hosts: int, trials: int):
    chance = np.random.default_rng(3)
    named = 0
    for number in range(trials):
        fleet = drawn(chance, hosts, (0, 0.5, 1, 2)[number % 4], drift=1.0)
        named += bool((judging.outliers([(fleet.values, errors(fleet))])[0] <= 0.05).any())
    assert named / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_several_bad_hosts_do_not_hide_each_other():
    chance = np.random.default_rng(4)
    found = false = 0
    for _ in range(50):
        fleet = drawn(chance, 100, 0.5, bad=3, loss=0.06)
        named = judging.outliers([(fleet.values, errors(fleet))])[0] <= 0.05
        found += named[:3].sum()
        false += named[3:].sum() / max(1, named.sum())
    assert found / 150 >= 0.9
    assert false / 50 <= 0.08


@pytest.mark.parametrize(("hosts", "bad"), [(5, 2), (9, 2), (9, 4), (40, 15)])
def test_bad_hosts_do_not_hide_each_other_even_if_they_are_almost_half(hosts: int, bad: int):
    fleet = drawn(np.random.default_rng(hosts), hosts, 0.5, bad=bad, loss=0.3)
    named = judging.outliers([(fleet.values, errors(fleet))])[0] <= 0.05
    assert list(named) == [True] * bad + [False] * (hosts - bad)


def test_one_of_three_hosts_at_half_of_the_others_is_named_and_two_hosts_never():
    values, own = np.log([0.98, 0.97, 0.5]), np.array([0.01, 0.012, 0.01])
    assert list(judging.outliers([(values, own)])[0] <= 0.05) == [False, False, True]
    assert list(judging.outliers([(values[1:], own[1:])])[0]) == [1, 1]


def test_a_gate_holds_only_if_it_could_have_failed():
    chance = np.random.default_rng(6)
    outcomes = {}
    for name, loss, error in (("same", 0.0, 0.01), ("worse", 0.06, 0.01), ("noisy", 0.0, 0.2)):
        fleet = drawn(chance, 40, 0.5, bad=10, loss=loss, error=error)
        is_canary = np.arange(40) < 10
        outcomes[name] = judging.gate(fleet.values, errors(fleet), is_canary, 0.03).outcome
    assert outcomes == {"same": Outcome.HOLDS, "worse": Outcome.VIOLATED, "noisy": Outcome.INCONCLUSIVE}


def test_a_gate_passes_canaries_at_the_margin_in_one_of_twenty():
    chance, trials, passed = np.random.default_rng(7), 300, 0
    for _ in range(trials):
        fleet = drawn(chance, 12, 0.5, bad=3, loss=-math.log1p(-0.03))
        passed += judging.gate(fleet.values, errors(fleet), np.arange(12) < 3, 0.03).outcome is Outcome.HOLDS
    assert passed / trials <= 0.05 + 0.038


def test_pairs_of_hosts_cancel_what_hosts_differ_by():
    chance = np.random.default_rng(8)
    own = 0.3 * chance.standard_normal(10)
    after = own - 0.1 + 0.005 * chance.standard_normal(10)
    judged = judging.paired(own, after, np.full(10, 0.005), 0.03)
    assert judged.outcome is Outcome.VIOLATED
    assert judged.change.value == pytest.approx(-0.1, abs=0.01)


def test_a_new_host_is_refused_if_bad_admitted_if_sound_and_neither_if_too_little_is_known():
    fleet = drawn(np.random.default_rng(9), 50, 0.5)
    posterior = Posterior(fleet.values, errors(fleet))

    def outcome(value: float, error: float) -> Outcome:
        return judging.admit(posterior, value, error, 0.05).outcome

    assert outcome(fleet.centre, 0.01) is Outcome.HOLDS
    assert outcome(fleet.centre - 0.08, 0.01) is Outcome.VIOLATED
    assert outcome(fleet.centre, 0.1) is Outcome.INCONCLUSIVE


def test_a_host_is_admitted_only_if_nine_of_ten_that_are_worse_by_the_margin_were_refused():
    chance = np.random.default_rng(12)
    fleet = drawn(chance, 50, 0.5)
    posterior = Posterior(fleet.values, errors(fleet))
    error = judging.exact(posterior, 0.05)
    assert judging.admit(posterior, fleet.centre, 0.999 * error, 0.05).outcome is Outcome.HOLDS
    assert judging.admit(posterior, fleet.centre, 1.001 * error, 0.05).outcome is Outcome.INCONCLUSIVE
    assert judging.admit(posterior, fleet.centre, error, 0.05).shows == pytest.approx(0.05, abs=1e-4)
    trials = 3000
    # Around the mean that the fleet shows, which is not quite its true one.
    bad = posterior.quantile(0.5) + math.log(0.95) + np.hypot(0.005, error) * chance.standard_normal(trials)
    refused = [judging.admit(posterior, value, error, 0.05).outcome is Outcome.VIOLATED for value in bad]
    assert np.mean(refused) >= 0.9 - 3 * math.sqrt(0.09 / trials)


def test_no_measurement_shows_a_loss_by_which_hosts_of_the_fleet_differ_themselves():
    fleet = drawn(np.random.default_rng(13), 50, 5.0)
    assert judging.exact(Posterior(fleet.values, errors(fleet)), 0.05) == 0


def test_sound_hosts_are_refused_in_one_of_a_hundred():
    chance, trials, refused = np.random.default_rng(10), 600, 0
    for _ in range(trials):
        fleet, new = drawn(chance, 20, 1.0), drawn(chance, 1, 1.0)
        posterior = Posterior(fleet.values, errors(fleet))
        refused += judging.admit(posterior, new.values[0], 0.01, 0.05).outcome is Outcome.VIOLATED
    assert refused / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)


def facts(bad: str, others: str, count: int = 9):
    return [{"kernel": bad, "cpu": "x"}] * 3 + [{"kernel": others, "cpu": "x"}] * count


def test_a_fact_that_only_outliers_have_is_named_with_its_exact_chance():
    flags = [True] * 3 + [False] * 9
    shared = sharing.shared(facts("6.9", "6.1"), flags)
    # One of the 220 ways to choose 3 of 12 hosts.
    assert {(each.fact, each.value) for each in shared} == {("kernel", "6.9")}
    assert shared[0].chance == pytest.approx(1 / 220)
    assert (shared[0].among, shared[0].others, shared[0].is_exact) == (3, 0, True)


def test_facts_that_all_hosts_have_or_that_are_spread_by_chance_are_not_named():
    assert sharing.shared(facts("6.1", "6.1"), [True] * 3 + [False] * 9) == []
    chance, named = np.random.default_rng(11), 0
    for number in range(60):
        every = [{f"f{fact}": str(chance.integers(3)) for fact in range(10)} for _ in range(40)]
        named += bool(sharing.shared(every, list(chance.random(40) < 0.1), seed=number))
    assert named <= 8


def test_no_outlier_or_only_outliers_share_nothing():
    assert sharing.shared(facts("a", "b"), [False] * 12) == []
    assert sharing.shared(facts("a", "b"), [True] * 12) == []
