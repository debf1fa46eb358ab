"""Parses YAML to plain values with the line of every key. Reports all mistakes at once, and is safe for any input.

Accepts only the part of YAML 1.2 that a scenario needs: mappings with plain keys, lists, text, numbers, true/false and
null. Anchors and aliases work. Tags, merge keys and several documents are refused. Keys are not interpreted here.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from partywall.core.document.reading import BYTES_MAX
from partywall.errors import Problem, UsageError, one_line

Path = tuple[str | int, ...]

VALUES_MAX: Final = 10_000


@dataclass(frozen=True)
class Document:
    """Plain values, the line of each key or item, and mistakes. `spoiled`: paths whose values were left out."""

    data: Any
    lines: dict[Path, int]
    problems: tuple[Problem, ...] = ()
    spoiled: frozenset[Path] = frozenset()

    def line(self, path: Path) -> int | None:
        """The line of a key or item, or of the nearest one that contains it."""
        return next((self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), None)


def decode(raw: bytes, file: str, *, larger: int = 1) -> Document:
    """Parses a file's bytes. Raises UsageError if nothing can be parsed.

    larger: factor by which the file may exceed a scenario's limits on bytes and values.
    """
    from partywall.core.document import compose  # noqa: PLC0415 - ruamel.yaml is slow to import

    return compose.composed(_text(raw, file, larger * BYTES_MAX), file, larger * VALUES_MAX)


def key_text(path: Path) -> str:
    """('goals', 0, 'victim') → 'goals[0].victim'."""
    text = ""
    for part in path:
        plain = f"[{part}]" if isinstance(part, int) else one_line(part)
        text += f".{plain}" if text and isinstance(part, str) else plain
    return text if len(text) <= 200 else f"{text[:197]}…"


def _text(raw: bytes, file: str, bytes_max: int) -> str:
    if len(raw) > bytes_max:
        raise UsageError(
            Problem(f"{len(raw)} bytes are too long for such a file", f"keep it under {bytes_max} bytes", file)
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"byte {raw[error.start]:#04x} is not UTF-8 text"
        raise UsageError(Problem(message, "save the file as UTF-8", file, line)) from None
    for number, line_text in enumerate(text.split("\n"), start=1):
        for char in line_text:
            if (
                not (char.isprintable() or char in "\t\r" or char.isspace())
                or char in "\x0b\x0c\x1c\x1d\x1e\x1f\ufeff\ufffe\uffff"
            ):
                message = f"the character U+{ord(char):04X} cannot be shown"
                raise UsageError(Problem(message, "remove it, or check that this is a text file", file, number))
    return text


def field_of(model: type[BaseModel], key: str) -> tuple[str, FieldInfo] | None:
    """The attribute and definition of a key as written in a file."""
    for name, info in model.model_fields.items():
        if key == (info.alias or name):
            return name, info
    return None


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Disk | None` or `Annotated[Disk, …]`, if any."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return next((inner for arg in get_args(annotation) if (inner := model_in(arg))), None)
    return None
