"""A limit that is kept, taken back at its time, sooner, or after a kill."""

import datetime
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from partywall.blame.corpus.lab import Neighbour
from partywall.blame.findings import findings_of
from partywall.blame.job import BlameJob, until_ns
from partywall.blame.measure.files import Files
from partywall.blame.measure.keeping import keep
from partywall.blame.measure.levers import Lever
from partywall.blame.measure.owners import Kind
from partywall.blame.measure.suspects import Suspect
from partywall.blame.record import Applied, BlameRecord, Place, TakenBack
from partywall.errors import UsageError
from partywall.host.settings import ledger
from tests.blame.records import GUILTY, simulated
from tests.waiting import until

BEFORE = "max 100000\n"
NOON = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    file = tmp_path / "g/cpu.max"
    file.parent.mkdir()
    file.write_text(BEFORE)
    return file


def kept(
    group: Path, tmp_path: Path, until: str, neighbours: tuple[Neighbour, ...] = GUILTY
) -> tuple[BlameRecord, list]:
    job = BlameJob(victim="x", apply=True, until=until)
    record, said = simulated(tmp_path / "record", neighbours, blocks=100, job=job), list[str]()
    held = Lever(Kind.CPU, Files(Kind.CPU, group.parent, {group: BEFORE}, is_v2=True))
    place = Place(folder=str(group.parent), is_v2=True)
    suspects = [Suspect(each.name, held, lambda: 0.0, place) for each in neighbours]
    keep(record, suspects, lambda event: said.append(event.text))
    return record, said


def test_a_kept_limit_is_taken_back_at_its_time_with_a_line_for_both(group: Path, tmp_path: Path):
    record, said = kept(group, tmp_path, "1s")
    assert group.read_text() != BEFORE
    assert "/guilty is held to" in said[0]
    until(lambda: group.read_text() == BEFORE)
    until(lambda: len(record.kept()) == 2)
    applied, back = record.kept()
    assert isinstance(applied, Applied)
    assert isinstance(back, TakenBack)
    assert applied.until_ns <= back.at_ns
    assert applied.limit == pytest.approx(min(each.use for each in findings_of(record).helps))
    assert not list((tmp_path / "state").glob(ledger.KEPT))


def test_its_keeper_takes_it_back_sooner_if_it_is_told_to_end(group: Path, tmp_path: Path):
    record, _ = kept(group, tmp_path, "2h")
    os.kill(record.kept()[0].keeper, signal.SIGTERM)
    until(lambda: group.read_text() == BEFORE)


def test_the_next_start_takes_it_back_if_its_keeper_was_killed_and_not_before(group: Path, tmp_path: Path):
    record, _ = kept(group, tmp_path, "2h")
    during = group.read_text()
    assert ledger.put_back().files == ()
    assert group.read_text() == during
    os.kill(record.kept()[0].keeper, signal.SIGKILL)
    os.waitpid(record.kept()[0].keeper, 0)
    assert ledger.put_back().files == (str(group),)
    assert group.read_text() == BEFORE


def test_without_an_end_it_stays_and_says_how_it_is_undone(group: Path, tmp_path: Path):
    _, said = kept(group, tmp_path, "")
    assert group.read_text() != BEFORE
    assert ledger.put_back().files == ()
    subprocess.run(["sh", "-c", said[0].partition("to undo it: ")[2]], check=True)
    assert group.read_text() == BEFORE


def test_nothing_is_kept_if_no_limit_surely_helps(group: Path, tmp_path: Path):
    innocent = tuple(each.model_copy(update={"effect": 0.0}) for each in GUILTY)
    _, said = kept(group, tmp_path, "2h", innocent)
    assert group.read_text() == BEFORE
    assert said == ["nothing is kept: no limit surely helps"]


@pytest.mark.parametrize(
    ("text", "hours"),
    [("90min", 1.5), ("13:30", 1.5), ("11:00", 23), ("2026-11-29T13:30", 1.5), ("2026-11-29T14:30+01:00", 1.5)],
)
def test_an_end_is_a_duration_a_time_of_day_or_a_date(text: str, hours: float):
    assert until_ns(text, NOON) == pytest.approx((NOON.timestamp() + hours * 3600) * 1e9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"until": "2h"}, "--until needs --apply"),
        ({"apply": True, "until": "soon"}, "--until: "),
        ({"apply": True, "until": "25:00"}, "--until: "),
        (
            {"apply": True, "until": "2020-01-01T00:00"},
            "--until: 2020-01-01T00:00 is over; give a time that is to come",
        ),
        ({"apply": True, "lever": "freeze"}, "--apply keeps no suspect frozen"),
    ],
)
def test_a_bad_end_is_refused(given: dict, said: str):
    with pytest.raises(UsageError, match=said):
        BlameJob.parsed({"victim": "x", **given})


def test_the_report_says_what_is_kept(group: Path, tmp_path: Path):
    record, _ = kept(group, tmp_path, "1s")
    until(lambda: len(record.kept()) == 2)
    from partywall.blame.report import report  # noqa: PLC0415 - slow to import

    notes = " ".join(report(findings_of(record)).notes)
    assert "/guilty is kept at" in notes
    assert "the limit of /guilty was taken back" in notes
    assert json.loads((record.path / "blame.json").read_text())["apply"] is True
