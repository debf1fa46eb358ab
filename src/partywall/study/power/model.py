"""A study of power: a meter, a load ladder, a guest of one worker, and the published reckoning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from partywall.model.migration import MigrationPlan
from partywall.model.scenario import DurationNs, Frozen, Name


class Extent(Frozen):
    """How much is measured: each level once in each of `blocks`; each workload moved `moves` times."""

    blocks: int = Field(ge=2)
    moves: int = Field(ge=0)


class Study(Frozen):
    """A study file. meter: the meter's name. states: the profile that the states without a load are taken from.

    moves: the guest that is moved while the meter is read; without it no guest is moved.
    """

    partywall_power_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    meter: str = Field(description="as partywall power meters names it")
    states: str = Field(description="the profile with off, boot and shutdown, which a study does not try")
    slot: DurationNs = Field(2_000_000_000, ge=500_000_000)
    moves: MigrationPlan | None = None
    short: Extent
    long: Extent


class Level(Frozen):
    """Watts in one slot: cores that were requested, those that were busy, and where the load ran."""

    block: int
    place: Literal["host", "guest"]
    cores: int
    busy: float
    watts: float


class Moment(Frozen):
    """Watts in one phase of a move of a guest."""

    block: int
    workload: str
    phase: Literal["before", "during", "after"]
    watts: float
