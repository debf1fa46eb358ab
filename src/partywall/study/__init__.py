"""Studies: repeated published measurements, with the paper's tables and figures beside our results.

A folder for each kind of study, all with one interface (`kind.Kind`). A new kind touches its folder and the list below.
What is measured, and how, belongs to the capability that a kind uses.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from partywall.agent import memory_check
from partywall.errors import Problem, UsageError
from partywall.model.study import StudyReport
from partywall.scenario import shipped_as, shipped_file
from partywall.scenario.documents import first_key
from partywall.scenario.explain import did_you_mean
from partywall.store.study import StudyDirectory
from partywall.study.generation import Generation
from partywall.study.isolation import Isolation
from partywall.study.kind import Kind
from partywall.study.migration import MigrationStudy
from partywall.study.path import PathStudy
from partywall.study.policies import PolicyStudy
from partywall.study.power import PowerStudy
from partywall.study.promises import Promises

__all__ = ["KINDS", "Kind", "find", "kind_of", "names", "report"]

_ALL: tuple[Kind[Any], ...] = (
    Isolation(),
    Generation(),
    Promises(),
    PolicyStudy(),
    PathStudy(),
    MigrationStudy(),
    PowerStudy(),
)
KINDS: dict[str, Kind[Any]] = {kind.key: kind for kind in _ALL}
"""By the first key of study files."""


def names() -> tuple[str, ...]:
    """The studies that ship with Partywall."""
    return shipped_as(KINDS.__contains__)


def find(name_or_path: str) -> Path:
    """The study file for a name or path. Raises UsageError."""
    if name_or_path in names():
        return shipped_file(name_or_path)
    if f"papers/{name_or_path}" in names():
        return shipped_file(f"papers/{name_or_path}")
    if Path(name_or_path).is_file():
        return Path(name_or_path)
    remedy = did_you_mean(name_or_path, names(), f"give a path, or one of {', '.join(names())}")
    raise UsageError(Problem(f"there is no study {name_or_path[:200]!r}", remedy))


def kind_of(file: Path) -> Kind[Any]:
    """The kind of a study file. Raises UsageError if its first key is unknown."""
    try:
        key = first_key(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(Problem(f"cannot be read: {error}", "give the path of a study file", str(file))) from None
    if key not in KINDS:
        begun = f"it begins with {key[:40]!r}" if key else "it is empty"
        raise UsageError(Problem(f"this is not a study: {begun}", f"begin with one of {', '.join(KINDS)}", str(file)))
    return KINDS[key]


def report(directory: StudyDirectory) -> StudyReport:
    """The findings of a study, from its directory alone."""
    file = directory.path / "study.yaml"
    kind = kind_of(file)
    plain = kind.report(kind.read(directory.content, str(file)), directory)
    checks = directory.memory_checks()
    if not checks:
        return plain
    facts = (*plain.facts, ("memory checked", memory_check.summary(checks)))
    return replace(plain, facts=facts, notes=(*memory_check.warnings(checks), *plain.notes))
