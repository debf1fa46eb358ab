"""The files of a power record: what was requested, the host, and a line for each reading, fault, activity and slot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from partywall.core.record import Record
from partywall.model.power import (
    Activity,
    DisturbedCalibration,
    MeterFacts,
    MeterFault,
    NodeModel,
    PowerEvidence,
    Reading,
    Slot,
    Task,
)

KINDS: dict[type[BaseModel], str] = {
    Reading: "reading",
    MeterFault: "fault",
    Activity: "activity",
    Slot: "slot",
    DisturbedCalibration: "calibration_disturbed",
}


class PowerDirectory(Record):
    """The record of readings of power."""

    KIND, MARK, MADE_BY = "power", "power.json", "partywall power read METER"

    @classmethod
    def create(
        cls,
        path: Path,
        task: Task,
        meters: Sequence[MeterFacts],
        host: Mapping[str, Any],
        about: Mapping[str, Any],
        model: NodeModel | None = None,
    ) -> Self:
        """A new one; UsageError if there is something at `path` already."""
        made = cls.make(path)
        made.put("host.json", json.dumps(host, indent=1))
        facts = [meter.model_dump(mode="json") for meter in meters]
        if model is not None:
            made.put("used-model.json", model.model_dump_json(indent=1))
        made.put(cls.MARK, json.dumps({"task": task, "meters": facts, **about}, indent=1))
        return made

    def add(self, value: Reading | MeterFault | Activity | Slot | DisturbedCalibration) -> None:
        """Writes one line."""
        content = {"kind": KINDS[type(value)], **value.model_dump(mode="json", exclude_defaults=True)}
        self.append_line(json.dumps(content, allow_nan=False))

    def end(self) -> None:
        """Everything was read."""
        self.append_line(json.dumps({"kind": "ended"}))

    def evidence(self) -> PowerEvidence:
        """All of it. UsageError if it cannot be understood."""
        content = self.decoded(self.MARK, lambda text: dict(json.loads(text)))
        lines = self.whole_lines()
        of = {name: [line for line in lines if line.get("kind") == name] for name in KINDS.values()}
        has_model = (self.path / "used-model.json").exists()
        try:
            return PowerEvidence(
                name=self.name,
                task=content.pop("task"),
                meters=tuple(MeterFacts.model_validate(each) for each in content.pop("meters")),
                host=self.host,
                about=content,
                readings=tuple(Reading.model_validate(_plain(line)) for line in of["reading"]),
                faults=tuple(MeterFault.model_validate(_plain(line)) for line in of["fault"]),
                activity=tuple(Activity.model_validate(_plain(line)) for line in of["activity"]),
                slots=tuple(Slot.model_validate(_plain(line)) for line in of["slot"]),
                disturbed=tuple(
                    DisturbedCalibration.model_validate(_plain(line)) for line in of["calibration_disturbed"]
                ),
                model=self.decoded("used-model.json", NodeModel.model_validate_json) if has_model else None,
                interrupted=not any(line.get("kind") == "ended" for line in lines),
            )
        except (KeyError, ValueError) as error:
            raise self.damaged(self.LINES, str(error).partition("\n")[0]) from None


def _plain(line: dict[str, Any]) -> dict[str, Any]:
    """A line without its own kind. A fault's kind is written as `fault`."""
    return {key: value for key, value in line.items() if key != "kind"}
