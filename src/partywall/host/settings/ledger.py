"""Changes files of the host for a limited time.

The original contents are stored before the change, so that the next start restores them if this process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
    if left := put_back().left:
        raise TrialError(f"an earlier run's changes could not be undone: {'; '.join(left)}")
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
        if left := _put_back(file, own).left:
            raise TrialError(f"{what} could not be restored: {'; '.join(left)}")


@dataclass(frozen=True)
class Restored:
    """Files of the host that have their earlier contents again, and why the kernel refuses to restore others."""

    files: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def put_back(*, forget: bool = False) -> Restored:
    """Restores everything that killed processes left changed.

    What the kernel refuses is tried again by the next call. forget: it is forgotten instead.
    """
    files: list[str] = []
    left: list[str] = []
    for state in STATES:
        file = state_root() / state
        noted = _left(file)
        if noted is not None and not _is_alive(noted):
            restored = _put_back(file, noted)
            files += restored.files
            left += restored.left
            if forget:
                file.unlink(missing_ok=True)
    return Restored(tuple(files), tuple(left))


def _left(state: Path) -> dict[str, Any] | None:
    """What a process stored; None if there is nothing."""
    try:
        left = json.loads(state.read_text())
    except (OSError, ValueError):
        return None
    return left if isinstance(left.get("before"), dict) else None


def _is_alive(left: Mapping[str, Any]) -> bool:
    return bool(start_ticks(left["pid"]) == left["start_ticks"])


def _put_back(state: Path, noted: Mapping[str, Any]) -> Restored:
    files: list[str] = []
    left: dict[str, str] = {}
    for file, text in noted["before"].items():
        try:
            Path(file).write_text(text)
        except OSError as error:
            # A disk, a CPU or a group may be gone, with its file.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
                left[file] = f"{file}: the kernel refuses {text.strip()}: {error.strerror}"
        else:
            files.append(file)
    if left:
        write_whole(state, json.dumps({**noted, "before": {file: noted["before"][file] for file in left}}))
    else:
        state.unlink(missing_ok=True)
    return Restored(tuple(files), tuple(left.values()))
