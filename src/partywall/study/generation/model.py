"""A study of load generation: the same users from a process and from sandboxes, at several numbers, in random rounds.

The format of `*.study.yaml` files, and their observations. `partywall.study.generation.cells` compares them with a
paper.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from partywall.model.load_plan import Step
from partywall.model.scenario import Bytes, DurationNs, Frozen, Name

METRICS = {
    "response_s": ("response time of an iteration", "s"),
    "response_p90_s": ("its 90th percentile", "s"),
    "pages_s": ("response time of the pages alone", "s"),
    "throughput": ("iterations a second", "1/s"),
    "cpu_percent": ("CPU time of the generator, of all CPUs", "%"),
    "disk_queue": ("mean disk queue", "requests"),
    "write_s": ("mean time of a disk write", "s"),
    "received_kbps": ("bytes received", "10³ bytes/s"),
    "doubtful": ("share of doubtful seconds", ""),
}
"""The metrics of an observation: (description, unit)."""


class Form(Frozen):
    """One length of the study. settle: excluded time at the beginning of each hold."""

    rounds: int = Field(ge=2, le=100)
    hold: DurationNs = Field(ge=1_000_000_000)
    settle: DurationNs = 1_000_000_000
    compress: Bytes = Field(description="size of the file that each iteration compresses")


class Cell(Frozen):
    """One combination. generator: physical is a process. kept: percent of the CPUs kept for the host."""

    generator: Literal["physical", "sandbox"]
    users: int = Field(ge=1, le=100_000)
    compress: bool = True
    kept: int = Field(0, ge=0, le=90)
    sandboxes: int = Field(1, ge=1, le=64)

    @property
    def id(self) -> str:
        parts = [self.generator, f"{self.users} users"]
        parts += [] if self.compress else ["no compression"]
        parts += [f"{self.kept} % of CPUs kept"] if self.kept else []
        return ", ".join([*parts, *([f"{self.sandboxes} sandboxes"] if self.sandboxes > 1 else [])])


class Study(Frozen):
    """A study file. actions: one iteration without the compression, which each cell adds or not."""

    partywall_load_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    paper: Name = Field(description="name of the published numbers to compare with")
    actions: tuple[Step, ...] = Field(min_length=1)
    think: Step
    forms: dict[Literal["short", "long"], Form]
    cells: tuple[Cell, ...] = Field(min_length=2)
    differs: tuple[str, ...] = Field((), description="differences from the paper")


class Observed(Frozen):
    """One cell in one round. values: by metric; None if not measurable. emulated: whether its guests' CPUs were."""

    cell: Cell
    round: int
    values: dict[str, float | None]
    emulated: bool = False
