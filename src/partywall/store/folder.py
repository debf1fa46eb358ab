"""A new folder for what is kept of a run, a trace, a study or a load."""

from __future__ import annotations

from pathlib import Path

from partywall.errors import UsageError


def make(path: Path, instead: str = "") -> None:
    """Makes it; UsageError if something is there already or it cannot be made. instead: what else one may want."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{path} exists already; give another --out{instead}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}; give another --out") from None
