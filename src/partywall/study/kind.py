"""The face that every kind of study has."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

from partywall.model.study import Asked, Note, Outline, StudyReport, Tell
from partywall.store.study import StudyDirectory

S = TypeVar("S")


class Kind(Protocol[S]):
    """How studies of one kind are read, carried out and reported. key: what their files begin with."""

    @property
    def key(self) -> str: ...

    def read(self, content: bytes, file: str) -> S:
        """The checked study. Raises UsageError with all that is wrong with it."""
        ...

    def outline(self, study: S, asked: Asked) -> Outline:
        """What would be measured. Raises UsageError for what this study cannot be asked for."""
        ...

    def check(self, study: S, asked: Asked, work_root: Path, *, allow_commands: bool) -> None:
        """Raises CapabilityError for what the host lacks, before anything is made.

        UsageError if the study holds commands of a user's and they are not allowed.
        """
        ...

    def measure(self, study: S, directory: StudyDirectory, work_root: Path, tell: Tell, note: Note) -> None:
        """Measures what is not in the directory yet. Nothing of it is left on the host, however it ends."""
        ...

    def report(self, study: S, directory: StudyDirectory) -> StudyReport:
        """What was found, from the directory alone. Raises TrialError if that is nothing yet."""
        ...
