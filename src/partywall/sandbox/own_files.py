"""Files of the user's for a command, copied into a folder of this host that a sandbox gets.

Each copy is compared with what was planned, so that all trials of a run, and of a resumed one, have the same files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from partywall.errors import TrialError
from partywall.model.scenario import File


def content(file: File) -> bytes:
    """The content of a planned file. TrialError, which a retry would repeat, if it is no longer as it was planned."""
    remedy = "restore it, or start a new run"
    try:
        data = Path(file.path or file.source).read_bytes()
    except OSError as error:
        raise TrialError(f"{error.filename}: cannot be read: {error.strerror}; {remedy}", is_lasting=True) from error
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise TrialError(f"{file.path}: it has changed since the run was planned; {remedy}", is_lasting=True)
    return data


def place(files: Sequence[File], folder: Path) -> None:
    """Copies them into an existing folder. TrialError if one has changed or cannot be written."""
    for file in files:
        data, to = content(file), folder / file.name
        try:
            # A command of an earlier trial may have left anything there, such as a link to a file of the host.
            to.unlink(missing_ok=True)
            with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as copy:
                copy.write(data)
                os.fchmod(copy.fileno(), mode(file))
        except OSError as error:
            raise TrialError(f"{to}: the copy of {file.path} cannot be written: {error.strerror}") from error


def mode(file: File) -> int:
    """Permissions of a copy: only for its sandbox's user."""
    return 0o700 if file.executable else 0o600
