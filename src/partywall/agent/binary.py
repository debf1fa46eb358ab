"""Finds the agent's executable, and says how to get one: by building it in a clone, or otherwise with the package."""

from __future__ import annotations

import os
import shutil
from importlib import resources
from pathlib import Path

from partywall.errors import CapabilityError

NAME = "partywall-agent"
PACKAGE = Path(str(resources.files("partywall")))


def remedy(package: Path = PACKAGE) -> str:
    """How the user of the controller in `package` can get a working agent."""
    if (package.parents[1] / "agent" / "Cargo.toml").is_file():
        get = "build it with 'make build'"
    else:
        get = "install Partywall's wheel for this machine again (pip install --force-reinstall)"
    return f"{get} or set $PARTYWALL_AGENT to its path"


def find() -> Path:
    """The agent: $PARTYWALL_AGENT, or the one packaged with the controller, or the one on the PATH."""
    if given := os.environ.get("PARTYWALL_AGENT"):
        return _executable(Path(given), "$PARTYWALL_AGENT")
    packaged = PACKAGE / "_bin" / NAME
    if packaged.exists():
        return _executable(packaged, "the packaged agent")
    if on_path := shutil.which(NAME):
        return Path(on_path)
    raise CapabilityError(f"{NAME} was not found, so nothing can be measured; {remedy()}")


def _executable(path: Path, what: str) -> Path:
    if not os.access(path, os.X_OK) or path.is_dir():
        raise CapabilityError(f"{what}, {path}, cannot be executed; {remedy()}")
    return path.resolve()
