"""A file that a person names, as a field of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator
from pydantic_core import PydanticCustomError

from partywall.core.document.reading import text
from partywall.errors import UsageError
from partywall.values import Frozen

TOLD = "told"
"""The type of a mistake in a field that has its own problems."""


def told(error: UsageError) -> PydanticCustomError:
    """A mistake in a field of a job, to be reported with those in other fields."""
    return PydanticCustomError(TOLD, "{problems}", {"problems": error.problems})


class KeptFile(Frozen):
    """A file with its text as it was when the job was made, so that a record has it too.

    WHAT: what it is, for messages. A person gives its path; a record has both.
    """

    WHAT: ClassVar[str] = "YAML"

    path: str
    text: str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Reads the file of a path. What is wrong with it is reported with what is wrong with other fields."""
        if not isinstance(given, str | Path):
            return given
        try:
            path = cls.found(given)
            return {"path": str(path), "text": text(Path(path), cls.WHAT)}
        except UsageError as error:
            raise told(error) from None

    @classmethod
    def found(cls, given: str | Path) -> str | Path:
        """The path of what a person gave. UsageError if it means no file."""
        return given


class TextFile(KeptFile):
    """A document that a page's editor can give. MODEL: what its keys are."""

    MODEL: ClassVar[type[BaseModel]]
