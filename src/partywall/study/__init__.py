"""Studies: repeated published measurements, with the paper's tables and figures beside our results.

A folder for each kind of study, all with one interface (`kind.Kind`). A new kind touches its folder and the list below.
What is measured, and how, belongs to the capability that a kind uses.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from partywall.agent import memory_check
from partywall.core.document.formats import format_key, refuse_other
from partywall.core.document.reading import text as read_text
from partywall.core.document.shipped import find as find_file
from partywall.core.document.shipped import shipped_as
from partywall.errors import Problem, UsageError
from partywall.study.document import StudyReport
from partywall.study.generation import Generation
from partywall.study.isolation import Isolation
from partywall.study.kind import Kind
from partywall.study.migration import MigrationStudy
from partywall.study.path import PathStudy
from partywall.study.policies import PolicyStudy
from partywall.study.power import PowerStudy
from partywall.study.promises import Promises
from partywall.study.record import StudyDirectory

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
    known = names()
    return find_file(paper if (paper := f"papers/{name_or_path}") in known else name_or_path, known, "study")


def kind_of(file: Path) -> Kind[Any]:
    """The kind of a study file. Raises UsageError if it is none."""
    content = read_text(file, "study")
    refuse_other(content, KINDS, str(file))
    if (key := format_key(content)) not in KINDS:
        raise UsageError(Problem("this is not a study", f"begin with one of {', '.join(KINDS)}", str(file)))
    return KINDS[key]


def report(directory: StudyDirectory) -> StudyReport:
    """The findings of a study, from its directory alone. If parts were chosen, tables without values are left out."""
    file = directory.path / "study.yaml"
    kind = kind_of(file)
    plain = kind.report(kind.read(directory.content, str(file)), directory)
    if directory.request.parts:
        # The others were not requested, which is no news.
        plain = replace(plain, comparisons=tuple(beside for beside in plain.comparisons if beside.measured))
    checks = directory.memory_checks()
    if not checks:
        return plain
    facts = (*plain.facts, ("memory checked", memory_check.summary(checks)))
    return replace(plain, facts=facts, notes=(*memory_check.warnings(checks), *plain.notes))
