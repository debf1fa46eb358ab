"""The folder for what can be made again, such as kernels and root images of guests."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from partywall.errors import Problem, UsageError


def cache_root() -> Path:
    """The cache folder: $PARTYWALL_CACHE, /var/cache/partywall for root, or the user's own cache."""
    if given := os.environ.get("PARTYWALL_CACHE"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/cache/partywall")
    if own := os.environ.get("XDG_CACHE_HOME"):
        return Path(own) / "partywall"
    try:
        return Path.home() / ".cache" / "partywall"
    except RuntimeError:
        # A user without an entry in passwd, as in many containers, has no home.
        return _own(Path(tempfile.gettempdir()) / f"partywall-cache-{os.geteuid()}")


def _own(folder: Path) -> Path:
    """A folder in a place where everybody may make one. UsageError if it is not this user's alone.

    Kernels and root images of guests are taken from it.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        remedy = "remove it, or set PARTYWALL_CACHE to a folder of your own"
        raise UsageError(Problem(f"{folder} is not a folder that only you can write to", remedy))
    return folder
