"""The files of a trace: the request, the host, one line for each event, and a separate file of packets.

Lines are written immediately, so a kill loses at most the current report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from partywall.model.trace import ClockBound, Report, Start, TraceEvidence
from partywall.store import event
from partywall.store.record import Record, first_line


class TraceDirectory(Record):
    """The record of a trace."""

    KIND, MARK, MADE_BY = "trace", "trace.json", "partywall trace"

    @classmethod
    def create(cls, path: Path, start: Start, host: dict[str, Any]) -> Self:
        """Creates a record. UsageError if something exists at `path`."""
        trace = cls.make(path)
        trace.put("host.json", json.dumps(host, indent=1))
        trace.put(cls.MARK, start.model_dump_json(indent=1))
        return trace

    def append(self, kind: str, content: BaseModel | dict[str, Any]) -> None:
        """Appends an event."""
        fields = content.model_dump(by_alias=True) if isinstance(content, BaseModel) else content
        self.append_line(json.dumps({"kind": kind} | fields, allow_nan=False))

    def evidence(self) -> TraceEvidence:
        """The stored evidence. UsageError if it is invalid."""
        start = self.decoded(self.MARK, Start.model_validate_json)
        events = list(self._events())
        wanted = [(kind, content) for kind, content in events if kind in ("report", "clock")]
        hooked: dict[str, Any] = next((content for kind, content in events if kind == "hooked"), {})
        return TraceEvidence(
            run=self.name,
            start=start,
            host=self.host,
            reports=tuple(content for kind, content in wanted if kind == "report"),
            clocks=tuple(content for kind, content in wanted if kind == "clock"),
            record_ns=hooked.get("record_ns"),
            relays_record_ns=hooked.get("relays_record_ns", {}),
            interrupted=not any(kind == "ended" for kind, _ in events),
        )

    def _events(self) -> Iterator[tuple[str, Any]]:
        kinds: dict[str, type[Report | ClockBound]] = {"report": Report, "clock": ClockBound}
        for number, line in self.lines():
            try:
                decoded = event.decode(line)
                if decoded:
                    kind = decoded.pop("kind")
                    yield kind, kinds[kind].model_validate(decoded) if kind in kinds else decoded
            except (ValueError, ValidationError) as error:
                raise self.damaged(self.LINES, first_line(error), number) from None
