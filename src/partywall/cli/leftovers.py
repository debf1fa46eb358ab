"""What runs left on this host: removed before anything is measured, and what cannot be is told.

A domain that is still held to a dead run's limits is its owner's harm, and in the way of whatever is measured next.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from partywall import pipeline
from partywall.errors import Exit, PartywallError
from partywall.guard import reap as reap_policies

REMEDY = "'partywall reap' tries again, 'partywall reap --forget' stops looking for what can't be reached"


def clean_up() -> None:
    """Cleans up after dead runs, with a warning on standard error of what could not be."""
    for one in pipeline.clean_up():
        warn(one.left)


def warn(left: Sequence[str]) -> None:
    """Says what is left, if anything is."""
    if left:
        sys.stderr.write(f"partywall: warning: could not be removed or put back: {', '.join(left)}; {REMEDY}\n")


def reap(
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Forget domains whose libvirt daemon can't be reached; Partywall then stops looking for them.",
        ),
    ] = False,
) -> int:
    """Remove what killed runs left on this host; every 'partywall run' does so too."""
    console = Console()
    reaped = pipeline.clean_up(forget=forget)
    for one in reaped:
        console.print(f"run {one.run}: removed {'' if one.removed else 'nothing'}", highlight=False)
        for thing in one.removed:
            console.print(f"  {thing}", highlight=False)
    over = reap_policies()
    for policy in over:
        console.print(f"policy {policy}: its keeper and its namespaces are gone; forgotten", highlight=False)
    left = [thing for one in reaped for thing in one.left]
    if left and forget:
        console.print(f"forgotten: {', '.join(left)}", highlight=False)
    elif left:
        remedy = "remove them by hand; 'partywall reap --forget' stops looking for what can't be reached"
        raise PartywallError(f"could not be removed: {', '.join(left)}; {remedy}")
    if not reaped and not over:
        console.print("nothing was left")
    return Exit.HOLDS
