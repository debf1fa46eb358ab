"""What a run left behind, read from its directory by `partywall.store` and handed to statistics and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from partywall.model.observation import Observation
from partywall.model.plan import Plan


@dataclass(frozen=True)
class Counter:
    """A monitor's counter: unit of its per-second rate or gauge, and the resource it is evidence of."""

    name: str
    unit: str
    kind: str
    resource: str


@dataclass(frozen=True)
class SlicePoint:
    """A victim's slice, for drawing.

    Rate in work per second, the treatment that held, and whether it was in the guard.
    """

    start_ns: int
    end_ns: int
    rate: float
    treatment: str
    block: int
    guard: bool


@dataclass(frozen=True)
class Evidence:
    """All of a run but its findings. timeline: by trial, the slices of some blocks, in order of time.

    kernels: the agent's catalogue entries by name (unit, figure, latency text). missing: what the host could not tell,
    as (what, why, remedy). disturbances: what was seen of others, as (trial, block, text).
    """

    run: str
    started: str
    plan: Plan
    host: dict[str, Any]
    kernels: dict[str, dict[str, Any]]
    observations: tuple[Observation, ...]
    counters: dict[str, Counter] = field(default_factory=dict)
    timeline: dict[str, tuple[SlicePoint, ...]] = field(default_factory=dict)
    missing: tuple[tuple[str, str, str], ...] = ()
    disturbances: tuple[tuple[str, int, str], ...] = ()
    incomplete: tuple[str, ...] = ()
    interrupted: bool = False
