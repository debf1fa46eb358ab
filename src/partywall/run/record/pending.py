"""Messages of agents during a turn: appended as lines immediately, converted to Parquet afterwards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from partywall.errors import Problem, UsageError
from partywall.files import decoded, replace_durably

SLICES = pa.schema(
    [
        ("trial", pa.string()),
        ("workload", pa.string()),
        ("thread", pa.int32()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("work", pa.float64()),
        ("cpu_ns", pa.int64()),
        ("intensity", pa.float64()),
        ("latency_bucket", pa.list_(pa.int32())),
        ("latency_count", pa.list_(pa.int64())),
    ]
)
SAMPLES = pa.schema(
    [("trial", pa.string()), ("at_ns", pa.int64()), ("until_ns", pa.int64()), ("values", pa.list_(pa.float64()))]
)
OUTPUT = pa.schema(
    [
        ("trial", pa.string()),
        ("workload", pa.string()),
        ("at_ns", pa.int64()),
        ("stream", pa.string()),
        ("text", pa.string()),
    ]
)
USAGE = pa.schema(
    [
        ("trial", pa.string()),
        ("workload", pa.string()),
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("on", pa.bool_()),
        ("processes", pa.int64()),
        ("cpu_ns", pa.int64()),
        ("disk_bytes", pa.int64()),
    ]
)
TABLES = {"slices": SLICES, "samples": SAMPLES, "output": OUTPUT, "usage": USAGE}
_GROUP_ROWS = 1 << 14
"""Rows of a row group: a reader of one workload skips the groups of the others."""


class Pending:
    """An append-only file of one turn. Each record is flushed, so a kill loses none."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        self._stream = file.open("a", encoding="utf-8")
        # Ends an incomplete line of a killed run.
        self._stream.write("\n" if self._stream.tell() else "")

    def write(self, record: dict[str, Any]) -> None:
        self._stream.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


def read(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a pending file. Incomplete lines are skipped."""
    for line in file.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):
            if (record := decoded(line)) is not None:
                yield record


def slice_row(trial: str, workload: str, piece: dict[str, Any]) -> dict[str, Any]:
    """Converts a slice from the agent to a row of the table of slices."""
    latency = piece["latency"]
    own = {key: piece[key] for key in ("thread", "start_ns", "end_ns", "work", "cpu_ns", "intensity")}
    return own | {
        "trial": trial,
        "workload": workload,
        "latency_bucket": [bucket for bucket, _ in latency],
        "latency_count": [count for _, count in latency],
    }


def compact(file: Path, run: Path) -> None:
    """Converts one pending file to Parquet and removes it.

    Each table is written to a temporary file and renamed, so the conversion can be repeated after a kill.
    """
    trial = file.stem.partition("~")[0]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for record in read(file):
        match record:
            case {"slices": slices, "workload": workload}:
                rows["slices"] += [slice_row(trial, workload, piece) for piece in slices]
            case {"values": values, "at_ns": at_ns, "until_ns": until_ns}:
                rows["samples"].append({"trial": trial, "at_ns": at_ns, "until_ns": until_ns, "values": values})
            case {"lines": lines, "workload": workload}:
                rows["output"] += [{"trial": trial, "workload": workload, **line} for line in lines]
            case {"intervals": intervals, "workload": workload}:
                rows["usage"] += [{"trial": trial, "workload": workload, **interval} for interval in intervals]
    rows["slices"].sort(key=lambda row: str(row["workload"]))
    for name, schema in TABLES.items():
        if rows[name]:
            _write(run / name / f"{file.stem}.parquet", pa.Table.from_pylist(rows[name], schema=schema))
    file.unlink()


def table(
    file: Path, schema: pa.Schema, columns: list[str] | None = None, rows: pc.Expression | None = None
) -> pa.Table:
    """A Parquet file written by `compact`: all of it, or some columns, or some rows. UsageError if it is damaged."""
    try:
        there = pq.read_schema(file).names
        if missing := [name for name in schema.names if name not in there]:
            raise pa.ArrowInvalid(f"it has no column {missing[0]}")
        stored = pq.read_table(file, columns=columns, filters=rows)
    except (OSError, pa.ArrowException) as error:
        remedy = "it is damaged; restore it from a copy, or measure again"
        raise UsageError(Problem(f"cannot be read: {str(error).splitlines()[0]}", remedy, str(file))) from None
    return stored


def _write(target: Path, table: pa.Table) -> None:
    target.parent.mkdir(exist_ok=True)
    temporary = target.with_suffix(".tmp")
    pq.write_table(table, temporary, compression="zstd", row_group_size=_GROUP_ROWS)
    replace_durably(temporary, target)
