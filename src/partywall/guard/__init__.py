"""The guard: a policy checked, told to the agent, and kept; what it saw, shown and stored.

`load` and `flatten` are pure but for reading the file; `resolve` asks the host where vifs are; `run` holds the agent.
"""

from partywall.guard.flatten import Flat, flatten
from partywall.guard.follow import Follower
from partywall.guard.left import reap
from partywall.guard.load import load, loads
from partywall.guard.resolve import Found, places, resolve, resolve_link
from partywall.guard.run import Report, keep, remove

__all__ = [
    "Flat",
    "Follower",
    "Found",
    "Report",
    "flatten",
    "keep",
    "load",
    "loads",
    "places",
    "reap",
    "remove",
    "resolve",
    "resolve_link",
]
