"""Removes what earlier runs left on this host before anything is measured, and reports what could not be removed.

A domain that still has the limits of a dead run harms its owner, and distorts the next measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from partywall import kinds, registry
from partywall.core import here
from partywall.errors import Exit, PartywallError

REMEDY = "'partywall reap' tries again, 'partywall reap --forget' forgets what cannot be reached"


def clean_up() -> None:
    """Cleans up after dead runs. Prints a warning to standard error if something could not be removed."""
    restored, reaped = here.clean_up()
    warn([*restored.left, *(thing for each in reaped for thing in each.left)])


def warn(left: Sequence[str]) -> None:
    """Prints a warning that lists what is left, if anything is."""
    if left:
        sys.stderr.write(f"partywall: warning: could not be removed or restored: {', '.join(left)}; {REMEDY}\n")


def reap(
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Forget domains whose libvirt daemon cannot be reached. Partywall no longer tries to restore them.",
        ),
    ] = False,
) -> int:
    """Remove what killed runs left on this host. Every 'partywall run' does this first."""
    console = Console()
    restored, reaped = here.clean_up(forget=forget)
    for file in restored.files:
        console.print(f"restored: {file}", highlight=False, soft_wrap=True)
    for reaped_thing in reaped:
        console.print(f"run {reaped_thing.run}: removed {'' if reaped_thing.removed else 'nothing'}", highlight=False)
        for thing in reaped_thing.removed:
            console.print(f"  {thing}", highlight=False)
    over = [said for name in registry.made() for said in kinds.made(name).forget()]
    for said in over:
        console.print(said, highlight=False)
    left = [*restored.left, *(thing for reaped_thing in reaped for thing in reaped_thing.left)]
    if left and forget:
        console.print(f"forgotten: {', '.join(left)}", highlight=False)
    elif left:
        remedy = "remove them by hand; 'partywall reap --forget' forgets what cannot be reached"
        raise PartywallError(f"could not be removed: {', '.join(left)}; {remedy}")
    if not restored.files and not reaped and not over:
        console.print("nothing was left")
    return Exit.HOLDS
