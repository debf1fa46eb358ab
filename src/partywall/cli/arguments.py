"""Arguments and their help that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from partywall import units
from partywall.errors import Problem, UsageError, parsed, parsed_above_zero
from partywall.files import write_whole

SEED_MOST = 2**63 - 1
"""The same limit as in a scenario."""

ScenarioName = Annotated[
    str,
    typer.Argument(
        help="A scenario file, or the name of one that ships with Partywall (see: partywall scenario list)."
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run directory, as printed by 'partywall run'.")]

WaitForMemory = Annotated[
    str | None,
    typer.Option(
        help="How long to wait until there is enough free memory, e.g. 5min. By default, and at least, 10 s.",
        metavar="TIME",
    ),
]


Wait = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait until no other measurement runs on this host. Without it, a warning names the other one."
    ),
]


WorkDir = Annotated[
    Path, typer.Option(help="Folder for the files of disk kernels, on the disk to be measured.", show_default=True)
]
Cpus = Annotated[str | None, typer.Option(help="CPUs to run on, e.g. 0,2-3. Default: all allowed CPUs.")]


PrometheusFile = Annotated[
    Path | None,
    typer.Option("--prometheus", help="Write metrics to this file, for node_exporter's textfile collector."),
]


def memory_wait_ns(text: str | None) -> int:
    """The value of --wait-for-memory; 0 if it is not given."""
    return 0 if text is None else duration_ns("--wait-for-memory", text, "5min")


def duration_ns(option: str, text: str, example: str = "10s") -> int:
    """The value of an option that must be greater than 0. UsageError that names the option if it is not."""
    return parsed_above_zero(option, text, units.parse_duration_ns, example)


def allowed_cpus(text: str | None) -> tuple[int, ...]:
    """The CPUs of --cpus, or all that this process may use. UsageError for CPUs that it may not use."""
    allowed = os.sched_getaffinity(0)
    chosen = tuple(sorted(allowed)) if text is None else parsed("--cpus", text, units.parse_cpus)
    if missing := set(chosen) - allowed:
        there = ", ".join(map(str, sorted(allowed)))
        raise UsageError(
            Problem(f"CPU {min(missing)} is not online or not allowed here", f"there are {there}", key="--cpus")
        )
    return chosen


def write_metrics(file: Path, text: str) -> None:
    """Replaces the metrics file. node_exporter runs as another user, so it may read the file whatever the umask."""
    write_whole(file, text, mode=0o644)


def check_metrics_file(file: Path) -> None:
    """UsageError if the metrics file cannot be written. Called before anything is changed on the host."""
    folder = file.parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        why = "is a folder" if file.is_dir() else f"cannot be written: {folder} is not a folder that you can write to"
        raise UsageError(Problem(f"{file} {why}", "make the folder, or give another file", key="--prometheus"))
