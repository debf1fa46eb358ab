"""What all studies share: how one is asked for, and what its report holds, whatever was measured and how.

A study is a published measurement made again: its exhibits stand beside the paper's. Deliberately not here: the
formats of study files, which differ with what is measured (`model` in each folder of `partywall.study`), and drawing
(`report.study_page`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from partywall.model.evidence import Emulated
from partywall.model.finding import Estimate
from partywall.model.paper import Beside
from partywall.model.scenario import Frozen

Length = Literal["short", "long"]


class Asked(Frozen):
    """How a study is to be carried out. backends, rounds: as the study's own file says if empty or None.

    parts: patterns of names; all if empty.
    """

    length: Length = "short"
    backends: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    rounds: int | None = None
    seed: int = 1


@dataclass(frozen=True)
class Outline:
    """What would be measured, a line each, and how long that takes."""

    lines: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Section:
    """A table of a report besides the exhibits. id: of the page's section. short: also for a terminal."""

    id: str
    title: str
    lead: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    short: bool = False


@dataclass(frozen=True)
class BoardEntry:
    """One place of the board, by its levels. absolute: as it is read.

    relative: over the bare host's; q: over what was set. Shares; None where there is nothing to hold them against.
    emulated: whether the victim was, or a neighbour of it alone.
    """

    places: Mapping[str, str]
    absolute: str
    relative: Estimate | None
    q: Estimate | None
    emulated: Emulated | None


@dataclass(frozen=True)
class StudyReport:
    """What a study found. notes: what must be said with all figures; facts and how: how it was measured.

    rows: every observation, flat, for other programs. incomplete: what was begun and came to nothing. figures: what
    else other programs may want, as JSON.
    """

    run: str
    name: str
    description: str
    length: Length
    besides: tuple[Beside, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    how: str
    host: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    incomplete: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    board: tuple[BoardEntry, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
