"""What monitors read: thinned while it is measured, written to the journal, and drawn while somebody watches."""

from types import SimpleNamespace

import pytest

from partywall.events import Counters, Started
from partywall.kinds.journal import Journal
from partywall.kinds.monitored import figures
from partywall.run.measure import recorder
from partywall.web import pages, parts
from partywall.web.live import MONITORED_SHOWN, SECONDS_SHOWN, State, Watched

COLUMNS = (
    ("cpu", "cpu_user_ns"), ("cpu", "cpu_system_ns"), ("cpu0", "cpu_user_ns"), ("", "cpu_pressure_some_ns"),
    ("victim", "cgroup_cpu_throttled_ns"), ("", "memory_available_bytes"), ("cpu", "cpu_steal_ns"),
)  # fmt: skip
READ = Counters(COLUMNS, (0, 0, 0, 0, 0, 1e9, None), (2e9, 1e9, 2e9, 5e8, 1e9, 2e9, None), 2.0)


def test_figures_are_rates_and_shares_of_the_host_and_of_the_victim():
    found = {name: (value, unit) for _, name, unit, value in figures(READ)}
    assert found == {
        "programs and kernel": (1.5, "cores"),
        "some task waited for a CPU": (25.0, "%"),
        "throttled by its CPU limit": (50.0, "%"),
        "memory available": (2.0, "GB"),
    }


def test_readings_are_told_at_most_once_a_second(monkeypatch):
    monkeypatch.setattr(recorder, "metrics", lambda _: {})
    counters = [
        {"name": name, "unit": "", "kind": "", "resource": ""} for name in ("cpu.cpu_user_ns", "runnable_count")
    ]
    read = recorder.Recorder(SimpleNamespace(trial=None, counters=counters), None, "turn")
    assert read.read() is None
    told = []
    for number in range(301):
        read._samples.append((number * 10_000_000, [number, 1]))
        told += [event] if (event := read.read()) else []
    assert [(event.before[0], event.after[0], event.length_s) for event in told] == [
        (0, 100, 1.0), (100, 200, 1.0), (200, 300, 1.0)
    ]  # fmt: skip
    assert told[0].columns == (("cpu", "cpu_user_ns"), ("", "runnable_count"))


def test_the_page_draws_the_last_minute_of_each_figure(tmp_path):
    with Journal() as journal:
        journal(Started(tmp_path))
        for _ in range(SECONDS_SHOWN + 5):
            journal(READ)
    watched = Watched(tmp_path)
    watched.advance()
    assert watched.state.monitored_count == SECONDS_SHOWN + 5
    groups = dict(pages.monitors(watched.state))
    (chart,) = groups["CPU of the host"]
    assert (chart.last, chart.points.split()[0], chart.points.split()[-1]) == ("1.50 cores", "0,0", "240,0")
    text = parts.rendered("live_monitors.html.j2", monitors=pages.monitors(watched.state))
    assert "throttled by its CPU limit" in text
    assert "Pressure (PSI)" in text
    assert " style=" not in text


@pytest.mark.parametrize("value", [-1, "x", float("nan"), 1e300, None])
def test_a_reading_that_is_no_number_is_ignored(value):
    state = State()
    with pytest.raises((ValueError, TypeError)):
        state.take({"event": "counters", "figures": [["g", "n", "%", value]]})
    assert state.monitored == {}


def test_a_journal_with_many_figures_fills_no_page():
    state = State()
    state.take({"event": "counters", "figures": [["g", f"n{number}", "%", 1.0] for number in range(500)]})
    assert len(state.monitored) == MONITORED_SHOWN
