"""From a scenario to what will be done, as a pure function of the scenario, the host's facts and the seed."""

from partywall.plan.make import make
from partywall.plan.order import order, visits
from partywall.plan.placement import Topology
from partywall.plan.timing import Rhythm, lay_out, rhythm

__all__ = ["Rhythm", "Topology", "lay_out", "make", "order", "rhythm", "visits"]
