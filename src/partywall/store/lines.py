"""Files of JSON lines that only grow: what a kill leaves of the last line is told from damage."""

from __future__ import annotations

import json
from typing import Any


def decoded(line: bytes, begin: bytes = b"{") -> dict[str, Any] | None:
    """The object on a line; None for an empty or torn line; ValueError for anything else.

    begin: how every line begins, by which a torn line is known.
    """
    if not line.strip():
        return None
    try:
        found = json.loads(line)
    except ValueError:
        if line.startswith(begin) or begin.startswith(line):
            return None
        raise ValueError("it is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - damage, not a mistake in the program
    return found
