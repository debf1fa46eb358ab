"""How a meter follows the power: its refresh period and its lag, from readings during a load that was switched. Pure.

Model: at the times φ + k·P the meter shows a new value: the mean power of the W before it, L earlier. W is P (an
averaging meter) or short. P and φ come from the moments at which the value changed; L and W are those at which the
values fit the activity best, by least squares over a grid. Intervals are jackknife estimates over parts of the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from partywall.core.stats.algebra import one_thread
from partywall.core.stats.estimate import Estimate
from partywall.core.stats.quantile import student_reach
from partywall.power.values import Activity, Array, Reading, Timing, chances

GAP = 5
LEAST_GAP_S = 3.0
"""A time without readings that is GAP times as long as usual, and longer than LEAST_GAP_S, is a gap."""
LONGEST_LAG_S = 5.0
STEP_S = 0.01
SHORT_S = 0.05
"""The window of a meter that does not average."""
NEAR_S = 0.6
"""The lag is looked for coarsely up to LONGEST_LAG_S, and then this far around what was seen."""
COUNTED_S = 0.5
SINGLE, NEAR = 1.8, 1.3
"""Times between changes below SINGLE times the shorter ones are one period; the period is within NEAR of their mean."""
QUICK = 0.8
"""If at least this share of its readings differ, a counter changes more often than it is read."""
PARTS = 8
FEWEST = 12
"""Fewest new values for an estimate."""
CLEAR = 0.5
"""Share of the values' variance that the activity must explain, or else the load did not show."""


@dataclass(frozen=True)
class Load:
    """Activity as features: for m = 1…n the probability that at least m cores are busy, integrated over time."""

    times_s: Array
    integrals: Array

    @classmethod
    def of(cls, activity: Sequence[Activity]) -> Load:
        times = np.array([each.time_ns for each in activity]) / 1e9
        busy = cpu_rows(activity)
        passed = np.maximum(np.diff(times), 1e-9)
        shares = np.clip(np.diff(busy, axis=0) / passed[:, None], 0.0, 1.0)
        cpus = busy.shape[1]
        features = np.array([at_least(row, cpus) for row in shares]).reshape(-1, cpus)
        integrals = np.vstack([np.zeros(cpus), np.cumsum(features * passed[:, None], axis=0)])
        return cls(times, integrals)

    def means(self, begin_s: Array, end_s: Array) -> Array:
        """Mean features of each time, shape (times, cores)."""
        width = (end_s - begin_s)[:, None]
        return np.asarray((self.totals(end_s) - self.totals(begin_s)) / width, dtype=np.float64)

    def holds(self, begin_s: Array, end_s: Array) -> NDArrayBool:
        """True for times that the record contains."""
        return np.asarray((begin_s >= self.times_s[0]) & (end_s <= self.times_s[-1]))

    def totals(self, times_s: Array) -> Array:
        """Features integrated up to each time."""
        return np.column_stack([np.interp(times_s, self.times_s, column) for column in self.integrals.T])


def cpu_rows(activity: Sequence[Activity]) -> Array:
    """CPU seconds, shape (readings, CPUs). A CPU that appeared later was not busy before, one that left not after."""
    width = max(len(each.cpus_s) for each in activity)
    rows = np.array([[*each.cpus_s, *[np.nan] * (width - len(each.cpus_s))] for each in activity], dtype=np.float64)
    for column in rows.T:
        known = np.flatnonzero(np.isfinite(column))
        column[: known[0]] = column[known[0]]
        for place in np.flatnonzero(np.isnan(column)):
            column[place] = column[place - 1]
    return rows


NDArrayBool = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def at_least(shares: Sequence[float] | Array, cpus: int) -> Array:
    """Probability that at least 1, 2, … `cpus` cores are busy."""
    return np.asarray(np.cumsum(chances(list(shares), cpus)[::-1])[::-1][1:], dtype=np.float64)


@dataclass(frozen=True)
class Updates:
    """New values of a meter: when they appeared, and the mean watts that they state.

    since_s: when the value before appeared. every_s: the usual time between two readings; 0 if the meter sends its
    values, so that their times are exact. joules: the counter's values; empty if the meter shows power. losses: of each
    value, how often the counter had lost what it had counted.
    """

    seen_s: Array
    since_s: Array
    watts: Array
    every_s: float
    counts_joules: bool
    joules: Array = field(default_factory=lambda: np.zeros(0))
    losses: Array = field(default_factory=lambda: np.zeros(0))


def updates(readings: Sequence[Reading], *, sends: bool = False, lost: Sequence[tuple[float, float]] = ()) -> Updates:
    """The new values among readings. A counter's value is the mean power since the one before.

    lost: times in s in which a counter lost what it counted, such as when it was reset.
    """
    counts = any(reading.joules is not None for reading in readings)
    times = np.array([reading.time_ns for reading in readings]) / 1e9
    raw = np.array([reading.joules if counts else reading.watts for reading in readings], dtype=np.float64)
    if sends:
        return Updates(times[1:], times[:-1], raw[1:], 0.0, counts_joules=False)
    every_s = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    changed = np.flatnonzero(np.diff(raw) != 0) + 1
    # A counter that changes with each reading changes more often than it is read, so it was up to date.
    quick = counts and len(changed) > QUICK * len(times)
    # Another new value appeared between a reading and the one before.
    seen = times[changed] if quick else (times[changed] + times[changed - 1]) / 2
    if not counts:
        return Updates(seen[1:], seen[:-1], raw[changed][1:], every_s, counts)
    if not quick and (period := refresh(seen, every_s)) is not None:
        seen = _on_grid(seen, period.value)
    seen, joules = _thinned(seen, raw[changed])
    apart = np.diff(seen)
    # What a counter counted in a gap is not known: it may have wrapped or been reset.
    whole = apart <= gap_s(float(np.median(apart)) if len(apart) else 0.0)
    for begin_s, end_s in lost:
        whole &= (seen[1:] <= begin_s) | (seen[:-1] >= end_s)
    return Updates(seen[1:][whole], seen[:-1][whole], (np.diff(joules) / apart)[whole], every_s, counts)


def _thinned(seen_s: Array, joules: Array) -> tuple[Array, Array]:
    """Values of a counter that are at least COUNTED_S apart, so that errors of their times matter little."""
    kept, last = [], -math.inf
    for place, at_s in enumerate(seen_s):
        if at_s - last >= COUNTED_S:
            kept.append(place)
            last = at_s
    return seen_s[kept], joules[kept]


def gap_s(usual_s: float) -> float:
    """A time between readings that is longer than this is a gap."""
    return max(GAP * usual_s, LEAST_GAP_S)


@one_thread()
def timing(
    readings: Sequence[Reading],
    activity: Sequence[Activity],
    *,
    sends: bool = False,
    lost: Sequence[tuple[float, float]] = (),
) -> Timing:
    """Refresh and lag of a meter from its readings during a load that changed. A missing figure has a reason.

    lost: as for `updates`.
    """
    if len(readings) < 2:
        return Timing(why="too few readings")
    new = updates(readings, sends=sends, lost=lost)
    if len(new.seen_s) < FEWEST:
        return Timing(why=f"only {len(new.seen_s)} new values; at least {FEWEST} are needed")
    period = refresh(_changes(readings) if new.counts_joules else new.seen_s, new.every_s)
    if period is not None and not new.counts_joules:
        new = replace(new, seen_s=_on_grid(new.seen_s, period.value))
    refresh_ms = None if period is None else period.scaled(1e3)
    why = "" if period else f"new values come more often than readings, which are {1e3 * new.every_s:.0f} ms apart"
    if len(activity) < FEWEST:
        return Timing(refresh_ms=refresh_ms, why=why or "no activity was recorded")
    load = Load.of(activity)
    if new.counts_joules:
        new = _counted(readings, period, lost)
    widths = _widths(new, period)
    best = [_best_lag(new, load, width) for width in widths]
    chosen = min(range(len(widths)), key=lambda place: best[place][1])
    lag_s, left_over = best[chosen]
    if not left_over <= 1 - CLEAR:
        return Timing(refresh_ms=refresh_ms, why=_joined(why, "the load hardly changed the power, so no lag is known"))
    return Timing(refresh_ms=refresh_ms, lag_ms=_lag_interval(new, load, widths[chosen], lag_s), why=why)


def _joined(first: str, second: str) -> str:
    return f"{first}; {second}" if first else second


def _counted(readings: Sequence[Reading], period: Estimate | None, lost: Sequence[tuple[float, float]]) -> Updates:
    """Every new value of a counter. Its differences would be noisy, because the times of change are not exact."""
    times = np.array([reading.time_ns for reading in readings]) / 1e9
    joules = np.array([reading.joules for reading in readings], dtype=np.float64)
    changed = np.flatnonzero(np.diff(joules) != 0) + 1
    seen = times[changed] if period is None else _on_grid((times[changed] + times[changed - 1]) / 2, period.value)
    every_s = float(np.median(np.diff(times)))
    losses = np.searchsorted(sorted(end_s for _, end_s in lost), times[changed], side="right").astype(np.float64)
    return Updates(seen, seen, joules[changed], every_s, counts_joules=True, joules=joules[changed], losses=losses)


def _changes(readings: Sequence[Reading]) -> Array:
    """When a counter's value changed."""
    times = np.array([reading.time_ns for reading in readings]) / 1e9
    changed = np.flatnonzero(np.diff([reading.joules or 0.0 for reading in readings]) != 0) + 1
    return np.asarray((times[changed] + times[changed - 1]) / 2, dtype=np.float64)


def refresh(seen_s: Array, every_s: float) -> Estimate | None:
    """The refresh period in seconds; None if readings are too rare to see it.

    Of a coarse meter some new values equal the old ones, and readings come late at times. So the period is that with
    which the changes are most in step, near the shorter times between them; a line through them then refines it.
    """
    apart = np.diff(seen_s)
    if len(apart) < FEWEST or (first := float(np.quantile(apart, 0.25))) < 1.6 * every_s:
        return None
    length_s = float(seen_s[-1] - seen_s[0])
    usual = float(apart[apart < SINGLE * first].mean())
    rates = np.arange(1 / (NEAR * usual), NEAR / usual, 1 / (8 * length_s))
    in_step = np.abs(np.exp(2j * np.pi * np.outer(rates, seen_s - seen_s[0])).mean(axis=1))
    period = 1 / float(rates[int(np.argmax(in_step))])
    for _ in range(3):
        turns = _turns(seen_s, period)
        period = float(np.polyfit(turns, seen_s, 1)[0])
    turns = _turns(seen_s, period)
    left = seen_s - np.polyval(np.polyfit(turns, seen_s, 1), turns)
    # Reading times are uncertain by half a reading interval at least.
    spread = max(float(left.std(ddof=2)), every_s / math.sqrt(12))
    half = student_reach(0.95, len(turns) - 2) * spread / (float(np.std(turns)) * math.sqrt(len(turns)))
    return Estimate(
        value=period, low=period - half, high=period + half, n=len(turns), method="line through the times of change"
    )


def _turns(seen_s: Array, period: float) -> Array:
    """The number of the period in which each change was, from the phase that most of them have."""
    phase = float(np.angle(np.exp(2j * np.pi * seen_s / period).mean())) / (2 * np.pi) * period
    return np.asarray(np.round((seen_s - phase) / period), dtype=np.float64)


def _on_grid(seen_s: Array, period: float) -> Array:
    """Times of change without the error of the reading interval: on a line through all of them."""
    turns = _turns(seen_s, period)
    return np.asarray(np.polyval(np.polyfit(turns, seen_s, 1), turns), dtype=np.float64)


def _widths(new: Updates, period: Estimate | None) -> list[Array]:
    """Windows that are tried: short, and the whole refresh period. A counter has none."""
    if new.counts_joules:
        return [np.zeros(len(new.seen_s))]
    whole = period.value if period else new.every_s
    return [np.full(len(new.seen_s), width) for width in dict.fromkeys((SHORT_S, max(whole, SHORT_S)))]


def _best_lag(new: Updates, load: Load, width: Array, keep: NDArrayBool | None = None) -> tuple[float, float]:
    """(lag in s, share of the values' variance that is left over)."""
    coarse = np.arange(0.0, LONGEST_LAG_S, 5 * STEP_S)
    near, left_over = _searched(new, load, width, coarse, keep)
    if not math.isfinite(near):
        return near, left_over
    # With shorter lags more of the values at the beginning count.
    fine = np.arange(max(0.0, near - NEAR_S), near + NEAR_S, STEP_S)
    return _searched(new, load, width, fine, keep)


def _searched(new: Updates, load: Load, width: Array, lags: Array, keep: NDArrayBool | None) -> tuple[float, float]:
    """The best of several lags. The same values count for each, or else the fits could not be compared."""
    inside = load.holds(new.seen_s - lags[-1] - width, new.seen_s - lags[0])
    if keep is not None:
        inside &= keep
    if inside.sum() < FEWEST or np.ptp(new.watts[inside]) == 0:
        return math.nan, math.inf
    watts, ends, widths = new.watts[inside], new.seen_s[inside], width[inside]
    if new.counts_joules:
        # Energy is that of the activity up to now, and of the idle power, which grows with time. Each loss shifts it.
        losses = new.losses[inside]
        known = [ends - ends[0], *((losses > count).astype(np.float64) for count in np.unique(losses)[:-1])]
        left = np.array([_left_over(load.totals(ends - lag), watts, *known) for lag in lags])
    else:
        left = np.array([_left_over(load.means(ends - lag - widths, ends - lag), watts) for lag in lags])
    place = int(np.argmin(left))
    return _vertex(lags, left, place), float(left[place])


def _left_over(features: Array, values: Array, *known: Array) -> float:
    """The residual variance of a linear fit as a share of the residual variance with the `known` columns alone."""
    least = np.column_stack([np.ones(len(values)), *known])
    return _squares(np.column_stack([least, features]), values) / _squares(least, values)


def _squares(design: Array, values: Array) -> float:
    """Sum of squares that a linear fit leaves over."""
    return float(np.square(values - design @ np.linalg.lstsq(design, values, rcond=None)[0]).sum())


def _vertex(lags: Array, left: Array, place: int) -> float:
    """The minimum between grid points, by a parabola."""
    if not 0 < place < len(lags) - 1:
        return float(lags[place])
    before, here, after = left[place - 1 : place + 2]
    bend = before - 2 * here + after
    step = float(lags[1] - lags[0])
    return float(lags[place] + (step * (before - after) / (2 * bend) if bend > 0 else 0.0))


def _lag_interval(new: Updates, load: Load, width: Array, lag_s: float) -> Estimate:
    """The lag in ms with a jackknife interval over parts of the record."""
    part = np.arange(len(new.seen_s)) * PARTS // len(new.seen_s)
    without = np.array([_best_lag(new, load, width, part != number)[0] for number in range(PARTS)])
    without = without[np.isfinite(without)]
    error = math.sqrt((len(without) - 1) * float(np.var(without))) if len(without) > 1 else LONGEST_LAG_S
    # Readings in step with the meter see all changes equally late, so more of them do not help.
    half = min(LONGEST_LAG_S, math.hypot(student_reach(0.95, PARTS - 1) * error, STEP_S / 2, new.every_s / 2))
    return Estimate(
        value=1e3 * lag_s, low=1e3 * max(0.0, lag_s - half), high=1e3 * (lag_s + half), n=len(part),
        method="least squares over a grid, jackknife",
    )  # fmt: skip
