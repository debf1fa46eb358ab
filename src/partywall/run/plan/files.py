"""The user's own files for commands: read and hashed before a run, and compared before it is resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from partywall import units
from partywall.errors import Problem, UsageError
from partywall.run.document.scenario import Scenario, Workload
from partywall.run.plan.requirements import workloads
from partywall.sandbox import own_files
from partywall.sandbox.document import FILES_BYTES_MAX, File


def with_files(scenario: Scenario, folder: Path) -> Scenario:
    """The scenario with path, size and hash of each file. Their paths are relative to `folder`.

    UsageError with all files that cannot be copied, or not be started.
    """
    made: dict[str, dict[str, Any]] = {"victims": dict(scenario.victims), "aggressors": dict(scenario.aggressors)}
    problems: list[Problem] = []
    for key, workload in workloads(scenario).items():
        kind, _, name = key.partition(".")
        read: list[File] = []
        for index, file in enumerate(workload.files):
            result = _read(file, folder, workload, f"{key}.files[{index}]")
            if isinstance(result, File):
                read.append(result)
            else:
                problems.append(result)
        if (total := sum(file.size or 0 for file in read)) > FILES_BYTES_MAX:
            message = f"the files have {units.format_bytes(total)}, more than {units.format_bytes(FILES_BYTES_MAX)}"
            problems.append(Problem(message, "leave out what the command does not need", key=f"{key}.files"))
        made[kind][name] = workload.model_copy(update={"files": tuple(read)})
    if problems:
        raise UsageError(*problems)
    return scenario.model_copy(update=made)


def check_files(scenario: Scenario) -> None:
    """UsageError that names every file of a planned scenario that is no longer as it was planned."""
    problems = [
        Problem(why, "restore it, or start a new run", key=f"{key}.files[{index}]")
        for key, workload in workloads(scenario).items()
        for index, file in enumerate(workload.files)
        if (why := own_files.changed(file))
    ]
    if problems:
        raise UsageError(*problems)


def _read(file: File, folder: Path, workload: Workload, key: str) -> File | Problem:
    """A file with what it holds now, or why it cannot be copied, or not be started."""
    if file.model_fields_set & {"path", "size", "sha256"}:
        return Problem("path, size and sha256 are read from the file and cannot be given", "leave them out", key=key)
    path = str(folder / file.source)
    try:
        path = os.path.realpath(path)
        size, sha256 = own_files.read(path)
        executable = bool(Path(path).stat().st_mode & 0o111) if file.executable is None else file.executable
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{file.source[:200]!r}: {error}"
        remedy = f"give the path of a regular file of at most {units.format_bytes(FILES_BYTES_MAX)} that you may read, "
        return Problem(f"{path[:200]} cannot be read: {why}", f"{remedy}relative to the scenario", key=key)
    if not executable and any(argv and argv[0] == f"./{file.name}" for argv in (workload.command, workload.version)):
        remedy = f"add executable: true to the file, or use chmod +x {path}"
        return Problem(f"./{file.name} cannot be started, because {path} is not executable", remedy, key=key)
    return file.model_copy(update={"path": path, "size": size, "sha256": sha256, "executable": executable})
