"""The offset of a guest's or another machine's clock from this host's, with its uncertainty. Pure except for requests.

A round trip that left at t0, returned at t1 and contains the guest's time g shows that the guest was ahead by between g
− t1 and g − t0. Several trips bound the offset by their intersection (after Cristian, "Probabilistic clock
synchronization", 1989). The agent's clock is shifted once by the middle. Later its rate is corrected as the difference
grows: in a guest by its kernel, on a user's machine by the agent for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partywall.errors import TrialError

# Largest error of a clock's own rate, until readings show more. An emulated time-stamp counter was off by some 10 parts
# per million.
DRIFT_PPB_MAX = 50_000
# A rate correction removes the difference within this time, or until the next reading if that is later.
HORIZON_NS = 10_000_000_000
FREQUENCY_PPB_MAX = 400_000
# Largest difference in rate between this host's clock and one that is kept on it.
STEERED_PPB = DRIFT_PPB_MAX + FREQUENCY_PPB_MAX
# Over shorter times, a rate cannot be distinguished from the noise of two readings.
LOOK_NS = 3_000_000_000
# No drift between two readings reaches this value.
JUMP_NS = 20_000_000
# There is time for many trips at the start, but a block waits later: a guest with a twentieth of a CPU answers slowly.
_FIRST = (24, 2_000_000_000)
_LATER = (8, 40_000_000)

Trip = tuple[int, int, int]


@dataclass(frozen=True)
class Offset:
    """At the host's time at_ns, the guest was ahead by between low_ns and high_ns."""

    at_ns: int
    low_ns: int
    high_ns: int

    @property
    def middle_ns(self) -> int:
        return (self.low_ns + self.high_ns) // 2

    @property
    def certain_ns(self) -> int:
        """Its smallest possible error."""
        return max(0, self.low_ns, -self.high_ns)

    @property
    def possible_ns(self) -> int:
        """Its largest possible error."""
        return max(abs(self.low_ns), abs(self.high_ns))

    def aged(self, now_ns: int, rate_ppb: int) -> Offset:
        """The bounds at a later time, if it drifted by at most this rate."""
        moved_ns = moved(now_ns - self.at_ns, rate_ppb)
        return Offset(now_ns, self.low_ns - moved_ns, self.high_ns + moved_ns)


def moved(span_ns: int, rate_ppb: int) -> int:
    """Largest error of a clock with this rate error after a time."""
    return -(-abs(span_ns) * rate_ppb // 1_000_000_000)


@dataclass(frozen=True)
class Look:
    """The state of a clock: its offset, and the bounds of its further drift in either direction."""

    offset: Offset
    rate_ppb: int

    def error_ns(self, until_ns: int) -> int:
        """Largest error of the clock in either direction at any time up to this one."""
        return self.offset.possible_ns + moved(until_ns - self.offset.at_ns, self.rate_ppb)


@dataclass(frozen=True)
class Looks:
    """Readings of all clocks at one time. Empty if all agents are on one machine."""

    at_ns: int
    each: tuple[Look, ...] = ()

    @property
    def certain_ns(self) -> int:
        """The smallest possible error of the worst clock."""
        return max((look.offset.certain_ns for look in self.each), default=0)

    def error_ns(self, until_ns: int) -> int:
        """Largest error of any clock up to this time."""
        return max((look.error_ns(until_ns) for look in self.each), default=0)


def offset_of(trips: list[Trip]) -> Offset:
    """The intersection of consecutive round trips (left, guest's time, back).

    Trips from before the clock moved may contradict later ones. Then only the shortest counts.
    """
    low, high = max(g - t1 for _, g, t1 in trips), min(g - t0 for t0, g, _ in trips)
    if low > high:
        t0, g, t1 = min(trips, key=lambda trip: trip[2] - trip[0])
        low, high = g - t1, g - t0
    return Offset(trips[-1][2], low, high)


def frequency(before_ppb: int, earlier: Offset, later: Offset, for_ns: int = 0) -> int:
    """The rate that removes the present difference over the horizon, if the clock continues as since `earlier`.

    for_ns: how long this rate will apply. A shorter horizon would overshoot.
    """
    span_ns = later.at_ns - earlier.at_ns
    drift_ppb = (later.middle_ns - earlier.middle_ns) * 1_000_000_000 // span_ns
    catch_up_ppb = later.middle_ns * 1_000_000_000 // max(HORIZON_NS, for_ns)
    wanted = before_ppb - drift_ppb - catch_up_ppb
    return max(-FREQUENCY_PPB_MAX, min(FREQUENCY_PPB_MAX, wanted))


def own_rate(known_ppb: tuple[int, int], set_ppb: int, earlier: Offset, later: Offset) -> tuple[int, int]:
    """Bounds of a clock's own rate error, measured while it also ran at set_ppb; the known bounds if compatible."""
    span_ns = later.at_ns - earlier.at_ns
    low_ppb = (later.low_ns - earlier.high_ns) * 1_000_000_000 // span_ns - set_ppb
    high_ppb = (later.high_ns - earlier.low_ns) * 1_000_000_000 // span_ns - set_ppb
    if low_ppb <= known_ppb[1] and known_ppb[0] <= high_ppb:
        return known_ppb
    return low_ppb - DRIFT_PPB_MAX, high_ppb + DRIFT_PPB_MAX


class GuestClock:
    """Keeps one guest's clock on the host's. call: sends a request to the guest's agent; now_ns: the host's time."""

    def __init__(self, call: Callable[..., dict[str, int]], now_ns: Callable[[], int]) -> None:
        self._call = call
        self._now_ns = now_ns
        self._frequency_ppb = 0
        self._own_ppb = (-DRIFT_PPB_MAX, DRIFT_PPB_MAX)
        self._latest: Offset | None = None
        # The offset when the rate was last set. Later changes are due to the rate.
        self._anchor: Offset | None = None

    def shift(self) -> None:
        """Shifts the agent's clock to the host's, before anything is measured."""
        self._call("clock.adjust", shift_ns=-self._measure(*_FIRST).middle_ns)
        self._latest = self._anchor = self._measure(*_FIRST)

    def keep(self, for_ns: int = 0) -> Look:
        """Reads the clock and corrects its rate. for_ns: the longest time until the next reading.

        TrialError if it jumped, because earlier switches then happened at unknown times.
        """
        later = self._measure(*_LATER)
        known = (self._latest or later).aged(later.at_ns, self._rate_ppb)
        known_ns = known.possible_ns
        beyond_ns = later.certain_ns - known_ns
        if beyond_ns > JUMP_NS:
            raise TrialError(
                f"the clock there jumped by {later.middle_ns / 1e9:+.3f} s against this host's, where it could be off "
                f"by {known_ns / 1e6:.1f} ms at most; an overloaded host can cause this for an emulated clock"
            )
        # A late response of a busy guest may say less than the last reading and its age, unless it contradicts it.
        if beyond_ns > 0 or later.possible_ns <= known_ns:
            known = self._corrected(later, for_ns)
        self._latest = known
        return Look(known, self._rate_ppb)

    @property
    def _rate_ppb(self) -> int:
        """The bounds of its rate: its own, known only within bounds, and the correction."""
        return max(abs(own_ppb + self._frequency_ppb) for own_ppb in self._own_ppb)

    def _corrected(self, later: Offset, for_ns: int) -> Offset:
        """Corrects only a certain difference; otherwise the rate would follow the noise of the readings."""
        anchor = self._anchor
        if anchor is None or later.at_ns - anchor.at_ns < LOOK_NS or later.low_ns <= 0 <= later.high_ns:
            return later
        before_ppb = self._rate_ppb
        self._own_ppb = own_rate(self._own_ppb, self._frequency_ppb, anchor, later)
        self._frequency_ppb = frequency(self._frequency_ppb, anchor, later, for_ns)
        self._call("clock.adjust", frequency_ppb=self._frequency_ppb)
        # The exact time at which the new rate began is unknown.
        self._anchor = later.aged(self._now_ns(), max(before_ppb, self._rate_ppb))
        return self._anchor

    def _measure(self, count: int, long_ns: int) -> Offset:
        trips = [self._trip()]
        while len(trips) < count and trips[-1][2] - trips[0][0] < long_ns:
            trips.append(self._trip())
        return offset_of(trips)

    def _trip(self) -> Trip:
        left = self._now_ns()
        there = self._call("clock")["monotonic_ns"]
        return left, there, self._now_ns()
