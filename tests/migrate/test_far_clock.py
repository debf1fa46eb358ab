"""The clock of another machine, whose ssh is a shell here."""

import time
from types import SimpleNamespace

import pytest

from partywall.migrate.measure import far_clock, qmp
from partywall.sandbox.ssh import connection

S = 1_000_000_000


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Its last argument is the command there. `date` is what a test writes."""

    def made(date):
        (tmp_path / "date").write_text(f"#!/bin/sh\n{date}\n")
        (tmp_path / "ssh").write_text(f'#!/bin/sh\nfor last; do :; done\nPATH={tmp_path}:$PATH exec sh -c "$last"\n')
        for name in ("date", "ssh"):
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv(connection.VARIABLE, str(tmp_path / "ssh"))

    return made


def test_a_clock_that_is_ahead_is_found_within_its_bound(ssh):
    ssh('echo "$(($(/bin/date +%s%N) + 90000000000))"')
    found = far_clock.ahead("there")
    assert abs(found.ns - 90 * S) <= found.bound_ns < S // 2


def test_a_machine_that_does_not_tell_its_time_has_no_clock(ssh):
    ssh("exit 1")
    assert far_clock.ahead("there") is None


def test_events_of_another_machine_are_put_on_this_one_s_clock():
    at_ns = time.time_ns() + 90 * S
    stamp = {"seconds": at_ns // S, "microseconds": at_ns % S // 1000}
    monitor = SimpleNamespace(events=lambda: [{"event": "STOP", "timestamp": stamp}])
    (stop,) = qmp.announced(monitor, 90 * S)
    assert abs(stop.at_ns - time.monotonic_ns()) < S
