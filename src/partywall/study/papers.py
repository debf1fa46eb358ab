"""Published numbers beside the shipped scenarios: reads `scenarios/papers/NAME.paper.yaml` to a `study.paper.Paper`."""

from __future__ import annotations

from importlib import resources

from partywall.core.document.formats import validated
from partywall.errors import Problem, UsageError
from partywall.study.paper import Paper

SUFFIX = ".paper.yaml"


def names() -> tuple[str, ...]:
    """The papers with shipped numbers. Each has the name of the study that repeats it."""
    folder = resources.files("partywall").joinpath("scenarios", "papers")
    return tuple(sorted(f.name.removesuffix(SUFFIX) for f in folder.iterdir() if f.name.endswith(SUFFIX)))


def load(name: str) -> Paper:
    """The published numbers of a study by its name. Raises UsageError if there are none or the file is invalid."""
    if name not in names():
        raise UsageError(Problem(f"there are no published numbers for {name!r}", f"there are {', '.join(names())}"))
    file = resources.files("partywall").joinpath("scenarios", "papers", f"{name}{SUFFIX}")
    return loads(file.read_text(encoding="utf-8"), f"{name}{SUFFIX}")


def loads(content: str, file: str = "<text>") -> Paper:
    """Like `load`, for text. `file` is its name in messages."""
    return validated(Paper, content.encode(), file)
