"""A report as text, rows and files. Each report has a table of its own formats; writing them is the same for all.

Documents are texts or bytes with a fixed name. Every chart becomes an image file. The contents are defined elsewhere.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import vl_convert
from rich.console import Console

from partywall.core.report.compared import Figure
from partywall.core.report.page import written
from partywall.errors import Problem, UsageError

PNG_SCALE = 2.0

T = TypeVar("T")
Document = tuple[str, Callable[[T], str | bytes | None]]
"""(file name, content), or None if there is nothing to write."""
Step = Callable[[str, int, int], None]
"""Receives the current step, the number of steps done, and their total."""

IMAGES: Mapping[str, Callable[[str], bytes]] = {
    "png": lambda spec: vl_convert.vegalite_to_png(spec, scale=PNG_SCALE),
    "svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
}
"""A function that draws one chart as an image file."""


@dataclass(frozen=True)
class Files(Generic[T]):
    """One kind of report. of: the kind. show: prints it as text. charts: stand-alone specifications by file name.

    headline: the finding in a sentence. goals: how many stated goals were judged; without one, nothing holds, it is
    only measured. The JSON document begins with both, for lists of many records.
    rows: the findings as flat rows of plain values, for other programs; unknown values are None. table: the name of
    their CSV file. compared: the figures to show beside those of another record, where several may be of the same
    thing; none for runs, whose cells are judged.
    """

    of: str
    show: Callable[[T, Console], None]
    documents: Mapping[str, Document[T]]
    rows: Callable[[T], list[dict[str, Any]]]
    table: str
    charts: Callable[[T], Mapping[str, dict[str, Any]]]
    headline: Callable[[T], str]
    goals: Callable[[T], int] = lambda _: 0
    usual: tuple[str, ...] = ("html", "json")
    compared: Callable[[T], list[Figure]] = lambda _: []

    @property
    def formats(self) -> tuple[str, ...]:
        return (*self._made, *IMAGES)

    @property
    def _made(self) -> Mapping[str, Document[T]]:
        name, _ = self.documents["json"]
        table = (self.table, lambda content: csv_text(self.rows(content)))
        return {**self.documents, "json": (name, self._json), "csv": table}

    def _json(self, content: T) -> str:
        return json.dumps(self.value(content), indent=1, ensure_ascii=False) + "\n"

    def chosen(self, formats: Sequence[str] | None) -> list[str]:
        """The requested formats without duplicates, or the default ones. UsageError for an unknown format."""
        wanted = list(dict.fromkeys(formats or self.usual))
        if unknown := [name for name in wanted if name not in self.formats]:
            raise UsageError(
                Problem(
                    f"{self.of} cannot be written as {unknown[0]!r}",
                    f"choose {', '.join(self.formats)}",
                    key="--format",
                )
            )
        return wanted

    def value(self, content: T) -> Any:
        """The report as a JSON value."""
        _, make = self.documents["json"]
        return {"headline": self.headline(content), "goals": self.goals(content)} | json.loads(make(content) or "{}")

    def write(
        self,
        content: T,
        folder: Path,
        formats: Sequence[str] | None = None,
        step: Step = lambda _doing, _done, _of: None,
    ) -> tuple[Path, ...]:
        """Writes the report in each of `formats`.

        UsageError for an unknown format or a folder that cannot be written.
        """
        wanted = self.chosen(formats)
        try:
            return tuple(self._write(content, folder, wanted, step))
        except OSError as error:
            place = str(error.filename or folder)
            again = shlex.join(["partywall", "report", str(folder)])
            remedy = f"check its permissions and the free space on its disk, then repeat: {again}"
            raise UsageError(Problem(f"cannot be written: {error.strerror or error}", remedy, place)) from None

    def _write(self, content: T, folder: Path, wanted: Sequence[str], step: Step) -> Iterator[Path]:
        documents = [self._made[name] for name in wanted if name in self._made]
        for number, (name, make) in enumerate(documents):
            step(f"writing {name}", number, len(documents))
            if (made := make(content)) is not None:
                yield written(folder / name, made.encode() if isinstance(made, str) else made)
        if images := [name for name in wanted if name in IMAGES]:
            step("preparing charts", 0, 1)
            yield from _images(self.charts(content), folder / "charts", images, step)


def _images(specs: Mapping[str, dict[str, Any]], folder: Path, formats: Sequence[str], step: Step) -> Iterator[Path]:
    """Draws every chart in each of `formats`. Drawing releases Python's lock, so threads run in parallel."""
    jobs = [(spec, folder / f"{name}.{kind}", kind) for kind in formats for name, spec in specs.items()]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        drawn = pool.map(lambda job: written(job[1], IMAGES[job[2]](json.dumps(job[0]))), jobs)
        for done, path in enumerate(drawn, start=1):
            step("drawing charts", done, len(jobs))
            yield path


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with a column for every name that any row has."""
    out = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def parquet(table: pa.Table) -> bytes:
    """A table as a Parquet file."""
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()
