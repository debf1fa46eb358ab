"""A load's directory: the program, the generator's facts, one line for each second, and Parquet files at the end.

Lines are appended immediately, so a kill loses at most the current second. Parquet files are written from the lines.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from partywall.core.record import Record
from partywall.errors import TrialError
from partywall.files import append_whole, replace_durably
from partywall.load.health import Health
from partywall.load.second import HISTOGRAMS, Second

T = TypeVar("T")
_HISTOGRAM = pa.list_(pa.struct([("bucket", pa.int32()), ("count", pa.int64())]))
# Facts that one thread reports for all.
SHARED = ("throttled_ns", "ports_waiting", "ports_most")
SECONDS = pa.schema(
    [
        *[(name, pa.int64()) for name in ("start_ns", "end_ns", "users", "in_flight", "waiting", "iterations")],
        *[(name, pa.int64()) for name in ("requests", "sent_bytes", "received_bytes")],
        *[(name, pa.int64()) for name in ("connections_opened", "connections_open", "resent", "rerouted")],
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
    COUNTERS = "counters.jsonl"
    """Counters until the end: a line for each host that names them, and then one for each reading."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._hosts: set[str] = set()

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

    def add_readings(self, readings: Readings) -> None:
        """Stores counters as they are read, so that a load of any length needs no memory for them."""
        lines: list[dict[str, Any]] = []
        if readings.host not in self._hosts:
            self._hosts.add(readings.host)
            lines.append({"host": readings.host, "counters": [dict(info) for info in readings.counters]})
        lines += [{"host": readings.host, "at": at, "values": values} for at, values in readings.values.items()]
        if lines:
            append_whole(self.path / self.COUNTERS, b"\n".join(json.dumps(line).encode() for line in lines))

    def finish(self, labels: Sequence[Mapping[str, Any]], begin_ns: int | None) -> None:
        """Converts the stored lines to Parquet, one file for each table. begin_ns: None if the load never started."""
        self._write(self.about() | {"begin_ns": begin_ns})
        with _Tables(self.path) as tables:
            for records in _batches(self.each_line()):
                tables.add("seconds", [_second_row(record) for record in records])
                tables.add("timings", [row for record in records for row in _timing_rows(record, labels)])
                tables.add("errors", [row for record in records for row in _error_rows(record, labels)])
                tables.add("statuses", [row for record in records for row in _status_rows(record)])
                tables.add("generators", [row for record in records for row in _generator_rows(record, labels)])
            for readings in _batches(self._readings()):
                tables.add("samples", [row for each in readings for row in sample_rows(each)])
        # With the lines, `settle` would write the tables again, and those of the counters need the counters.
        for name in (self.LINES, self.COUNTERS):
            (self.path / name).unlink(missing_ok=True)

    def _readings(self) -> Iterator[Readings]:
        counters: dict[str, Sequence[Mapping[str, Any]]] = {}
        for line in self.each_line(self.COUNTERS):
            match line:
                case {"host": host, "counters": known}:
                    counters[host] = known
                case {"host": host, "at": at, "values": values} if host in counters:
                    yield Readings(host, counters[host], {at: values})

    def about(self) -> dict[str, Any]:
        """The facts known before the start, and the start time if it has started."""
        return self.decoded(self.MARK, lambda text: dict(json.loads(text)))

    def settle(self) -> None:
        """Creates the tables of a killed load. UsageError while it still runs."""
        with self.exclusive():
            if (self.path / self.LINES).exists():
                self.finish(self.about()["started"]["labels"], self.about().get("begin_ns"))

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
TABLES = {
    "seconds": SECONDS,
    "timings": TIMINGS,
    "errors": ERRORS,
    "statuses": STATUSES,
    "samples": SAMPLES,
    "generators": GENERATORS,
}
BATCH = 1000
"""Lines that are in memory at once."""


class _Tables:
    """Parquet files that are written piece by piece, and appear whole. `generators` appears only if it has rows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> Self:
        for name in TABLES:
            if name != "generators":
                self._writer(name)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for name, writer in self._writers.items():
            writer.close()
            if kind is None:
                replace_durably(self._fresh(name), self._folder / f"{name}.parquet")
            else:
                self._fresh(name).unlink(missing_ok=True)

    def add(self, name: str, rows: Rows) -> None:
        if rows:
            self._writer(name).write_table(pa.Table.from_pylist(rows, schema=TABLES[name]))

    def _writer(self, name: str) -> pq.ParquetWriter:
        if name not in self._writers:
            self._writers[name] = pq.ParquetWriter(self._fresh(name), TABLES[name], compression="zstd")
        return self._writers[name]

    def _fresh(self, name: str) -> Path:
        return self._folder / f".{name}.parquet"


def _batches(every: Iterable[T]) -> Iterator[list[T]]:
    every = iter(every)
    while batch := list(itertools.islice(every, BATCH)):
        yield batch


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
