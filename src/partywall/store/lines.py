"""Files of JSON lines that only grow: distinguishes an incomplete last line after a kill from damage."""

from __future__ import annotations

import json
from typing import Any


def decoded(line: bytes, begin: bytes = b"{") -> dict[str, Any] | None:
    """The object on a line. None for an empty or incomplete line; ValueError for any other.

    begin: the beginning of every line, which identifies an incomplete one.
    """
    # After a power failure, a file system may have reserved space for a line that it never wrote.
    if not line.strip(b" \t\r\n\0"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        if line.startswith(begin) or begin.startswith(line):
            return None
        raise ValueError("it is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - damage, not a mistake in the program
    return value
