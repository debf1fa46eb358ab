"""A trace with agents elsewhere, without any host."""

from types import SimpleNamespace

import pytest

from partywall.errors import TrialError
from partywall.trace.hops import ask
from partywall.trace.measure.tracing import Tracing
from partywall.trace.record import Missed
from tests.trace.synthetic_trace import report


class Relay:
    """An agent elsewhere that refuses what it is not asked in time."""

    def __init__(self):
        self.requested = []

    def call(self, method, **_):
        self.requested.append(method)
        if "trace.stop" in self.requested[:-1]:
            raise AssertionError(f"{method} after trace.stop")


@pytest.fixture
def traced():
    hops = ask(["a:out", "b/eth0:in"], agents=["b=agent"])
    reports = []
    tracing = Tracing(hops, SimpleNamespace(run="t", environment={}), reports.append)
    relay = SimpleNamespace(
        name="b",
        client=Relay(),
        hops=[1],
        counted=(Missed(),),
        reported=(Missed(),),
        heard_ns=tracing._agents.clock.now_ns(),
    )
    tracing._relays["b"] = relay
    return tracing, relay, reports


def test_a_relay_follows_the_sampling(traced):
    tracing, relay, reports = traced
    tracing._report(report(sampled=0.5))
    assert relay.client.requested == ["trace.sample"]
    assert reports[0].sampled == 0.5


def test_messages_that_an_agent_dropped_end_the_trace(traced):
    tracing, _, reports = traced
    with pytest.raises(TrialError, match="3 messages of the agent of b were not read in time"):
        tracing._handle("b", "dropped", {"id": "t", "what": "trace_records", "count": 3})
    assert not reports


def test_a_trace_that_died_in_an_agent_that_goes_on_ends_the_trace(traced):
    tracing, _, _ = traced
    with pytest.raises(TrialError, match="the trace of this host ended: its thread panicked"):
        tracing._handle("this host", "ended", {"id": "t", "reason": "its thread panicked"})


def test_a_relay_that_has_stopped_is_requested_nothing_more(traced):
    tracing, relay, reports = traced
    relay.client.call("trace.stop")
    tracing._closing = True
    tracing._report(report(sampled=0.5))
    assert relay.client.requested == ["trace.stop"]
    assert reports[0].sampled == 0.5
