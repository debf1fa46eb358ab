"""Files of the user's for a command: read for a plan, and copied into a folder of this host that a sandbox gets.

Each copy is compared with what was planned, so that all trials of a run, and of a resumed one, have the same files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from partywall import units
from partywall.errors import TrialError
from partywall.sandbox.document import FILES_BYTES_MAX, File

PART = 1 << 20
_REMEDY = "restore it, or start a new run"


def read(path: str, copy: IO[bytes] | None = None) -> tuple[int, str]:
    """Size and SHA-256 of a regular file, in parts, so that a large one needs no memory. copy: gets its content.

    OSError if it cannot be read. Reading what is no regular file, or only looks like one, might never end.
    """
    kind = Path(path).stat().st_mode
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, f"it is {'a directory' if stat.S_ISDIR(kind) else 'not a regular file'}", path)
    size, digest = 0, hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while part := os.read(descriptor, PART):
            size += len(part)
            if size > FILES_BYTES_MAX:
                raise OSError(errno.EFBIG, f"it has more than {units.format_bytes(FILES_BYTES_MAX)}", path)
            digest.update(part)
            if copy is not None:
                copy.write(part)
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def changed(file: File) -> str:
    """How a planned file has changed since; empty if it has not."""
    try:
        same = read(file.origin)[1] == file.sha256
    except OSError as error:
        return f"{file.origin} cannot be read: {error.strerror}"
    return "" if same else f"{file.origin} has changed since the run was planned"


def check(file: File) -> None:
    """TrialError, which a retry would repeat, if a planned file has changed since."""
    if why := changed(file):
        raise TrialError(f"{why}; {_REMEDY}", is_lasting=True)


def place(files: Sequence[File], folder: Path) -> None:
    """Makes a folder with copies of them and nothing else: a command of an earlier trial may have left anything there.

    TrialError if one has changed or cannot be written.
    """
    to = folder
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        for file in files:
            check(file)
            to = folder / file.name
            with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as copy:
                os.fchmod(copy.fileno(), mode(file))
                if read(file.origin, copy)[1] != file.sha256:
                    raise TrialError(f"{file.origin} has changed while it was copied; {_REMEDY}", is_lasting=True)
    except OSError as error:
        why = error.strerror or error
        raise TrialError(f"{to} cannot be written: {why}; give another folder with --work-dir") from error


def mode(file: File) -> int:
    """Permissions of a copy: only for its sandbox's user."""
    return 0o700 if file.executable else 0o600
