"""A calibration that others disturbed is said in the record of a load, its findings and its page."""

from types import SimpleNamespace

import pytest

from partywall.events import Note
from partywall.host import Host
from partywall.power import ladder, measure
from partywall.power.capability import Powers
from partywall.power.job import CalibrateJob
from partywall.power.record import PowerRecord


class Answering:
    """A session whose agents answer a calibration. cpu0's was disturbed."""

    def __init__(self, _label):
        self.sandboxes = {}

    def add(self, *settings):
        self.sandboxes = {each.name: SimpleNamespace(work_dir="/", pid=1) for each in settings}

    def client(self, name):
        answer = {"rate_max": [1e6], "disturbed": 0.42 if name == "cpu0" else 0.0}
        return SimpleNamespace(name=name, call=lambda method, **_: answer)

    def take(self, _timeout_s):
        return []

    def close(self):
        pass


@pytest.fixture
def record(tmp_path) -> PowerRecord:
    return PowerRecord.create(tmp_path / "power", CalibrateJob(meter_names=()), {})


def test_a_disturbed_calibration_is_in_the_record_the_findings_and_the_page(record, monkeypatch):
    monkeypatch.setattr(ladder, "Session", Answering)
    monkeypatch.setattr(measure, "AFTER_NS", 0)
    said, host = [], Host({})
    for _ in range(2):
        measure.under_load(record, host, {}, ladder.workers((0, 1)), [], 10**9, 10**9, None, said.append)
    record.end()
    assert ["worker cpu0: other processes" in event.text for event in said if isinstance(event, Note)] == [True, True]
    assert {each.worker for each in record.evidence().disturbed} == {"cpu0"}
    report = Powers().findings(record)
    (note,) = (note for note in report.findings.notes if "calibration" in note)
    assert note.startswith("Worker cpu0: other processes used its CPU for 42% of its calibration")
    _, page_of = Powers().files().documents["html"]
    page = page_of(report)
    assert "for 42% of its calibration" in page
