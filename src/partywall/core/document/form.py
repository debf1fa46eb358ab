"""Validates a file's values against a frozen model, and reports every mistake with its place. Shared by all formats.

The meaning of keys and checks across them belong to each format.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from partywall import units
from partywall.core.document.decode import Document, Path, decode, key_text
from partywall.core.document.explain import Mistake, explain, holds, meant
from partywall.core.document.formats import refuse_other
from partywall.errors import Problem, UsageError, one_line

_REMOVALS_MAX = 50

Model = TypeVar("Model", bound=BaseModel)
SpellOut = Callable[[dict[str, Any]], list[Mistake]]


def problem(mistake: Mistake, document: Document, file: str) -> Problem:
    """A mistake with its file and line."""
    return Problem(
        one_line(mistake.message), one_line(mistake.remedy), file, document.line(mistake.path), key_text(mistake.path)
    )


def sound(value: Model | None, mistakes: Iterable[Mistake], document: Document, file: str) -> Model:
    """A validated value without mistakes. UsageError with all of them, and the document's, in the order of lines."""
    problems = [*document.problems, *(problem(mistake, document, file) for mistake in mistakes)]
    if problems or value is None:
        raise UsageError(*sorted(problems, key=lambda each: each.line or 0))
    return value


def opened(raw: bytes, key: str, file: str, what: str, page: str, *, larger: int = 1) -> Document:
    """The document of a file whose first key is `key`. UsageError if it is another one, or has no keys.

    what: what it is, and page: where it is described, for messages. larger: see `decode`.
    """
    refuse_other(raw, (key,), file)
    document = decode(raw, file, larger=larger)
    if not isinstance(document.data, dict):
        remedy = f"begin with {key}: 1; see {page}"
        at = document.line(())
        raise UsageError(*document.problems, Problem(f"{what} is keys with values", remedy, file, at))
    return document


def checked(
    form: type[Model],
    document: Document,
    file: str,
    check: Callable[[Model], Iterable[Mistake]],
    data: dict[str, Any] | None = None,
    misspelt: Sequence[Mistake] = (),
    stand_ins: Mapping[str, Any] = MappingProxyType({}),
    *,
    one_each: bool = False,
) -> Model:
    """The document as a model in which `check` finds no mistake either. UsageError with all mistakes.

    data: its values as the form needs them, if they were converted, and misspelt: the mistakes of that; stand_ins: see
    `validate`. one_each: a mistake that `check` finds also hides those that follow from it.
    """
    values = copy.deepcopy(document.data or {}) if data is None else data
    value, mistakes = validate(form, values, document, stand_ins=stand_ins)
    mistakes += misspelt
    if value is not None:
        known = {*document.spoiled, *(mistake.path for mistake in mistakes)}
        for mistake in check(value):
            if not follows(mistake.path, known):
                mistakes.append(mistake)
                known |= {mistake.path} if one_each else set()
    return sound(value, mistakes, document, file)


def validate(
    form: type[Model],
    data: dict[str, Any],
    document: Document,
    reported: AbstractSet[Path] = frozenset(),
    stand_ins: Mapping[str, Any] = MappingProxyType({}),
    spell_out: SpellOut = lambda _data: [],
) -> tuple[Model | None, list[Mistake]]:
    """Validates. After a failure it removes the wrong values and continues, so that one mistake does not hide another.

    reported: paths whose mistakes are already reported. stand_ins: values for required keys that are wrong, so that the
    rest can be checked. spell_out: converts values as people write them to the form that the model needs, and returns
    mistakes. If there are mistakes, the returned model is only for further checks and must not be used.
    """
    known = set(document.spoiled | reported)
    problems: list[Mistake] = []
    for _ in range(_REMOVALS_MAX):
        try:
            return form.model_validate(data), problems
        except ValidationError as error:
            mistakes = _innermost(explain(error, data, form=form))
        problems += [mistake for mistake in mistakes if not follows(mistake.path, known)]
        known |= {mistake.path for mistake in mistakes}
        repaired = [
            _rename(data, document, mistake) or _remove(data, mistake.path, stand_ins) for mistake in reversed(mistakes)
        ]
        if not all(repaired):
            break
        problems += [mistake for mistake in spell_out(data) if not follows(mistake.path, known)]
    return None, problems


def _rename(data: Any, document: Document, mistake: Mistake) -> bool:
    """Renames a misspelt key to the intended one, so that its value is checked too."""
    right = meant(mistake)
    if right is None:
        return False
    holder = data
    for part in right[:-1]:
        if not holds(holder, part):  # removed by the repair of another mistake
            return False
        holder = holder[part]
    if right[-1] in holder or not holds(holder, mistake.path[-1]):
        return False
    holder[right[-1]] = holder.pop(mistake.path[-1])
    size = len(right)
    document.lines.update(
        {right + path[size:]: line for path, line in document.lines.items() if path[:size] == mistake.path}
    )
    return True


def _innermost(mistakes: list[Mistake]) -> list[Mistake]:
    """Removes follow-up mistakes: a list whose only item is wrong is also reported as too short."""
    paths = [mistake.path for mistake in mistakes]
    return [m for m in mistakes if not any(len(p) > len(m.path) and p[: len(m.path)] == m.path for p in paths)]


def follows(path: Path, known: AbstractSet[Path]) -> bool:
    """True if a mistake follows from one already reported at the same place, above or below it."""
    return any(path[: len(other)] == other or other[: len(path)] == path for other in known if other and path)


def _remove(data: Any, path: Path, stand_ins: Mapping[str, Any]) -> bool:
    """Removes the key at `path`; if that key is missing, the value that should contain it."""
    if len(path) == 1 and path[0] in stand_ins:
        data[path[0]] = stand_ins[str(path[0])]
        return True
    holder = data
    for depth, part in enumerate(path):
        if not holds(holder, part):
            return _remove(data, path[: min(depth, len(path) - 1)], stand_ins) if depth and len(path) > 1 else False
        if depth == len(path) - 1:
            del holder[part]
            return True
        holder = holder[part]
    return False


def spell_params(part: Any, path: Path) -> list[Mistake]:
    """Converts sizes and durations ('64MiB') among the parameters of a kernel to numbers. Changes `part`.

    path: of the part that has `params`.
    """
    params = part.get("params") if isinstance(part, dict) else None
    if not isinstance(params, dict):
        return []
    return [m for key in params if (m := spelled(params, key, str(key), (*path, "params", key)))]


def spelled(holder: Any, index: Any, name: str, path: Path) -> Mistake | None:
    """Parses a text by the unit at the end of the parameter's name."""
    parse = {"bytes": units.parse_bytes, "ns": units.parse_duration_ns}.get(re.split(r"[._]", name)[-1])
    return converted(holder, index, parse, path) if parse and isinstance(holder[index], str) else None


def converted(holder: Any, index: Any, convert: Callable[[Any], Any], path: Path) -> Mistake | None:
    """Converts a value in its place. ValueError's text is a message, "; " and a remedy."""
    try:
        holder[index] = convert(holder[index])
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        return Mistake(path, message, remedy)
    return None
