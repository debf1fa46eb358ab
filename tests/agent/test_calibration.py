"""A stressor that does nothing at full intensity: refused by the controller whatever its agent says."""

import math

import pytest

from partywall.agent.calibration import calibrate
from partywall.errors import RefusalError


class Told:
    """An agent that answers a calibration so."""

    name = "noise"

    def __init__(self, rates):
        self.rates = rates

    def call(self, method, **params):
        assert (method, params["id"]) == ("workload.calibrate", "disk")
        return {"rate_max": self.rates}


@pytest.mark.parametrize("rates", [[0.0], [5.0, 0.0], [], [-1.0], [math.nan], [math.inf], "fast", None, [None]])
def test_no_rate_is_refused_with_what_would_do(rates):
    with pytest.raises(RefusalError, match=r"workload 'disk': work per second .* make its steps smaller"):
        calibrate(Told(rates), "disk", 150_000_000)


def test_the_rates_of_threads_add_up():
    assert calibrate(Told([2, 0.5]), "disk", 150_000_000) == 2.5
