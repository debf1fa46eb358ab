"""Values that every capability gives and takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outline:
    """What would be measured, one item a line, and how long it takes."""

    lines: tuple[str, ...]
    seconds: float
