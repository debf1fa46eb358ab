import pytest
from builders import Host, evidence, plan, treatment, trial

from partywall.model.comparison import Change
from partywall.model.finding import Estimate, Outcome
from partywall.stats import analyse, compare
from partywall.stats.compare import ratio_of

ONE = trial(treatment("memory-copy"))


def run(factor, seed=1, of=ONE, blocks=60):
    return analyse(evidence(plan(of), Host(seed).measure(of, blocks, {"memory-copy": factor})))


@pytest.mark.parametrize(
    ("now", "before", "change", "outcome"),
    [
        (0.7, 0.8, Change.WORSE, Outcome.VIOLATED),
        (0.9, 0.8, Change.BETTER, Outcome.HOLDS),
        (0.8, 0.8, Change.SAME, Outcome.HOLDS),
        (0.785, 0.8, Change.INCONCLUSIVE, Outcome.INCONCLUSIVE),
    ],
)
def test_a_change_needs_a_whole_interval_beyond_the_tolerance(now, before, change, outcome):
    found = compare(run(now), run(before, seed=2), tolerance=0.02)
    assert found.cells[0].change is change
    assert found.outcome is outcome
    assert found.cells[0].ratio.low < now / before < found.cells[0].ratio.high


def test_cells_without_a_counterpart_are_named():
    more = trial(treatment("memory-copy"), treatment("disk-write"))
    found = compare(run(0.8, of=more), run(0.8))
    assert found.only_run == ("copy under disk-write",)
    assert found.only_reference == ()
    assert compare(run(0.8), run(0.8, of=more)).only_reference == ("copy under disk-write",)


def test_runs_with_nothing_in_common_are_inconclusive():
    found = compare(run(0.8), run(0.8, of=trial(treatment("disk-write"))))
    assert found.cells == ()
    assert found.outcome is Outcome.INCONCLUSIVE


def test_a_ratio_is_wider_than_either_side_and_inverts_when_swapped():
    first = Estimate(value=0.8, low=0.79, high=0.81, n=50, method="m")
    second = Estimate(value=0.9, low=0.88, high=0.92, n=40, method="m")
    there, back = ratio_of(first, second), ratio_of(second, first)
    assert there.low < 0.8 / 0.92 * 1.02
    assert (1 / back.high, 1 / back.low) == pytest.approx((there.low, there.high))
    assert there.n == 40


def test_a_stalled_victim_compares_without_a_logarithm_of_zero():
    stalled = Estimate(value=0, low=0, high=0.1, n=30, method="m")
    fine = Estimate(value=0.9, low=0.88, high=0.92, n=30, method="m")
    found = ratio_of(stalled, fine)
    assert found.value < 1e-5
    assert 0.08 < found.high < 0.2


def test_a_tolerance_that_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match="give a share"):
        compare(run(0.8), run(0.8), tolerance=2)
