"""A study on disk: its file as it was given, how it was asked for, and a line an observation, written at once.

A kill loses at most the observation in flight, and the study goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.errors import Problem, UsageError
from partywall.model.study import Asked

ABOUT, FILE, OBSERVATIONS = "study.json", "study.yaml", "observations.jsonl"


@dataclass(frozen=True)
class StudyDirectory:
    """Where a study is kept."""

    path: Path

    @classmethod
    def create(cls, path: Path, content: bytes, asked: Asked, about: Mapping[str, Any]) -> StudyDirectory:
        """about: facts that are kept with it. Raises UsageError if the folder is there already or cannot be made."""
        try:
            path.mkdir(parents=True)
        except OSError as error:
            why = "is there already" if isinstance(error, FileExistsError) else f"cannot be made: {error.strerror}"
            raise UsageError(Problem(f"{path} {why}", "give a folder that is not there yet", key="--out")) from None
        (path / FILE).write_bytes(content)
        (path / ABOUT).write_text(json.dumps({"asked": asked.model_dump(), **about}, indent=1))
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> StudyDirectory:
        if not cls.is_one(path):
            raise UsageError(Problem(f"{path} holds no study", "make one: partywall study papers/vits"))
        return cls(path)

    @classmethod
    def is_one(cls, path: Path) -> bool:
        return (path / ABOUT).is_file()

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def content(self) -> bytes:
        return (self.path / FILE).read_bytes()

    @property
    def about(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / ABOUT).read_text())
        return found

    @property
    def asked(self) -> Asked:
        return Asked.model_validate(self.about["asked"])

    def append(self, observation: str) -> None:
        """Writes one observation, given as JSON, after what is whole of those before."""
        file = self.path / OBSERVATIONS
        text = file.read_text() if file.is_file() else ""
        if not text.endswith("\n") and text:
            file.write_text(text[: text.rfind("\n") + 1])
        with file.open("a") as stream:
            stream.write(observation + "\n")

    def observations(self) -> list[dict[str, Any]]:
        """Those that were written whole."""
        file = self.path / OBSERVATIONS
        lines = file.read_text().split("\n")[:-1] if file.is_file() else []
        return [json.loads(line) for line in lines]
