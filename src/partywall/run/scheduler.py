"""Changes the I/O scheduler of the disk with a run's files, for the time of a turn.

The original scheduler is stored before the change, so that the next start restores it if this process is killed.
Changing it waits until the requests in the disk's queue are done. Source: Documentation/block/switching-sched.rst.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from partywall.errors import TrialError
from partywall.files import write_whole
from partywall.host import Host
from partywall.sandbox import WORK_ROOT, block
from partywall.sandbox.label import made_state_root, start_ticks, state_root

KEY = "host.io_scheduler"
NAMES = ("none", "mq-deadline", "bfq", "kyber")
STATE = "io-scheduler.json"


def offered(file: Path) -> tuple[str, ...]:
    """The schedulers that the kernel offers for a disk, the present one first; empty if it has none to choose."""
    try:
        words = file.read_text().split()
    except OSError:
        return ()
    present = [word.strip("[]") for word in words if word.startswith("[")]
    return (*present, *(word for word in words if not word.startswith("[")))


def setting(folder: Path, root: Path = Path("/")) -> Path | None:
    """The kernel's file with the scheduler of the disk of a folder's files; None if it has none to choose."""
    device = block.device_of(folder, root)
    if device is None:
        return None
    file = root / "sys/dev/block" / f"{device[0]}:{device[1]}" / "queue/scheduler"
    return file if file.exists() else None


def why_not(names: Iterable[str], folder: Path, host: Host) -> str:
    """Why the disk of a folder cannot have these schedulers, with a remedy; empty if it can."""
    file = setting(folder, host.root)
    if file is None:
        return f"{folder} is on no disk with an I/O scheduler; give a folder on one with --work-dir"
    known = offered(file)
    if missing := [name for name in names if name not in known]:
        return (
            f"the kernel offers {', '.join(sorted(known))} for the disk of {folder}, and not {', '.join(missing)}; "
            f"load its module (modprobe {_module(missing[0])}), or leave it out"
        )
    return "" if host.euid == 0 else "changing the I/O scheduler of a disk needs root; run with sudo"


def refused(host: Host, folder: Path = WORK_ROOT) -> dict[str, str]:
    """Why schedulers are not available for the disk of a folder, by their name; without available ones."""
    return {name: why for name in NAMES if (why := why_not([name], folder, host))}


def _module(name: str) -> str:
    return {"kyber": "kyber-iosched"}.get(name, name)


@contextlib.contextmanager
def held(name: str | None, folder: Path) -> Iterator[None]:
    """Gives the disk of a folder a scheduler while the block runs. No change for None.

    TrialError if the kernel refuses it.
    """
    file = None if name is None else setting(folder)
    if name is None:
        yield
        return
    if file is None:
        raise TrialError(f"{folder} is no longer on a disk with an I/O scheduler")
    state = made_state_root() / STATE
    if (other := _left(state)) and other["pid"] != os.getpid() and _is_alive(other):
        raise TrialError(f"process {other['pid']} has set the I/O scheduler of a disk already; wait until its run ends")
    put_back()
    before = offered(file)[0]
    own = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "file": str(file), "before": before}
    # Stored before the change, so that it can be restored.
    write_whole(state, json.dumps(own))
    try:
        try:
            file.write_text(name)
        except OSError as error:
            raise TrialError(f"{file}: the kernel refuses {name}: {error.strerror}") from error
        yield
    finally:
        _put_back(state, file, before)


def put_back() -> bool:
    """Restores the scheduler that a killed process left changed. Returns whether there was one."""
    state = state_root() / STATE
    left = _left(state)
    if left is None or _is_alive(left):
        return False
    _put_back(state, Path(left["file"]), left["before"])
    return True


def _left(state: Path) -> dict[str, Any] | None:
    try:
        left: dict[str, Any] = json.loads(state.read_text())
    except (OSError, ValueError):
        return None
    return left


def _is_alive(left: Mapping[str, Any]) -> bool:
    return bool(start_ticks(left["pid"]) == left["start_ticks"])


def _put_back(state: Path, file: Path, before: str) -> None:
    # The disk may be gone.
    with contextlib.suppress(OSError):
        file.write_text(before)
    state.unlink(missing_ok=True)
