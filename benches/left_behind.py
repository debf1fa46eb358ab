"""What a user has on a host: processes, cgroups, namespaces, interfaces, and files in folders that all may write to.

`of` is taken before and after a command, and the difference is what came meanwhile. What a command starts and ends
itself goes again, so a difference counts only if it stays. A thing of another owner was made by others: a user without
root cannot make one, and other runs of Partywall may be under way on the same host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/sys/fs/bpf")
MANAGER = "run/user/{}/systemd"
OWN_NAME = "partywall"
STAYS_S = 5.0


@dataclass(frozen=True, order=True)
class Thing:
    """Something on the host. is_users: whether it is owned by the user that is looked at."""

    what: str
    is_users: bool

    def __str__(self) -> str:
        return self.what


def of(uid: int, own: Path, root: Path = Path("/")) -> set[Thing]:
    """All that is a user's, or named as Partywall names its own. own: a folder that is left out."""
    leftovers = (*_processes(uid, root), *_cgroups(uid, root), *_namespaces(uid, root), *_files(uid, own, root))
    return {*leftovers, *_interfaces(uid, root)}


def after(before: set[Thing], look: Callable[[], set[Thing]], within_s: float = STAYS_S) -> list[Thing]:
    """What is there now, was not before, and stays."""
    deadline = time.monotonic() + within_s
    left = look() - before
    while any(thing.is_users for thing in left) and time.monotonic() < deadline:
        time.sleep(0.2)
        left &= look()
    return sorted(left)


def _processes(uid: int, root: Path) -> Iterator[Thing]:
    """Of the user, but for this process. A network namespace that no name holds is one of these processes' own."""
    home = _link(root / "proc/self/ns/net")
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            if folder.stat().st_uid != uid or folder.name == str(os.getpid()):
                continue
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue
        yield Thing(f"process {folder.name} ({name})", is_users=True)
        if (space := _link(folder / "ns/net")) and space != home:
            yield Thing(f"network namespace {space} of a process", is_users=True)


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _cgroups(uid: int, root: Path) -> Iterator[Thing]:
    for folder, names, _ in os.walk(root / "sys/fs/cgroup"):
        for path in (Path(folder, name) for name in names if name.startswith(OWN_NAME)):
            yield Thing(f"cgroup {path}", is_users=_owner(path) == uid)


def _namespaces(uid: int, root: Path) -> Iterator[Thing]:
    for path in (root / "run/netns").glob("*"):
        yield Thing(f"network namespace {path.name}", is_users=_owner(path) == uid)


def _interfaces(uid: int, root: Path) -> Iterator[Thing]:
    """Only a tap tells its owner; no other interface can be made without root."""
    for path in (root / "sys/class/net").glob("*"):
        try:
            owner = int((path / "owner").read_text())
        except (OSError, ValueError):
            owner = -1
        yield Thing(f"interface {path.name}", is_users=owner == uid)


def _files(uid: int, own: Path, root: Path) -> Iterator[Thing]:
    for top in FOLDERS:
        for folder, folders, files in os.walk(root / top.lstrip("/")):
            # The user's systemd keeps units of its own, a folder for scopes among them.
            folders[:] = [name for name in folders if Path(folder, name) not in (own, root / MANAGER.format(uid))]
            for path in (Path(folder, name) for name in (*folders, *files)):
                owner = _owner(path)
                if owner is not None and (owner == uid or path.name.startswith(OWN_NAME)):
                    yield Thing(f"file {path}", is_users=owner == uid)
