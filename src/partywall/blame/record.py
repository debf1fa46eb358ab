"""The record of an experiment: its job, the suspects, a line for each pulse before it begins, and one for each slot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import ValidationError

from partywall.core.record import Record, first_line
from partywall.files import decoded
from partywall.values import Frozen


class Slot(Frozen):
    """What was measured in one slot.

    start_ns: of the monotonic clock. depths: of the pulses, by suspect. ticks: the victim's rate in each part of the
    slot; None if nothing is known of it. use: by suspect, CPUs or bytes a second. own: the share of the time in which
    its own limit stopped the victim; None if it has none. steal: the share that the hypervisor took.
    """

    start_ns: int
    length_ns: int
    depths: tuple[float, ...]
    ticks: tuple[float | None, ...]
    use: tuple[float, ...]
    own: float | None = None
    steal: float = 0.0


class BlameDirectory(Record):
    """The record of an experiment."""

    KIND, MARK, MADE_BY = "blame", "blame.json", "partywall blame"

    @classmethod
    def create(cls, path: Any, about: Mapping[str, Any], host: Mapping[str, Any]) -> Self:
        """Creates a record. UsageError if something exists at `path`."""
        made = cls.make(path)
        made.put("host.json", json.dumps(host, indent=1))
        made.put(cls.MARK, json.dumps(about, indent=1))
        return made

    @property
    def about(self) -> dict[str, Any]:
        """The job, the names of the suspects, and what the victim's rate is."""
        return self.decoded(self.MARK, lambda text: dict(json.loads(text)))

    def say(self, kind: str, **content: Any) -> None:
        """Writes a line."""
        self.append_line(json.dumps({"kind": kind, **content}, allow_nan=False))

    def add(self, slot: Slot) -> None:
        """Writes a slot."""
        self.say("slot", **slot.model_dump())

    def slots(self) -> Iterator[Slot]:
        """The slots in order. UsageError for a line that is damaged."""
        for number, line in self.lines():
            try:
                if (content := decoded(line)) is not None and content.pop("kind", None) == "slot":
                    yield Slot.model_validate(content)
            except (ValueError, ValidationError) as error:
                raise self.damaged(self.LINES, first_line(error), number) from None

    def ended(self) -> str:
        """Why it ended; empty if it was killed."""
        return next((str(each.get("why")) for each in self.each_line() if each.get("kind") == "ended"), "")
