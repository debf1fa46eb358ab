"""Composes the nodes of a YAML text, and converts them to plain values (`partywall.core.document.decode`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from partywall.core.document.decode import Document, Path, key_text
from partywall.errors import Problem, UsageError

DEPTH_MAX: Final = 32
INTEGER_MAX: Final = 2**63 - 1

_TAG = "tag:yaml.org,2002:"
_ABSENT: Final = object()
_PLAIN: Final = {
    "that cannot start any token": (
        "a character that cannot begin a value",
        "indent with spaces, never tabs, and put text that begins with a special character in quotes",
    ),
    "mapping values are not allowed": (
        "a ':' in the wrong place",
        "put text that contains ': ' in quotes, and check the indentation",
    ),
    "could not find expected ':'": ("a key without ':'", "write key: value, and check the indentation"),
    "found unexpected end of stream": ("a quote or bracket that is never closed", "close it"),
    "expected <block end>": (
        "a line that does not fit the ones above it",
        "check its indentation, and that quotes and brackets are closed",
    ),
    "found undefined alias": (
        "an alias (*name) without an anchor (&name) before it",
        "put text that begins with * in quotes",
    ),
    "found duplicate anchor": ("an anchor (&name) is defined twice", "give each its own name"),
    "but found another document": ("a second document begins here", "put each scenario into a file of its own"),
    "expected ',' or": (
        "a list or mapping in brackets that is not closed or lacks a comma",
        "add the comma or the closing bracket",
    ),
    "incompatible YAML document": ("a version of YAML that is not known", "leave the %YAML line out"),
    "nested too deeply": (
        f"values nested more than {DEPTH_MAX} deep",
        "a scenario needs fewer than ten levels; check the brackets",
    ),
}


def composed(text: str, file: str, values_max: int) -> Document:
    """The values of a YAML text, with lines and mistakes. Raises UsageError if nothing can be parsed."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        raise UsageError(_syntax(error, file)) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise UsageError(
            Problem(f"cannot be read as YAML: {_first_line(error)}", "see docs/scenario.md", file)
        ) from None
    if root is None:
        raise UsageError(
            Problem(
                "the file is empty", "docs/scenario.md, load-plan.md and guard.md have examples to start from", file
            )
        )
    walk = _Walk(file, yaml, values_max)
    return Document(walk.value(root, ()), walk.lines, tuple(walk.problems), frozenset(walk.spoiled))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _syntax(error: MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = None if mark is None else mark.line + 1
    said = str(error.problem or error.context or "not YAML")
    for part, (message, remedy) in _PLAIN.items():
        if part in said:
            return Problem(message, remedy, file, line)
    return Problem(f"not YAML: {said[:200]}", "put text with special characters in quotes", file, line)


class _Composer(Composer):
    """Ruamel's composer with a limit on depth, because it recurses. Its warnings become mistakes."""

    nested = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        if self.nested == DEPTH_MAX:
            raise MarkedYAMLError(problem="nested too deeply", problem_mark=event.start_mark)
        if not isinstance(event, AliasEvent) and event.anchor in self.anchors:
            raise MarkedYAMLError(problem="found duplicate anchor", problem_mark=event.start_mark)
        self.nested += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.nested -= 1


@dataclass
class _Walk:
    """Converts nodes to values. Aliases are expanded, so the number of values is limited."""

    file: str
    yaml: Any
    values_max: int
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    spoiled: set[Path] = field(default_factory=set)
    count: int = 0

    def value(self, node: Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self.count += 1
        if len(path) > DEPTH_MAX or self.count > self.values_max:
            message = f"more than {self.values_max} values or {DEPTH_MAX} levels once aliases are followed"
            remedy = "repeat less: an alias (*name) copies everything below its anchor (&name)"
            raise UsageError(Problem(message, remedy, self.file, node.start_mark.line + 1))
        if isinstance(node, MappingNode):
            return self._mapping(node, path) if self._known(node, path, "map") else _ABSENT
        if isinstance(node, SequenceNode):
            return self._sequence(node, path) if self._known(node, path, "seq") else _ABSENT
        return self._scalar(node, path) if isinstance(node, ScalarNode) else _ABSENT

    def _sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        # An omitted value becomes null, so that the indices of later ones stay the same.
        values = [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return [None if value is _ABSENT else value for value in values]

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node, path)
            if key is None:
                continue
            at = (*path, key)
            if key in first:
                self._wrong(
                    at,
                    line,
                    f"the key {key[:60]!r} is given a second time, after line {first[key]}",
                    "keep one of them",
                )
                continue
            first[key] = line
            self.lines[at] = line
            value = self.value(value_node, at)
            if value is not _ABSENT:
                mapping[key] = value
        return mapping

    def _key(self, node: Node, path: Path) -> str | None:
        line = node.start_mark.line + 1
        if node.tag == f"{_TAG}merge":
            self._wrong(
                (*path, "<<"),
                line,
                "merge keys (<<) are not part of YAML 1.2",
                "use an alias for the whole value, or repeat the keys",
            )
            return None
        if isinstance(node, ScalarNode):
            return str(node.value)
        self._wrong(path, line, "a key must be plain text, not a list or mapping", "put the key in quotes")
        return None

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        tag = str(node.tag).removeprefix(_TAG)
        if tag in ("str", "timestamp", "merge", "value"):
            return str(node.value)
        if tag not in ("int", "float", "bool", "null"):
            self._known(node, path, "str")
            return _ABSENT
        line, shown = node.start_mark.line + 1, repr(str(node.value)[:60])
        try:
            value = self.yaml.constructor.construct_object(node)
        except (ValueError, ArithmeticError, LookupError, MarkedYAMLError):
            return self._wrong(path, line, f"{shown} is not a number", "put it in quotes if it is meant as text")
        if isinstance(value, int) and abs(value) > INTEGER_MAX:
            return self._wrong(path, line, f"{shown} is too large a number", f"the largest is {INTEGER_MAX}")
        if isinstance(value, float) and not math.isfinite(value):
            return self._wrong(
                path,
                line,
                f"{shown} is not a finite number",
                "give one that is, or put it in quotes if it is meant as text",
            )
        return value

    def _known(self, node: Node, path: Path, kind: str) -> bool:
        if str(node.tag) == f"{_TAG}{kind}":
            return True
        tag = str(node.tag).replace(_TAG, "!!")[:60]
        self._wrong(path, node.start_mark.line + 1, f"the tag {tag} is not known here", "leave the tag out")
        return False

    def _wrong(self, path: Path, line: int, message: str, remedy: str) -> Any:
        self.problems.append(Problem(message, remedy, self.file, line, key_text(path)))
        self.spoiled.add(path)
        return _ABSENT
