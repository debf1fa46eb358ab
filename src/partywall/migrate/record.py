"""The files of a series of moves: the plan, the host, a line a move, and what clients and the guest's work saw of it.

A move is written as soon as it has ended, so a kill loses no more than the move in flight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from partywall.core.record import JobRecord
from partywall.files import replace_durably
from partywall.migrate.document import MigrationEvidence, Move, Survey
from partywall.migrate.job import MigrationJob

if TYPE_CHECKING:
    import numpy.typing as npt

Table: TypeAlias = "npt.NDArray[Any]"
"""(rows, columns), see COLUMNS."""

MOVE, CALIBRATION = "move", "calibration"
COLUMNS = {
    "pings": ("intended_ns", "sent_ns", "answered_ns"),
    "work": ("guest_start_ns", "guest_end_ns", "work"),
    "bystander": ("start_ns", "end_ns", "work"),
    "users": ("start_ns", "end_ns", "response_ns", "count"),
    "announced": ("at_ns",),
}
"""Tables of a move. pings: a request each, answered_ns is 0 if it never was. work: a slice each, on the guest's clock.
bystander: one slice each of the work beside the guest. announced: when the guest or its QEMU announced to the clients'
network where it is.

users: responses of virtual users in each second, by response time; −1 for those that failed.
"""


class MigrationDirectory(JobRecord[MigrationJob]):
    """The record of a series of moves."""

    KIND, MADE_BY = "migration", "partywall migrate PLAN"
    JOBS = (MigrationJob,)

    def append(self, move: Move, tables: Mapping[str, Table], kind: str = MOVE) -> None:
        """Writes a move of the plan or of the calibration. Its tables first: one whose line is there is complete.

        All of it is on the disk when this returns.
        """
        for name, table in tables.items():
            if len(table):
                self._write(name, move.number, table)
        line = json.dumps({"kind": kind, **move.model_dump(mode="json")}, allow_nan=False)
        self.append_line(line, durable=True)

    def add_survey(self, survey: Survey) -> None:
        """Writes what is known of a workload before the moves."""
        self.append_line(json.dumps({"kind": "survey", **survey.model_dump(mode="json")}, allow_nan=False))

    def table(self, name: str, number: int) -> Table:
        """A table of a move; empty if there is none."""
        # Slow to import, and the command's help does without.
        import numpy as np  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        from partywall.core.arrow import values  # noqa: PLC0415

        file = self._file(name, number)
        if not file.exists():
            return np.zeros((0, len(COLUMNS[name])))
        table = pq.read_table(file, columns=list(COLUMNS[name]))
        return np.column_stack([values(column) for column in table.columns])

    def tables(self, number: int) -> dict[str, Table]:
        """All tables of a move."""
        return {name: self.table(name, number) for name in COLUMNS}

    def evidence(self) -> MigrationEvidence:
        """All but the tables; UsageError if it cannot be understood."""
        lines = self.whole_lines()
        return MigrationEvidence(
            name=self.name,
            plan=self.job.plan,
            host=self.host,
            about=self.about,
            moves=tuple(Move.model_validate(each) for each in _of(lines, MOVE)),
            calibration=tuple(Move.model_validate(each) for each in _of(lines, CALIBRATION)),
            surveys=tuple(Survey.model_validate(each) for each in _of(lines, "survey")),
            interrupted=not self.is_ended,
        )

    def _write(self, name: str, number: int, table: Table) -> None:
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        file = self._file(name, number)
        file.parent.mkdir(exist_ok=True)
        columns = {column: table[:, place] for place, column in enumerate(COLUMNS[name])}
        move = np.full(len(table), number, np.int32)
        fresh = file.with_name(f".{file.name}")
        pq.write_table(pa.table({"move": move, **columns}), fresh, compression="zstd")
        replace_durably(fresh, file)

    def _file(self, name: str, number: int) -> Path:
        return self.path / name / f"{number:05}.parquet"


def _of(lines: Iterable[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return ({key: value for key, value in line.items() if key != "kind"} for line in lines if line["kind"] == kind)
