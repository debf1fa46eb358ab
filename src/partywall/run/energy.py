"""Saving energy, which makes CPUs slower now and then: left on, or off, for as long as something is measured.

On: their clock's governor lets it fall, and idle CPUs sleep, as they do anyhow. Off: it never falls, and they poll.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from partywall.run import governor, idle

Saving = Literal["on", "off"]


def why_not(saving: Saving) -> tuple[str, ...]:
    """What of it cannot be had on this host, and why; empty if all can."""
    if saving == "on":
        reasons = [governor.why_not("saving")]
    else:
        reasons = [governor.why_not("performance"), idle.why_not() and f"idle CPUs cannot poll: {idle.why_not()}"]
    return tuple(filter(None, reasons))


@contextlib.contextmanager
def held(saving: Saving | None) -> Iterator[None]:
    """As far as it can be had while the block runs; as the host has it for None."""
    kind = {None: None, "on": "saving", "off": "performance"}[saving]
    polled = idle.polled() if saving == "off" and not idle.why_not() else contextlib.nullcontext()
    with governor.held(kind), polled:
        yield
