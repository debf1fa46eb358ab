"""Changes files of the host for a limited time.

The original contents are stored before the change, so that the next start restores them if this process is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from partywall.errors import TrialError
from partywall.files import write_whole
from partywall.host.label import made_state_root, start_ticks, state_root

SMT, IO_SCHEDULER, GOVERNOR, LEVERS = "smt.json", "io-scheduler.json", "governor.json", "levers.json"
STATES = (SMT, IO_SCHEDULER, GOVERNOR, LEVERS)
"""One file for each kind of change, in the order of restoring: a CPU that is offline has no governor."""


@contextlib.contextmanager
def changed(
    state: str, what: str, changes: Mapping[Path, str], before: Callable[[], Mapping[Path, str]]
) -> Iterator[None]:
    """Writes `changes` to the host's files while the block runs, and afterwards what `before` returned, in its order.

    state: one of STATES. what: what is changed, for messages. TrialError if another process has changed it already, or
    if the kernel refuses.
    """
    file = made_state_root() / state
    if (other := _left(file)) and other["pid"] != os.getpid() and _is_alive(other):
        raise TrialError(f"process {other['pid']} has set {what} already; wait until its run ends")
    put_back()
    # Read only now, because a process killed meanwhile may have left other contents.
    contents = {str(path): text for path, text in before().items()}
    own = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "before": contents}
    # Stored before the change, so that it can be restored.
    write_whole(file, json.dumps(own))
    try:
        for path, text in changes.items():
            try:
                path.write_text(text)
            except OSError as error:
                raise TrialError(f"{path}: the kernel refuses {text}: {error.strerror}") from error
        yield
    finally:
        _put_back(file, contents)


def put_back() -> bool:
    """Restores everything that a killed process left changed. Returns whether there was anything."""
    was_left = False
    for state in STATES:
        file = state_root() / state
        left = _left(file)
        if left is not None and not _is_alive(left):
            _put_back(file, left["before"])
            was_left = True
    return was_left


def _left(state: Path) -> dict[str, Any] | None:
    """What a process stored; None if there is nothing."""
    try:
        left = json.loads(state.read_text())
    except (OSError, ValueError):
        return None
    return left if isinstance(left.get("before"), dict) else None


def _is_alive(left: Mapping[str, Any]) -> bool:
    return bool(start_ticks(left["pid"]) == left["start_ticks"])


def _put_back(state: Path, before: Mapping[str, str]) -> None:
    for file, text in before.items():
        # A disk or a CPU may be gone.
        with contextlib.suppress(OSError):
            Path(file).write_text(text)
    state.unlink(missing_ok=True)
