"""Power models by name: a published profile, or a file that was calibrated."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from partywall.core.document.explain import did_you_mean
from partywall.core.document.formats import refuse_document
from partywall.core.document.shipped import SUFFIXES
from partywall.core.record import first_line
from partywall.errors import Problem, UsageError
from partywall.power.published import PROFILES
from partywall.power.values import NodeModel

__all__ = ["PROFILES", "find"]


def find(name_or_path: str) -> NodeModel:
    """A profile by its name, or a model file that `partywall power calibrate` wrote. Raises UsageError."""
    if name_or_path in PROFILES:
        return PROFILES[name_or_path]
    path = Path(name_or_path)
    if not path.is_file() and not name_or_path.endswith(SUFFIXES):
        remedy = did_you_mean(name_or_path, tuple(PROFILES), f"give a model file, or one of {', '.join(PROFILES)}")
        raise UsageError(Problem(f"there is no power profile {name_or_path[:200]!r}", remedy))
    refuse_document(path, ("points",))
    try:
        return NodeModel.model_validate_json(path.read_bytes())
    except ValidationError as error:
        remedy = "give a file that partywall power calibrate wrote"
        raise UsageError(Problem(f"is not a power model: {first_line(error)}", remedy, str(path))) from None
    except OSError as error:
        raise UsageError(
            Problem(f"cannot be read: {error.strerror}", "check the path and its permissions", str(path))
        ) from None
