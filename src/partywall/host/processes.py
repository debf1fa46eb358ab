"""Ends programs that Partywall started, with everything that they started themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess


def end_group(
    process: subprocess.Popen[bytes] | subprocess.Popen[str],
    patience_s: float,
    first: signal.Signals = signal.SIGTERM,
) -> None:
    """Ends the process group that a process leads, with SIGKILL if `first` has not ended the process in time.

    A script that starts a program leads the program's group, and may still run itself.
    """
    for wanted in (first, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, wanted)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return
