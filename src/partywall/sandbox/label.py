"""What belongs to which run: a folder per run under a state folder, and an environment variable in every process.

The folder names the controller by process number and start time, so that a run whose controller has died is told from
one that is at work, even after the number was used again.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import Problem, UsageError

VARIABLE = "PARTYWALL_RUN"


def start_ticks(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None if there is none. A zombie counts as dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def state_root() -> Path:
    """Folder for the state of runs: /run/partywall for root, else one of the user's own."""
    if given := os.environ.get("PARTYWALL_STATE"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/run/partywall")
    return Path(os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())) / f"partywall-{os.geteuid()}"


@dataclass(frozen=True)
class Label:
    """A run's identity on the host. work: folder on a real disk for the files of its disk kernels."""

    run: str
    state: Path
    work: Path

    @classmethod
    def create(cls, run: str, work_root: Path) -> Label:
        """Makes the folders of run `run`; the owner is this process."""
        label = cls(run=run, state=state_root() / run, work=work_root / f"partywall-{run}")
        try:
            label.state.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise UsageError(
                Problem(
                    f"cannot be made: {error.strerror}", "set $PARTYWALL_STATE to a folder of yours", str(label.state)
                )
            ) from None
        owner = {"run": run, "pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "work": str(label.work)}
        # Written before anything is made that would have to be found again.
        (label.state / "owner.json").write_text(json.dumps(owner))
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
