"""Records of every kind beside each other: readable figures, none lost, and none twice."""

import re

import pytest

from partywall.cli import main
from partywall.core.report.compared import Figure
from partywall.core.stats.estimate import Outcome
from partywall.errors import UsageError
from partywall.guard.record import GuardInterval
from partywall.kinds.compared import merged, side_by_side
from partywall.migrate import report
from partywall.migrate.document import MigrationFindings, MigrationPlan, MigrationReport, Move, MoveFinding
from tests.guard.records import guard_record
from tests.test_kinds import BEGUN, MAKERS, ROW

SHOWN = sorted(MAKERS.keys() - {*BEGUN, "consolidation", "migration"})
"""Kinds whose made-up records have findings."""


@pytest.mark.parametrize("kind", SHOWN)
def test_figures_of_every_kind_are_readable(tmp_path, kind):
    both = side_by_side(*(MAKERS[kind](tmp_path / name) for name in ("one", "two")))
    assert both.rows
    assert both.names == ("one", "two")
    for of, *texts in both.texts:
        assert of
        assert not re.search(r"\d[eE][+-]?\d|nan|\d{6}", " ".join(texts)), (of, texts)
        assert texts[0] == texts[1]
        assert texts[2] in ("1.00", "–")


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_the_same_record_twice_is_refused(tmp_path, monkeypatch, capsys, kind):
    path = MAKERS[kind](tmp_path / "one").path
    again = tmp_path / "link"
    again.symlink_to(path)
    monkeypatch.setattr("sys.argv", ["partywall", "compare", str(path), str(again)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "both are the same record" in " ".join(capsys.readouterr().err.split())


def test_repeated_moves_are_one_figure_with_its_interval():
    about = {"workload": "idle", "method": "default", "source": "a", "begin_ns": 0, "end_ns": 1}
    moves = tuple(
        MoveFinding(move=Move(round=n, number=n, outcome="completed", **about), values={"total_s": seconds})
        for n, seconds in enumerate((1.0, 2.0, 2.0))
    )
    findings = MigrationFindings(name="x", headline="", outcome=Outcome.HOLDS, moves=moves, cells=())
    plan = MigrationPlan(partywall_migration=1, name="x")
    shown = report.report(MigrationReport(findings=findings, plan=plan, host={}, about={}))
    (every,) = (table for table in shown.tables if table.id == "moves")
    assert len({column.name or column.title for column in every.columns}) == len(every.columns)
    total = merged(shown.figures())["idle, default, completed: time of the move"]
    assert total.n == 3
    assert total.value == pytest.approx(5 / 3)
    assert total.low < total.value < total.high
    assert total.text == "1.7 s ± 1.4"


def test_a_figure_of_one_record_alone_is_shown_without_a_ratio(tmp_path):
    second = guard_record(tmp_path / "two")
    second.add(GuardInterval(0, 10**9, {"vm": ROW, "other": ROW}, {}, (), 0, 0))
    both = side_by_side(MAKERS["guard"](tmp_path / "one"), second)
    rows = {of: texts for of, *texts in both.texts}
    assert rows["other: offered"] == ["–", "1 bit/s", "–"]
    assert rows["vm: offered"] == ["1 bit/s", "1 bit/s", "1.00"]


def test_what_is_0_in_all_records_is_left_out_unless_it_is_a_count(tmp_path):
    both = side_by_side(*(MAKERS["watch"](tmp_path / name) for name in ("one", "two")))
    names = [of for of, _ in both.rows]
    assert "sda: written" not in names
    assert {"sda: read", "sda: times that it was slow"} <= {*names}


def test_records_of_different_kinds_are_refused(tmp_path):
    with pytest.raises(UsageError, match="choose records of one kind"):
        side_by_side(MAKERS["guard"](tmp_path / "one"), MAKERS["watch"](tmp_path / "two"))


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure("", 28_610, "/s"), "28 610 /s"),
        (Figure("", 28_610, "/s", 28_400, 28_800), "28 600 /s ± 200"),
        (Figure("", 12_300_000, "ns", 11_900_000, 12_700_000), "12.3 ms ± 0.4"),
        (Figure("", 1.493e10, "bit/s"), "14.93 Gbit/s"),
        (Figure("", 5e6, "bit/s"), "5 Mbit/s"),
        (Figure("", 1.374 * 1024**3, "B/s"), "1.374 GiB/s"),
        (Figure("", 0.5, "s"), "500 ms"),
        (Figure("", 0.995, "%"), "99.5 %"),
        (Figure("", 0, ""), "0"),
        (Figure("", 0, "B"), "0 B"),
        (Figure("", 0, "s"), "0 s"),
        (Figure("", 1234567, ""), "1 234 567"),
        (Figure("", 0.0000792, ""), "0.0000792"),
    ],
)
def test_a_figure_is_written_with_its_unit_and_interval(figure, text):
    assert figure.text.replace("\u202f", " ") == text
