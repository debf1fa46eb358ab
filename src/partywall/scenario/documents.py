"""Validates YAML documents other than scenarios against their type. All mistakes are reported by line and key."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from partywall.errors import Problem, UsageError
from partywall.scenario.decode import decode, key_text

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], content: bytes, file: str, remedy: str = "") -> M:
    """The document as a `model`. file: its name in messages; remedy: added to each. Raises UsageError."""
    document = decode(content, file)
    try:
        value = model.model_validate(document.data)
    except ValidationError as error:
        messages = [(details["loc"], details["msg"]) for details in error.errors(include_url=False)]
        problems = [Problem(text, remedy, file, document.line(at), key_text(at)) for at, text in messages]
        raise UsageError(*document.problems, *problems) from None
    if document.problems:
        raise UsageError(*document.problems)
    return value


def first_key(file: Path) -> str:
    """The first key of a document, which identifies its format; empty if there is none."""
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#")
    return next(lines, "").partition(":")[0]
