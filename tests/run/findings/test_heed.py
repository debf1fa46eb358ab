"""Noisy moments count less, without a bias: whatever a neighbour causes itself counts in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from partywall.core.stats.estimate import Estimate
from partywall.run.findings import series as of_series
from partywall.run.findings.heed import heeds
from partywall.run.findings.series import Measured, pairs_of
from partywall.run.values.observation import Observation, Observations
from tests.run.findings.builders import Host, treatment, trial

SEVERAL = trial(*(treatment(f"s{number}") for number in range(4)))
KEPT = {"s1": 0.8}
BLOCKS = 150


def beside_a_tenant(seed: int, hits: Callable[[str], float], stalls: Mapping[str, float]) -> list[Observation]:
    """Observations beside a tenant that works for 50 blocks of 150, and takes most of a slot with the chance `hits`.

    stalls: the share of a treatment's slots that it stops nearly, at any time.
    """
    random, result = np.random.default_rng(seed), []
    begins = int(random.integers(BLOCKS))
    for o in sorted(Host(seed, noise=0.03).measure(SEVERAL, BLOCKS, KEPT), key=lambda o: o.start_ns):
        works = (o.block - begins) % BLOCKS < BLOCKS // 3
        left = random.random() / 2 if works and random.random() < hits(o.treatment) else 1.0
        left *= 0.03 if random.random() < stalls.get(o.treatment, 0.0) else 1.0
        result.append(replace(o, rate=o.rate * left))
    return result


def factors(observations: list[Observation]) -> dict[str, Estimate]:
    short = Measured.of(Observations.of(observations), SEVERAL.treatments).short
    return {t.id: pair.factor() for t, pair in pairs_of(short, SEVERAL.treatments) if t.role != "null"}


def often(_treatment: str) -> float:
    return 0.5


def test_beside_a_tenant_that_comes_and_goes_intervals_are_at_most_half_as_wide(monkeypatch: pytest.MonkeyPatch):
    observations = [beside_a_tenant(seed, often, {}) for seed in range(6)]
    now = [factors(each)["s2"].half_width for each in observations]
    monkeypatch.setattr(of_series, "heeds", lambda _gap: None)
    before = [factors(each)["s2"].half_width for each in observations]
    assert np.mean(now) < 0.5 * np.mean(before)


@pytest.mark.long
@pytest.mark.parametrize("stalls", [{}, {"s0": 0.08}])
def test_what_a_neighbour_does_counts_in_full_whether_it_disturbs_slots_or_not(stalls: dict[str, float]):
    """The tenant is independent of the treatments; the stalls of the second case are not, and are harm."""
    truth = {t.id: KEPT.get(t.id, 1.0) * (1 - 0.97 * stalls.get(t.id, 0.0)) for t in SEVERAL.treatments[2:]}
    measured = [factors(beside_a_tenant(seed, often, stalls)) for seed in range(60)]
    held = [each[name].low <= kept <= each[name].high for each in measured for name, kept in truth.items()]
    assert np.mean(held) >= 0.93
    for name, kept in truth.items():
        values = np.array([each[name].value for each in measured])
        assert abs(values.mean() - kept) < 3 * values.std() / np.sqrt(len(values)) + 0.002


def test_a_neighbour_that_does_harm_only_while_a_tenant_works_is_not_hidden():
    """It drives the tenant to the victim's CPU, so weights would leave out what it does."""
    driven = [factors(beside_a_tenant(seed, lambda name: 1.0 if name == "s0" else 0.2, {}))["s0"] for seed in range(8)]
    # The tenant leaves a quarter of a slot on average, for a third of the time.
    truth = (2 + 0.25) / (2 + 1 - 0.2 * 0.75)
    assert np.mean([each.low <= truth <= each.high for each in driven]) >= 0.75
    assert np.mean([each.value for each in driven]) < (1 + truth) / 2


def test_a_steady_host_and_a_short_series_have_equal_weights():
    random = np.random.default_rng(1)
    assert all(heeds(0.01 * random.standard_normal(200)) is None for _ in range(20))
    assert heeds(np.array([0.01] * 5 + [0.5] * 5)) is None


def test_no_weight_depends_on_its_own_block():
    random = np.random.default_rng(2)
    gap = np.where(np.arange(200) % 100 < 50, 0.01, 0.5) * random.standard_normal(200)
    before, after = (heeds(np.where(np.arange(200) == 30, own, gap)) for own in (0.0, 0.02))
    assert before is not None
    assert after is not None
    # Others change by what this one tells of them; itself only by the common scale.
    assert after[30] / after[80] == pytest.approx(before[30] / before[80], rel=0.05)
    assert before[20] > 20 * before[75]
