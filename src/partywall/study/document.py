"""Values shared by all studies: how one is requested, and what its report contains.

A study repeats a published measurement and shows its tables and figures beside the paper's. The formats of study files
are in `model` in each folder of `partywall.study`; drawing is in `study.page`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from partywall.core.stats.estimate import Emulated, Estimate
from partywall.load.document import Generator, at_key
from partywall.study.paper import Beside
from partywall.values import Frozen

Length = Literal["short", "long", "paper"]
"""paper: the paper's own durations. Not every study has all."""
EmulatedScale = Annotated[
    float, Field(gt=0, le=1, description="factor on all rates for emulated guests, which send less")
]
EMULATED_SCALE = 0.05


class Machines(Frozen):
    """The machines of a study of load generation, if they are others than this host, which is then the controller.

    A machine may be given as a plain text: its host for ssh.
    """

    physical: Annotated[Generator, at_key("host")] = Field(description="the physical generator's")
    sandboxes: tuple[Annotated[Generator, at_key("host")], ...] = Field(
        min_length=1, max_length=64, description="the virtual generators': your own guests, one generator on each"
    )
    application: str | None = Field(None, description="the application's, for ssh; default: this host")
    address: str = Field(description="the application's address for the generators, e.g. 10.0.0.7")


class StudyRequest(Frozen):
    """How a study is to be carried out. backends, rounds: those of the study's file if empty or None.

    parts: patterns of names; all if empty. memory_wait_ns: how long to wait for free memory, if longer than usual.
    on: the machine to measure, for ssh; empty for this host. machines: those of the study's file if None. folder: of
    the study's file, where the paths of a user's own files begin.
    """

    length: Length = "short"
    backends: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    rounds: int | None = None
    seed: int = 1
    memory_wait_ns: int = 0
    on: str = ""
    machines: Machines | None = None
    folder: str = ""


@dataclass(frozen=True)
class Section:
    """An additional table of a report. id: of the page's section. short: also shown on a terminal."""

    id: str
    title: str
    lead: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    short: bool = False


@dataclass(frozen=True)
class BoardEntry:
    """One place of the board, by its levels. absolute: formatted.

    relative: divided by the bare host's value; q: divided by the promised value. Both are shares; None if there is
    nothing to compare with. emulated: whether the victim was emulated, or only its neighbour.
    """

    places: Mapping[str, str]
    absolute: str
    relative: Estimate | None
    q: Estimate | None
    emulated: Emulated | None


@dataclass(frozen=True)
class StudyReport:
    """The findings of a study. notes: qualifications of all figures; facts and how: how it was measured.

    rows: every observation, flat, for other programs. incomplete: parts that failed. figures: further JSON values for
    other programs.
    """

    run: str
    name: str
    description: str
    length: Length
    comparisons: tuple[Beside, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    how: str
    host: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    incomplete: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    board: tuple[BoardEntry, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
