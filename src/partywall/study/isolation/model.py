"""A study of isolation: ordinary scenarios, its parts, and which of their findings stand where in the paper's exhibits.

The format of study files that begin with `partywall_study`. A text `$name` in a part's scenario stands for a value of
the form, of the part's own `each`, or, as `$backend`, for where it is carried out. Deliberately not here: carrying it
out (`kind`), and what is made of findings (`exhibits`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from partywall.model.paper import X
from partywall.model.scenario import Bytes, DurationNs, Frozen, Name, Share
from partywall.model.study import Length

ALONE = "none"
"""How a study's file calls the treatment in which nobody presses."""


class Form(Frozen):
    """One length. precision: at which a trial may end early. values: what `$name` stands for."""

    min_blocks: int = Field(ge=8)
    precision: Share
    values: dict[Name, Any] = Field(default_factory=dict)


class Part(Frozen):
    """A scenario, or one for each of `each`, with each of `across`. budget: measuring time of one, by form.

    A scenario that says `$backend` is a run of its own for each backend; else the backend is a factor, and its trials
    are visited in turn. What says `only: long` is left out of the short form. reference: the victim that stands for
    the bare host. energy_saving: `on` lets the processor's clock fall, and leaves a part out on a host that
    governs none; `off` keeps it up and has idle CPUs poll, each where the host can.
    """

    scenario: dict[str, Any]
    budget: dict[Length, DurationNs]
    each: tuple[dict[Name, Any], ...] = Field(({},), min_length=1)
    across: tuple[dict[Name, Any], ...] = Field(({},), min_length=1)
    reference: Name | None = None
    energy_saving: Literal["on", "off"] | None = None


class Setting(Frozen):
    """Where a share that was set is found: in the victim's limit, or in the level of the factor `of`."""

    x: Literal["beside", "limit", "level"] = "beside"
    of: str = ""


class Shown(Setting):
    """Findings as points of an exhibit.

    where: only runs whose `each` says so. beside: treatments by name, and what they are called there; `none` is the
    victim alone. x: where a point stands: by that name, or by the share that was set, in percent. series may hold
    `$beside` and the names of `each`. value: figure: what the kernel shows; seconds: the time that `task` bytes take;
    factor: the isolation factor; times: how many times as long as alone; relative: the rate over the bare host's, in
    percent; efficiency: the same over the share that was set, in percent.
    """

    part: Name
    where: dict[Name, Any] = Field(default_factory=dict)
    victim: Name
    value: Literal["figure", "seconds", "factor", "times", "relative", "efficiency"]
    series: str
    beside: dict[str, X] = Field(min_length=1)
    task: Bytes | None = None


class Board(Setting):
    """Where a part's figures stand on the board of four levels. Texts may hold `$share` and the names of `each`.

    With x `level` the setting is the neighbour's, and what is expected of the victim is what that leaves.
    """

    part: Name
    victim: Name
    environment: str
    benchmark: str
    cores: str
    loads: dict[str, str] = Field(min_length=1, description="by treatment; `none` is the victim alone")


class Study(Frozen):
    """A study file."""

    partywall_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    paper: Name = Field(description="whose published numbers stand beside")
    backends: tuple[Name, ...] = Field(("container",), min_length=1, description="unless --backend says otherwise")
    forms: dict[Length, Form]
    parts: dict[Name, Part] = Field(min_length=1)
    exhibits: dict[str, tuple[Shown, ...]] = Field(min_length=1)
    board: tuple[Board, ...] = ()
    differs: tuple[str, ...] = Field((), description="what is otherwise here than in the paper")
