"""A file that a person names, as a field of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator

from partywall.core.document.shipped import text
from partywall.values import Frozen


class TextFile(Frozen):
    """A document with its text as it was when the job was made, so that a record has it too.

    WHAT: what it is, for messages. MODEL: what its keys are. A person gives its path; a record has both.
    """

    WHAT: ClassVar[str] = "YAML"
    MODEL: ClassVar[type[BaseModel]]

    path: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Reads the file of a path. UsageError if it cannot be read."""
        if isinstance(given, str | Path):
            return {"path": str(given), "text": text(Path(given), cls.WHAT)}
        return given
