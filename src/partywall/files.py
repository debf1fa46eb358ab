"""Small files that are replaced atomically, so that readers never see half a file; and the cache folder.

Files that only grow are written line by line. A kill may lose at most their last line.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import IO


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
        return Path(tempfile.gettempdir()) / f"partywall-cache-{os.geteuid()}"


def write_whole(path: Path, content: str, mode: int | None = None) -> None:
    """Replaces a file atomically. Readers, and a crash at any point, see either the old content or the new.

    mode: permissions whatever the umask, for a file that other users read.
    """
    # The temporary name is unique to the thread, so two threads can write the same file at once.
    fresh = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        fresh.write_text(content, encoding="utf-8")
        if mode is not None:
            fresh.chmod(mode)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def whole_lines(file: Path) -> IO[bytes]:
    """A file to append lines to. An incomplete line from a kill is ended first."""
    stream = file.open("ab+", buffering=0)
    if stream.seek(0, os.SEEK_END):
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\n":
            stream.write(b"\n")
    return stream


def append_whole(file: Path, line: bytes) -> None:
    """Appends one line to a file, which is created if it does not exist."""
    with whole_lines(file) as stream:
        stream.write(line + b"\n")


def kernel_text(path: str) -> str | None:
    """A whole file of the kernel's; None if it cannot be read. Takes a third of the time of Python's own files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
