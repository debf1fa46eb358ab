"""Which part of a record a meter covers, and the energy of that part. Pure.

A meter may start late, die, or leave gaps. What it would have shown meanwhile is not known, so nothing is added for
such times: energy and means are those of the covered time, and the rest is stated in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partywall.power.findings.meter import GAP, NDArrayBool, gap_s
from partywall.power.values import Activity, Array, MeterFault, Reading


@dataclass(frozen=True)
class Energy:
    """Joules of the covered seconds. missing_s: the rest of the time."""

    joules: float
    covered_s: float
    missing_s: float


def energy(at_s: Array, watts: Array, begin_s: float, end_s: float) -> Energy | None:
    """The area below watts that were read at these times, without gaps. None with fewer than two readings.

    begin_s, end_s: the time that should be covered.
    """
    apart = np.diff(at_s)
    if not len(apart):
        return None
    whole = apart <= gap_s(float(np.median(apart)))
    covered_s = float(apart[whole].sum())
    joules = float((apart * (watts[1:] + watts[:-1]) / 2)[whole].sum())
    return Energy(joules, covered_s, max(0.0, end_s - begin_s - covered_s))


def lost_spans(readings: Sequence[Reading], faults: Sequence[MeterFault]) -> list[tuple[float, float]]:
    """Times in s in which a counter lost what it counted: between the readings around each such fault."""
    times = np.array([reading.time_ns for reading in readings]) / 1e9
    spans = []
    for fault in faults:
        place = int(np.searchsorted(times, fault.time_ns / 1e9))
        if fault.fault == "gap" and 0 < place < len(times):
            spans.append((float(times[place - 1]), float(times[place])))
    return spans


@dataclass(frozen=True)
class Shared:
    """The time that a meter and the CPU time both cover.

    keep: for each interval of the activity, whether it is in it. readings: those in it. cut_s: what was left out.
    """

    keep: NDArrayBool
    readings: list[Reading]
    cut_s: float


def shared(readings: Sequence[Reading], activity: Sequence[Activity]) -> Shared:
    """What a meter's mean and the consumers' CPU time can be compared in. readings: at least two; activity too.

    At the ends of a record, less than a gap counts: of a meter that died, seconds may be much of the record.
    """
    times = np.array([reading.time_ns for reading in readings]) / 1e9
    moments = np.array([each.time_ns for each in activity]) / 1e9
    apart = np.diff(times)
    usual = float(np.median(apart))
    gaps = [(times[place], times[place + 1]) for place in np.flatnonzero(apart > gap_s(usual))]
    for begin, end in ((moments[0], times[0]), (times[-1], moments[-1])):
        if end - begin > GAP * usual:
            gaps.append((begin, end))
    keep = np.ones(len(moments) - 1, dtype=bool)
    for begin, end in gaps:
        keep &= (moments[1:] <= begin) | (moments[:-1] >= end)
    inside = [each for each, s in zip(readings, times, strict=True) if moments[0] - usual <= s <= moments[-1] + usual]
    return Shared(keep, inside, float(np.diff(moments)[~keep].sum()))
