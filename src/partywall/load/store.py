"""A load's directory: the program, the generator's facts, one line for each second, and Parquet files at the end.

Lines are appended immediately, so a kill loses at most the current second. Parquet files are written from the lines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from partywall.errors import TrialError
from partywall.load.health import Health
from partywall.load.second import HISTOGRAMS, Second
from partywall.store.record import Record

_HISTOGRAM = pa.list_(pa.struct([("bucket", pa.int32()), ("count", pa.int64())]))
# Facts that one thread reports for all.
SHARED = ("throttled_ns", "ports_waiting", "ports_most")
SECONDS = pa.schema(
    [
        *[(name, pa.int64()) for name in ("start_ns", "end_ns", "users", "in_flight", "waiting", "iterations")],
        *[(name, pa.int64()) for name in ("requests", "sent_bytes", "received_bytes")],
        *[(name, pa.int64()) for name in ("connections_opened", "connections_open")],
        ("connect", _HISTOGRAM),
        ("tls", _HISTOGRAM),
        ("lateness", _HISTOGRAM),
        ("undelayed", _HISTOGRAM),
        ("timed", pa.int64()),
        ("late", pa.int64()),
        ("busy_ns", pa.int64()),
        ("cpu_ns", pa.int64()),
        ("run_delay_ns", pa.int64()),
        ("stall_ns_max", pa.int64()),
        ("back_pressure", pa.int64()),
        *[(name, pa.int64()) for name in SHARED],
        ("good", pa.bool_()),
        ("doubts", pa.list_(pa.string())),
        ("doubt_figures", pa.list_(pa.string())),
    ]
)
TIMINGS = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("label", pa.string()),
        ("sort", pa.string()),
        ("done", pa.int64()),
        ("failed", pa.int64()),
        ("sum_ns", pa.int64()),
        ("sum_squares_s2", pa.float64()),
        *[(name, _HISTOGRAM) for name in HISTOGRAMS],
    ]
)
ERRORS = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("label", pa.string()),
        ("kind", pa.string()),
        ("detail", pa.string()),
        ("count", pa.int64()),
    ]
)
STATUSES = pa.schema([("start_ns", pa.int64()), ("status", pa.int32()), ("count", pa.int64())])
GENERATORS = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("generator", pa.string()),
        *[(name, pa.int64()) for name in ("requests", "responses", "failed", "busy_ns", "stall_ns_max")],
        ("corrected", _HISTOGRAM),
        ("doubts", pa.list_(pa.string())),
        ("doubt_figures", pa.list_(pa.string())),
    ]
)
"""Loads with several generators have this table."""
SAMPLES = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("host", pa.string()),
        ("counter", pa.string()),
        ("subject", pa.string()),
        ("value", pa.float64()),
    ]
)


class LoadDirectory(Record):
    """The record of a load."""

    KIND, MARK, MADE_BY = "load", "load.json", "partywall load"
    LINES = "pending.jsonl"

    @classmethod
    def create(cls, path: Path, about: Mapping[str, Any]) -> LoadDirectory:
        """A new directory with the facts known before the start. UsageError if something exists at `path`."""
        load = cls.make(path)
        load.put(cls.MARK, json.dumps(about, indent=1))
        return load

    def begin(self, begin_ns: int) -> None:
        """Stores the start time immediately: without it, a killed load has no rate."""
        self._write(self.about() | {"begin_ns": begin_ns})

    def add_note(self, text: str) -> None:
        """Stores what happened to the load from outside, for its report."""
        about = self.about()
        self._write(about | {"notes": [*about.get("notes", ()), text]})

    def _write(self, about: Mapping[str, Any]) -> None:
        self.put(self.MARK, json.dumps(about, indent=1))

    def append(self, second: Second, health: Health) -> None:
        """Stores a second immediately."""
        record = _plain(second) | {"doubts": _reasons(health)}
        if second.parts:
            record["generators"] = {name: _part(part, health.parts[name]) for name, part in second.parts.items()}
        self.append_line(json.dumps(record))

    def finish(
        self,
        labels: Sequence[Mapping[str, Any]],
        monitors: Sequence[Readings],
        begin_ns: int | None,
    ) -> None:
        """Converts the stored lines to Parquet, one file for each table. begin_ns: None if the load never started."""
        self._write(self.about() | {"begin_ns": begin_ns})
        records = self.whole_lines()
        tables = {
            "seconds": (SECONDS, [_second_row(record) for record in records]),
            "timings": (TIMINGS, [row for record in records for row in _timing_rows(record, labels)]),
            "errors": (ERRORS, [row for record in records for row in _error_rows(record, labels)]),
            "statuses": (STATUSES, [row for record in records for row in _status_rows(record)]),
            "samples": (SAMPLES, [row for monitor in monitors for row in sample_rows(monitor)]),
        }
        if parts := [row for record in records for row in _generator_rows(record, labels)]:
            tables["generators"] = (GENERATORS, parts)
        for name, (schema, rows) in tables.items():
            table = pa.Table.from_pylist(rows, schema=schema)
            pq.write_table(table, self.path / f"{name}.parquet", compression="zstd")
        (self.path / self.LINES).unlink(missing_ok=True)

    def about(self) -> dict[str, Any]:
        """The facts known before the start, and the start time if it has started."""
        return self.decoded(self.MARK, lambda text: dict(json.loads(text)))

    def settle(self) -> None:
        """Creates the tables of a killed load. The counters of its hosts are lost.

        UsageError while it still runs.
        """
        with self.exclusive():
            if (self.path / self.LINES).exists():
                self.finish(self.about()["started"]["labels"], [], self.about().get("begin_ns"))

    def has(self, name: str) -> bool:
        """True if the load has this table."""
        return (self.path / f"{name}.parquet").exists()

    def table(self, name: str) -> Rows:
        """All rows of a table. TrialError if the load ended before there were any."""
        file = self.path / f"{name}.parquet"
        if not file.exists():
            raise TrialError(f"{self.path} has no {file.name}: the load was killed, or never started")
        rows: Rows = pq.read_table(file).to_pylist()
        return rows


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Readings:
    """A host's counters, and their values at full seconds of the generator's clock, in order."""

    host: str
    counters: Sequence[Mapping[str, Any]]
    values: Mapping[int, Sequence[float | None]]


def _plain(second: Second) -> dict[str, Any]:
    """A second in JSON types: keys are texts, and errors are a list."""
    plain = {name: getattr(second, name) for name in SECONDS.names if hasattr(second, name)}
    return plain | {
        "timings": {label: dataclasses.asdict(timing) for label, timing in second.timings.items()},
        "statuses": dict(second.statuses),
        "errors": [dataclasses.asdict(error) | {"count": count} for error, count in second.errors.items()],
        "threads": second.threads,
    }


def _reasons(health: Health) -> dict[str, str]:
    return {str(reason): figure for reason, figure in health.doubts.items()}


def _part(part: Second, health: Health) -> dict[str, Any]:
    """What one of several generators did in a second."""
    return {
        "requests": part.requests,
        "responses": sum(part.statuses.values()),
        "failed": sum(part.errors.values()),
        "busy_ns": sum(thread["busy_ns"] for thread in part.threads),
        "stall_ns_max": max((thread["stall_ns_max"] for thread in part.threads), default=0),
        "corrected": {label: timing.corrected for label, timing in part.timings.items()},
        "doubts": _reasons(health),
    }


def _generator_rows(record: Mapping[str, Any], labels: Sequence[Mapping[str, Any]]) -> Rows:
    rows = []
    for name, part in record.get("generators", {}).items():
        corrected: dict[str, int] = {}
        for label, counts in part["corrected"].items():
            if labels[int(label)]["sort"] == "http":
                for bucket, count in counts.items():
                    corrected[bucket] = corrected.get(bucket, 0) + count
        own = {"start_ns": record["start_ns"], "generator": name, "corrected": _pairs(corrected)}
        reasons = {"doubts": list(part["doubts"]), "doubt_figures": list(part["doubts"].values())}
        rows.append({**part, **own, **reasons})
    return rows


def _pairs(counts: Mapping[str, int]) -> list[dict[str, int]]:
    return [
        {"bucket": int(bucket), "count": count} for bucket, count in sorted(counts.items(), key=lambda p: int(p[0]))
    ]


def _second_row(record: Mapping[str, Any]) -> dict[str, Any]:
    threads = record["threads"]
    delays = [thread["run_delay_ns"] for thread in threads]
    sums = {name: sum(t[name] for t in threads) for name in ("timed", "late", "busy_ns", "cpu_ns", "back_pressure")}
    return (
        {name: record[name] for name in SECONDS.names if name in record}
        | {name: _pairs(record[name]) for name in ("connect", "tls", "lateness", "undelayed")}
        | sums
        | {name: next((t[name] for t in threads if t[name] is not None), None) for name in SHARED}
        | {
            "run_delay_ns": None if None in delays else sum(delays),
            "stall_ns_max": max((thread["stall_ns_max"] for thread in threads), default=None),
            "good": not record["doubts"],
            "doubts": list(record["doubts"]),
            "doubt_figures": list(record["doubts"].values()),
        }
    )


def _timing_rows(record: Mapping[str, Any], labels: Sequence[Mapping[str, Any]]) -> Rows:
    return [
        {
            "start_ns": record["start_ns"],
            "label": labels[int(number)]["name"],
            "sort": labels[int(number)]["sort"],
            **timing,
            **{name: _pairs(timing[name]) for name in HISTOGRAMS},
        }
        for number, timing in record["timings"].items()
    ]


def _error_rows(record: Mapping[str, Any], labels: Sequence[Mapping[str, Any]]) -> Rows:
    def name(label: int | None) -> str | None:
        return None if label is None else str(labels[label]["name"])

    return [{"start_ns": record["start_ns"], **error, "label": name(error["label"])} for error in record["errors"]]


def _status_rows(record: Mapping[str, Any]) -> Rows:
    start_ns = record["start_ns"]
    return [{"start_ns": start_ns, "status": int(s), "count": count} for s, count in record["statuses"].items()]


def sample_rows(monitor: Readings) -> Rows:
    return [
        {"at_ns": at * 1_000_000_000, "host": monitor.host}
        | {"counter": info["name"], "subject": info["subject"], "value": value}
        for at, values in sorted(monitor.values.items())
        for info, value in zip(monitor.counters, values, strict=True)
        if value is not None
    ]
