"""The events of a run that are read back, and their required content, to distinguish a damaged file from a bug.

Events contain more than is listed here. Values that are not read are not checked.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from partywall.run.values.evidence import Counter
from partywall.run.values.plan import Slot


class _OfTrial(BaseModel):
    trial: str


class _OfTurn(_OfTrial):
    visit: str


class _Turn(_OfTurn):
    rate_max: dict[str, float]
    counters: list[Counter]
    missing: list[dict[str, Any]] = []
    emulated: list[str] = []
    disturbed: list[str] = []
    versions: dict[str, str] = {}


class _Left(_OfTurn):
    facts: dict[str, list[dict[str, Any]]]
    dropped: dict[str, int]


class _Stretched(_OfTrial):
    stretch: int


class _Decided(_OfTrial):
    treatments: list[str]


class _BlockDone(_OfTurn):
    block: int
    stretch: int
    long: bool = False
    slots: list[Slot] = Field(min_length=1)


class _Failed(_OfTurn):
    reason: str


class _Started(BaseModel):
    wall_time: str


KINDS: dict[str, type[BaseModel]] = {
    "run_started": _Started,
    "visit": _Turn,
    "visit_left": _Left,
    "block_done": _BlockDone,
    "stretched": _Stretched,
    "trial_precise": _OfTrial,
    "decided": _Decided,
    "extended": _OfTrial,
    "trial_failed": _Failed,
    "visit_ended": _OfTurn,
}


def check(content: dict[str, Any]) -> None:
    """ValueError if an event lacks required content."""
    if content["kind"] in KINDS:
        KINDS[content["kind"]].model_validate(content)
