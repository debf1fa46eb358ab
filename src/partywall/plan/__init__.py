"""Turns a scenario into a plan: a pure function of the scenario, the host's facts and the seed."""

from partywall.plan.budget import forecasts, shares
from partywall.plan.make import extended, make
from partywall.plan.order import order, rounds, shuffled, turns
from partywall.plan.placement import Topology
from partywall.plan.timing import lay_out

__all__ = ["Topology", "extended", "forecasts", "lay_out", "make", "order", "rounds", "shares", "shuffled", "turns"]
