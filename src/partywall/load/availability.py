"""Availability: the share of seconds in which a service answered, optionally within a time limit. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from partywall.core.stats.histogram import bucket_bounds
from partywall.load.second import Second, Timing

SERVED_SHARE = 0.5
"""A second is available if at least this share of the requests that ended in it succeeded within the limit."""


def availability(seconds: Iterable[Second], labels: Collection[int], limit_ns: int | None = None) -> float | None:
    """The share of seconds in which the service was available for these labels; None if none can be judged.

    A second in which no request ended counts as not available if requests were waiting for an answer, and is left out
    otherwise. limit_ns: a slower response does not count as an answer; None: any success does.
    """
    judged = [served for second in seconds if (served := _served(second, labels, limit_ns)) is not None]
    return sum(judged) / len(judged) if judged else None


def _served(second: Second, labels: Collection[int], limit_ns: int | None) -> bool | None:
    total = Timing()
    for label in labels:
        total.merge(second.timings.get(label, Timing()))
    ended = total.done + total.failed
    if not ended:
        return False if second.in_flight else None
    return _within(total, limit_ns) >= SERVED_SHARE * ended


def _within(timing: Timing, limit_ns: int | None) -> int:
    """Successes within the limit. A bucket that contains the limit counts as slower."""
    if limit_ns is None:
        return timing.done
    quick = sum(count for bucket, count in timing.corrected.items() if bucket_bounds(bucket)[1] <= limit_ns)
    return min(quick, timing.done)
