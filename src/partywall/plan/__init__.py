"""From a scenario to what will be done, as a pure function of the scenario, the host's facts and the seed."""

from partywall.plan.make import make
from partywall.plan.order import order, visits
from partywall.plan.placement import Topology
from partywall.plan.timing import lay_out, long_every

__all__ = ["Topology", "lay_out", "long_every", "make", "order", "visits"]
