"""What runs left on this host: removed before anything is measured, and what cannot be is told.

A domain that is still held to a dead run's limits is its owner's harm, and in the way of whatever is measured next.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from partywall import pipeline

REMEDY = "'partywall reap' tries again, 'partywall reap --forget' stops looking for what can't be reached"


def clean_up() -> None:
    """Cleans up after dead runs, with a warning on standard error of what could not be."""
    for one in pipeline.clean_up():
        warn(one.left)


def warn(left: Sequence[str]) -> None:
    """Says what is left, if anything is."""
    if left:
        sys.stderr.write(f"partywall: warning: could not be removed or put back: {', '.join(left)}; {REMEDY}\n")
