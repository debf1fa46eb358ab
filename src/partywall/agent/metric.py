"""Converts a command's output lines with arrival times to slices of work: by pattern, JSONPath or column.

Pure except for remembered readings. It starts nothing, reads no clock, and accepts any output. Unusable readings are
skipped and counted in `Extractor.counts`, for the run to report.
"""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import ConfigDict, Field

from partywall.values import Frozen

WorkSlice = tuple[int, int, float]

DOCUMENT_CHARS_MAX = 4 << 20
_JSON_TOKEN = re.compile(
    r'[ \t\r]*(?:(?P<text>"(?:[^"\\\x00-\x1f]|\\.)*")'
    r"|(?P<value>-?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|Infinity)|NaN|true|false|null)|(?P<mark>[{}\[\]:,]))"
)
_SPACE, _FILL = re.compile(r"\s*"), re.compile(r"[\s,]*")
_VALUE = ("text", "value", "{", "[")
_FIRST_VALUE = (*_VALUE, "]")
_FIRST_KEY = ("key", "}")


class Metric(Frozen):
    """How to extract a number from a command's output while it runs: exactly one of regex, json and csv_column."""

    regex: str | None = Field(None, description="regular expression with one group, searched in each line")
    json_path: str | None = Field(
        None, alias="json", description="JSONPath into each JSON document the command prints, e.g. $.jobs[0].read.bw"
    )
    csv_column: str | int | None = Field(None, description="column name (first line is the header) or index from 0")
    kind: Literal["rate", "total"] = Field(
        "rate", description="rate: work per second since the last line; total: a running sum"
    )
    scale: float = Field(1.0, gt=0, description="factor from the number to the unit")
    unit: str = Field("operations/s", description="of the rate, for people")

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class MetricError(ValueError):
    """An unusable metric: the wrong key, and a remedy."""

    def __init__(self, key: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.key = key
        self.remedy = remedy


@dataclass
class Counts:
    """Counts of readings.

    lines: all lines. readings: numbers found. bad: found, but not a usable number. resets: totals that decreased, for
    example because the command restarted. bunched: arrived at the same instant as the previous one. malformed: JSON
    documents or CSV lines that do not parse.
    """

    lines: int = 0
    readings: int = 0
    bad: int = 0
    resets: int = 0
    bunched: int = 0
    malformed: int = 0


class Reader(Protocol):
    """Finds readings in lines. None is a reading that is not a usable number."""

    def read(self, line: str, counts: Counts) -> list[float | None]: ...


class Extractor:
    """Converts a command's lines to slices (start_ns, end_ns, work). `Metric.scale` defines the unit of work.

    rate: a reading applies to the time since the previous reading. total: the difference of two readings was done
    between them. The first reading only starts the first slice. Raises MetricError if the metric is unusable.
    """

    def __init__(self, metric: Metric) -> None:
        self.counts = Counts()
        self._metric = metric
        self._reader = reader(metric)
        self._last_ns: int | None = None
        self._last_total: float | None = None

    def feed(self, at_ns: int, line: str) -> list[WorkSlice]:
        """The slices completed by `line`, which arrived at `at_ns`."""
        self.counts.lines += 1
        if self.counts.lines == 1:
            line = line.removeprefix("\ufeff")
        readings = self._reader.read(line, self.counts)
        return [piece for reading in readings if (piece := self._slice(at_ns, reading)) is not None]

    def _slice(self, at_ns: int, reading: float | None) -> WorkSlice | None:
        if reading is None or not math.isfinite(reading * self._metric.scale) or reading < 0:
            self.counts.bad += 1
            self._skip(at_ns)
            return None
        self.counts.readings += 1
        if self._last_ns is not None and at_ns <= self._last_ns:
            self.counts.bunched += 1
            return None
        start_ns, self._last_ns = self._last_ns, at_ns
        work = self._work(reading, at_ns - start_ns if start_ns is not None else None)
        return None if start_ns is None or work is None else (start_ns, at_ns, work * self._metric.scale)

    def _skip(self, at_ns: int) -> None:
        """Skips the time of an unusable rate. A total includes it in the next reading."""
        if self._metric.kind == "rate":
            self._last_ns = at_ns

    def _work(self, reading: float, elapsed_ns: int | None) -> float | None:
        if self._metric.kind == "rate":
            return None if elapsed_ns is None else reading * elapsed_ns / 1e9
        before, self._last_total = self._last_total, reading
        if before is not None and reading < before:
            self.counts.resets += 1
            return None
        return None if before is None else reading - before


def reader(metric: Metric) -> Reader:
    """The reader for a metric. Raises MetricError."""
    given = [key for key, value in _sources(metric).items() if value is not None]
    if len(given) != 1:
        said = f"a metric cannot have {' and '.join(given)}" if given else "a metric needs a source"
        raise MetricError("", said, "give exactly one of regex, json and csv_column")
    if metric.regex is not None:
        return _Regex(metric.regex)
    if metric.json_path is not None:
        return _Json(metric.json_path)
    return _Csv(metric.csv_column if metric.csv_column is not None else 0)


def _sources(metric: Metric) -> dict[str, Any]:
    return {"regex": metric.regex, "json": metric.json_path, "csv_column": metric.csv_column}


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a pattern that matches nothing too ends."""
    match = pattern.match(text, at)
    return match.end() if match else at


def _number(text: Any) -> float | None:
    """Parses numbers such as 12 or 1.5e3, but not nan, true or '1,234', which is ambiguous."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class _Regex:
    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise MetricError(
                "regex", f"not a regular expression: {error}", "see Python's re module for the syntax"
            ) from None
        if self._pattern.groups != 1:
            message = f"the regular expression has {self._pattern.groups} groups"
            raise MetricError("regex", message, "put exactly one (…) around the number; (?:…) for any other group")

    def read(self, line: str, _: Counts) -> list[float | None]:
        match = self._pattern.search(line)
        return [] if match is None or match[1] is None else [_number(match[1])]


class _Json:
    """Reads documents that begin on a line of their own, and may have several lines. Text between them is ignored.

    A document is given up on the line where it can no longer become valid, and counted. The next one begins there or
    on a later line.
    """

    def __init__(self, path: str) -> None:
        from jsonpath_ng.exceptions import JSONPathError  # noqa: PLC0415 - slow to import
        from jsonpath_ng.parser import JsonPathParser  # noqa: PLC0415 - slow to import

        try:
            self._path = JsonPathParser().parse(path)
        except JSONPathError as error:
            said = str(error).splitlines()[0] if str(error) else "it does not parse"
            raise MetricError("json", f"not a JSONPath: {said}", "write for example $.jobs[0].read.iops") from None
        except Exception as error:  # noqa: BLE001 its lexer and parser also raise bare Exceptions
            raise MetricError(
                "json", f"not a JSONPath: {error}"[:200], "write for example $.jobs[0].read.iops"
            ) from None
        self._form = _Form()
        self._lines: list[str] = []
        self._chars = 0
        self._indent = 0
        self._indent_most: int | None = None

    def read(self, line: str, counts: Counts) -> list[float | None]:
        readings: list[float | None] = []
        at = 0
        while self._lines or self._begins(line, at):
            end = self._form.follow(line, at)
            self._lines.append(line[at:end])
            self._chars += len(self._lines[-1])
            if end is None and self._chars <= DOCUMENT_CHARS_MAX:
                return readings
            parts, self._lines, self._chars, self._form = self._lines, [], 0, _Form()
            if not end:
                counts.malformed += 1
                # The line that spoils a document may be the first of the next one.
                if len(parts) == 1 or end is None:
                    return readings
                self._indent_most = self._indent
                continue
            readings += self._readings("\n".join(parts), counts)
            at = _end(_FILL, line, end)
            counts.malformed += at < len(line) and line[at] not in "{["
        return readings

    def _begins(self, line: str, at: int) -> bool:
        """True if a document begins here: not below one that was given up, whose other lines are indented more."""
        start = _end(_SPACE, line, at)
        if line[start : start + 1] not in ("{", "[") or (self._indent_most is not None and start > self._indent_most):
            return False
        self._indent, self._indent_most = start, None
        return True

    def _readings(self, text: str, counts: Counts) -> list[float | None]:
        try:
            return self._values(json.loads(text))
        except (ValueError, RecursionError):
            counts.malformed += 1
            return []

    def _values(self, document: Any) -> list[float | None]:
        """Several matches, for example of several jobs, are one reading: their sum."""
        numbers = [_number(match.value) for match in self._path.find(document)]
        if not numbers:
            return []
        known = [number for number in numbers if number is not None]
        return [math.fsum(known) if len(known) == len(numbers) else None]


class _Form:
    """Follows a JSON document from line to line, without keeping it. It is an object or a list."""

    def __init__(self) -> None:
        self._open = ""
        self._next: tuple[str, ...] = ("{", "[")

    def follow(self, line: str, at: int) -> int | None:
        """Where the document ends on this line; None if it goes on, and 0 if it cannot become valid."""
        while match := _JSON_TOKEN.match(line, at):
            at = match.end()
            sort = match["mark"] or ("value" if match["value"] else "key" if "key" in self._next else "text")
            if sort not in self._next:
                return 0
            if sort in "{[":
                self._open += sort
            elif sort in "}]":
                self._open = self._open[:-1]
            if not self._open:
                return at
            self._next = _after(sort, self._open[-1])
        return None if not line[at:].strip(" \t\r") else 0


def _after(sort: str, inside: str) -> tuple[str, ...]:
    """What may follow a token in an object or a list."""
    if sort == ",":
        return ("key",) if inside == "{" else _VALUE
    follows: dict[str, tuple[str, ...]] = {"{": _FIRST_KEY, "[": _FIRST_VALUE, "key": (":",), ":": _VALUE}
    return follows.get(sort, (",", "}" if inside == "{" else "]"))


class _Csv:
    """Columns by name, below a header line that may repeat, or by index. Separated by , ; tab, | or spaces."""

    def __init__(self, column: str | int) -> None:
        if isinstance(column, int) and column < 0:
            raise MetricError("csv_column", f"{column} is not a column", "count from 0")
        if column == "":
            raise MetricError(
                "csv_column", "the column's name is empty", "give a name of the header, or an index from 0"
            )
        self._name = column if isinstance(column, str) else None
        self._index = column if isinstance(column, int) else None
        self._separator: str | None = None

    def read(self, line: str, counts: Counts) -> list[float | None]:
        if not line.strip():
            return []
        try:
            fields = self._fields(line)
        except csv.Error:
            counts.malformed += 1
            return []
        if self._name is not None and self._name in fields:
            self._index = fields.index(self._name)
            self._separator = _separator(line)
            return []
        if self._index is None:
            return []
        if self._index >= len(fields):
            counts.malformed += 1
            return []
        return [_number(fields[self._index])]

    def _fields(self, line: str) -> list[str]:
        separator = self._separator or _separator(line)
        if separator == " ":
            return line.split()
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]


def _separator(line: str) -> str:
    best = max(",;\t|", key=line.count)
    return best if best in line else " "
