"""The strip of the last slots of a run: when each neighbour was switched on, and the victim's rate beside it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partywall.run.values.plan import Plan, Trial
from partywall.web.live import State

WIDTH, HEIGHT = 1000.0, 20.0
"""Of the drawing of a lane, in its own units."""
TALL = 1.5
"""The rate, as a multiple of the one without neighbours, that fills the height of its lane."""


@dataclass(frozen=True)
class Bar:
    """A slot in a lane: its place from the left, its width, and its height from the bottom."""

    x: float
    width: float
    height: float


@dataclass(frozen=True)
class Lane:
    """A treatment with the slots in which it was on. typical: the victim's median rate in them, of that alone."""

    label: str
    bars: tuple[Bar, ...]
    typical: float | None


@dataclass(frozen=True)
class Strip:
    """The last slots of a trial, oldest first."""

    trial: str
    lanes: tuple[Lane, ...]
    seconds: float


def strip(plan: Plan, live: State) -> Strip | None:
    """The strip of the trial that is measured now. None if there is no slot yet."""
    trial = next((trial for trial in plan.trials if trial.id == live.last_trial), None)
    slots = list(live.slots)
    whole = sum(length for _, length, _ in slots)
    if trial is None or whole <= 0:
        return None
    return Strip(trial.id, tuple(_lanes(trial, slots, whole)), whole / 1e6)


def _lanes(trial: Trial, slots: Sequence[tuple[str, float, float]], whole: float) -> Iterator[Lane]:
    alone = {treatment.id for treatment in trial.treatments if treatment.role == "baseline"}
    rates = [rate for id_, _, rate in slots if id_ in alone and rate > 0]
    reference = statistics.median(rates) if rates else None
    placed = list(_placed(slots, whole, reference))
    for treatment in trial.treatments:
        bars = tuple(bar for id_, bar in placed if id_ == treatment.id)
        mine = [rate / reference for id_, _, rate in slots if id_ == treatment.id] if reference else []
        label = "no neighbour" if treatment.role == "baseline" else treatment.label
        yield Lane(label, bars, statistics.median(mine) if mine else None)


def _placed(
    slots: Sequence[tuple[str, float, float]], whole: float, reference: float | None
) -> Iterator[tuple[str, Bar]]:
    """Each slot's treatment and bar. Without a reference, bars are as tall as a rate without neighbours."""
    at = 0.0
    for id_, length, rate in slots:
        width = WIDTH * length / whole
        share = min(rate / reference if reference else 1.0, TALL) / TALL
        yield id_, Bar(round(at, 1), round(max(width, 1.0), 1), round(HEIGHT * max(share, 0.05), 1))
        at += width
