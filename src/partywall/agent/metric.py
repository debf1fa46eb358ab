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
from typing import Any, Protocol

from jsonpath_ng.exceptions import JSONPathError
from jsonpath_ng.parser import JsonPathParser

from partywall.model.scenario import Metric

WorkSlice = tuple[int, int, float]

DOCUMENT_CHARS_MAX = 4 << 20
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')


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
    """Collects lines until brackets balance. Text outside documents is ignored."""

    def __init__(self, path: str) -> None:
        try:
            self._path = JsonPathParser().parse(path)
        except JSONPathError as error:
            said = str(error).splitlines()[0] if str(error) else "it does not parse"
            raise MetricError("json", f"not a JSONPath: {said}", "write for example $.jobs[0].read.iops") from None
        except Exception as error:  # noqa: BLE001 its lexer and parser also raise bare Exceptions
            raise MetricError(
                "json", f"not a JSONPath: {error}"[:200], "write for example $.jobs[0].read.iops"
            ) from None
        self._lines: list[str] = []
        self._depth = 0
        self._chars = 0

    def read(self, line: str, counts: Counts) -> list[float | None]:
        if not self._lines and not line.lstrip().startswith(("{", "[")):
            return []
        self._lines.append(line)
        self._chars += len(line)
        for token in _JSON_TOKEN.findall(line):
            self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token, 0)
        if self._depth > 0 and self._chars <= DOCUMENT_CHARS_MAX:
            return []
        text, self._lines, self._depth, self._chars = "\n".join(self._lines), [], 0, 0
        return self._readings(text, counts)

    def _readings(self, text: str, counts: Counts) -> list[float | None]:
        decoder, at, readings = json.JSONDecoder(), 0, []
        while at < len(text):
            try:
                document, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                counts.malformed += 1
                break
            readings += self._values(document)
            at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        return readings

    def _values(self, document: Any) -> list[float | None]:
        """Several matches, for example of several jobs, are one reading: their sum."""
        numbers = [_number(match.value) for match in self._path.find(document)]
        if not numbers:
            return []
        known = [number for number in numbers if number is not None]
        return [math.fsum(known) if len(known) == len(numbers) else None]


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
