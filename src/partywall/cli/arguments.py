"""Arguments and their help that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SEED_MOST = 2**63 - 1
"""The same limit as in a scenario."""

ScenarioName = Annotated[
    str,
    typer.Argument(
        help="A scenario file, or the name of one that ships with Partywall (see: partywall scenario list)."
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run directory, as printed by 'partywall run'.")]
