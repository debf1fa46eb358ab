"""The face that every kind of study has, and what several of them refuse alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from partywall.errors import Problem, UsageError
from partywall.events import Emit
from partywall.host import Host
from partywall.model.scenario import Frozen
from partywall.model.study import Asked, Length, Outline, StudyReport
from partywall.store.study import StudyDirectory

S = TypeVar("S")
F = TypeVar("F")
B = TypeVar("B", bound=Frozen)


class Kind(Protocol[S]):
    """How studies of one kind are read, carried out and reported. key: what their files begin with."""

    @property
    def key(self) -> str: ...

    def read(self, content: bytes, file: str) -> S:
        """The checked study. Raises UsageError with all that is wrong with it."""
        ...

    def outline(self, study: S, asked: Asked, host: Host) -> Outline:
        """What would be measured on a host. Raises UsageError for what this study cannot be asked for."""
        ...

    def check(self, study: S, asked: Asked, host: Host, work_root: Path, *, allow_commands: bool) -> None:
        """Raises CapabilityError for what the host lacks, before anything is made.

        UsageError if the study holds commands of a user's and they are not allowed.
        """
        ...

    def measure(self, study: S, directory: StudyDirectory, host: Host, work_root: Path, emit: Emit) -> None:
        """Measures what is not in the directory yet. Nothing of it is left on the host, however it ends."""
        ...

    def report(self, study: S, directory: StudyDirectory) -> StudyReport:
        """What was found, from the directory alone. Raises TrialError if that is nothing yet."""
        ...


def refuse_parts(name: str, asked: Asked) -> None:
    """UsageError if parts are named of a study that is one piece."""
    if asked.parts:
        raise UsageError(Problem(f"{name} has no parts", "leave it out", key="--only"))


def form_of(name: str, forms: Mapping[Length, F], asked: Asked) -> F:
    """The form of the length asked for. UsageError if the study has none of it."""
    if asked.length not in forms:
        there = ", ".join(f"--{length}" for length in forms)
        raise UsageError(Problem(f"{name} has no {asked.length} form", f"there is {there}"))
    return forms[asked.length]


def in_blocks(forms: Mapping[Length, B], asked: Asked) -> B:
    """The form of the length asked for, with as many blocks as are asked for."""
    form = forms[asked.length]
    return form if asked.rounds is None else form.model_copy(update={"blocks": asked.rounds})
