"""A stressor that does nothing at full intensity: refused by the controller whatever its agent says."""

import math

import pytest

from partywall.agent.calibration import calibrate
from partywall.errors import RefusalError


class Reported:
    """An agent that answers a calibration so."""

    name = "noise"

    def __init__(self, rates, disturbed=0.0):
        self.rates, self.disturbed, self.params = rates, disturbed, {}

    def call(self, method, **params):
        assert (method, params["id"]) == ("workload.calibrate", "disk")
        self.params = params
        return {"rate_max": self.rates, "disturbed": self.disturbed}


@pytest.mark.parametrize("rates", [[0.0], [5.0, 0.0], [], [-1.0], [math.nan], [math.inf], "fast", None, [None]])
def test_no_rate_is_refused_with_what_would_do(rates):
    with pytest.raises(RefusalError, match=r"workload 'disk': work per second .* make its steps smaller"):
        calibrate(Reported(rates), "disk", 150_000_000)


def test_the_rates_of_threads_add_up():
    assert calibrate(Reported([2, 0.5]), "disk", 150_000_000).rate == 2.5


def test_a_disturbed_calibration_is_doubted_and_a_hardly_disturbed_one_is_not():
    assert calibrate(Reported([2], 0.09), "disk", 150_000_000).warning == ""
    assert "for 42% of its calibration" in calibrate(Reported([2], 0.42), "disk", 150_000_000).warning


def test_the_limit_of_a_sandbox_is_sent_only_where_it_has_one():
    limited, unlimited = Reported([2]), Reported([2])
    calibrate(limited, "disk", 150_000_000, 0.5)
    calibrate(unlimited, "disk", 150_000_000)
    assert limited.params["cpus_limit"] == 0.5
    assert "cpus_limit" not in unlimited.params
