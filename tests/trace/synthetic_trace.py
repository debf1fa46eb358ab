"""A trace as it would be stored, from a few figures."""

from partywall.trace.record import Delay, Flow, Missed, Packet, Report, Start, Step, TraceEvidence, Way
from partywall.trace.request import Hop, TraceRequest

MS = 1_000_000


def delay(*ns):
    # Below 256 ns a bucket is the value itself.
    counts = {n: ns.count(n) for n in ns}
    return Delay(histogram=tuple(sorted(counts.items())), sum_ns=sum(ns), min_ns=min(ns), max_ns=max(ns))


FLOW = Flow(flow="00ff", protocol=17, from_="10.0.0.1", from_port=9000, to="10.0.0.2", to_port=9001)
PACKET = Packet(
    flow="00ff", tag=7, length=100, stream=False, at_ns=(10 * MS, 10 * MS + 20, 10 * MS + 50), fate="delivered"
)
NOTHING = Way(steps=(Step(), Step(), Step()))


def forward(**changes):
    steps = (
        Step(packets=10, bytes=1000),
        Step(packets=10, bytes=1000, reordered=1, delay=delay(*[20] * 10)),
        Step(packets=8, bytes=800, lost=2, duplicates=1, delay=delay(*[30] * 8)),
    )
    return Way(steps=steps, total=delay(*[50] * 8), delivered=8, slowest=(PACKET,), packets=(PACKET,)).model_copy(
        update=changes
    )


def report(way=None, **changes):
    plain = Report(
        start_ns=0, end_ns=10**9, ways=(way or forward(), NOTHING), hops=(Missed(recorded=10),) * 3, flows=(FLOW,)
    )
    return plain.model_copy(update=changes)


def evidence(*reports, **changes):
    hops = (
        Hop(name="a/eth0", interface="eth0", namespace="a"),
        Hop(name="va", interface="va"),
        Hop(name="vm/eth0", interface="eth0", agent="vm"),
    )
    start = Start(
        asked=TraceRequest(hops=hops, horizon_ns=500 * MS),
        started="2026-01-01T00:00:00+00:00",
        wall_ns=10**18,
        version="0",
    )
    plain = TraceEvidence(
        run="t", start=start, host={}, reports=reports or (report(),), clocks=(), record_ns=40, interrupted=False
    )
    return plain.model_copy(update=changes)
