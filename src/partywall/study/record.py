"""A stored study: its original file, the request, and one line for each observation, written immediately.

A kill loses at most the current observation, and the study can be continued.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partywall.core.record import Record
from partywall.study.document import StudyRequest

FILE = "study.yaml"
MEMORY = "memory_checked"
"""The key of a line that is no observation, but the outcome of a memory check."""


class StudyDirectory(Record):
    """The record of a study."""

    KIND, MARK, MADE_BY = "study", "study.json", "partywall study papers/vits"
    LINES = "observations.jsonl"

    @classmethod
    def create(cls, path: Path, content: bytes, request: StudyRequest, about: Mapping[str, Any]) -> StudyDirectory:
        """Creates a record. about: facts to store. Raises UsageError if the folder exists or cannot be created."""
        study = cls.make(path, f", or continue it: partywall study --resume {path}")
        study.put(FILE, content)
        study.put(cls.MARK, json.dumps({"asked": request.model_dump(), **about}, indent=1))
        return study

    @property
    def content(self) -> bytes:
        """The study's original file."""
        return (self.path / FILE).read_bytes()

    @property
    def about(self) -> dict[str, Any]:
        """The request, and facts known before the start."""
        return self.decoded(self.MARK, lambda text: dict(json.loads(text)))

    @property
    def request(self) -> StudyRequest:
        return StudyRequest.model_validate(self.about["asked"])

    def wait_for_memory(self, wait_ns: int) -> None:
        """Changes how long the rest of the study waits for free memory."""
        request = self.request.model_copy(update={"memory_wait_ns": wait_ns})
        self.put(self.MARK, json.dumps(self.about | {"asked": request.model_dump()}, indent=1))

    def append(self, observation: str) -> None:
        """Appends one observation, given as JSON. It is on the disk when this returns."""
        self.append_line(observation, durable=True)

    def observations(self) -> list[dict[str, Any]]:
        """The completely written observations."""
        return [line for line in self.whole_lines() if MEMORY not in line]

    def append_memory_check(self, stored: Mapping[str, Any]) -> None:
        """Appends the outcome of a memory check."""
        self.append_line(json.dumps({MEMORY: stored}))

    def memory_checks(self) -> list[dict[str, Any]]:
        """The outcomes of memory checks."""
        return [line[MEMORY] for line in self.whole_lines() if MEMORY in line]
