"""The study of live migration: its file, and the paper's figures from moves whose truth is known."""

from types import SimpleNamespace

import pytest

from partywall import study
from partywall.errors import UsageError
from partywall.migrate.document import Bin, Move, MoveFinding, PassFinding, Responses
from partywall.study import papers
from partywall.study.agreement import Likeness, judge
from partywall.study.document import StudyRequest
from partywall.study.migration import findings, kind
from partywall.study.migration.model import Bare
from partywall.study.paper import Place
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host


def shipped():
    file = study.find("migration-energy")
    return study.kind_of(file).read(file.read_bytes(), str(file))


def moved(workload, block, ratio=3.0, work=(1.7e9, 1.69e9, 1.0e9), total_s=30.0):
    """A move during which responses take `ratio` times as long."""
    move = Move(
        workload=workload, method="default", round=block, number=block, source="a", begin_ns=0, end_ns=1,
        outcome="completed",
    )  # fmt: skip
    users = {
        phase: Responses(sent=100, lost=0, rate=10.0, mean_ns=base * (1 + block / 10) * 1e6)
        for phase, base in (("before", 900.0), ("during", 900.0 * ratio), ("after", 900.0))
    }
    rates = dict(zip(("before", "during", "hand-over"), work, strict=True)) if workload == "matrix-vector" else {}
    values = {"total_s": total_s, "sent_bytes": total_s * 1e7}
    passes = (PassFinding(number=1, begin_s=0.0, seconds=total_s, sent=round(total_s * 9e6), dirty_rate=0.4 * 12.5e6),)
    seconds = [
        Bin(at_s=at, median_ns=900e6 * (ratio if 0 <= at < 1e-9 else 1), slowest_ns=5e9) for at in (-1.0, 0.0, 1.0)
    ]
    return MoveFinding(
        passes=passes,
        users_timeline=tuple(seconds),
        move=move,
        users=users if workload != "matrix-vector" else {},
        work=rates,
        values=values,
    )


def all_moves(**times):
    requested = shipped()
    return [
        moved(workload, block, total_s=times.get(workload, 30.0) * (1 + block / 100))
        for workload in requested.plan.workloads
        for block in range(3)
    ]


def besides(moves, bare=(1.75e9, 1.76e9, 1.74e9), *, emulated=False):
    rows = [Bare(block=block, rate=rate) for block, rate in enumerate(bare)]
    result = findings.comparisons(shipped(), moves, rows, papers.load("migration-energy"), emulated=emulated)
    return {each.table.id: each for each in result}


def test_every_figure_of_the_paper_file_is_measured():
    assert set(besides(all_moves())) == {shown.id for shown in papers.load("migration-energy").exhibits}


def test_response_times_that_rise_during_a_move_are_as_in_the_paper():
    result = besides(all_moves())
    for figure in ("fig 1", "fig 2", "fig 3", "fig 4"):
        assert judge(result[figure]).likeness is Likeness.SAME_ORDER


def test_load_that_lengthens_a_move_is_as_in_the_paper_and_the_contrary_is_not():
    longer = {"20-users": 30.0, "120-users": 60.0, "120-users-keep-alive": 150.0}
    assert judge(besides(all_moves(**longer))["section IV.C"]).likeness is Likeness.SAME_ORDER
    shorter = {name: 180 - seconds for name, seconds in longer.items()}
    assert judge(besides(all_moves(**shorter))["section IV.C"]).likeness is Likeness.DIFFERS


def test_computing_is_compared_on_the_host_in_a_guest_and_in_one_that_moves():
    result = besides(all_moves())["fig 5"]
    assert {place.x for place in result.points} == {"host", "guest", "moving guest", "hand-over"}
    assert result.points[Place("GFLOPS", "hand-over")].value == 1.0


def test_time_beyond_the_wire_grows_with_the_share_of_the_link_that_is_changed():
    """The first pass sends what the guest uses, at 100 Mbit/s; what comes on top of it is the load's."""
    longer = {"20-users": 31.0, "120-users": 64.0, "120-users-keep-alive": 155.0}
    result = besides(all_moves(**longer))["section IV.C (beyond the link)"]
    wire, beyond = (result.points[Place(series, "120-users")].value for series in ("wire", "beyond"))
    assert wire == pytest.approx(64 * 1.01 * 9e6 * 8 / 100e6, rel=1e-3)
    assert wire + beyond == pytest.approx(64 * 1.01, rel=1e-3)
    shares = besides(all_moves(**longer))["section IV.C (dirtying)"].points.values()
    assert {round(point.value, 3) for point in shares} == {0.4}


def test_the_shipped_loads_change_memory_at_the_papers_shares_of_the_link_or_as_fast_as_moves_still_end():
    requested = shipped()
    stated = papers.load("migration-energy").table("section IV.C (dirtying)").published["dirtied"]
    for workload, number in stated.items():
        rate = requested.plan.workloads[workload].params["rate_bytes_per_s"]
        assert 8 * rate / requested.plan.link.rate == pytest.approx(min(number.value, 0.56), abs=0.005)
    assert requested.long.blocks >= 20


def test_every_point_of_an_emulated_guest_says_so_and_that_of_the_host_does_not():
    result = besides(all_moves(), emulated=True)
    marks = {point.place: point.emulated for beside in result.values() for point in beside.measured}
    assert marks.pop(findings.HOST) is None
    assert set(marks.values()) == {"victim"}
    assert all(point.emulated is None for beside in besides(all_moves()).values() for point in beside.measured)


def test_a_move_that_did_not_end_is_a_note_and_no_point():
    lost = moved("20-users", 0).model_copy(update={"values": {}})
    lost = lost.model_copy(update={"move": lost.move.model_copy(update={"outcome": "gave up", "reason": "too slow"})})
    assert list(findings.notes([lost])) == ["20-users, block 1: gave up: too slow"]
    paper = papers.load("migration-energy")
    assert findings.comparisons(shipped(), [lost], [], paper, emulated=False)[0].measured == ()


def test_a_study_that_was_cut_off_goes_on_with_the_block_that_it_was_in(tmp_path, monkeypatch):
    """Whole blocks stay; of the one that was cut off, no move does."""
    carried = []

    class Moves:
        def __init__(self, plan, *_):
            self.plan, self.block = plan, plan.seed - 1

        about = dict

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def carry_out(self, _emit, take):
            if self.block == 1 and carried.count(1) == 0:
                carried.append(1)
                take(SimpleNamespace(move=moved("20-users", 0).move, tables={}))
                raise KeyboardInterrupt
            carried.append(self.block)
            for number, workload in enumerate(self.plan.workloads):
                move = moved(workload, 0).move.model_copy(update={"number": number})
                take(SimpleNamespace(move=move, tables={}))

    monkeypatch.setattr(kind.series, "Series", Moves)
    monkeypatch.setattr(kind.series, "prepare", lambda *_: None)
    monkeypatch.setattr(kind.here, "check_free_memory", lambda *_: None)
    monkeypatch.setattr(kind, "rate_of", lambda *_: 1.75e9)
    monkeypatch.setattr(kind.binary, "find", lambda: tmp_path)
    content = study.find("migration-energy").read_bytes()
    directory = StudyDirectory.create(tmp_path / "made", content, StudyRequest(rounds=3), {})
    studied = kind.MigrationStudy()

    def measure():
        studied.measure(shipped(), directory, fake_host(), tmp_path, lambda _: None)

    with pytest.raises(KeyboardInterrupt):
        measure()
    measure()
    assert carried == [0, 1, 1, 2]
    rows = studied.report(shipped(), directory).rows
    assert sorted({row["block"] for row in rows}) == [0, 1, 2]
    assert len(rows) == 3 * len(shipped().plan.workloads)
    measure()
    assert len(carried) == 4


@pytest.mark.parametrize("requested", [{"backends": ("qemu",)}, {"parts": ("x",)}])
def test_what_it_has_not_is_refused(requested):
    file = study.find("migration-energy")
    with pytest.raises(UsageError):
        study.kind_of(file).outline(shipped(), StudyRequest(**requested), fake_host())


def test_an_unknown_workload_is_reported():
    file = study.find("migration-energy")
    content = file.read_bytes().replace(b"computing: matrix-vector", b"computing: nothing")
    with pytest.raises(UsageError, match="nothing is not a workload of the plan"):
        study.kind_of(file).read(content, "study.yaml")


def test_a_mistake_in_the_plan_of_a_study_is_named_where_it_is():
    file = study.find("migration-energy")
    content = file.read_bytes().replace(b"    pings: 100\n", b"    pings: 100\n    address: 10.0.0.7\n")
    line = 1 + content.splitlines().index(b"    address: 10.0.0.7")
    with pytest.raises(UsageError) as refused:
        study.kind_of(file).read(content, "study.yaml")
    assert [(each.line, each.key) for each in refused.value.problems] == [(line, "plan.clients.address")]
