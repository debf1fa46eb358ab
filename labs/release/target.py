"""What is released, and for what: machines, distributions and the folders of one release."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from partywall.errors import CapabilityError, TrialError

CLONE = Path(__file__).parents[2]
TOOLS = CLONE / "packaging/.tools/bin"
"""Where `make release` installs uv and nfpm."""
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Distribution:
    """A release of a distribution. python: what its python3 is, which the package's compiled modules are for."""

    name: str
    python: str
    kind: Literal["deb", "rpm"]


DISTRIBUTIONS = (
    Distribution("deb12", "3.11", "deb"),
    Distribution("deb13", "3.13", "deb"),
    Distribution("py313", "3.13", "rpm"),
)


@dataclass(frozen=True)
class Release:
    """One release. epoch_s: the time of its commit. dist: what users get. build: everything else."""

    version: str
    epoch_s: int
    build: Path
    dist: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment of every tool: one time, one locale, and nothing of ours that changes what pip or uv do."""
        return os.environ | {"SOURCE_DATE_EPOCH": str(self.epoch_s), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def tool(name: str) -> Path:
    path = TOOLS / name
    if not path.exists():
        raise CapabilityError(f"{path} is missing: run 'make release', which installs it")
    return path


def run(argv: Sequence[str | Path], release: Release, cwd: Path = CLONE, **env: str) -> None:
    """TrialError with a program's last lines if it fails."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, cwd=cwd, env=release.env | env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise TrialError(f"{' '.join(words[:3])} ended with {done.returncode}: {' / '.join(said)}")
