"""Puts settings back if the process that changed them dies or hangs. A process of its own, with the standard library.

Its input is one line of JSON: {"note": path, "pid": number, "before": {file: content}, "commands": [command, …]}, and
one of

- "patience_s": it then reads a byte for each step of the experiment. If none comes in time, or the input ends without a
  last `q`, it puts everything back. If it was only late, it says so with a byte on its output afterwards.
- "until": seconds since the epoch. It puts everything back then, or when it is told to end, and appends "line" to the
  file "record".

A command is {"argv": [word, …], "where": path}: it runs only while the path exists. Commands run first, then files.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

COMMAND_S = 20.0
STEP_S = 60.0
UNDONE = b"u"
ENDS = {signal.SIGTERM, signal.SIGINT}


def main() -> None:
    """Waits for the end of the input, or of the time."""
    # Also if whoever started it has not done so.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    stream = sys.stdin.fileno()
    if not (line := _line(stream)).endswith(b"\n"):
        # The other process died before it changed anything.
        return
    given = json.loads(line)
    if "until" in given:
        _wait_until(given["until"])
        _put_back(given)
        _append(given["record"], {**given["line"], "at_ns": time.time_ns()})
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        _watch(stream, given)


def _watch(stream: int, given: Mapping[str, Any]) -> None:
    patience_s = given["patience_s"]
    while True:
        ready, _, _ = select.select([stream], [], [], patience_s)
        if not ready:
            # Once, until it goes on.
            patience_s = None
            _undo(given)
            # Who is only late goes on, and must know that nothing is held any more.
            with contextlib.suppress(OSError):
                os.write(sys.stdout.fileno(), UNDONE)
        elif not (data := os.read(stream, 4096)):
            _put_back(given)
            return
        elif data.endswith(b"q"):
            return
        else:
            patience_s = given["patience_s"]


def _line(stream: int) -> bytes:
    out = b""
    while not out.endswith(b"\n") and (part := os.read(stream, 1)):
        out += part
    return out


def _wait_until(until: float) -> None:
    """Waits for a moment, or for a signal to end."""
    # In steps, because somebody may set the clock.
    while (left := until - time.time()) > 0:
        if signal.sigtimedwait(ENDS, min(STEP_S, left)) is not None:
            return


def _put_back(given: Mapping[str, Any]) -> None:
    # What fails stays noted, for the next start of Partywall.
    if _undo(given):
        _forget(given["note"], given["pid"])


def _undo(given: Mapping[str, Any]) -> bool:
    """False if a command failed."""
    failed = [why for command in given["commands"] if (why := run(command))]
    for file, text in given["before"].items():
        # A group may be gone.
        with contextlib.suppress(OSError), open(file, "w") as out:  # noqa: PTH123 - nothing else is imported
            out.write(text)
    return not failed


def run(command: Mapping[str, Any]) -> str:
    """Runs a command, and returns why it failed; empty if it did not, or if it has nothing to do any more."""
    argv: Sequence[str] = command["argv"]
    if not os.path.exists(command["where"]):  # noqa: PTH110
        return ""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv[0]}: {error}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return f"{' '.join(argv[:3])}: {said[-1] if said else f'exit status {done.returncode}'}" if done.returncode else ""


def _forget(note: str, pid: int) -> None:
    """Removes the note of the dead process. One that another process wrote stays."""
    with contextlib.suppress(OSError, ValueError, KeyError), open(note) as file:  # noqa: PTH123
        if json.load(file)["pid"] == pid:
            os.unlink(note)  # noqa: PTH108


def _append(record: str, line: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError), open(record, "a") as out:  # noqa: PTH123
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
