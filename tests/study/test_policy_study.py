"""Studies of policies: what is read and refused, what is measured again, what is made of it, and one on this host."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from partywall import study as studies
from partywall.cli.app import app
from partywall.errors import UsageError
from partywall.study import papers
from partywall.study.agreement import Pair, judge
from partywall.study.document import StudyRequest
from partywall.study.paper import Place
from partywall.study.policies import findings as stats
from partywall.study.policies import slots
from partywall.study.policies.model import Cell, Extent, Rate
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host
from tests.measured import measured

FILE = studies.find("dba-vm-shares")
EXTENT = Extent(blocks=3, slot="100ms")
PLACES = {name: {"interface": "eth0", "namespace": name} for name in ("first", "second", "VM1", "VM2", "VM3")}


def shipped():
    return slots.load(FILE.read_bytes(), FILE.name)


def cell(part: str, way: str, block: int, **pps: float) -> Cell:
    streams = {name.replace("_", "-"): Rate(bps=rate * 512, pps=rate) for name, rate in pps.items()}
    return Cell(part=part, way=way, block=block, streams=streams)


def test_a_way_replaces_keys_of_the_parts_policy_or_has_no_guard():
    host = shipped().parts["host"]
    packets, bits = (host.policy_of(way, "p", PLACES) for way in ("packets", "bits"))
    assert (packets.link.packets, bits.link.packets) == (15_000, None)
    assert packets.link.capacity == bits.link.capacity == 100_000_000
    assert packets.vifs["VM2"].namespace == "VM2"
    assert host.policy_of("native", "p", PLACES) is None


def test_a_policy_of_several_links_has_the_capacity_of_each():
    links = shipped().parts["links"]
    total, without = (
        links.policy_of(way, "p", {name: {"interface": "eth0", "namespace": name} for name in links.vifs})
        for way in ("total", "without-total")
    )
    assert {name: link.capacity for name, link in total.by_link.items()} == {"left": 50_000_000, "right": 20_000_000}
    assert total.link_name(total.vifs["VM2"]) == links.link_of("VM2") == "right"
    assert (set(total.tenants), set(without.tenants)) == ({"VM"}, set())


def test_every_block_holds_every_way_once_and_one_that_was_cut_off_is_measured_whole_again():
    study = shipped()
    order = slots.plan(study, EXTENT, seed=1)
    for name, part in study.parts.items():
        for number in range(EXTENT.blocks):
            turns = [(way, load) for _, way, block, load in order[name] if block == number]
            assert sorted(turns) == sorted(part.turns)
            assert {way for way, _ in turns} == set(part.ways)
    done = {("host", way, block, None) for way, block in (("native", 0), ("bits", 0), ("packets", 0), ("bits", 1))}
    assert {block for _, _, block, _ in slots.plan(study, EXTENT, 1, done)["host"]} == {1, 2}


def test_a_way_is_measured_at_each_load_or_at_its_own():
    loss = shipped().parts["loss"]
    assert [load for way, load in loss.turns if way == "native"] == [0.5, 0.9, 1.1, 1.5, 2, 3]
    assert [load for way, load in loss.turns if way == "htb"] == [0.5, 0.9]
    assert (loss.offered("VM1", 3), loss.offered("VM2", 3)) == (3 * 826, 4128)


def lossy(**changes: float) -> list[Cell]:
    """Slots of the part `loss`, as the paper states them. changes: what was lost at other places, as native_0.9."""
    loss = shipped().parts["loss"]
    losses = {(way, load): 0.6 for way, load in loss.turns if way == "native"}
    losses |= {(way, load): max(0.0, 1 - 1 / load) for way, load in loss.turns if way != "native"}
    losses |= {(way, float(load)): lost for place, lost in changes.items() for way, load in [place.split("_")]}
    return [
        Cell(part="loss", way=way, block=block, load=load, streams={"VM1": lost_of(lost and lost + block / 1e4, load)})
        for block in range(3)
        for (way, load), lost in losses.items()
    ]


def lost_of(lost: float, load: float, offered: float = 1.0) -> Rate:
    return Rate(bps=1e6, pps=100, lost=lost, handed_pps=826 * load * offered)


def test_losses_by_load_are_compared_with_those_natively_also_where_nothing_is_lost():
    (result,) = stats.comparisons(shipped(), lossy(), papers.load("dba-vm-shares"))
    assert result.points[Place("published", 0.9)].high == 0
    assert result.points[Place("published", 3.0)].value == pytest.approx(66.68, abs=0.01)
    assert judge(result).likeness == "same order"
    assert not result.why


def test_two_losses_of_nothing_are_not_distinguished():
    (result,) = stats.comparisons(shipped(), lossy(**{"native_0.9": 0.0}), papers.load("dba-vm-shares"))
    pairs = {(pair.left, pair.right): pair.agreement for pair in judge(result).pairs if isinstance(pair, Pair)}
    assert pairs[Place("published", 0.9), Place("native", 0.9)] == "not distinguished"
    assert pairs[Place("published", 0.5), Place("native", 0.5)] == "as in the paper"
    assert judge(result).likeness == "not distinguished"


def test_a_loss_below_the_promise_contradicts_the_bound():
    (result,) = stats.comparisons(shipped(), lossy(**{"published_0.9": 0.05}), papers.load("dba-vm-shares"))
    assert judge(result).likeness == "differs"


def test_a_sender_that_does_not_offer_its_load_is_reported():
    cells = [
        one.model_copy(update={"streams": {"VM1": lost_of(0.6, one.load, 0.8)}})
        if (one.way, one.load) == ("native", 0.9)
        else one
        for one in lossy()
    ]
    (result,) = stats.comparisons(shipped(), cells, papers.load("dba-vm-shares"))
    assert result.why == {Place("native", 0.9): "native at 0.9: its sender offered 80% of this load"}


def test_what_was_delivered_is_compared_with_the_promise_and_by_use():
    cells = [
        cell("interfaces", way, block, **{name: rate + block for name, rate in got.items()})
        for block in range(3)
        for way, got in (
            ("native", {"first": 12_000, "second": 12_000}),
            ("one-busy", {"first": 7990}),
            ("both-busy", {"first": 4000, "second": 4010}),
            ("three-to-one", {"first": 5800, "second_slow": 2200}),
        )
    ]
    (result,) = stats.comparisons(shipped(), cells, papers.load("dba-vm-shares"))
    points = result.points
    assert points[Place("promised", "all")].value == 8
    assert points[Place("three-to-one", "all")].value == pytest.approx(8.002)
    assert judge(result).likeness == "same order"


def test_a_study_measures_what_the_papers_claims_name():
    study, paper = shipped(), papers.load("dba-vm-shares")
    for part in study.parts.values():
        claims = paper.table(part.exhibit).claims
        assert {place for claim in claims for place in (claim.left, claim.than)} <= stats.places(part)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("one-busy: {sends: [first]}", "one-busy: {sends: [nobody]}", "there is no stream 'nobody'"),
        ("first: {vif: first,", "first: {vif: nobody,", "the policy has no vif 'nobody'"),
        ("promised: {all: 8}", "promised: {nobody: 8}", "promised: there is no stream 'nobody'"),
        ("ceiling: 70Mbit/s", "ceiling: 60Mbit/s", "ways.bits.policy: vifs.VM2.send.guarantee"),
        ("frame_bytes: 64", "frame_bytes: 20", "greater than or equal to 42"),
        ("first: {link: left, tenant", "first: {link: lefd, tenant", "vifs.first.link: 'lefd' is none of the links"),
        ("links: {left: 50Mbit/s", "link: 1Gbit/s\n    links: {left: 50Mbit/s", "links: give one of link and links"),
        ("htb, loads: [0.5, 0.9]", "htb, loads: [0.7]", "ways.htb.loads: 0.7 is not one of the part's loads.times"),
        ("loads: {stream: VM1", "loads: {stream: VM9", "loads.stream: there is no stream 'VM9'"),
        ('value: "%"', "value: Mb/s", "loads: give them if value is %, and only then"),
        (
            "VM3: {vif: VM3, frame_bytes: 1514, offered: 4128",
            "VM3: {vif: VM2, frame_bytes: 1514, offered: 1",
            "'VM2' has",
        ),
        ("guard: {sends: [VM1, VM2, VM3]}", "guard: {sends: [VM2]}", "ways.guard.sends: 'VM1', whose loads vary"),
        ("loads: {stream", "promised: {VM1: 1}\n    loads: {stream", "promised: losses are compared"),
        ("VM3: {send: {guarantee: 10Mbit/s}}", "VM3: {}", "ways.htb.policy: vifs.VM3.send.guarantee: tc needs one"),
        ("tc: htb,", "tc: htb, policy: null,", "ways.htb.policy: tc has the guarantees of the policy"),
        (
            "one-busy: {sends: [first]}\n      total",
            "one-busy: {sends: [first], tc: htb}\n      total",
            "tc is set up on one",
        ),
        ("second: {link: right}, VM2", "second: {link: left}, VM2", "without-total.policy: vifs.second.link: 'left'"),
    ],
)
def test_what_cannot_be_is_reported(old, new, said):
    with pytest.raises(UsageError, match=said):
        slots.load(FILE.read_bytes().replace(old.encode(), new.encode(), 1), "small.yaml")


def test_parts_are_selected_by_name_and_an_unknown_one_is_refused():
    kind = studies.kind_of(FILE)
    assert len(kind.outline(shipped(), StudyRequest(parts=("fl*", "host")), fake_host()).lines) == 2
    with pytest.raises(
        UsageError, match=r"--only: no part is called x.*there are interfaces, links, host, flows, loss"
    ):
        kind.outline(shipped(), StudyRequest(parts=("x",)), fake_host())
    with pytest.raises(UsageError, match="--backend"):
        kind.outline(shipped(), StudyRequest(backends=("qemu",)), fake_host())


@pytest.mark.host
@pytest.mark.usefixtures("guarded_lab")
def test_a_small_one_on_this_host_counts_each_stream_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    text = FILE.read_text().replace("short: {blocks: 5, slot: 800ms}", "short: {blocks: 2, slot: 100ms}")
    file.write_text(text)
    ran = CliRunner().invoke(app, ["study", str(file), "--only", "flows", "--out", str(out)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    (result,) = studies.report(StudyDirectory.open(out)).comparisons
    assert all(result.points[Place("flows", name)].value > 0 for name in ("calls", "copies", "VM2"))
    lines = (out / "observations.jsonl").read_text().splitlines(keepends=True)
    (out / "observations.jsonl").write_text("".join(lines[:-1]))
    ran = CliRunner().invoke(app, ["study", "--resume", str(out)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert studies.report(StudyDirectory.open(out)).comparisons


@pytest.mark.host
@pytest.mark.usefixtures("guarded_lab")
@measured
def test_losses_of_a_small_one_are_all_that_never_arrived() -> None:
    loss = shipped().parts["loss"]
    ways = {name: loss.ways[name].model_copy(update={"loads": (3.0,)}) for name in ("native", "htb", "guard-drop")}
    study = shipped().model_copy(update={"parts": {"loss": loss.model_copy(update={"ways": ways})}})
    cells: list[Cell] = []
    # In a shorter slot, the burst that the ceiling allows carries so much that chance decides what is lost.
    slots.carry_out(study, Extent(blocks=2, slot="800ms"), 1, cells.append, lambda _: None)
    assert len(cells) == 6
    for one in cells:
        rate = one.streams["VM1"]
        assert rate.handed_pps > 2000, "its sender does not wait"
        assert rate.lost > 0.2, one.way
