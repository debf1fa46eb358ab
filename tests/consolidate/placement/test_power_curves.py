"""Power curves: the published calculation of what consolidation saves."""

import numpy as np
import pytest

from partywall.consolidate.document import POWER_CURVES, Cluster, PowerCurve, parse_joules
from partywall.consolidate.placement.state import hosts_of

TABLE = POWER_CURVES["cervera-dl120-g6"]


def hosts(*curves):
    names = {f"h{number}": {"cpus": 4, "memory": "8GiB", "power": curve} for number, curve in enumerate(curves)}
    return hosts_of(Cluster.model_validate({"partywall_cluster": 1, "name": "x", "hosts": names, "guests": {"g": {}}}))


def test_the_break_even_time_of_the_published_node_is_143_seconds():
    assert TABLE.break_even_s == pytest.approx(143, abs=0.5)
    assert hosts("cervera-dl120-g6").break_even_s[0] == pytest.approx(TABLE.break_even_s)


def test_four_loads_on_one_host_take_what_was_published():
    four = hosts(*["cervera-dl120-g6"] * 4)
    apart = four.power(np.ones(4)).sum()
    together = four.power(np.array([4.0, 0, 0, 0]))
    assert apart == pytest.approx(288)
    assert together[0] + four.off_w[1:].sum() == pytest.approx(137)
    assert together.sum() == pytest.approx(260)


@pytest.mark.parametrize("name", POWER_CURVES)
def test_a_curve_passes_through_its_points(name):
    curve = POWER_CURVES[name]
    each = hosts(name)
    loads = np.linspace(0, 4, len(curve.watts))
    assert [float(each.power(np.array([load]))[0]) for load in loads] == pytest.approx(list(curve.watts))


def test_a_host_that_takes_no_less_when_it_is_off_never_breaks_even():
    never = PowerCurve(watts=(50, 60), off=50, boot=TABLE.boot, shutdown=TABLE.shutdown)
    assert never.break_even_s == np.inf


def test_an_energy_needs_a_unit():
    assert parse_joules("1.5Wh") == 5400
    with pytest.raises(ValueError, match="write a number and one of"):
        parse_joules("5400")
