"""A study of power: a meter, a load ladder, a guest with one worker, and guests that move."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from partywall.migrate.document import GuestSpec, MigrationPlan
from partywall.values import DurationNs, Frozen, Name


class Extent(Frozen):
    """How much is measured: each level once in each of `blocks`; each workload moved `moves` times."""

    blocks: int = Field(ge=2)
    moves: int = Field(ge=1)


class Study(Frozen):
    """A study file. states: the profile with the states that a study does not try, such as off.

    guest: in which one worker runs; without it there is no figure on virtualization. moves: guests that move; without
    it none does.
    """

    partywall_power_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    meter: str = Field(description="as partywall power meters names it")
    states: str
    slot: DurationNs = Field(2_000_000_000, ge=500_000_000)
    guest: GuestSpec | None = None
    moves: MigrationPlan | None = None
    short: Extent
    long: Extent
