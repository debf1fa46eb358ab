"""Published numbers that ship beside the scenarios: `scenarios/papers/NAME.paper.yaml` to a `model.paper.Paper`."""

from __future__ import annotations

from importlib import resources

from partywall.errors import Problem, UsageError
from partywall.model.paper import Paper
from partywall.scenario.documents import validated

SUFFIX = ".paper.yaml"


def names() -> tuple[str, ...]:
    """The papers whose numbers ship with Partywall; each is called as the study that measures it again."""
    folder = resources.files("partywall").joinpath("scenarios", "papers")
    return tuple(sorted(f.name.removesuffix(SUFFIX) for f in folder.iterdir() if f.name.endswith(SUFFIX)))


def load(name: str) -> Paper:
    """The published numbers of a study by its name. Raises UsageError if there are none, or the file is wrong."""
    if name not in names():
        raise UsageError(Problem(f"there are no published numbers for {name!r}", f"there are {', '.join(names())}"))
    file = resources.files("partywall").joinpath("scenarios", "papers", f"{name}{SUFFIX}")
    return loads(file.read_text(encoding="utf-8"), f"{name}{SUFFIX}")


def loads(content: str, file: str = "<text>") -> Paper:
    """Like `load`, of text at hand; `file` is what messages call it."""
    return validated(Paper, content.encode(), file)
