"""Removes what runs with a dead controller left on this host: processes, containers, networks, cgroups and files.

A run is removed only if its owner is dead, and only objects with the run's label are touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError, TrialError
from partywall.host.label import VARIABLE, Label, not_ours, start_ticks, state_root, work_name
from partywall.sandbox import cgroups, delegation, hooks, measuring, networks, slow_disk
from partywall.sandbox.runtime import Runtime


@dataclass(frozen=True)
class Reaped:
    """The removed leftovers of one run, and those that could not be removed."""

    run: str
    removed: tuple[str, ...]
    left: tuple[str, ...]


def reap(*, forget: bool = False) -> list[Reaped]:
    """Cleans up after every dead run of this user. forget: see `clean`."""
    root = state_root()
    # Removes the files of dead ones.
    measuring.others()
    owners = sorted(root.glob("*/owner.json")) if root.is_dir() else []
    # A folder without an owner file was created a moment before its controller died, or is being created now. A folder
    # that others may write to is not trusted.
    owned = [(file.parent, owner) for file in owners if not not_ours(file.parent) and (owner := _owner(file))]
    return [clean(_label(folder, owner.work), forget=forget) for folder, owner in owned if not owner.is_alive]


def clean(label: Label, *, forget: bool = False) -> Reaped:
    """Removes everything of one run from the host, whoever owns it.

    forget: also the notes of domains that cannot be reached.
    """
    # Its backend stands on QEMU's, which uses this module to clean up after an image.
    from partywall.sandbox.libvirt import leftovers  # noqa: PLC0415

    # Its file is served by one of the processes.
    removed, left = slow_disk.remove(label)
    killed, alive = _kill_processes(label.run)
    removed += [f"process {pid}" for pid in killed]
    left += [f"process {pid}" for pid in alive]
    for remove in (hooks.remove, networks.remove, _delete_containers, leftovers.remove):
        done, not_done = remove(label)
        removed += done
        left += not_done
    cgroups_of = _cgroups(label)
    removed += _remove_cgroups(cgroups_of)
    _leave_scope(label)
    # Only the state folder knows what an unreachable daemon, a missing runtime or the kernel still has.
    for folder in (label.work, *(() if left and not forget else (label.state,))):
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            (left if folder.exists() else removed).append(str(folder))
    left += [str(path) for path in cgroups_of if path.exists()]
    return Reaped(label.run, tuple(removed), tuple(left))


@dataclass(frozen=True)
class _Owner:
    pid: int
    start_ticks: int
    work: Path

    @property
    def is_alive(self) -> bool:
        return start_ticks(self.pid) == self.start_ticks


def _owner(file: Path) -> _Owner | None:
    """The owner of a run; None if unknown, as while it is being created."""
    try:
        fields = json.loads(file.read_text())
        return _Owner(int(fields["pid"]), int(fields["start_ticks"]), Path(fields["work"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _label(state: Path, work: Path) -> Label:
    """work: as recorded. It will be deleted, so it is only trusted if it is named after the run."""
    return Label(run=state.name, state=state, work=work if work.name == work_name(state.name) else state / "work")


def _labelled(run: str) -> list[int]:
    wanted = f"{VARIABLE}={run}".encode()
    labelled = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) != os.getpid() and wanted in (folder / "environ").read_bytes().split(b"\0"):
                labelled.append(int(folder.name))
    return labelled


def _kill_processes(run: str) -> tuple[list[int], list[int]]:
    """(ended, still there). A process that waits for the kernel, or whose host is stuck, does not end at once."""
    killed: set[int] = set()
    deadline = time.monotonic() + 5
    # Repeated until none is found: a process may have started another between listing and killing.
    while (pids := _labelled(run)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= set(pids)
        time.sleep(0.02)
    return sorted(killed - set(pids)), sorted(pids)


def _delete_containers(label: Label) -> tuple[list[str], list[str]]:
    """(deleted, not deleted). Their processes are already dead."""
    names = [folder.name for folder in (label.state / "runtime").glob("*") if folder.is_dir()]
    if not names:
        return [], []
    try:
        runtime = Runtime.choose(label.state, cgroups.read(), prefer=os.environ.get("PARTYWALL_RUNTIME"))
    except CapabilityError as error:
        # Must not prevent the clean-up of other runs, or any command.
        return [], [f"container {name} ({error})" for name in names]
    deleted, left = [], []
    for name in names:
        try:
            runtime.run("delete", "--force", name)
        except TrialError as error:
            left.append(f"container {name} ({error})")
        else:
            deleted.append(f"container {name}")
    return deleted, left


def _cgroups(label: Label) -> list[Path]:
    """The folders of a run's cgroups, if any."""
    mounted = cgroups.read()
    scope = delegation.noted(label, mounted)
    return [scope.folder / label.cgroup.lstrip("/")] if scope else mounted.paths(label.cgroup)


def _leave_scope(label: Label) -> None:
    if scope := delegation.noted(label, cgroups.read()):
        scope.leave(label)


def _remove_cgroups(paths: Sequence[Path]) -> list[str]:
    removed = []
    for path in paths:
        folders = sorted((p for p in path.rglob("*") if p.is_dir()), reverse=True) if path.is_dir() else []
        everything = [*folders, *([path] if path.is_dir() else [])]
        removed += [f"cgroup {folder}" for folder in everything if _remove_cgroup(folder)]
        # The parent of all runs is removed with the last of them.
        with contextlib.suppress(OSError):
            path.parent.rmdir()
    return removed


def _remove_cgroup(folder: Path) -> bool:
    # A cgroup stays busy for a moment after its last process has died.
    for _ in range(100):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return False
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False
