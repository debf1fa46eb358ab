"""What several commands take: arguments with their help, and the reading of options that are texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from partywall.errors import Problem, UsageError

T = TypeVar("T")

SEED_MOST = 2**63 - 1
"""As in a scenario."""

ScenarioName = Annotated[
    str,
    typer.Argument(
        help="A scenario file, or the name of one that ships with Partywall (see: partywall scenario list)."
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run directory, as 'partywall run' named it.")]


def parsed(option: str, text: str, parse: Callable[[str], T]) -> T:
    """The value of an option; UsageError that names it if it cannot be read."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(Problem(str(error), key=option)) from None
