"""The p99 of the last seconds of a load that goes on."""

import json

import pytest

from partywall.host import Host
from partywall.load import recent
from partywall.load.record import LoadDirectory

LABELS = [{"name": "GET /", "sort": "http"}, {"name": "buy", "sort": "transaction"}]


@pytest.fixture
def load(tmp_path):
    return LoadDirectory.create(tmp_path / "load", {"started": {"labels": LABELS}})


def second(end_s, bucket, count=100, label="0"):
    return json.dumps({"end_ns": int(end_s * 1e9), "timings": {label: {"corrected": {str(bucket): count}}}})


def test_only_the_window_counts_and_only_requests(load):
    assert recent.p99_s(load.path, 10, int(100e9)) is None
    load.append_line(second(50, 5000))
    load.append_line(second(95, 1000))
    fast = recent.p99_s(load.path, 10, int(100e9))
    load.append_line(second(96, 9000, label="1"))
    assert recent.p99_s(load.path, 10, int(100e9)) == fast
    assert recent.p99_s(load.path, 60, int(100e9)) > fast
    load.append_line(second(97, 2000, count=2))
    assert recent.p99_s(load.path, 10, int(100e9)) > fast


def test_a_line_that_is_being_written_and_a_folder_without_a_load_are_nothing(load, tmp_path):
    load.append_line(second(95, 1000))
    with (load.path / load.LINES).open("a") as stream:
        stream.write('{"end_ns": 96')
    assert recent.p99_s(load.path, 10, int(100e9)) is not None
    assert recent.p99_s(tmp_path / "nowhere", 10, int(100e9)) is None


def test_seconds_of_an_earlier_boot_are_not_recent(load, tmp_path):
    """After a power failure, a dead load was the newest until the host had been up as long as before."""
    load.append_line(second(1e6, 1000))
    assert recent.p99_s(load.path, 10, int(100e9)) is None
    load.append_line(second(100.5, 1000))
    assert recent.p99_s(load.path, 10, int(100e9)) is not None, "its last second may end a little later"
    for boot, known in ((Host.here().boot, True), ("another", False)):
        other = LoadDirectory.create(tmp_path / boot, {"started": {"labels": LABELS}, "boot": boot})
        other.append_line(second(95, 1000))
        assert (recent.p99_s(other.path, 10, int(100e9)) is not None) is known
