"""A guest's or another machine's clock against this host's: how far apart they are, and how sure that is.

Pure but for the asking.

A round trip that left at t0 and was back at t1 with the guest's time g in it says that the guest was ahead by something
between g − t1 and g − t0; several say that it was by something in what all of these have in common (after Cristian,
"Probabilistic clock synchronization", 1989). The agent there is shifted once by the middle, and its rate is corrected
as the difference grows: in a guest by its kernel, on somebody's machine by the agent for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partywall.errors import TrialError

# What a clock's own rate may be off by until looks have shown it to be more: an emulated time-stamp counter was seen
# to be some 10 parts in a million off.
DRIFT_PPB_MAX = 50_000
# A correction of the rate is meant to take the difference away in this time, or by the next look if that is later.
HORIZON_NS = 10_000_000_000
FREQUENCY_PPB_MAX = 400_000
# The least time over which a rate can be told from the noise of two looks.
LOOK_NS = 3_000_000_000
# What no drift between two looks comes to.
JUMP_NS = 20_000_000
# At the start there is time for many looks, later a block waits: a guest that gets a twentieth of a CPU answers slowly.
_FIRST = (24, 2_000_000_000)
_LATER = (8, 40_000_000)

Trip = tuple[int, int, int]


@dataclass(frozen=True)
class Offset:
    """At the host's time at_ns the guest was ahead by something between low_ns and high_ns."""

    at_ns: int
    low_ns: int
    high_ns: int

    @property
    def middle_ns(self) -> int:
        return (self.low_ns + self.high_ns) // 2

    @property
    def certain_ns(self) -> int:
        """How far off it is at the least."""
        return max(0, self.low_ns, -self.high_ns)

    @property
    def possible_ns(self) -> int:
        """How far off it is at the most."""
        return max(abs(self.low_ns), abs(self.high_ns))

    def aged(self, now_ns: int, rate_ppb: int) -> Offset:
        """What is still known of it later, if it moved by no more than this rate."""
        moved_ns = moved(now_ns - self.at_ns, rate_ppb)
        return Offset(now_ns, self.low_ns - moved_ns, self.high_ns + moved_ns)


def moved(span_ns: int, rate_ppb: int) -> int:
    """How far a clock that is off by a rate goes wrong in a time, at the most."""
    return -(-abs(span_ns) * rate_ppb // 1_000_000_000)


@dataclass(frozen=True)
class Look:
    """What is known of a clock: where it was, and how fast it may move on from there, either way."""

    offset: Offset
    rate_ppb: int

    def error_ns(self, until_ns: int) -> int:
        """How far the clock can be off the host's at any moment up to this one, either way."""
        return self.offset.possible_ns + moved(until_ns - self.offset.at_ns, self.rate_ppb)


@dataclass(frozen=True)
class Looks:
    """Of all clocks at a moment. None of them may have been looked at, where all is on one machine."""

    at_ns: int
    each: tuple[Look, ...] = ()

    @property
    def certain_ns(self) -> int:
        """How far off one of them is at the least."""
        return max((look.offset.certain_ns for look in self.each), default=0)

    def error_ns(self, until_ns: int) -> int:
        """How far any of them can be off up to this moment."""
        return max((look.error_ns(until_ns) for look in self.each), default=0)


def offset_of(trips: list[Trip]) -> Offset:
    """What round trips (left, guest's time, back) made one after the other have in common.

    Trips made before the clock moved can contradict later ones; then the shortest alone is believed.
    """
    low, high = max(g - t1 for _, g, t1 in trips), min(g - t0 for t0, g, _ in trips)
    if low > high:
        t0, g, t1 = min(trips, key=lambda trip: trip[2] - trip[0])
        low, high = g - t1, g - t0
    return Offset(trips[-1][2], low, high)


def frequency(before_ppb: int, earlier: Offset, later: Offset, for_ns: int = 0) -> int:
    """The rate that takes the present difference away over the horizon, if the clock goes on as since `earlier`.

    for_ns: how long this rate will stand; over a shorter horizon the difference would come back with its sign changed.
    """
    span_ns = later.at_ns - earlier.at_ns
    drift_ppb = (later.middle_ns - earlier.middle_ns) * 1_000_000_000 // span_ns
    catch_up_ppb = later.middle_ns * 1_000_000_000 // max(HORIZON_NS, for_ns)
    wanted = before_ppb - drift_ppb - catch_up_ppb
    return max(-FREQUENCY_PPB_MAX, min(FREQUENCY_PPB_MAX, wanted))


def own_rate(known_ppb: tuple[int, int], set_ppb: int, earlier: Offset, later: Offset) -> tuple[int, int]:
    """Between what and what a clock's own rate is off, which went at set_ppb besides; what was known if that may be."""
    span_ns = later.at_ns - earlier.at_ns
    low_ppb = (later.low_ns - earlier.high_ns) * 1_000_000_000 // span_ns - set_ppb
    high_ppb = (later.high_ns - earlier.low_ns) * 1_000_000_000 // span_ns - set_ppb
    if low_ppb <= known_ppb[1] and known_ppb[0] <= high_ppb:
        return known_ppb
    return low_ppb - DRIFT_PPB_MAX, high_ppb + DRIFT_PPB_MAX


class GuestClock:
    """Keeps one guest's clock on the host's. call: asks the guest's agent; now_ns: the host's time."""

    def __init__(self, call: Callable[..., dict[str, int]], now_ns: Callable[[], int]) -> None:
        self._call = call
        self._now_ns = now_ns
        self._frequency_ppb = 0
        self._own_ppb = (-DRIFT_PPB_MAX, DRIFT_PPB_MAX)
        self._latest: Offset | None = None
        # The offset when the rate was last set: what it did since is the rate's doing.
        self._anchor: Offset | None = None

    def shift(self) -> None:
        """Moves the agent's clock to the host's. Before anything is measured."""
        self._call("clock.adjust", shift_ns=-self._measure(*_FIRST).middle_ns)
        self._latest = self._anchor = self._measure(*_FIRST)

    def keep(self, for_ns: int = 0) -> Look:
        """Looks again, and corrects the rate. for_ns: how long it may be until the next look.

        TrialError if it jumped: what was switched by it before then was not when it seemed to be.
        """
        later = self._measure(*_LATER)
        known = (self._latest or later).aged(later.at_ns, self._rate_ppb)
        known_ns = known.possible_ns
        beyond_ns = later.certain_ns - known_ns
        if beyond_ns > JUMP_NS:
            raise TrialError(
                f"the clock there jumped by {later.middle_ns / 1e9:+.3f} s against this host's, where it could be off "
                f"by {known_ns / 1e6:.1f} ms at most; a host without CPU to spare makes an emulated clock do so"
            )
        # A look that a busy guest answered late may say less than the last one and its age, unless it contradicts it.
        if beyond_ns > 0 or later.possible_ns <= known_ns:
            known = self._corrected(later, for_ns)
        self._latest = known
        return Look(known, self._rate_ppb)

    @property
    def _rate_ppb(self) -> int:
        """It goes on as its own rate and what was set make it, and its own is known between bounds only."""
        return max(abs(own_ppb + self._frequency_ppb) for own_ppb in self._own_ppb)

    def _corrected(self, later: Offset, for_ns: int) -> Offset:
        """Only a difference that is certain is corrected, or the rate would follow the noise of the looks."""
        anchor = self._anchor
        if anchor is None or later.at_ns - anchor.at_ns < LOOK_NS or later.low_ns <= 0 <= later.high_ns:
            return later
        before_ppb = self._rate_ppb
        self._own_ppb = own_rate(self._own_ppb, self._frequency_ppb, anchor, later)
        self._frequency_ppb = frequency(self._frequency_ppb, anchor, later, for_ns)
        self._call("clock.adjust", frequency_ppb=self._frequency_ppb)
        # When in this time the new rate began is not known.
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
