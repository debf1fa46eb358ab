"""Tells the kinds of document apart, and validates documents against their type.

All mistakes of a document are reported by line and key.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from partywall.core.document.decode import decode, key_text
from partywall.core.document.reading import BYTES_MAX
from partywall.errors import Problem, UsageError

M = TypeVar("M", bound=BaseModel)


class Format(NamedTuple):
    """A kind of document. what: its name; use: the commands for it; kind: the kind of record that it leads to."""

    what: str
    use: str
    kind: str = ""


_STUDY = Format("a study", "partywall study {file} --dry-run, or partywall study {file}", "study")
FORMATS = {
    "partywall": Format("a scenario", "partywall scenario check {file}, or partywall run {file}", "run"),
    "partywall_load": Format("a load plan", "partywall load check {file}, or partywall load {file}", "load"),
    "partywall_guard": Format(
        "a policy of the guard", "partywall guard check {file}, or partywall guard run {file}", "guard"
    ),
    "partywall_migration": Format(
        "a migration plan", "partywall migrate {file} --dry-run, or partywall migrate {file}", "migration"
    ),
    "partywall_cluster": Format(
        "a cluster file",
        "partywall consolidate plan {file}, or partywall consolidate simulate {file}",
        "consolidation",
    ),
    "partywall_study": _STUDY,
    "partywall_load_study": _STUDY,
    "partywall_guard_study": _STUDY,
    "partywall_policy_study": _STUDY,
    "partywall_path_study": _STUDY,
    "partywall_migration_study": _STUDY,
    "partywall_power_study": _STUDY,
    "paper": Format("the list of a paper's figures", "the study that it belongs to; partywall study lists them"),
}
"""By the key with the version of the format."""
_JSON_FORMATS = {
    "points": Format("a power model", "partywall power attribute --model {file}"),
    "log": Format("a browser's recording (HAR)", "partywall load import {file}"),
}
_KEY = re.compile(r"^(\w+)[ \t]*:", re.MULTILINE | re.ASCII)


def format_key(text: str) -> str:
    """The key of a document that identifies its format, wherever it is among the outermost ones; empty if none does."""
    return next((key for key in _keys(text) if key in FORMATS), "")


def first_key(file: Path) -> str:
    """The key that identifies the format of a file; empty if none does."""
    return format_key(file.read_text(encoding="utf-8"))


def _keys(text: str) -> list[str]:
    return _json_keys(text) or _KEY.findall(text)


def _json_keys(text: str) -> list[str]:
    """The outermost keys of a JSON object; none for other text."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            return list(json.loads(text.removeprefix("\ufeff")))
    return []


def refuse_other(text: str | bytes, own: Collection[str], file: str) -> None:
    """UsageError that names the command for a document of another format. own: the keys of the formats wanted."""
    if isinstance(text, bytes):
        text = text[:BYTES_MAX].decode("utf-8", "replace")
    key = format_key(text) or next((key for key in _json_keys(text) if key in _JSON_FORMATS), "")
    if key and key not in own:
        other = (FORMATS | _JSON_FORMATS)[key]
        raise UsageError(Problem(f"this is {other.what}", f"use {other.use.format(file=shlex.quote(file))}", file))


def refuse_document(file: Path, own: Collection[str] = ()) -> None:
    """Like `refuse_other`, for a path that may be a file."""
    with contextlib.suppress(OSError):
        if file.is_file():
            with file.open("rb") as stream:
                refuse_other(stream.read(BYTES_MAX), own, str(file))


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
