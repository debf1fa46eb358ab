"""Shell completion for `partywall run`, `report`, `sql`, `compare` and `study`: names and records.

A key press must be answered at once. Nothing here imports the commands, their libraries or a YAML reader: light
stand-ins replace the commands while a shell requests a completion. Options are completed by the commands themselves,
see `partywall.cli.app`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

SHIPPED = Path(__file__).parent.parent / "scenarios"
SCENARIO_KEY = "partywall"
NO_NAMES = ("paper",)
"""Keys of shipped files that no command accepts."""

MARKS = (
    "plan.json",
    "load.json",
    "guard.json",
    "guard.jsonl",
    "trace.json",
    "migration.json",
    "power.json",
    "consolidation.json",
    "watch.json",
    "blame.json",
    "fleet.json",
    "study.json",
)
"""The files that identify a record, as in `partywall.kinds`. A test compares the two."""

PLACES = (".", "runs")
"""Where records are searched for while nothing has been typed. Commands create records in runs/."""


def scenarios(incomplete: str) -> list[str]:
    """Shipped scenarios, and the YAML files in the typed folder."""
    return _shipped(incomplete, lambda key: key == SCENARIO_KEY) + _files(incomplete)


def studies(incomplete: str) -> list[str]:
    """Shipped studies, and the YAML files in the typed folder."""
    return _shipped(incomplete, lambda key: key != SCENARIO_KEY and key not in NO_NAMES) + _files(incomplete)


def records(incomplete: str) -> list[str]:
    """Directories that are records, in the typed folder. If nothing has been typed: here and in runs/."""
    folders = [_folder(incomplete)] if "/" in incomplete else [Path(place) for place in PLACES]
    records_here = [
        str(path) for folder in folders for path in _entries(folder) if any((path / mark).is_file() for mark in MARKS)
    ]
    return [path for path in records_here if path.startswith(incomplete) or Path(path).name.startswith(incomplete)]


def _shipped(incomplete: str, wanted: Callable[[str], bool]) -> list[str]:
    files = sorted([*SHIPPED.glob("*.yaml"), *SHIPPED.glob("papers/*.yaml")])
    names = [str(file.relative_to(SHIPPED).with_suffix("")) for file in files if wanted(_first_key(file))]
    return [name for name in names if name.startswith(incomplete)]


def _first_key(file: Path) -> str:
    """Like `partywall.core.document.formats.first_key`, for files that are known to be valid."""
    lines = (line.partition("#")[0].rstrip() for line in file.read_text(encoding="utf-8").splitlines())
    return next((line for line in lines if line), "").partition(":")[0]


def _files(incomplete: str) -> list[str]:
    paths = (str(path) for path in _entries(_folder(incomplete)) if path.suffix in (".yaml", ".yml"))
    return [path for path in paths if path.startswith(incomplete)]


def _folder(incomplete: str) -> Path:
    """The folder typed so far. 'runs/' is a complete folder."""
    return Path(incomplete.rpartition("/")[0] or ("/" if incomplete.startswith("/") else "."))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _run(scenario: Annotated[str, typer.Argument(autocompletion=scenarios)] = "") -> None:
    """Stands in for `partywall run`."""


def _study(name: Annotated[str, typer.Argument(autocompletion=studies)] = "") -> None:
    """Stands in for `partywall study`."""


def _record(record: Annotated[str, typer.Argument(autocompletion=records)] = "") -> None:
    """Stands in for a command that takes one record."""


def _all_records(record: Annotated[list[str] | None, typer.Argument(autocompletion=records)] = None) -> None:
    """Stands in for a command that takes several records."""


STAND_INS: Mapping[str, Callable[..., None]] = {
    "run": _run,
    "study": _study,
    "report": _record,
    "sql": _record,
    "compare": _all_records,
}


def stand_in(name: str) -> Any:
    """A stand-in that completes a command's arguments; None if the command must do it itself.

    The command must do it while an option or its value is typed, because only the command knows its options.
    """
    words = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split(" ")
    if name not in STAND_INS or any(word.startswith("-") for word in words[-2:]):
        return None
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    alone.command(name, context_settings=settings)(STAND_INS[name])
    made = typer.main.get_command(alone)
    made.name = name
    return made
