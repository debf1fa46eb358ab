"""The guard: checks a policy, passes it to the agent and enforces it; stores and shows its reports.

`load` and `flatten` are pure except for reading the file; `resolve` finds vifs on the host; `run` runs the agent.
"""

from partywall.guard.change import changes, refuse
from partywall.guard.ends import beside_hooks, check_sides, check_sides_here
from partywall.guard.flatten import Flat, flatten
from partywall.guard.follow import Follower
from partywall.guard.left import reap
from partywall.guard.load import load, loads
from partywall.guard.resolve import VifPlace, places, resolve, resolve_links
from partywall.guard.run import Report, keep, remove
from partywall.guard.source import AtSource

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
