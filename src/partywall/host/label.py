"""Labels of runs: a folder for each run below a state folder, and an environment variable in every process.

The folder identifies the controller by process ID and start time. A run whose controller has died can then be
distinguished from an active one, even after the ID was reused.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import Problem, UsageError
from partywall.files import stat_fields, write_whole

VARIABLE = "PARTYWALL_RUN"
# Disk kernels need a disk, and /tmp is often in memory.
WORK_ROOT = Path("/var/tmp")  # noqa: S108 - the run creates its own folder in it
_OWN = "$PARTYWALL_STATE to a folder that only you can write to"


def start_ticks(pid: int, proc: str = "/proc") -> int | None:
    """When process `pid` started, in clock ticks since boot; None if it does not exist or is a zombie."""
    fields = stat_fields(f"{proc}/{pid}/stat")
    return None if not fields or fields[0] == "Z" else int(fields[19])


def state_root() -> Path:
    """Folder for the state of runs: /run/partywall for root, or else one of the user's own.

    Its contents are trusted, even for deleting folders. UsageError if another user may write there.
    """
    root = _state_path()
    if os.path.lexists(root) and (why := not_ours(root)):
        remedy = f"check its contents, then remove it or make it private (chmod 700 {root}), or set {_OWN}"
        raise UsageError(Problem(f"{why}; the state of runs needs a private folder", remedy, str(root)))
    return root


def made_state_root() -> Path:
    """Like `state_root`, but creates the folder."""
    root = _state_path()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(Problem(f"cannot be made: {error.strerror}", f"set {_OWN}", str(root))) from None
    return state_root()


def not_ours(folder: Path) -> str:
    """Why the contents of a folder cannot be trusted; empty if only this user can write there."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "is a symbolic link" if stat.S_ISLNK(status.st_mode) else "is not a folder"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    return "may be written to by others" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _state_path() -> Path:
    if given := os.environ.get("PARTYWALL_STATE"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/partywall")
    return Path(os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())) / f"partywall-{os.geteuid()}"


def work_name(run: str) -> str:
    """The name of the folder for a run's files, in any location."""
    return f"partywall-{run}"


@dataclass(frozen=True)
class Label:
    """A run's identity on the host. work: a folder on a real disk, for files of its disk kernels."""

    run: str
    state: Path
    work: Path

    @classmethod
    def create(cls, run: str, work_root: Path) -> Label:
        """Creates the folders of run `run`. This process is the owner."""
        label = cls(run=run, state=made_state_root() / run, work=work_root / work_name(run))
        try:
            label.state.mkdir(mode=0o700)
        except OSError as error:
            raise UsageError(Problem(f"cannot be made: {error.strerror}", f"set {_OWN}", str(label.state))) from None
        work = str(label.work.absolute())
        owner = {"run": run, "pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "work": work}
        # Written before anything is created that clean-up would have to find.
        write_whole(label.state / "owner.json", json.dumps(owner))
        label.work.mkdir(parents=True, mode=0o700)
        return label

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of every process of the run."""
        return {VARIABLE: self.run}

    @property
    def cgroup(self) -> str:
        """Parent of the cgroups of the run's containers, the same in every hierarchy."""
        return f"/partywall/{self.run}"
