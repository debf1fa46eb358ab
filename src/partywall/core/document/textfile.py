"""A file that a person names, as a field of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from partywall.core.document.reading import text
from partywall.errors import UsageError
from partywall.values import Frozen

TOLD = "told"
"""The type of a mistake in a field that has its own problems."""


def told(error: UsageError) -> PydanticCustomError:
    """A mistake in a field of a job, to be reported with those in other fields."""
    return PydanticCustomError(TOLD, "{problems}", {"problems": error.problems})


@dataclass(frozen=True)
class Document:
    """Marks a field whose value is what a document says.

    A person gives its path, or the name of one that ships with Partywall. A record has the value as it was written.

    model: what its keys are. load: reads a file, and raises a UsageError with all of its mistakes. find: the file that
    is meant. names: those that ship with Partywall. edited: whether a page's editor may give its text.
    """

    model: type[BaseModel]
    load: Callable[[Path], Any]
    find: Callable[[str], Path] = Path
    names: Callable[[], tuple[str, ...]] = tuple
    edited: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(
            lambda value: value.model_dump(mode="json", exclude_unset=True)
        )
        return core_schema.no_info_before_validator_function(self._value, handler(source), serialization=written)

    def _value(self, given: Any) -> Any:
        if not isinstance(given, str | Path):
            return given
        try:
            return self.load(self.find(str(given)))
        except UsageError as error:
            raise told(error) from None


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
