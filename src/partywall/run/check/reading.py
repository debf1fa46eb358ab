"""Reads a scenario file. A UsageError contains all mistakes with file, line, key and remedy.

Pure except for reading the file. The host is not checked here.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from partywall.agent.catalogue import Catalogue, shipped
from partywall.core.document.decode import Document, Path, decode, key_text
from partywall.core.document.explain import Mistake
from partywall.core.document.form import converted, follows, sound, spell_params, spelled, validate
from partywall.core.document.formats import refuse_other
from partywall.core.document.reading import read
from partywall.core.document.shipped import find as find_file
from partywall.core.document.shipped import shipped_as
from partywall.errors import CapabilityError, Problem, UsageError
from partywall.run.check.rules import check, check_parts
from partywall.run.document import factors
from partywall.run.document.scenario import Scenario
from partywall.values import LISTS

WHAT = "scenario"
VERSION_KEY = "partywall"
"""The first key of a scenario. Files with another first key beside scenarios are of other formats."""

# Values for required keys that are wrong, so that the rest can be checked. A wrong scenario is never returned.
_STAND_INS: dict[str, Any] = {"partywall": 1, "name": "unnamed"}


def load(path: str | FilePath, catalogue: Catalogue | None = None) -> Scenario:
    """Reads and checks a scenario file. Raises UsageError with all of its problems."""
    return _loads(read(FilePath(path), WHAT), str(path), catalogue)


def loads(content: str | bytes, file: str = "<text>", catalogue: Catalogue | None = None) -> Scenario:
    """Like `load`, for text. `file` is its name in messages."""
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return _loads(raw, file, catalogue)


def changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """A checked scenario with changed values, checked again. Raises UsageError with all mistakes."""
    other = scenario.model_copy(update=dict(changes))
    problems = [Problem(m.message, m.remedy, key=f"--{key_text(m.path)}") for m in check(other, shipped())]
    if problems:
        raise UsageError(*problems)
    return other


@contextlib.contextmanager
def located(path: FilePath, scenario: Scenario) -> Iterator[None]:
    """Adds the place in the file to problems that a host has with its scenario."""
    try:
        yield
    except (UsageError, CapabilityError) as error:
        lines = {key_text(place): line for place, line in decode(read(path, WHAT), str(path)).lines.items()}
        for varied in scenario.factors:
            for at in factors.targets(scenario, varied):
                lines[key_text(at)] = lines[key_text(("factors", varied))]
        raise type(error)(*(_placed(problem, str(path), lines) for problem in error.problems)) from None


def _placed(problem: Problem, file: str, lines: Mapping[str, int]) -> Problem:
    """A problem with the line of its key, or the nearest that contains it; unchanged if there is neither."""
    key = problem.key.partition(", ")[0]
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return problem if problem.file or not key else replace(problem, file=file, line=lines[key])


def names() -> tuple[str, ...]:
    """The scenarios that ship with Partywall, by name."""
    return shipped_as(lambda key: key == VERSION_KEY)


def find(name_or_path: str) -> FilePath:
    """The file for a path, or for the name of a scenario that ships with Partywall. Raises UsageError."""
    return find_file(name_or_path, names(), WHAT)


def _loads(raw: bytes, file: str, catalogue: Catalogue | None) -> Scenario:
    refuse_other(raw, (VERSION_KEY,), file)
    document = decode(raw, file)
    if not isinstance(document.data, dict):
        what = "a list" if isinstance(document.data, list) else "a single value"
        raise UsageError(
            *document.problems,
            Problem(f"a scenario is keys with values, not {what}", "begin with partywall: 1", file, document.line(())),
        )
    mistakes, scenario = _build(document, catalogue or shipped())
    return sound(scenario, mistakes, document, file)


def _build(document: Document, catalogue: Catalogue) -> tuple[list[Mistake], Scenario | None]:
    """The scenario and its mistakes. If the form is wrong, the rest is checked as far as possible."""
    data = copy.deepcopy(document.data)
    mistakes = _spell_out(data)
    reported = {mistake.path for mistake in mistakes}
    scenario, malformed = validate(Scenario, data, document, reported, _STAND_INS, _spell_out)
    mistakes += malformed
    if scenario is None:
        return mistakes, None
    if not mistakes and not document.problems:
        return check(scenario, catalogue), scenario
    known = document.spoiled | {mistake.path for mistake in mistakes}
    return mistakes + [
        each for each in check_parts(scenario, catalogue) if _is_news(each.path, known, document.lines)
    ], scenario


def _is_news(path: Path, reported: AbstractSet[Path], present: Container[Path]) -> bool:
    """True if a mistake adds information to those already reported.

    A mistake at the place of another one follows from it. So does a missing key in a part that has another mistake (the
    key may be misspelt), and an unknown name in a goal if a whole part was reported as wrong.
    """
    if follows(path, reported):
        return False
    if path[0] == "goals" and any(len(other) <= 2 for other in reported):
        return False
    missed = len(path) <= 2 or path not in present
    return not (missed and any(other[:2] == path[:2] for other in reported))


def _spell_out(data: dict[str, Any]) -> list[Mistake]:
    """Converts sizes and durations among kernels' parameters ('64MiB') to numbers. Changes `data`.

    Lists of CPUs and NUMA nodes among levels become text.
    """
    mistakes: list[Mistake] = []
    for kind in ("victims", "aggressors"):
        parts = data.get(kind)
        for name, part in parts.items() if isinstance(parts, dict) else ():
            mistakes += spell_params(part, (kind, name))
    varied = data.get("factors")
    for path, levels in varied.items() if isinstance(varied, dict) else ():
        as_text = next((LISTS[ending] for ending in LISTS if path.endswith(ending)), None)
        if isinstance(levels, list) and as_text is not None:
            mistakes += [m for i in range(len(levels)) if (m := _list_level(levels, i, as_text, ("factors", path, i)))]
        if isinstance(levels, list) and ".params." in path:
            mistakes += [m for i in range(len(levels)) if (m := spelled(levels, i, path, ("factors", path, i)))]
    return mistakes


def _list_level(levels: list[Any], index: int, as_text: Callable[[Any], Any], path: Path) -> Mistake | None:
    """Converts a list of numbers in a level to text, because levels are single values."""
    return converted(levels, index, as_text, path) if isinstance(levels[index], list) else None
