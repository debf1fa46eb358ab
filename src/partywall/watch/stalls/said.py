"""The lines that a watch writes when a stall begins and ends. Pure."""

from __future__ import annotations

import time

from partywall import units
from partywall.watch.stalls.detect import Stall
from partywall.watch.stalls.rule import HOST, ITSELF, OTHER, UNKNOWN

FOR = {"cpu": "a CPU", "memory": "memory", "disk": "a disk"}
NAMED = 3
SUSPECTS = {
    ITSELF: "its own limit or tasks",
    HOST: "work outside of watched groups",
    UNKNOWN: "unknown",
    OTHER: "other groups",
}


def sentence(stall: Stall, at_ns: int) -> str:
    """That a stall has begun or ended, how long it was, and by whose use. at_ns: since the epoch."""
    clock = time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))
    waited, whole = sum(stall.parts_ns.values()), stall.length_ns
    verb = "waited" if stall.has_ended else "waits"
    share = f"{100 * waited / whole:.0f} % of {units.format_duration(whole)}"
    parts = [
        f"{SUSPECTS.get(suspect, suspect)} {100 * part_ns / waited:.0f} %"
        for suspect, part_ns in stall.largest[:NAMED]
        if part_ns >= 0.005 * waited
    ]
    ends = "ended: " if stall.has_ended else ""
    return f"{clock} {ends}{stall.victim} {verb} for {FOR[stall.resource]}, {share}. By use: {', '.join(parts)}."
