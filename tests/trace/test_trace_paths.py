"""What networks do to packets between two hops, for real: tags, NAT, offloads, and hops that vanish.

a/eth0 is joined to m/ma, and m/mb to b/eth0; m is a bridge or a router. Packets of the kernel's own making pass along.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from partywall.agent import agents, binary
from partywall.agent.clock import Offset
from partywall.errors import PartywallError
from partywall.host.label import Label
from partywall.sandbox import reaper
from partywall.trace.findings import findings
from partywall.trace.hops import ask
from partywall.trace.measure.tracing import Tracing
from partywall.trace.record import Start, TraceEvidence, merged
from tests.trace.spaces import feature, inside, ip, lacking, run, send, send_tagged, stream, wait

pytestmark = pytest.mark.host
A, M, B = (f"pwp{os.getpid()}{letter}" for letter in "amb")
HOPS = f"{A}/eth0:out", f"{M}/ma:in", f"{M}/mb:out", f"{B}/eth0:in"
BOTH_WAYS = f"{A}/eth0", f"{M}/ma", f"{M}/mb", f"{B}/eth0"
MACS = {A: "02:00:00:00:00:01", B: "02:00:00:00:00:02"}
MEGABYTE = 1 << 20


@pytest.fixture
def wires():
    """The three namespaces and their cables, all up, without addresses."""
    if why := lacking():
        pytest.skip(why)
    try:
        for space in (A, M, B):
            made = ip("netns", "add", space, check=False)
            if made.returncode:
                pytest.skip(f"network namespaces: {made.stderr.strip()}")
            # Its own messages would come whenever they like; tests of it switch it on.
            inside(space, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6", check=False)
        ip("link", "add", "eth0", "netns", A, "address", MACS[A], "type", "veth", "peer", "name", "ma", "netns", M)
        ip("link", "add", "eth0", "netns", B, "address", MACS[B], "type", "veth", "peer", "name", "mb", "netns", M)
        for space, device in ((A, "lo"), (A, "eth0"), (M, "ma"), (M, "mb"), (B, "lo"), (B, "eth0")):
            ip("-n", space, "link", "set", "dev", device, "up")
        yield
    finally:
        for space in (A, M, B):
            ip("netns", "del", space, check=False)


def bridge():
    ip("-n", M, "link", "add", "br0", "type", "bridge")
    for port in ("ma", "mb"):
        ip("-n", M, "link", "set", "dev", port, "master", "br0")
    ip("-n", M, "link", "set", "dev", "br0", "up")
    address(A, "10.80.1.1/24")
    address(B, "10.80.1.2/24")
    neighbours("10.80.1.1", "10.80.1.2")


def address(space, text, device="eth0"):
    inside(space, "sh", "-c", f"echo 0 > /proc/sys/net/ipv6/conf/{device}/disable_ipv6", check=False)
    ip("-n", space, "addr", "add", text, "dev", device, *(["nodad"] if ":" in text else []))


def neighbours(a, b):
    """Told, so that nothing waits for an answer that was lost while interfaces came up."""
    ip("-n", A, "neigh", "replace", b, "lladdr", MACS[B], "dev", "eth0", "nud", "permanent")
    ip("-n", B, "neigh", "replace", a, "lladdr", MACS[A], "dev", "eth0", "nud", "permanent")


def route():
    """m routes between 10.80.1.0/24 and 10.80.2.0/24."""
    inside(M, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    for space, text, device in ((A, "10.80.1.2/24", "eth0"), (M, "10.80.1.1/24", "ma")):
        address(space, text, device)
    for space, text, device in ((B, "10.80.2.2/24", "eth0"), (M, "10.80.2.1/24", "mb")):
        address(space, text, device)
    ip("-n", A, "route", "add", "default", "via", "10.80.1.1")
    ip("-n", B, "route", "add", "default", "via", "10.80.2.1")


@pytest.fixture
def label(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    label = Label.create(f"paths-test-{tmp_path.name}", tmp_path)
    yield label
    reaper.clean(label)


class Traced:
    """A session, and after `finish` what it found, in figures and in words."""

    def __init__(self, requested, label, **options):
        self.reports, self.bounds = [], []
        self.session = Tracing(requested, label, self.reports.append, self.bounds.append, **options)

    def finish(self):
        self.session.finish()
        self.whole = merged(self.reports)
        start = Start(asked=self.session.request, started="2026-01-01T00:00:00+00:00", wall_ns=0, version="0")
        self.findings = findings(
            TraceEvidence(
                run="t", start=start, host={}, reports=tuple(self.reports), clocks=tuple(self.bounds), record_ns=None,
                interrupted=False,
            )
        )  # fmt: skip
        self.notes = " ".join(self.findings.notes)
        self.forward, *rest = self.whole.ways
        self.backward = rest[0] if rest else None


@contextlib.contextmanager
def tracing(label, hops=HOPS, *, ring_bytes=4 << 20, **options):
    """What happens inside is traced; the figures are there afterwards."""
    requested = ask(hops, horizon="300ms", **({"budget": "100%"} | options))
    traced = Traced(requested, label, ring_bytes=ring_bytes)
    try:
        traced.session.__enter__()
    except PartywallError as error:
        traced.session.close()
        if "without eBPF programs" in str(error):
            pytest.skip(str(error))
        raise
    try:
        yield traced
        traced.finish()
    finally:
        traced.session.close()


def lost(way):
    return [step.lost + step.astray for step in way.steps]


def seen(way):
    return [step.packets for step in way.steps]


def whole(way):
    """Every packet that passed the first hop came to every other one, once and later."""
    first = way.steps[0].packets
    return first > 0 and seen(way) == [first] * len(way.steps) and way.delivered == first and way.total.negative == 0


TAGGER = """
#include <linux/bpf.h>
static long (*push)(struct __sk_buff *, __u16, __u16) = (void *)18;
__attribute__((section("classifier"), used)) int tag(struct __sk_buff *skb)
{
	push(skb, 0x0081, 10);
	push(skb, 0xa888, 20);
	return -1;
}
char terms[] __attribute__((section("license"), used)) = "GPL";
"""


@pytest.mark.usefixtures("wires")
def test_tags_that_a_switch_puts_on_change_nothing(label, tmp_path):
    if why := lacking("clang"):
        pytest.skip(why)
    bridge()
    (tmp_path / "tag.c").write_text(TAGGER)
    headers = f"-I/usr/include/{os.uname().machine}-linux-gnu"
    built = run(
        "clang", "-O2", "-target", "bpf", headers, "-c", tmp_path / "tag.c", "-o", tmp_path / "tag.o", check=False
    )
    if built.returncode:
        pytest.skip(f"clang cannot build eBPF: {built.stderr}")
    run("tc", "-n", M, "qdisc", "add", "dev", "ma", "clsact")
    run(
        "tc",
        "-n",
        M,
        "filter",
        "add",
        "dev",
        "ma",
        "ingress",
        "bpf",
        "da",
        "obj",
        tmp_path / "tag.o",
        "sec",
        "classifier",
    )
    with tracing(label, protocol="udp") as traced:
        send(A, "10.80.1.2", 100)
        send(A, "10.80.1.2", 100, marked=False, port=5100)
    assert (traced.forward.delivered, lost(traced.forward)) == (200, [0] * 4)


@pytest.mark.usefixtures("wires")
def test_datagrams_behind_two_tags_of_their_sender_are_reported(label):
    bridge()
    with tracing(label, protocol="udp") as traced:
        send_tagged(A, "eth0", 100)
    assert (traced.forward.delivered, lost(traced.forward)) == (100, [0] * 4)
    assert [str(flow) for flow in traced.whole.flows] == ["udp 10.80.1.1:5000 → 10.80.1.2:9000"]


@pytest.fixture
def nat(wires):  # noqa: ARG001 - the wires come first
    """m gives 10.80.1.2 the name 10.80.2.1, and its port 5000 (or 6000) another one."""
    if shutil.which("nft") is None:
        pytest.skip("nft (nftables) is not installed")
    route()
    rules = "add table ip t; add chain ip t post { type nat hook postrouting priority 100; };"
    for protocol, port, other in (("udp", 5000, 4000), ("tcp", 6000, 4001)):
        rules += f"add rule ip t post {protocol} sport {port} snat to 10.80.2.1:{other};"
    made = inside(M, "nft", rules, check=False)
    if made.returncode:
        pytest.skip(f"NAT of the kernel: {made.stderr.strip()}")


REPORTED = "10.80.2.1:4000=10.80.1.2:5000", "10.80.2.1:4001=10.80.1.2:6000"


@pytest.mark.usefixtures("nat")
def test_packets_are_known_behind_nat_that_was_reported(label):
    with tracing(label, BOTH_WAYS, nat=REPORTED, port=9000) as traced:
        send(A, "10.80.2.2", 100, marked=False)
        stream(A, "10.80.2.2", B, MEGABYTE)
    assert whole(traced.forward), seen(traced.forward)
    assert whole(traced.backward), seen(traced.backward)
    assert {(flow.from_, flow.from_port) for flow in traced.whole.flows if flow.to_port == 9000} == {
        ("10.80.1.2", 5000),
        ("10.80.1.2", 6000),
    }


@pytest.mark.usefixtures("nat")
def test_packets_behind_nat_that_was_not_reported_are_astray_and_not_lost(label):
    with tracing(label, protocol="udp") as traced:
        send(A, "10.80.2.2", 100)
    assert (traced.forward.steps[2].astray, traced.findings.ways[0].lost) == (100, 0)
    assert "100 packets belong to flows that never reached" in traced.notes


@pytest.mark.usefixtures("wires")
def test_ipv6_is_traced_like_ipv4(label):
    bridge()
    address(A, "fd80::1/64")
    address(B, "fd80::2/64")
    neighbours("fd80::1", "fd80::2")
    with tracing(label, BOTH_WAYS, port=9000) as traced:
        send(A, "fd80::2", 100)
        send(A, "fd80::2", 100, marked=False, port=5100)
        stream(A, "fd80::2", B, MEGABYTE)
    assert whole(traced.forward), seen(traced.forward)
    assert whole(traced.backward), seen(traced.backward)
    assert {"fd80::1"} == {flow.from_ for flow in traced.whole.flows if flow.to_port == 9000}


@pytest.mark.usefixtures("wires")
def test_segments_cut_on_the_way_have_arrived_when_all_their_bytes_have(label):
    bridge()
    # Cut behind the hook of mb, where the queue is.
    ip("-n", M, "link", "set", "dev", "mb", "gso_max_segs", "1")
    with tracing(label, protocol="tcp", port=9000) as traced:
        stream(A, "10.80.1.2", B, 2 * MEGABYTE, back=1 << 20)
    assert whole(traced.forward), (seen(traced.forward), traced.notes)
    recorded = [hop.recorded for hop in traced.whole.hops]
    assert recorded[0] == recorded[2] < recorded[3], recorded


@pytest.mark.usefixtures("wires")
def test_segments_cut_and_then_joined_otherwise_have_arrived_each(label):
    bridge()
    for space, device in ((A, "eth0"), (M, "mb")):
        feature(space, device, "tso", on=False)
    feature(B, "eth0", "gro", on=True)
    with tracing(label, protocol="tcp", port=9000) as traced:
        stream(A, "10.80.1.2", B, 2 * MEGABYTE, back=1 << 20)
    assert whole(traced.forward), (seen(traced.forward), traced.notes)
    recorded = [hop.recorded for hop in traced.whole.hops]
    assert recorded[0] < recorded[1] == recorded[2] > recorded[3], recorded


@pytest.mark.parametrize(("space", "device"), [(A, "eth0"), (M, "mb")], ids=["sender", "on the way"])
@pytest.mark.usefixtures("wires")
def test_it_does_not_matter_where_checksums_are_made(label, space, device):
    bridge()
    feature(space, device, "tx-checksum", on=False)
    with tracing(label, BOTH_WAYS, port=9000) as traced:
        send(A, "10.80.1.2", 100, marked=False)
        stream(A, "10.80.1.2", B, MEGABYTE)
    assert whole(traced.forward), (seen(traced.forward), traced.notes)
    assert whole(traced.backward), (seen(traced.backward), traced.notes)


@pytest.mark.usefixtures("wires")
def test_above_its_budget_it_follows_fewer_flows_whole_and_says_so(label):
    bridge()
    with tracing(label, protocol="udp", budget="0.1%") as traced:
        rounds = []
        assert wait(lambda: _sampled(traced, rounds) < 1)
    way = traced.forward
    assert f"reduced sampling to {100 * traced.whole.sampled:.3g} % of the flows" in traced.notes
    assert lost(way) == [0] * 4
    # Where the tracer takes much of its CPU, as in an emulated host, no flow may be left to follow.
    assert way.delivered > 0 or traced.whole.sampled < 0.05
    assert way.delivered < sum(rounds)
    assert way.steps[0].packets == way.delivered + way.unfinished


def _sampled(traced, rounds):
    rounds.append(5000)
    send(A, "10.80.1.2", rounds[-1], flows=64)
    traced.session.pump(0.3)
    return min((report.sampled for report in traced.reports), default=1)


@pytest.mark.usefixtures("wires")
def test_an_interface_that_vanishes_is_reported_and_the_rest_goes_on(label):
    bridge()
    with tracing(label, protocol="udp") as traced:
        send(A, "10.80.1.2", 100)
        # What was sent is seen there before the cable is cut.
        assert wait(lambda: _arrived(traced) == 100)
        ip("-n", M, "link", "del", "mb")
        send(A, "10.80.1.2", 50, port=5000)
    assert traced.findings.gone == HOPS[2:]
    assert seen(traced.forward) == [150, 150, 100, 100]
    assert lost(traced.forward) == [0, 0, 50, 0]
    assert f"{HOPS[2]}: the interface disappeared" in traced.notes


def _arrived(traced):
    traced.session.pump(0.2)
    return sum(report.ways[0].delivered for report in traced.reports)


@pytest.mark.usefixtures("wires")
def test_what_the_tracer_itself_lost_is_counted_and_bounds_the_losses(label):
    bridge()
    count = 8000
    with tracing(label, protocol="udp", ring_bytes=0) as traced:
        # While its reader stands still the rings run over.
        os.kill(traced.session.pid, signal.SIGSTOP)
        try:
            send(A, "10.80.1.2", count)
        finally:
            os.kill(traced.session.pid, signal.SIGCONT)
    hops = traced.whole.hops
    assert sum(hop.missed for hop in hops) > 0
    assert [hop.recorded + hop.missed for hop in hops] == [count] * 4
    assert all(step.lost_low == 0 for step in traced.findings.ways[0].steps), traced.findings.ways[0]
    assert "the tracer missed" in traced.notes


@pytest.mark.usefixtures("wires")
def test_hops_in_the_wrong_order_come_out_negative_and_are_reported(label):
    bridge()
    with tracing(label, (HOPS[3], HOPS[0]), protocol="udp") as traced:
        send(A, "10.80.1.2", 100)
    assert traced.forward.total.negative == 100
    assert "100 delays are negative" in traced.notes
    assert "check the order of hops" in traced.notes
    assert "p50" not in traced.findings.ways[0].total_ns
    assert traced.findings.order == (HOPS[0], HOPS[3])
    assert traced.findings.headline.startswith("The hops are in the wrong order")


@pytest.mark.usefixtures("wires")
def test_a_clock_that_was_misjudged_shows_as_negative_beyond_its_bound(label, monkeypatch):
    bridge()
    wrong = Offset(offset_ns=-5_000_000, bound_ns=1_000)
    monkeypatch.setattr(agents, "Alignment", lambda *_, **__: SimpleNamespace(ask=lambda *_: wrong, best=wrong))
    agent = f"b=nsenter --net=/run/netns/{B} {binary.find()} serve"
    with tracing(label, (HOPS[0], "b/eth0:in"), protocol="udp", agents=[agent]) as traced:
        send(A, "10.80.1.2", 100)
    assert traced.forward.total.negative == 100
    assert "beyond the clocks' bound" in traced.notes


@pytest.mark.usefixtures("wires")
def test_wireshark_reads_the_packets(tmp_path):
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")
    bridge()
    out = tmp_path / "run"
    argv = [sys.executable, "-m", "partywall", "trace", *HOPS, "--port", "9000", "--for", "3s", "--out", str(out)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while process.poll() is None:
            send(A, "10.80.1.2", 20)
            stream(A, "10.80.1.2", B, 100_000, port=0, back=1 << 10)
    finally:
        process.kill()
    reported = process.stderr.read()
    if "without eBPF programs" in reported:
        pytest.skip(reported)
    assert process.returncode == 0, reported
    steps = json.loads((out / "findings.json").read_text())["ways"][0]["steps"]
    # The same numbers were sent again and again, also after the trace was closed.
    assert [step["duplicates"] for step in steps] == [0] * 3
    fields = ["frame.interface_name", "ip.src", "udp.dstport", "tcp.dstport", "tcp.seq_raw", "frame.comment"]
    read = run(
        "tshark", "-r", str(out / "packets.pcapng"), "-T", "json", *[part for name in fields for part in ("-e", name)]
    )
    packets = [{k: v[0] for k, v in packet["_source"]["layers"].items()} for packet in json.loads(read.stdout)]
    assert {packet["frame.interface_name"] for packet in packets} == {f"{hop} forward" for hop in HOPS}
    assert {packet.get("udp.dstport") or packet["tcp.dstport"] for packet in packets} == {"9000"}
    assert {packet["ip.src"] for packet in packets} == {"10.80.1.1"}
    assert any("tcp.seq_raw" in packet for packet in packets)
    assert all(packet["frame.comment"] for packet in packets)
    assert "Malformed" not in run("tshark", "-r", str(out / "packets.pcapng")).stdout
