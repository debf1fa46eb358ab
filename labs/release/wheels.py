"""The wheels, the source archive, the script for CI and the checksums."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from labs.release.target import CLONE, Release, run

SCRIPTS = (CLONE / "packaging/action/compare.sh",)
"""What a pipeline downloads beside the wheel."""


def source(release: Release) -> None:
    run([sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", release.dist], release)


def wheel(release: Release, agent: Path) -> Path:
    """Writes the wheel that contains this agent, and returns its path."""
    before = set(release.dist.glob("*.whl"))
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", release.dist]
    run(argv, release, PARTYWALL_WHEEL_AGENT=str(agent))
    (made,) = set(release.dist.glob("*.whl")) - before
    return made


def scripts(release: Release) -> None:
    for script in SCRIPTS:
        shutil.copyfile(script, release.dist / script.name)


def checksums(release: Release) -> None:
    """In the format of sha256sum, whose -c checks them."""
    files = sorted(release.dist.iterdir())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (release.dist / "SHA256SUMS").write_text("".join(lines))
