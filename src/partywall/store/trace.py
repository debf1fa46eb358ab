"""The files of a trace: what was asked, the host, one line an event, and packets kept apart as they are many.

A line is written as soon as it is known, so a kill loses no more than the report in flight.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from partywall.errors import Problem, UsageError
from partywall.model.trace import ClockBound, Report, Start, TraceEvidence
from partywall.store import folder
from partywall.store.directory import RunDirectory

FILE = "trace.json"
REMEDY = "it is damaged or of another version of Partywall; bring it back from a copy, or trace again"


class TraceDirectory:
    """A trace's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = RunDirectory(path)

    @classmethod
    def create(cls, path: Path, start: Start, host: dict[str, Any]) -> Self:
        """A new one; UsageError if there is something at `path` already."""
        folder.make(path)
        (path / "host.json").write_text(json.dumps(host, indent=1))
        (path / FILE).write_text(start.model_dump_json(indent=1))
        return cls(path)

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a folder holds a trace, and no other run."""
        return (path / FILE).is_file()

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def append(self, kind: str, content: BaseModel | dict[str, Any]) -> None:
        """Writes an event."""
        fields = content.model_dump(by_alias=True) if isinstance(content, BaseModel) else content
        self._log.append(kind, **fields)

    def evidence(self) -> TraceEvidence:
        """All that is stored; UsageError if it cannot be understood."""
        start = self._decoded(FILE, Start.model_validate_json)
        events = list(self._events())
        found = [(kind, content) for kind, content in events if kind in ("report", "clock")]
        return TraceEvidence(
            run=self.name,
            start=start,
            host=self._decoded("host.json", lambda text: dict(json.loads(text))),
            reports=tuple(content for kind, content in found if kind == "report"),
            clocks=tuple(content for kind, content in found if kind == "clock"),
            record_ns=next((content["record_ns"] for kind, content in events if kind == "hooked"), None),
            interrupted=not any(kind == "ended" for kind, _ in events),
        )

    def _events(self) -> Iterator[tuple[str, Any]]:
        kinds: dict[str, type[Report | ClockBound]] = {"report": Report, "clock": ClockBound}
        for number, event in enumerate(self._log.events(), start=1):
            kind = event.pop("kind")
            try:
                yield kind, kinds[kind].model_validate(event) if kind in kinds else event
            except ValidationError as error:
                place = str(self.path / "events.jsonl")
                raise UsageError(Problem(f"cannot be understood: {_first(error)}", REMEDY, place, number)) from None

    def _decoded(self, name: str, decode: Any) -> Any:
        file = self.path / name
        try:
            return decode(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(Problem(f"cannot be read: {error.strerror}", "check the path", str(file))) from None
        except ValueError as error:
            raise UsageError(Problem(f"cannot be understood: {_first(error)}", REMEDY, str(file))) from None


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        one = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ")
    return str(error).partition("\n")[0]
