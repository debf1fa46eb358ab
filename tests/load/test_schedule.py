"""The times at which monitors read counters, for loads of any length."""

import gc
import json
import time
from types import SimpleNamespace

from partywall.load.measure import AHEAD_S, MONITOR, Moments, Monitor, PreparedLoad
from partywall.load.second import SECOND_NS

DAY_S = 86_400
MESSAGE_MAX = 1 << 20


def test_a_long_load_begins_without_a_message_that_agents_refuse():
    """All moments were sent at once: from 5.4 days on, the monitor ended for a message of more than 8 MiB."""
    calls = []
    client = SimpleNamespace(call=lambda method, **params: calls.append((method, params)))
    load = object.__new__(PreparedLoad)
    load.setup = SimpleNamespace(generators={}, threads=1)
    load._agents = SimpleNamespace(client=lambda _: client, take=lambda _: [], at_end=lambda _: None)
    load.started = {"stages_ns": 10 * DAY_S * SECOND_NS}
    load._generators, load._watchers = {"load": None}, {"server": MONITOR}
    load.monitors = {"server": Monitor([], offset_ns=7)}
    load._looked = time.monotonic()
    seconds = load.run()
    try:
        assert next(seconds) is None
    finally:
        seconds.close()
        gc.unfreeze()
    assert max(len(json.dumps(params)) for _, params in calls) < MESSAGE_MAX
    (given,) = (params["at_ns"] for method, params in calls if method == "monitor.schedule")
    assert given[0] + 7 > load.begin_ns - SECOND_NS
    assert len(given) > AHEAD_S // 2


def test_every_second_is_handed_out_once_and_in_time():
    moments, given = Moments(100, 100 + 3 * DAY_S), []
    for now in range(99, 100 + 3 * DAY_S):
        given += moments.due(now)
        assert given[-1] > now or given[-1] == 99 + 3 * DAY_S
    assert given == list(range(100, 100 + 3 * DAY_S))


def test_a_controller_that_stood_still_hands_out_what_it_missed():
    moments = Moments(0, DAY_S)
    assert moments.due(0) == range(AHEAD_S)
    assert moments.due(2 * AHEAD_S) == range(AHEAD_S, 3 * AHEAD_S)
