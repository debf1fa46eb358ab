"""A study of live migration: a plan of moves, and which of its workloads the paper's figures are about."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from partywall.migrate.document import MigrationPlan
from partywall.values import DurationNs, Frozen, Name


class Extent(Frozen):
    """How much is measured: each workload is moved once in each of `blocks`."""

    blocks: int = Field(ge=2)


class Study(Frozen):
    """A study file.

    users: the paper's figure for each workload of virtual users. computing: the workload of its figure on GFLOPS. bare:
    how long the same kernel runs on the host itself, in each block.
    """

    partywall_migration_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    plan: MigrationPlan
    users: dict[Name, str] = Field(min_length=1, description="workload: the paper's figure, e.g. fig 1")
    computing: Name | None = None
    bare: DurationNs = Field(2_000_000_000, ge=100_000_000)
    short: Extent
    long: Extent

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in (*self.users, *([self.computing] if self.computing else [])):
            if name not in self.plan.workloads:
                raise ValueError(f"{name} is not a workload of the plan; there are {', '.join(self.plan.workloads)}")
        return self


class Bare(Frozen):
    """The kernel on the host itself, in one block: its rate in the kernel's unit a second."""

    block: int
    rate: float
