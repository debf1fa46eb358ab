"""Studies of a path: what is measured again after a kill, what is made of it, and one on this host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from partywall import study
from partywall.cli.app import app
from partywall.errors import TrialError, UsageError
from partywall.host import Host
from partywall.sandbox import qemu
from partywall.sandbox.lab import Counted
from partywall.study import page, papers
from partywall.study.document import StudyRequest
from partywall.study.paper import Place
from partywall.study.path import findings as stats
from partywall.study.path import slots
from partywall.study.path.model import Cell, Extent, Study, Traced
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host
from partywall.trace.findings import findings
from partywall.trace.measure.tracing import Present
from partywall.trace.record import ClockBound, Missed, Report, Start, Step, TraceEvidence, Way
from partywall.trace.request import Hop
from partywall.trace.request import TraceRequest as Hops
from partywall.web.records import summary
from tests.measured import fresh, measured

SMALL = b"""partywall_path_study: 1
name: vits-network
link: 1Gbit/s
target_bytes: 256
neighbour_bytes: [256, 16384]
neighbour_rate: 20k/s
traced: [null, 16384]
short: {blocks: 3, slot: 40ms, traced: 100ms}
long: {blocks: 3, slot: 40ms, traced: 100ms}
"""
FIXED = "vits-network-fixed"
EXTENT = Extent(blocks=3, slot="40ms", traced="100ms")


def small() -> Study:
    return slots.load(SMALL, "small.yaml")


def cell(block: int, size: int | None, bps: float) -> Cell:
    return Cell(block=block, bytes=size, bps=bps, pps=bps / 2400)


def test_a_datagram_above_the_mtu_is_several_packets():
    study = small().model_copy(update={"mtu": 1052})
    assert [study.packets(size) for size in (0, 1024, 1025, 2048, 16384)] == [1, 1, 2, 2, 16]
    with pytest.raises(UsageError, match="at most 548"):
        slots.load(SMALL.replace(b"target_bytes: 256", b"target_bytes: 700\nmtu: 576"), "small.yaml")


def test_the_study_with_the_targets_rate_fixed_differs_in_nothing_that_the_figure_shows():
    flat_out, fixed = (slots.load(study.find(name).read_bytes(), name) for name in ("vits-network", FIXED))
    assert fixed.target_rate == fixed.neighbour_rate
    changed = {"name": FIXED, "target_rate": fixed.target_rate}
    left_as_is = {"description": fixed.description, "traced": fixed.traced}
    assert flat_out.model_copy(update=changed | left_as_is) == fixed


def test_the_study_with_the_targets_rate_fixed_has_a_figure_of_its_own_and_no_table_of_cpu_time():
    fixed, paper = slots.load(study.find(FIXED).read_bytes(), FIXED), papers.load(FIXED)
    cells = [cell(block, size, 1e7) for block in range(3) for size in (None, 256, 16384)]
    (only,) = stats.comparisons(fixed, cells, paper, virtual=False)
    assert only.table.id == "fig 10 (fixed rate)"
    assert [(point.x, point.value) for point in only.measured] == [(256.0, 1.0), (16384.0, 1.0)]
    assert f"the target sends {stats.rate_text(20_000)}" in only.differs[1]
    assert set(stats.places(fixed, paper, virtual=False)) == {only.table.id}


def test_a_neighbour_whose_cpu_cannot_send_its_rate_is_named():
    def spends(size: int, *us: float) -> list[Cell]:
        return [Cell(block=block, bytes=size, bps=1, pps=1, cpu_ns=1e3 * each) for block, each in enumerate(us)]

    cells = [*spends(256, 15, 17), *spends(16384, 130, 150), cell(0, None, 1e7)]
    assert stats.short_of_cpu(small(), cells) == {16384: pytest.approx(1e6 / 140)}
    assert stats.short_of_cpu(small(), spends(16384, 49)) == {}
    assert stats.short_of_cpu(small(), [cell(0, 16384, 1e7)]) == {}


def test_the_cost_of_a_datagram_is_the_mean_of_the_blocks():
    cells = [Cell(block=b, bytes=256, bps=1, pps=1, cpu_ns=ns) for b, ns in enumerate((1000, 3000))]
    result = stats.cost(small(), [*cells, cell(0, None, 1.0)], papers.load("vits-network"))
    assert {(point.series, point.x): point.value for point in result.measured} == {("sender", 256.0): 2.0}


def test_every_block_holds_every_size_and_a_quiet_neighbour_once_in_an_order_drawn_again():
    order = slots.plan(small(), EXTENT, seed=1)
    blocks = [[size for block, size in order if block == number] for number in range(3)]
    assert [set(block) for block in blocks] == [{None, 256, 16384}] * 3
    assert sum(map(len, blocks)) == 9
    assert slots.plan(small(), EXTENT, seed=1) == order
    assert any(slots.plan(small(), EXTENT, seed=seed) != order for seed in range(2, 6))


def test_a_block_that_was_cut_off_is_measured_whole_again():
    done = [cell(0, None, 1.0), cell(0, 256, 1.0), cell(0, 16384, 1.0), cell(1, None, 1.0)]
    left = slots.plan(small(), EXTENT, seed=1, done=done)
    assert {block for block, _ in left} == {1, 2}
    assert len(left) == 6


def test_a_share_is_over_the_quiet_neighbour_of_the_same_block_and_what_was_measured_again_counts():
    cells = [cell(0, None, 100.0), cell(0, 256, 10.0), cell(1, 256, 1.0), cell(0, None, 200.0), cell(0, 256, 100.0)]
    assert stats.shares(cells) == {(0, None): 1.0, (0, 256): 0.5}


def test_the_figure_has_an_interval_over_blocks_and_pairs_of_the_same_block():
    cells = [
        cell(block, size, base * share)
        for block, base in enumerate((100.0, 200.0, 50.0))
        for size, share in ((None, 1.0), (256, 0.9 + block / 100), (16384, 0.3 + block / 100))
    ]
    result = stats.beside(small(), cells, papers.load("vits-network"))
    points = {point.x: point for point in result.measured}
    assert points[256.0].value == pytest.approx(0.91)
    assert points[256.0].low < 0.91 < points[256.0].high
    (pair,) = [pair for pair in result.paired if {pair.left.x, pair.right.x} == {256.0, 16384.0}]
    assert not pair.low <= 1 <= pair.high


def traced(missing: int, *, lost: int = 0, astray: int = 0, missed: int = 0, unfinished: int = 0):
    steps = (Step(packets=100), Step(packets=100 - lost, lost=lost, astray=astray))
    way = Way(steps=steps, delivered=100 - lost, unfinished=unfinished)
    report = Report(
        start_ns=0, end_ns=10**9, ways=(way, Way(steps=(Step(), Step()))), hops=(Missed(missed=missed),) * 2
    )
    path = tuple(Hop(name=name, interface=name, hook="out") for name in ("a", "b"))
    start = Start(asked=Hops(hops=path, horizon_ns=1), started="", wall_ns=0, version="")
    evidence = TraceEvidence(
        run="x", start=start, host={}, reports=(report,), clocks=(), record_ns=None, interrupted=False
    )
    return Traced(bytes=16384, run="x", missing=missing), findings(evidence)


@pytest.mark.parametrize(
    ("missing", "seen", "beyond"),
    [
        (5, {"lost": 5}, 0),
        (5, {"lost": 2}, 3),
        (0, {"lost": 2}, 2),
        (7, {"lost": 5, "astray": 2}, 0),
        (5, {"lost": 2, "missed": 1}, 1),
        (5, {"lost": 2, "unfinished": 3}, 0),
    ],
)
def test_packets_are_unexplained_that_counters_miss_and_the_trace_neither_lost_nor_failed_to_see(missing, seen, beyond):
    assert stats.unexplained(*traced(missing, **seen)) == beyond


def between_clocks(bound_ns: int | None, **delay_ns: float):
    """A trace whose one step has these delays between two clocks."""
    one, found = traced(0)
    (way, *others) = found.ways
    step = way.steps[0].model_copy(update={"clock_bound_ns": bound_ns, "delay_ns": delay_ns})
    way = way.model_copy(update={"steps": (step,), "total_ns": delay_ns, "clock_bound_ns": bound_ns})
    clocks = (ClockBound(agent="target", offset_ns=0, bound_ns=bound_ns),) if bound_ns else ()
    costs = {"record_ns": 30, "relays_record_ns": {"target": 900} if bound_ns else {}}
    return one, found.model_copy(update={"ways": (way, *others), "clocks": clocks, **costs})


def test_delays_between_two_clocks_have_their_bound_and_smaller_ones_are_not_resolved():
    result = stats.hops([between_clocks(400_000, p50=1e5, p99=2e6)], ("here", "there"))
    assert result.rows[0][1:3] == ("100 µs (not resolved), 2 ms ± 400 µs",) * 2
    assert "the largest error of the guest's clock" in result.lead
    longer = stats.hops([between_clocks(400_000, p50=1e6)], ("here", "there"))
    assert longer.rows[0][1] == "1 ms ± 400 µs"
    assert stats.hops([between_clocks(400_000)], ("here", "there")).rows[0][1] == "—"
    one_clock = stats.hops([between_clocks(None, p50=1e5, p99=2e6)], ("here", "there"))
    assert one_clock.rows[0][1] == "100 µs, 2 ms"
    assert "guest" not in one_clock.lead


def test_the_cost_of_a_record_is_stated_where_the_tracer_runs():
    inside, outside = between_clocks(400_000), between_clocks(None)
    assert stats.tracer_text([inside, outside]) == "up to 30 ns on the host, up to 900 ns in the target's guest"
    assert stats.tracer_text([outside]) == "up to 30 ns on the host"
    assert stats.tracer_text([traced(0)]) == ""


def test_the_section_of_hops_has_a_row_a_trace_and_a_column_a_hop():
    result = stats.hops([traced(5, lost=2)], ("here", "there"))
    assert result.columns == ("beside", "to there", "in all", "lost, by counters")
    assert result.rows[0][0] == "16384 bytes"
    assert "2.00% lost" in result.rows[0][1]
    assert result.rows[0][-1] == "5 of 100 (trace: 2)"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"neighbour_bytes: [256, 256]", "neighbour_bytes: a size is listed twice"),
        (b"neighbour_bytes: [256, 20000]", "neighbour_bytes: a datagram of 20000 bytes cannot be sent"),
        (b"neighbour_bytes: [256]", "traced: 16384 is not in neighbour_bytes"),
        (b"neighbour_bytes: [256, 16384]\ntarget_rate: 0/s", "target_rate"),
        (b"neighbour_bytes: [256, 16384]\ntarget_rate: fast", "target_rate"),
        (b"neighbour_bytes: [256, 16384]\nemulated_scale: 2", "emulated_scale"),
    ],
)
def test_sizes_and_rates_that_cannot_be_are_reported(wrong, said):
    content = SMALL.replace(b"neighbour_bytes: [256, 16384]", wrong)
    with pytest.raises(UsageError, match=said):
        slots.load(content, "small.yaml")


def test_a_target_has_a_rate_or_sends_as_fast_as_it_can():
    paced = slots.load(SMALL + b"target_rate: 7k/s\n", "small.yaml")
    assert (small().target_rate, paced.target_rate) == (None, 7000)
    kind = study.kind_of(study.find("vits-network"))
    free, held = (kind.outline(requested, StudyRequest(), fake_host()).lines[0] for requested in (small(), paced))
    assert "256 bytes, as fast as possible, beside" in free
    assert "256 bytes, 7 000 datagrams a second, beside" in held.replace("\u202f", " ").replace("\xa0", " ")
    cells = [cell(block, size, 1.0 + block) for block in range(3) for size in (None, 256, 16384)]
    differs = " ".join(stats.beside(paced, cells, papers.load("vits-network")).differs)
    assert "datagrams a second, and the neighbour" in differs


def test_a_study_of_a_path_in_emulated_guests_is_one_in_small():
    scaled = slots.load(SMALL + b"target_rate: 7k/s\n", "small.yaml").scaled(0.05)
    assert (scaled.link, scaled.neighbour_rate, scaled.target_rate) == (50_000_000, 1000, 350)
    assert small().scaled(0.05).target_rate is None
    assert small().model_copy(update={"neighbour_rate": 1}).scaled(0.05).neighbour_rate == 1


def test_guests_have_the_figure_marked_and_no_cpu_time(tmp_path):
    record = StudyDirectory.create(tmp_path / "study", SMALL, StudyRequest(backends=("qemu",)), {})
    for block in range(3):
        for size, bps in ((None, 100.0), (256, 90.0 + block), (16384, 30.0 + block)):
            record.append(cell(block, size, bps).model_copy(update={"emulated": True}).model_dump_json())
    result = study.report(record)
    figure, cost = result.comparisons
    assert {point.emulated for point in figure.measured} == {"victim"}
    assert stats.VIRTUAL in figure.differs
    assert stats.NAMESPACES not in figure.differs
    assert (cost.measured, cost.differs) == ((), (stats.NO_CPU,))
    assert "0.05 of the study's" in result.notes[0]
    facts = dict(result.facts)
    assert facts["link"].startswith("50 Mbit/s")
    assert "taps" not in facts["tenants"]
    assert "guests" in facts["tenants"]
    kind = study.kind_of(study.find("vits-network"))
    measured = kind.places(small(), record.request, fake_host())
    assert measured == {"fig 10": {Place("target", 256.0), Place("target", 16384.0)}}


def test_a_report_of_chosen_parts_leaves_out_what_was_not_requested(tmp_path):
    tables = {}
    for parts in ((), ("256*",)):
        request = StudyRequest(backends=("qemu",), parts=parts)
        record = StudyDirectory.create(tmp_path / f"study-{len(parts)}", SMALL, request, {})
        for block, size, bps in ((0, None, 100.0), (0, 256, 90.0), (1, None, 101.0), (1, 256, 91.0)):
            record.append(cell(block, size, bps).model_copy(update={"emulated": True}).model_dump_json())
        tables[parts] = [bool(beside.measured) for beside in study.report(record).comparisons]
    assert tables == {(): [True, False], ("256*",): [True]}
    page.FILES.write(study.report(record), tmp_path, ["json"])
    assert summary(tmp_path)[0]


class Tenants:
    """A lab whose target is in a guest or in a namespace, and has sent 100 packets."""

    def __init__(self, *, virtual: bool) -> None:
        self.guests = {"target": self, "neighbour": self} if virtual else {}
        self.listeners: list[Any] = []

    def namespace(self, name: str) -> str:
        return f"pw-{name}"

    def listen(self, name: str, listener: Any) -> None:
        self.listeners.append((name, listener))

    def sent(self, name: str, interface: str) -> int:
        assert (name, interface) == ("target", "eth0")
        return 100

    def bench(self) -> slots.Bench:
        return slots.Bench(small(), self, "agent", self, self)


def test_the_traced_path_begins_at_the_targets_own_interface_also_inside_its_guest():
    bare, virtual = (Tenants(virtual=virtual) for virtual in (False, True))
    (first, *later), (inside, *others) = (lab.bench().trace_request(10).hops for lab in (bare, virtual))
    assert (first.namespace, first.interface, first.hook, first.agent) == ("pw-target", "eth0", "out", None)
    assert (inside.namespace, inside.interface, inside.hook, inside.agent) == (None, "eth0", "out", "target")
    assert later == others
    assert [hop.name for hop in later][:2] == ["pw-switch/p1:in", "pw-switch/nic:out"]
    assert bare.bench().present == {}
    (present,) = virtual.bench().present.values()
    present.listen("sink")
    assert present.client == "agent"
    assert virtual.listeners == [("target", "sink")]
    # A guest's clock is kept on the host's, so it runs faster and slower than a free one.
    assert present.drift_ppb > Present("agent", present.listen).drift_ppb


@pytest.mark.parametrize(("virtual", "gone"), [(True, 100 - 70), (False, 90 - 70)])
def test_packets_are_counted_from_the_targets_own_interface_to_its_sinks_port(monkeypatch, virtual, gone):
    sent = {("pw-target", "eth0"): 90, ("pw-far", "p1"): 70}
    monkeypatch.setattr(slots, "_sent", lambda namespace, interface: sent[namespace, interface])
    assert Tenants(virtual=virtual).bench().gone() == gone


class Late:
    """A clock, an agent that takes a second for each of its first answers, and a lab whose sink gets 1,000 bit/s."""

    def __init__(self, late_answers: int) -> None:
        self.now, self.late_answers = 0, late_answers
        self.starts: list[int] = []
        self.guests = {"target": self, "neighbour": self}

    def now_ns(self) -> int:
        return self.now

    def sleep_until(self, at_ns: int) -> None:
        self.now = max(self.now, at_ns)

    def call(self, _method: str, **params: Any) -> None:
        self.starts.append(params["switches"][0]["at_ns"])
        if len(self.starts) <= self.late_answers:
            self.now += 10**9

    def look(self) -> None:
        pass

    def read(self) -> Counted:
        return Counted(self.now, {"target": 0}, {"target": self.now // (8 * 10**6)})


def test_a_slot_whose_senders_were_reported_too_late_is_begun_again():
    late = Late(late_answers=2)
    ready = slots.Bench(small(), late, late, late, late)
    bps, _, cpu_ns = ready.slot(None, 10**9)
    assert len(late.starts) == 3
    assert late.starts[-1] > late.starts[-2] + 10**9
    assert bps == pytest.approx(1000, rel=0.01)
    assert cpu_ns is None
    waits: list[int] = []
    ready.slot(None, 10**9, lambda at_ns: waits.append(at_ns) or late.sleep_until(at_ns))
    assert len(waits) == 3
    assert waits[1] - waits[0] == 10**9
    overloaded = Late(late_answers=100)
    with pytest.raises(TrialError, match="did not answer within 150 ms, 5 times in a row; leave the host less to do"):
        slots.Bench(small(), overloaded, overloaded, overloaded, overloaded).slot(256, 10**9)


@pytest.mark.parametrize(
    ("requested", "key"), [({"backends": ("container",)}, "--backend"), ({"parts": ("x",)}, "--only")]
)
def test_what_it_cannot_be_requested_for_is_refused(requested, key):
    with pytest.raises(UsageError, match=key):
        study.kind_of(study.find("vits-network")).outline(small(), StudyRequest(**requested), fake_host())


@pytest.mark.host
@pytest.mark.usefixtures("guarded_lab")
def test_a_small_one_on_this_host_has_its_figure_its_traces_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_bytes(SMALL)
    ran = CliRunner().invoke(app, ["study", str(file), "--out", str(out)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    directory = StudyDirectory.open(out)
    result = study.report(directory)
    assert {point.x for point in result.comparisons[0].measured} == {256.0, 16384.0}
    path = json.loads((out / "findings.json").read_text())["path"]
    assert [(entry["neighbour_bytes"], entry["unexplained"]) for entry in path] == [(None, 0), (16384, 0)]
    assert all(entry["way"]["sent"] > 0 for entry in path)
    assert "datagrams wait<" in (out / "report.html").read_text()
    assert CliRunner().invoke(app, ["report", str(out / "runs" / "quiet")], catch_exceptions=False).exit_code == 0
    # Killed before the last trace was written down: that one is made again, and nothing else.
    before = len(directory.observations())
    lines = (out / "observations.jsonl").read_text().splitlines(keepends=True)
    (out / "observations.jsonl").write_text("".join(lines[:-1]))
    ran = CliRunner().invoke(app, ["study", "--resume", str(out)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert len(directory.observations()) == before
    # Memory is checked again before the rest.
    assert len(directory.memory_checks()) == 2
    assert "memory checked" in (out / "report.html").read_text()


@pytest.mark.host
@pytest.mark.skipif(bool(qemu.lacking(Host.here())), reason=qemu.lacking(Host.here()) or "-")
@pytest.mark.usefixtures("guarded_lab")
@measured
def test_a_small_one_in_guests_has_its_figure_and_its_traces_from_inside_the_guest_on(tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    file, out = folder / "small.yaml", folder / "out"
    file.write_bytes(SMALL + b"target_rate: 20k/s\n")
    ran = CliRunner().invoke(app, ["study", str(file), "--backend", "qemu", "--rounds", "2", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    result = study.report(StudyDirectory.open(out))
    assert {point.x for point in result.comparisons[0].measured} == {256.0, 16384.0}
    emulated = qemu.choose("auto", Host.here()).emulates
    assert {point.emulated for point in result.comparisons[0].measured} == {"victim" if emulated else None}
    assert result.comparisons[1].measured == ()
    path = json.loads((out / "findings.json").read_text())["path"]
    assert all(entry["way"]["sent"] > 0 for entry in path)
    assert [entry["unexplained"] for entry in path] == [0, 0]
    first, second = path[0]["way"]["steps"][:2]
    assert first["origin"] == "target/eth0:out"
    assert first["hop"].endswith("-switch/p1:in")
    assert first["clock_bound_ns"] > 0
    assert second["clock_bound_ns"] is None
    facts = dict(result.facts)
    assert "in the target's guest" in facts["tracer's program, for a record"]
    inside = ", ".join(f"128 MiB in the guest of {name}" for name in ("target", "neighbour"))
    assert facts["memory checked"] == f"1.25 GiB on this host, {inside}"
