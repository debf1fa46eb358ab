"""The rate of this host's time-stamp counter, which QEMU exposes to emulated guests."""

from __future__ import annotations

import functools
import subprocess

from partywall.agent import binary

DEADLINE_S = 10.0


@functools.cache
def khz() -> int | None:
    """The rate in kHz; None if processors have no such counter, or the agent could not read it."""
    try:
        result = subprocess.run(
            [binary.find(), "tsc"], capture_output=True, text=True, errors="replace", timeout=DEADLINE_S, check=True
        )
        return int(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
