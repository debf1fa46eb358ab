"""A study on disk: its file as it was given, how it was asked for, and a line an observation, written at once.

A kill loses at most the observation in flight, and the study goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partywall.model.study import Asked
from partywall.store.record import Record

FILE = "study.yaml"


class StudyDirectory(Record):
    """The record of a study."""

    KIND, MARK, MADE_BY = "study", "study.json", "partywall study papers/vits"
    LINES = "observations.jsonl"

    @classmethod
    def create(cls, path: Path, content: bytes, asked: Asked, about: Mapping[str, Any]) -> StudyDirectory:
        """about: facts that are kept with it. Raises UsageError if the folder is there already or cannot be made."""
        study = cls.make(path, f", or go on with it: partywall study --resume {path}")
        (path / FILE).write_bytes(content)
        (path / cls.MARK).write_text(json.dumps({"asked": asked.model_dump(), **about}, indent=1))
        return study

    @property
    def content(self) -> bytes:
        """The study's file as it was given."""
        return (self.path / FILE).read_bytes()

    @property
    def about(self) -> dict[str, Any]:
        """How it was requested, and what was known before the start."""
        return self.decoded(self.MARK, lambda text: dict(json.loads(text)))

    @property
    def asked(self) -> Asked:
        return Asked.model_validate(self.about["asked"])

    def append(self, observation: str) -> None:
        """Writes one observation, given as JSON."""
        self.append_line(observation)

    def observations(self) -> list[dict[str, Any]]:
        """Those that were written whole."""
        return self.whole_lines()
