"""Machine-readable output: with `--format json` a command prints one JSON document on standard output, and no text.

The document has the same keys for every command:

* command: the command's name, such as "scenario list";
* exit: the exit code of the process;
* result: the command's figures; null if the command failed;
* problems: what is wrong, each with message, remedy, file, line and key; empty if the command succeeded.

Text for people (progress, warnings, error messages) goes to standard error. A command passes its result to `write`;
`partywall.cli.main` reports errors with `failed`. Which keys a result has is not decided here.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partywall import registry, units
from partywall.errors import Exit, Problem
from partywall.plain import plain

__all__ = ["Format", "FormatOption", "console", "failed", "plain", "requested", "write"]

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.core.capability import Outline

OPTIONS = ("--format", "-f")
JSON = "json"


class Format(StrEnum):
    """How a command prints its figures."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", help="text, or json: one JSON document on standard output (docs/report.md).")
]


def requested(arguments: Sequence[str]) -> bool:
    """True if a command line asks for JSON. Also works for a command line with mistakes."""
    return any(
        (word in OPTIONS and following == JSON) or word in (f"--format={JSON}", f"-f{JSON}")
        for word, following in itertools.pairwise([*arguments, ""])
    )


def console(format_: str) -> Console:
    """The console for text: standard error if standard output carries JSON."""
    from rich.console import Console

    return Console(stderr=format_ == JSON)


def say(console: Console, text: str) -> None:
    """Prints a line as it is, whatever the width of the terminal."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def write(command: str, result: Any, code: int = Exit.HOLDS) -> int:
    """Prints the document of a command that has a result. Returns the exit code."""
    _print(command, code, result, [])
    return code


def document(command: str, format_: str) -> str:
    """The command, if its document is printed; else empty."""
    return command if format_ == JSON else ""


def outline(command: str, outline: Outline, format_: str, console: Console, **more: Any) -> int:
    """Shows what a job would measure, and how long it would take. more: further keys of the document."""
    from partywall.core.report import terminal

    forecast = outline.forecast
    if format_ == JSON:
        more |= forecast.values if forecast else {}
        return write(command, {"lines": outline.lines, "seconds": outline.seconds} | more)
    for table in outline.tables:
        terminal.show_table(table, console)
    length = f"about {units.format_duration(outline.seconds * 1e9)}" if outline.seconds else "until Ctrl-C"
    for line in (*outline.lines, length):
        say(console, line)
    if forecast:
        terminal.show(forecast, console)
    return Exit.HOLDS


def failed(arguments: Sequence[str], code: int, problems: Iterable[Problem]) -> None:
    """Prints the document of a command that failed."""
    _print(_command(arguments), code, None, [_described(problem) for problem in problems])


def _print(command: str, code: int, result: Any, problems: list[dict[str, Any]]) -> None:
    document = {"command": command, "exit": int(code), "result": plain(result), "problems": problems}
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def _described(problem: Problem) -> dict[str, Any]:
    return {field: value or None for field, value in dataclasses.asdict(problem).items()}


def _command(arguments: Sequence[str]) -> str:
    """The command's name on a command line that may have mistakes: 'scenario check'."""
    from partywall import kinds
    from partywall.cli.app import commands

    name = next(iter(arguments), "")
    if name not in (known := commands()):
        return ""
    second = next(iter(arguments[1:]), "")
    entry = known[name]
    has_verbs = entry.place.endswith(":app") if entry else bool(kinds.made(registry.of_command(name)).jobs[0].verb)
    return f"{name} {second}" if has_verbs and second.isalpha() else name
