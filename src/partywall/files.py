"""Small files that are replaced atomically, so that readers never see half a file.

Files that only grow are written line by line. A kill may lose at most their last line.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import IO, Any


def write_whole(path: Path, content: str | bytes, mode: int | None = None, *, durable: bool = False) -> None:
    """Replaces a file atomically. Readers, and a kill at any point, see either the old content or the new.

    mode: permissions whatever the umask, for a file that other users read. durable: also after a power failure. This
    waits for the disk, so it is for files that decide something later. A pipe or a device is written to.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return
    # The temporary name is unique to the thread, so two threads can write the same file at once.
    fresh = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            fresh.chmod(mode)
        if durable:
            replace_durably(fresh, path)
        else:
            fresh.replace(path)
    except OSError as error:
        # Users know the file and not its temporary name.
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        fresh.unlink(missing_ok=True)


def replace_durably(fresh: Path, path: Path) -> None:
    """Renames a file that was just written. Afterwards it is on the disk under its name, with all of its content."""
    _sync(fresh)
    fresh.replace(path)
    _sync(path.parent)


def replace_folder_durably(fresh: Path, path: Path) -> None:
    """Renames a folder that was just written, to a path where none is, as `replace_durably` does."""
    sync_below(fresh)
    fresh.rename(path)
    _sync(path.parent)


def sync_below(folder: Path) -> None:
    """Waits until a folder and all files below it are on the disk, with their content."""
    for place in (*folder.rglob("*"), folder):
        if not place.is_symlink():
            _sync(place)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def lines_of(path: Path) -> list[str]:
    """The lines of a text file of a user's in UTF-8, with or without a byte-order mark.

    Only line ends end a line. `str.splitlines` also splits at characters that a value may contain, such as U+2028.
    """
    return path.read_text(encoding="utf-8-sig").split("\n")


def kernel_text(path: str) -> str | None:
    """A whole file of the kernel's; None if it cannot be read. Takes a third of the time of Python's own files.

    Split it at line ends alone: names in it may contain whatever else `str.splitlines` takes for the end of a line.
    """
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


def stat_fields(path: str) -> list[str]:
    """The fields of the `stat` of a process or thread after its name, the state first; empty if it is gone.

    The name, in parentheses, may contain anything (proc_pid_stat(5)).
    """
    return (kernel_text(path) or "").rpartition(")")[2].split()


def decoded(line: bytes, begin: bytes = b"{") -> dict[str, Any] | None:
    """The object on a line. None for an empty or incomplete line; ValueError for any other.

    begin: the beginning of every line, which identifies an incomplete one.
    """
    # After a power failure, a file system may have reserved space for a line that it never wrote.
    if not line.strip(b" \t\r\n\0"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        if line.startswith(begin) or begin.startswith(line):
            return None
        raise ValueError("it is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - damage, not a mistake in the program
    return value
