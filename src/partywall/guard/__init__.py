"""The guard: checks a policy, passes it to the agent and enforces it; stores and shows its reports.

`load` and `flatten` are pure except for reading the file; `resolve` finds vifs on the host; `run` runs the agent.
"""

from partywall.guard.change import changes, refuse
from partywall.guard.check import load, loads
from partywall.guard.measure.ends import beside_hooks, check_sides, check_sides_here
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.follow import Follower
from partywall.guard.measure.left import reap
from partywall.guard.measure.resolve import VifPlace, places, resolve, resolve_links
from partywall.guard.measure.run import Report, keep, remove
from partywall.guard.measure.source import AtSource

__all__ = [
    "AtSource",
    "Flat",
    "Follower",
    "Report",
    "VifPlace",
    "beside_hooks",
    "changes",
    "check_sides",
    "check_sides_here",
    "flatten",
    "keep",
    "load",
    "loads",
    "places",
    "reap",
    "refuse",
    "remove",
    "resolve",
    "resolve_links",
]
