"""Reads a scenario file. A UsageError contains all mistakes with file, line, key and remedy.

Pure except for reading the file. The host is not checked here.
"""

from __future__ import annotations

import contextlib
import copy
import re
import stat
from collections.abc import Callable, Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from importlib import resources
from pathlib import Path as FilePath
from typing import Any

from partywall import units
from partywall.agent.catalogue import Catalogue, shipped
from partywall.errors import CapabilityError, Problem, UsageError
from partywall.model import factors
from partywall.model.scenario import LISTS, Scenario
from partywall.scenario.check import check, check_parts
from partywall.scenario.decode import BYTES_MAX, Document, Path, decode, key_text
from partywall.scenario.documents import first_key, refuse_other
from partywall.scenario.explain import Mistake, did_you_mean
from partywall.scenario.form import follows, sound, validate

VERSION_KEY = "partywall"
"""The first key of a scenario. Files with another first key beside scenarios are of other formats."""

SUFFIXES = (".yaml", ".yml", ".json")
"""Endings of paths. No shipped name has one."""
# Values for required keys that are wrong, so that the rest can be checked. A wrong scenario is never returned.
_STAND_INS: dict[str, Any] = {"partywall": 1, "name": "unnamed"}


def load(path: str | FilePath, catalogue: Catalogue | None = None) -> Scenario:
    """Reads and checks a scenario file. Raises UsageError with all of its problems."""
    return _loads(read(FilePath(path)), str(path), catalogue)


def text(path: FilePath, what: str = "scenario") -> str:
    """The text of a file, unchecked. Raises UsageError if it is not text."""
    try:
        return read(path, what).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(Problem("this is not UTF-8 text", "give the path of a YAML file", str(path))) from None


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
        lines = {key_text(place): line for place, line in decode(read(path), str(path)).lines.items()}
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


def shipped_as(wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """Names of shipped files whose first key is wanted."""
    folder = FilePath(str(resources.files("partywall").joinpath("scenarios")))
    files = [*folder.glob("*.yaml"), *folder.glob("papers/*.yaml")]
    matching = [file for file in files if wanted(first_key(file))]
    return tuple(sorted(str(file.relative_to(folder).with_suffix("")) for file in matching))


def shipped_file(name: str) -> FilePath:
    """The file of a shipped name."""
    return FilePath(str(resources.files("partywall").joinpath("scenarios", f"{name}.yaml")))


def find(name_or_path: str, among: tuple[str, ...] | None = None, what: str = "scenario") -> FilePath:
    """The file for a path, or for the name of something shipped, by default a scenario. Raises UsageError."""
    known = names() if among is None else among
    if name_or_path in known:
        return shipped_file(name_or_path)
    if name_or_path.endswith(SUFFIXES) or ("\0" not in name_or_path and _exists(FilePath(name_or_path))):
        return FilePath(name_or_path)
    remedy = did_you_mean(name_or_path, known, f"give a path, or one of {', '.join(known)}")
    raise UsageError(Problem(f"there is no {what} {name_or_path[:200]!r}", remedy))


def _exists(path: FilePath) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def read(path: FilePath, what: str = "scenario", *, larger: int = 1) -> bytes:
    """Reads a file. At most one byte more than allowed is read, because a FIFO or device may be endless."""
    remedy = f"give the path of a {what} file"
    try:
        if path.is_dir():
            raise UsageError(Problem("this is a directory", f"{remedy}; partywall report shows a record", str(path)))
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(Problem("this is not a regular file", remedy, str(path)))
        with path.open("rb") as file:
            return file.read(larger * BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(
            Problem(f"cannot be read: {error.strerror or error}", "check the path and its permissions", str(path))
        ) from None
    except ValueError as error:
        raise UsageError(Problem(f"cannot be read: {error}", remedy, repr(str(path))[:200])) from None


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
            mistakes += [m for i in range(len(levels)) if (m := _spell(levels, i, path, ("factors", path, i)))]
    return mistakes


def spell_params(part: Any, path: Path) -> list[Mistake]:
    """Converts sizes and durations ('64MiB') among the parameters of a kernel to numbers. Changes `part`.

    path: of the part that has `params`.
    """
    params = part.get("params") if isinstance(part, dict) else None
    if not isinstance(params, dict):
        return []
    return [m for key in params if (m := _spell(params, key, str(key), (*path, "params", key)))]


def _list_level(levels: list[Any], index: int, as_text: Callable[[Any], Any], path: Path) -> Mistake | None:
    """Converts a list of numbers in a level to text, because levels are single values."""
    return _convert(levels, index, as_text, path) if isinstance(levels[index], list) else None


def _spell(holder: Any, index: Any, name: str, path: Path) -> Mistake | None:
    """Parses a text by the unit at the end of the parameter's name."""
    parse = {"bytes": units.parse_bytes, "ns": units.parse_duration_ns}.get(re.split(r"[._]", name)[-1])
    return _convert(holder, index, parse, path) if parse and isinstance(holder[index], str) else None


def _convert(holder: Any, index: Any, convert: Callable[[Any], Any], path: Path) -> Mistake | None:
    """Converts a value in its place. ValueError's text is a message, "; " and a remedy."""
    try:
        holder[index] = convert(holder[index])
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        return Mistake(path, message, remedy)
    return None
