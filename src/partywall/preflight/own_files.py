"""The user's own files for commands: read and hashed before a run, and compared before it is resumed."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import Any

from partywall import units
from partywall.errors import Problem, UsageError
from partywall.model.scenario import FILES_BYTES_MAX, File, Scenario
from partywall.preflight.requirements import workloads

_READABLE = "give the path of a regular file that you may read, relative to the scenario"


def with_files(scenario: Scenario, folder: Path) -> Scenario:
    """The scenario with path, size and hash of each file. Their paths are relative to `folder`.

    UsageError with all files that cannot be copied.
    """
    changed: dict[str, dict[str, Any]] = {"victims": dict(scenario.victims), "aggressors": dict(scenario.aggressors)}
    problems: list[Problem] = []
    for key, workload in workloads(scenario).items():
        kind, _, name = key.partition(".")
        read: list[File] = []
        for index, file in enumerate(workload.files):
            result = _read(file, folder, f"{key}.files[{index}]")
            if isinstance(result, File):
                read.append(result)
            else:
                problems.append(result)
        if (total := sum(file.size or 0 for file in read)) > FILES_BYTES_MAX:
            message = f"the files have {units.format_bytes(total)}, more than {units.format_bytes(FILES_BYTES_MAX)}"
            problems.append(Problem(message, "leave out what the command does not need", key=f"{key}.files"))
        if read:
            changed[kind][name] = workload.model_copy(update={"files": tuple(read)})
    if problems:
        raise UsageError(*problems)
    return scenario.model_copy(update=changed)


def check_files(scenario: Scenario) -> None:
    """UsageError that names every file of a planned scenario that is no longer as it was planned."""
    problems = [
        Problem(why, "restore it, or start a new run", key=f"{key}.files[{index}]")
        for key, workload in workloads(scenario).items()
        for index, file in enumerate(workload.files)
        if (why := _changed(file))
    ]
    if problems:
        raise UsageError(*problems)


def _read(file: File, folder: Path, key: str) -> File | Problem:
    """A file with what it holds now, or why it cannot be copied."""
    path = folder / file.source
    try:
        path = path.resolve()
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            return Problem(f"{path} is {kind}", _READABLE, key=key)
        if status.st_size > FILES_BYTES_MAX:
            message = f"{path} has {units.format_bytes(status.st_size)}, more than "
            message += units.format_bytes(FILES_BYTES_MAX)
            return Problem(message, "give a smaller file, or have the command make it", key=key)
        sha256 = _hash(path)
    except OSError as error:
        return Problem(f"{path} cannot be read: {error.strerror}", _READABLE, key=key)
    except ValueError as error:
        return Problem(f"{file.source[:200]!r} cannot be a path: {error}", _READABLE, key=key)
    executable = bool(status.st_mode & 0o111) if file.executable is None else file.executable
    known = {"path": str(path), "size": status.st_size, "sha256": sha256, "executable": executable}
    return file.model_copy(update=known)


def _changed(file: File) -> str:
    """How a planned file has changed since; empty if it has not."""
    try:
        same = _hash(Path(file.path or file.source)) == file.sha256
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror}"
    return "" if same else f"{file.path} has changed since the run was planned"


def _hash(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
