"""The files of a power record: the job, the host, what the meters are, and a line for each thing that was read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from partywall.core.record import JobRecord, Stream
from partywall.power.job import AttributeJob, CalibrateJob, PowerJob, ReadJob
from partywall.power.values import (
    Activity,
    DisturbedCalibration,
    MeterFacts,
    MeterFault,
    NodeModel,
    PowerEvidence,
    Reading,
    Slot,
)

Line = Reading | MeterFault | Activity | Slot | DisturbedCalibration
USED = "used-model.json"


class PowerRecord(JobRecord[PowerJob]):
    """The record of readings of power."""

    KIND, MADE_BY = "power", "partywall power read METER"
    JOBS = (ReadJob, CalibrateJob, AttributeJob)
    stream: ClassVar[Stream[Line]] = Stream(
        reading=Reading, fault=MeterFault, activity=Activity, slot=Slot, calibration_disturbed=DisturbedCalibration
    )

    @cached_property
    def job(self) -> PowerJob:
        """The job. Of a record of an earlier version, as far as that kept it."""
        about = self.about
        names = [meter["meter"] for meter in about.get("meters", ())]
        given = {"meter_names": names, "model": USED} | {key: about[key] for key in about if about[key] is not None}
        plain = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        kind: Any = next(kind for kind in self.JOBS if kind.verb == (about.get("verb") or about["task"]))
        # Not checked again: the file of a model may be gone since.
        job: PowerJob = kind.model_construct(**{key: plain[key] for key in kind.model_fields if key in plain})
        return job

    def found(self, meters: Sequence[MeterFacts], boot: str = "", model: NodeModel | None = None) -> None:
        """Writes what the meters are, the boot of the host, and the model whose watts are divided."""
        if model is not None:
            self.put(USED, model.model_dump_json(indent=1))
        self.learn(meters=[meter.model_dump(mode="json") for meter in meters], boot=boot)

    def evidence(self) -> PowerEvidence:
        """All of it. UsageError if it cannot be understood."""
        about, lines = self.about, list(self.stream)

        def of(kind: type[Any]) -> tuple[Any, ...]:
            return tuple(line for line in lines if isinstance(line, kind))

        try:
            return PowerEvidence(
                name=self.name,
                task=about.get("verb") or about["task"],
                meters=tuple(MeterFacts.model_validate(each) for each in about.get("meters", ())),
                host=self.host,
                about=about,
                readings=of(Reading),
                faults=of(MeterFault),
                activity=of(Activity),
                slots=of(Slot),
                disturbed=of(DisturbedCalibration),
                model=self.decoded(USED, NodeModel.model_validate_json) if (self.path / USED).exists() else None,
                interrupted=not self.is_ended,
            )
        except (KeyError, ValueError) as error:
            raise self.damaged(self.MARK, str(error).partition("\n")[0]) from None
