"""Turns a scenario into a plan: a pure function of the scenario, the host's facts and the seed.

`checks`, `files`, `requirements` and `room` say before a run what a scenario needs and what a host lacks.
"""

from partywall.run.plan.budget import forecasts, shares
from partywall.run.plan.make import extended, make
from partywall.run.plan.order import order, turns
from partywall.run.plan.placement import Topology
from partywall.run.plan.timing import lay_out

__all__ = ["Topology", "extended", "forecasts", "lay_out", "make", "order", "shares", "turns"]
