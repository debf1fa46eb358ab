"""Small files that others may read at any moment: whole, or as they were before; and where files are cached.

Deliberately not here: files that only grow, of which a kill loses the last line at the most.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path


def cache_root() -> Path:
    """Folder for what is fetched once: $PARTYWALL_CACHE, /var/cache/partywall for root, else the user's own."""
    if given := os.environ.get("PARTYWALL_CACHE"):
        return Path(given)
    if os.geteuid() == 0:
        return Path("/var/cache/partywall")
    if own := os.environ.get("XDG_CACHE_HOME"):
        return Path(own) / "partywall"
    try:
        return Path.home() / ".cache" / "partywall"
    except RuntimeError:
        # A user without a name, as in many containers, has no home.
        return Path(tempfile.gettempdir()) / f"partywall-cache-{os.geteuid()}"


def write_whole(path: Path, content: str) -> None:
    """Puts a file in its place at once: no reader sees half of it, and whatever ends us leaves the one of before."""
    # A name of this thread's own: two that write the same file do not take each other's half.
    fresh = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        fresh.write_text(content, encoding="utf-8")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
