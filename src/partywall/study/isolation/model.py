"""A study of isolation: scenarios as parts, and the places of their findings in the paper's tables and figures.

The format of study files that begin with `partywall_study`. A text `$name` in a part's scenario stands for a value of
the form or of the part's own `each`; `$backend` stands for the backend. Carrying out a study is in `kind`, processing
of findings in `tables`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from partywall.study.document import Length
from partywall.study.paper import Place, X
from partywall.values import Bytes, DurationNs, Frozen, Name, Share

ALONE = "none"
"""The name, in study files, of the treatment without an aggressor."""


class Form(Frozen):
    """One length. precision: at which a trial may end early. values: values of `$name`."""

    min_blocks: int = Field(ge=8)
    precision: Share
    values: dict[Name, Any] = Field(default_factory=dict)


class Part(Frozen):
    """A scenario, or one for each of `each`, with each of `across`. budget: measuring time of one, by form.

    A scenario with `$backend` is a separate run for each backend. Otherwise the backend is a factor, and its trials
    alternate. Members of `each` with `only: long` are left out of the short form unless their full name is requested,
    those with `only: requested` of both forms unless a pattern selects them. Members with `needs: avx` or `needs: sse2`
    are skipped on a host whose processor lacks these instructions. reference: the victim that represents the
    bare host. energy_saving: `on` lets the processor's clock fall, and skips the part on a host without governors;
    `off` keeps it up and lets idle CPUs poll, each if the host can. smt: `off` switches it off if the host can and at
    least two CPUs stay; otherwise a note says why not. A part whose scenario has a setting that the host cannot have is
    skipped. before, after: commands on this host around each run, such as one that sets a limit of a hypervisor that
    Partywall does not drive; `$name` as in the scenario.
    """

    scenario: dict[str, Any]
    budget: dict[Length, DurationNs]
    each: tuple[dict[Name, Any], ...] = Field(({},), min_length=1)
    across: tuple[dict[Name, Any], ...] = Field(({},), min_length=1)
    reference: Name | None = None
    energy_saving: Literal["on", "off"] | None = None
    smt: Literal["off"] | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Setting(Frozen):
    """The place of a share that was set: the victim's limit, the level of factor `of`, or the value `of` of `each`."""

    x: Literal["beside", "limit", "level", "value"] = "beside"
    of: str = ""


class Shown(Setting):
    """Findings as points of a table or figure.

    where: only runs with these values of `each`. beside: treatments by name, and their names in the figure; `none` is
    the victim alone. x: the point's place: that name, or the share that was set, in percent. series may contain
    `$beside` and the names of `each`. value: figure: the kernel's figure; seconds: the time for `task` bytes; factor:
    the isolation factor; times: the multiple of the time alone; relative: the rate divided by the bare host's, in
    percent; efficiency: the same divided by the share that was set, in percent; clock: the clock of the victim's CPUs
    over the processor's top frequency, in percent, where the host's monitors give it. over: for relative and
    efficiency, the values that differ in the run that stands for the bare host; its victim alone does.
    """

    part: Name
    where: dict[Name, Any] = Field(default_factory=dict)
    victim: Name
    value: Literal["figure", "seconds", "factor", "times", "relative", "efficiency", "clock"]
    series: str
    beside: dict[str, X] = Field(min_length=1)
    task: Bytes | None = None
    over: dict[Name, Any] = Field(default_factory=dict)


class Board(Setting):
    """The place of a part's figures on the board of four levels. Texts may contain `$share` and the names of `each`.

    With x `level`, the setting is the neighbour's, and the victim is expected to get the rest.
    """

    part: Name
    victim: Name
    environment: str
    benchmark: str
    cores: str
    loads: dict[str, str] = Field(min_length=1, description="by treatment; `none` is the victim alone")


class Graded(Frozen):
    """Two places of a figure: the victim beside a load of the resource's kind, and alone."""

    exhibit: str
    left: Place
    than: Place


class Resource(Frozen):
    """A resource of the paper's overview. type: A is a size, B is a bandwidth or time. lacks: why it is not graded.

    advice: what to do unless it is graded High.
    """

    name: str
    type: Literal["A", "B"]
    expected: Literal["High", "Medium", "Low"]
    graded: Graded | None = None
    lacks: str = ""
    advice: str = ""


class Study(Frozen):
    """A study file. resources: the paper's overview of them, in its table `overview`."""

    partywall_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    paper: Name = Field(description="name of the published numbers to compare with")
    backends: tuple[Name, ...] = Field(("container",), min_length=1, description="unless --backend says otherwise")
    forms: dict[Length, Form]
    parts: dict[Name, Part] = Field(min_length=1)
    exhibits: dict[str, tuple[Shown, ...]] = Field(min_length=1)
    board: tuple[Board, ...] = ()
    overview: str = Field("", description="the table of the paper that grades resources")
    resources: tuple[Resource, ...] = ()
    differs: tuple[str, ...] = Field((), description="differences from the paper")
