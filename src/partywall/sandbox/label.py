"""What belongs to which run: a folder per run under a state folder, and an environment variable in every process.

The folder names the controller by process number and start time, so that a run whose controller has died is told from
one that is at work, even after the number was used again.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import Problem, UsageError
from partywall.files import write_whole

VARIABLE = "PARTYWALL_RUN"
# Disk kernels must meet a disk: /tmp is often memory.
WORK_ROOT = Path("/var/tmp")  # noqa: S108 - a folder of the run's own is made in it
_OWN = "$PARTYWALL_STATE to a folder of yours"


def start_ticks(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None if there is none. A zombie counts as dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def state_root() -> Path:
    """Folder for the state of runs: /run/partywall for root, else one of the user's own.

    What stands in it is believed, to the point of deleting folders: UsageError if somebody else may write there.
    """
    root = _state_path()
    if os.path.lexists(root) and (why := not_ours(root)):
        remedy = f"see what it holds, then remove it or make it yours alone (chmod 700 {root}), or set {_OWN}"
        raise UsageError(Problem(f"{why}; the state of runs is kept in a folder of yours alone", remedy, str(root)))
    return root


def made_state_root() -> Path:
    """The same, and it is there."""
    root = _state_path()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise UsageError(Problem(f"cannot be made: {error.strerror}", f"set {_OWN}", str(root))) from None
    return state_root()


def not_ours(folder: Path) -> str:
    """Why what stands in a folder may be somebody else's word; nothing if only this user can write there."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "is a symbolic link" if stat.S_ISLNK(found.st_mode) else "is not a folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}"
    return "may be written to by others" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _state_path() -> Path:
    if given := os.environ.get("PARTYWALL_STATE"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/partywall")
    return Path(os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())) / f"partywall-{os.geteuid()}"


def work_name(run: str) -> str:
    """What the folder of a run's files is called, wherever it lies."""
    return f"partywall-{run}"


@dataclass(frozen=True)
class Label:
    """A run's identity on the host. work: folder on a real disk for the files of its disk kernels."""

    run: str
    state: Path
    work: Path

    @classmethod
    def create(cls, run: str, work_root: Path) -> Label:
        """Makes the folders of run `run`; the owner is this process."""
        label = cls(run=run, state=made_state_root() / run, work=work_root / work_name(run))
        try:
            label.state.mkdir(mode=0o700)
        except OSError as error:
            raise UsageError(Problem(f"cannot be made: {error.strerror}", f"set {_OWN}", str(label.state))) from None
        work = str(label.work.absolute())
        owner = {"run": run, "pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "work": work}
        # Written before anything is made that would have to be found again.
        write_whole(label.state / "owner.json", json.dumps(owner))
        label.work.mkdir(parents=True, mode=0o700)
        return label

    @property
    def environment(self) -> dict[str, str]:
        """What every process of the run carries."""
        return {VARIABLE: self.run}

    @property
    def cgroup(self) -> str:
        """Parent of the cgroups of the run's containers, the same in every hierarchy."""
        return f"/partywall/{self.run}"
