"""The rate of this host's time-stamp counter, which QEMU shows to the guests that it emulates."""

from __future__ import annotations

import functools
import subprocess

from partywall.agent import binary

DEADLINE_S = 10.0


@functools.cache
def khz() -> int | None:
    """None where processors have no such counter, or the agent could not tell."""
    try:
        told = subprocess.run([binary.find(), "tsc"], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return int(told.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
