"""The memory that a load's generators need, for checks before it. Pure.

It is an estimate: what a user's connections need depends on the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

USERS = "the virtual users"
GENERATOR_BYTES = 64 << 20
"""A generator without users: its agent, buffers and histograms."""
USER_BYTES = 4096
"""A user: the agent's record of 560 bytes, and its sockets."""


def most_users(program: Mapping[str, Any]) -> int:
    """The largest number of users at a time, by a load's program."""
    model, pacing = next(iter(program["pacing"].items()))
    if model == "open":
        return int(pacing["users_max"])
    return int(max((stage["to"] for stage in pacing["stages"]), default=0))


def generator_bytes(program: Mapping[str, Any], generators: int) -> int:
    """Bytes that each of so many generators needs."""
    return GENERATOR_BYTES + -(-most_users(program) // max(1, generators)) * USER_BYTES
