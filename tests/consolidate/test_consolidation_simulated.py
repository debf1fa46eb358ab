"""The findings of a simulation: which policy is called better, and with which figures."""

import io

import pytest
from rich.console import Console

from partywall.consolidate.findings import findings
from partywall.consolidate.report import report
from partywall.consolidate.values import ConsolidationEvidence, PolicyResult, Simulation
from partywall.core.report.terminal import show
from partywall.core.stats.estimate import Outcome
from tests.consolidate.placement.clusters import cluster


def result(policy, energy_kwh):
    return PolicyResult(
        policy=policy, energy_kwh=energy_kwh, boots_kwh=0, moves_kwh=0, moves=1, boots=1, slatah=0.1, pdm=0.1,
        unserved=0.0, ping_pongs=0, short_cycles=0, hosts_on=3.0,
    )  # fmt: skip


def simulated(own, other):
    results = (result("static", 6.0), result("partywall", own), result("mad-mmt", other))
    simulation = Simulation(
        trace="t", seed=1, order=1, interval_s=300, hosts=4, guests=8, bound_kwh=2.0, results=results
    )
    about = {"name": "a", "mode": "simulation", "cluster": cluster(1), "host": {}, "about": {}}
    return findings(ConsolidationEvidence(**about, simulations=(simulation,)))


@pytest.mark.parametrize(("other", "outcome"), [(3.737, Outcome.HOLDS), (3.6, Outcome.VIOLATED)])
def test_a_published_policy_is_better_if_it_takes_more_than_one_per_cent_less(other, outcome):
    assert simulated(3.745, other).outcome is outcome


def test_energies_that_differ_are_shown_with_digits_that_differ_and_terms_are_explained():
    found = simulated(3.745, 3.737)
    assert "partywall takes 3.745 kWh; the best published policy, mad-mmt, 3.737 kWh" in found.headline
    console = Console(file=io.StringIO(), width=200)
    show(report(found), console)
    assert "SLATAH: share of a host's active time" in console.file.getvalue()
