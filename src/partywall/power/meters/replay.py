"""Readings from a file, at the pace at which they were taken: a table of CSV with the columns `s` and `watts`.

replay:FILE. Useful for trying things without a meter, and for meters that only write a log.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path

from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters.base import MeterError, Place, now_ns, number
from partywall.power.values import MeterFacts, Reading

SCHEMES = ("replay",)
COLUMNS = ("s", "watts")


class Replay:
    """A recorded series. It begins with the first reading, and ends with its last row."""

    def __init__(self, address: Address, rows: list[tuple[float, float]]) -> None:
        self._rows, self._times = rows, [s for s, _ in rows]
        self._begin_ns: int | None = None
        self.facts = MeterFacts(meter=address.text, origin=address.origin, about=f"{len(rows)} recorded readings")

    def read(self) -> Reading:
        at_ns = now_ns()
        self._begin_ns = self._begin_ns or at_ns
        at_s = (at_ns - self._begin_ns) / 1e9 + self._times[0]
        if at_s > self._times[-1] + 1:
            raise MeterError("gone", "the recording has ended")
        return Reading(meter=self.facts.meter, time_ns=at_ns, watts=self._rows[bisect_right(self._times, at_s) - 1][1])

    def close(self) -> None:
        pass


def check(address: Address) -> None:
    if not address.path:
        raise unusable(address.text, "it names no file", "give for example replay:watts.csv")


def make(address: Address, host: Host) -> Replay:
    del host
    try:
        with Path(address.path).open(encoding="utf-8-sig", newline="") as stream:
            table = csv.DictReader(stream)
            if not set(COLUMNS) <= set(table.fieldnames or ()):
                raise unusable(address.text, f"its columns are {table.fieldnames}", "it needs the columns s and watts")
            rows = [(finite(row["s"]), number(row["watts"], "watts")) for row in table]
    except OSError as error:
        raise unusable(address.text, f"it cannot be read: {error.strerror}") from None
    except (csv.Error, TypeError, ValueError, MeterError) as error:
        raise unusable(address.text, f"it is not a table of numbers: {error}") from None
    if not rows or any(later[0] <= earlier[0] for earlier, later in pairwise(rows)):
        raise unusable(address.text, "its times do not rise", "sort it by the column s")
    return Replay(address, rows)


def finite(text: str) -> float:
    """A time. ValueError if it is not a finite number."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a time")
    return value


def find(host: Host) -> list[Place]:
    del host
    return [Place("replay:FILE", "a recorded series (CSV with s and watts); marked simulated")]
