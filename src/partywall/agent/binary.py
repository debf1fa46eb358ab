"""Finds the agent's executable."""

from __future__ import annotations

import os
import shutil
from importlib import resources
from pathlib import Path

from partywall.errors import CapabilityError

NAME = "partywall-agent"


def find() -> Path:
    """The agent: $PARTYWALL_AGENT, else the one packaged with the controller, else the one on the PATH."""
    if given := os.environ.get("PARTYWALL_AGENT"):
        return _executable(Path(given), "$PARTYWALL_AGENT")
    packaged = Path(str(resources.files("partywall"))) / "_bin" / NAME
    if packaged.exists():
        return _executable(packaged, "the packaged agent")
    if on_path := shutil.which(NAME):
        return Path(on_path)
    raise CapabilityError(
        f"{NAME} was not found, so nothing can be measured; "
        "build it with 'make build' or set $PARTYWALL_AGENT to its path"
    )


def _executable(path: Path, what: str) -> Path:
    if not os.access(path, os.X_OK) or path.is_dir():
        raise CapabilityError(
            f"{what}, {path}, cannot be executed; build it with 'make build' or set $PARTYWALL_AGENT to its path"
        )
    return path.resolve()
