"""Changes files of the host for a limited time.

The original contents are stored before the change, so that the next start restores them if this process is killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from partywall.errors import TrialError
from partywall.files import write_whole
from partywall.host.label import made_state_root, start_ticks, state_root
from partywall.host.settings import watchdog

SMT, IO_SCHEDULER, GOVERNOR, LEVERS = "smt.json", "io-scheduler.json", "governor.json", "levers.json"
STATES = (SMT, IO_SCHEDULER, GOVERNOR, LEVERS)
"""One file for each kind of change, in the order of restoring: a CPU that is offline has no governor."""
KEPT = "kept-*.json"
"""Files of changes that a process keeps until some time, by its number."""


class Command(NamedTuple):
    """A command that undoes a change. where: a path without which there is nothing to undo."""

    argv: tuple[str, ...]
    where: str


@dataclass(frozen=True)
class Undo:
    """How to undo changes: commands, then contents of files."""

    commands: tuple[Command, ...] = ()
    files: Mapping[Path, str] = field(default_factory=dict)

    def __add__(self, other: Undo) -> Undo:
        return Undo((*self.commands, *other.commands), {**self.files, **other.files})

    @property
    def noted(self) -> dict[str, Any]:
        """As a note and a watchdog have it."""
        commands = [{"argv": each.argv, "where": each.where} for each in self.commands]
        return {"before": {str(path): text for path, text in self.files.items()}, "commands": commands}


@contextlib.contextmanager
def changed(
    state: str,
    what: str,
    changes: Mapping[Path, str],
    before: Callable[[], Mapping[Path, str]],
    undo: Undo | None = None,
) -> Iterator[None]:
    """Writes `changes` to the host's files while the block runs, and afterwards what `before` returned, in its order.

    state: one of STATES. what: what is changed, for messages. undo: what the block changes itself, and how it is
    undone. TrialError if another process has changed it already, or if the kernel refuses.
    """
    file = made_state_root() / state
    if (other := _left(file)) and other["pid"] != os.getpid() and _is_alive(other):
        raise TrialError(f"process {other['pid']} has set {what} already; wait until its run ends")
    if left := put_back().left:
        raise TrialError(f"an earlier run's changes could not be undone: {'; '.join(left)}")
    # Read only now, because a process killed meanwhile may have left other contents.
    own = _note(os.getpid(), Undo(files=before()) + (undo or Undo()))
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


def _note(pid: int, undo: Undo) -> dict[str, Any]:
    return {"pid": pid, "start_ticks": start_ticks(pid), **undo.noted}


def keep(pid: int, undo: Undo) -> Path:
    """Notes a change that another process keeps and will undo, before it is made. Returns the note.

    If that process dies first, the next start of Partywall undoes it.
    """
    file = made_state_root() / KEPT.replace("*", str(pid))
    write_whole(file, json.dumps(_note(pid, undo)))
    return file


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
    root = state_root()
    for file in (*(root / state for state in STATES), *sorted(root.glob(KEPT))):
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
    # Notes of earlier versions have none.
    failed = [(each, why) for each in noted.get("commands", ()) if (why := watchdog.run(each))]
    for file, text in noted["before"].items():
        try:
            Path(file).write_text(text)
        except OSError as error:
            # A disk, a CPU or a group may be gone, with its file.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
                left[file] = f"{file}: the kernel refuses {text.strip()}: {error.strerror}"
        else:
            files.append(file)
    if left or failed:
        rest = {"before": {file: noted["before"][file] for file in left}, "commands": [each for each, _ in failed]}
        write_whole(state, json.dumps({**noted, **rest}))
    else:
        state.unlink(missing_ok=True)
    return Restored(tuple(files), (*left.values(), *(why for _, why in failed)))
