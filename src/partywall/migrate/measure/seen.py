"""A move as it was seen, and what is said of it while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from partywall import units
from partywall.errors import TrialError
from partywall.events import Broken, Doing, Emit
from partywall.migrate.document import Move, Progress
from partywall.migrate.measure.pings import Pings, Tables
from partywall.migrate.record import COLUMNS, Table

WATCH_S = 3.0
MOVE_S = 4.0
"""What a move takes, about, while nothing is known of it."""


@dataclass(frozen=True)
class Seen:
    """A move, and what clients and the guest's work saw of it: tables, see `migrate.record.COLUMNS`."""

    move: Move
    tables: dict[str, Table]


def answers_of(pings: Pings, emit: Emit) -> Tables:
    """What the client saw. If it was killed, the figures of clients are missing from this move."""
    try:
        return pings.stop()
    except TrialError as error:
        emit(Broken(f"{error}; this move has no figures of clients"))
        return {name: np.zeros((0, len(COLUMNS[name])), np.int64) for name in ("pings", "announced")}


def watcher(emit: Emit) -> Callable[[Progress], None]:
    """Tells now and then how far a long move is."""
    last = time.monotonic()

    def watch(look: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > WATCH_S:
            last = time.monotonic()
            emit(Doing(_text(look)))

    return watch


def _text(look: Progress) -> str:
    """How far a move is. From the second pass on, also how much changes and is sent, which decides whether it ends."""
    what = f"pass {look.passes}" if look.passes else "copying disks"
    text = f"{what}: {units.format_bytes(look.sent)} sent, {units.format_bytes(look.left)} left"
    if not look.dirty_rate or not look.rate:
        return text
    return f"{text}; {units.format_bytes(look.dirty_rate)}/s change, {units.format_bytes(look.rate)}/s are sent"
