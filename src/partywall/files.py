"""Small files that others may read at any moment: whole, or as they were before.

Deliberately not here: files that only grow, of which a kill loses the last line at the most.
"""

from __future__ import annotations

import threading
from pathlib import Path


def write_whole(path: Path, content: str) -> None:
    """Puts a file in its place at once: no reader sees half of it, and whatever ends us leaves the one of before."""
    # A name of this thread's own: two that write the same file do not take each other's half.
    fresh = path.with_name(f".{path.name}.{threading.get_native_id()}")
    try:
        fresh.write_text(content)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
