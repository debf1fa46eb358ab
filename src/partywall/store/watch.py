"""The files of a watch: how it watches, the host, and a line for each span and for each time in which a disk was slow.

Lines are written at once, so a kill loses at most the current span. Tables are made from them when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from partywall.files import replace_durably
from partywall.model.watch import Slow, Span, parts
from partywall.store.lines import decoded
from partywall.store.record import Record, first_line

ROWS = 50_000
"""Rows that are converted at a time."""
_SPAN = [("at_ns", pa.int64()), ("length_ns", pa.int64())]
_SUMS = [(name, pa.int64()) for name in ("reads", "writes", "read_bytes", "write_bytes", "read_ns", "write_ns")]
_MORE = [
    (name, pa.int64())
    for name in ("busy_ns", "in_flight", "read_peak_ns", "write_peak_ns", "saturated_ns", "unjudged_ns")
]
_BYTES = [("read_bytes", pa.int64()), ("write_bytes", pa.int64())]
_MOST = [("at_most", pa.bool_()), ("read_bytes_most", pa.int64()), ("write_bytes_most", pa.int64())]
TABLES = {
    "disks": pa.schema([*_SPAN, ("disk", pa.string()), *_SUMS, *_MORE]),
    "tenants": pa.schema(
        [*_SPAN, ("tenant", pa.string()), ("disk", pa.string()), ("operations", pa.int64()), *_BYTES, *_MOST]
    ),
    "waits": pa.schema([*_SPAN, ("tenant", pa.string()), ("waited_ns", pa.int64())]),
}


class WatchDirectory(Record):
    """The record of a watch."""

    KIND, MARK, MADE_BY = "watch", "watch.json", "partywall watch"

    @classmethod
    def create(cls, path: Path, about: Mapping[str, Any], host: Mapping[str, Any]) -> Self:
        """Creates a record. UsageError if something exists at `path`."""
        made = cls.make(path, f", or continue it: partywall watch --resume {path}")
        made.put("host.json", json.dumps(host, indent=1))
        made.put(cls.MARK, json.dumps(about, indent=1))
        return made

    @property
    def about(self) -> dict[str, Any]:
        """How it watches."""
        return self.decoded(self.MARK, lambda text: dict(json.loads(text)))

    def add(self, value: Span | Slow) -> None:
        """Writes a span, or a slow time that has begun or ended."""
        kind = "span" if isinstance(value, Span) else "slow"
        self.append_line(json.dumps({"kind": kind, **value.model_dump(exclude_defaults=True)}, allow_nan=False))

    def say(self, kind: str, **content: Any) -> None:
        """Writes that the watch began, goes on, or ended."""
        self.append_line(json.dumps({"kind": kind, **content}))

    def events(self) -> Iterator[tuple[str, Span | Slow | dict[str, Any]]]:
        """The lines in order, one at a time. UsageError for a line that is damaged."""
        models: dict[str, type[Span | Slow]] = {"span": Span, "slow": Slow}
        for number, line in self.lines():
            try:
                if (content := decoded(line)) is None or not isinstance(kind := content.pop("kind", None), str):
                    continue
                yield kind, models[kind].model_validate(content) if kind in models else content
            except (ValueError, ValidationError) as error:
                raise self.damaged(self.LINES, first_line(error), number) from None

    def spans(self) -> Iterator[Span]:
        return (value for _, value in self.events() if isinstance(value, Span))

    @property
    def watched_ns(self) -> int:
        """How long it has watched, pauses not included."""
        return sum(span.length_ns for span in self.spans())

    @property
    def is_ended(self) -> bool:
        return any(kind == "ended" for kind, _ in self.events())

    def settle(self) -> None:
        """Writes the tables, if there are newer lines."""
        lines = self.path / self.LINES
        first = self.path / f"{next(iter(TABLES))}.parquet"
        if not lines.exists() or (first.exists() and first.stat().st_mtime_ns > lines.stat().st_mtime_ns):
            return
        # The first one is written last, because it says that all are there.
        for name in reversed(TABLES):
            fresh = self.path / f".{name}.parquet"
            with pq.ParquetWriter(fresh, TABLES[name], compression="zstd") as writer:
                for table in _tables(name, self.spans()):
                    writer.write_table(table)
            replace_durably(fresh, self.path / f"{name}.parquet")


def _tables(name: str, spans: Iterator[Span]) -> Iterator[pa.Table]:
    rows: list[dict[str, Any]] = []
    for span in spans:
        rows += [{"at_ns": span.at_ns, "length_ns": span.length_ns} | row for row in _rows(name, span)]
        if len(rows) >= ROWS:
            yield pa.Table.from_pylist(rows, TABLES[name])
            rows = []
    yield pa.Table.from_pylist(rows, TABLES[name])


def _rows(name: str, span: Span) -> list[dict[str, Any]]:
    match name:
        case "disks":
            return [disk.model_dump() for disk in span.disks]
        case "tenants":
            return [part.model_dump() for part in parts(span)]
        case _:
            return [{"tenant": tenant, "waited_ns": waited_ns} for tenant, waited_ns in span.waited_ns.items()]
