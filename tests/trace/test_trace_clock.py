"""The offset of another clock is never further off than is said of it."""

from hypothesis import given
from hypothesis import strategies as st

from partywall.agent.clock import DRIFT_PPB, Alignment
from partywall.sandbox.clock import STEERED_PPB


class Wire:
    """A clock of ours that round trips move on, and one of theirs that drifts against it."""

    def __init__(self, offset_ns, drift_ppb):
        self.now, self.offset_ns, self.drift_ppb, self.delays = 10**12, offset_ns, drift_ppb, []

    def now_ns(self):
        return self.now

    def truth(self):
        """What must be added to theirs."""
        return self.offset_ns + (self.now - 10**12) * self.drift_ppb // 10**9

    def call(self, _method, **_):
        there, back = self.delays.pop()
        self.now += there
        reported = self.now - self.truth()
        self.now += back
        return {"monotonic_ns": reported}


TRIPS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 5 * 10**9)), min_size=1, max_size=90
)


@given(st.integers(-(10**15), 10**15), st.sampled_from([DRIFT_PPB, STEERED_PPB]), st.floats(-1, 1), TRIPS)
def test_the_truth_lies_within_the_bound_however_trips_go(offset_ns, most_ppb, share, trips):
    wire = Wire(offset_ns, round(share * most_ppb))
    alignment = Alignment(wire, wire, drift_ppb=most_ppb)
    for there, back, rest in trips:
        wire.delays.append((there, back))
        alignment.ask()
        wire.now += rest
        best = alignment.best
        # Whole nanoseconds are rounded here and there.
        assert abs(best.offset_ns - wire.truth()) <= best.bound_ns + 4


def test_one_quick_trip_among_slow_ones_makes_the_bound():
    wire = Wire(12_345, 0)
    alignment = Alignment(wire, wire)
    for there, back in [(90_000, 10_000), (400, 600), (10_000, 90_000)]:
        wire.delays.append((there, back))
        alignment.ask()
    assert alignment.best.bound_ns < 600
    assert abs(alignment.best.offset_ns - 12_345) < 600


def test_a_clock_that_was_set_is_believed_from_its_last_answer_on():
    wire = Wire(0, 0)
    alignment = Alignment(wire, wire)
    wire.delays = [(100, 100)] * 4
    alignment.ask(3)
    wire.offset_ns = 10**9
    alignment.ask()
    assert abs(alignment.best.offset_ns - 10**9) <= alignment.best.bound_ns
