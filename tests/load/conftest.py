import itertools

import pytest

from partywall.core.stats.histogram import bucket_of


def record(thread=0, start_ns=10_000_000_000, end_ns=11_000_000_000, **changed):
    """A second as the agent tells it: four requests of 1, 2, 3 and 4 µs, all good."""
    pairs = [[bucket_of(ns), 1] for ns in (1000, 2000, 3000, 4000)]
    timing = {"label": 0, "done": 4, "failed": 0, "sum_ns": 10_000, "sum_squares_s2": 3e-11}
    timing |= {"corrected": pairs, "raw": pairs, "first_byte": pairs, "body": [[0, 4]], "failures": []}
    health = {"timed": 0, "late": 0, "lateness": [], "busy_ns": 10**8, "cpu_ns": 10**8, "run_delay_ns": 1000}
    health |= {"stall_ns_max": 100_000, "back_pressure": 0, "undelayed": pairs}
    health |= {"throttled_ns": 0, "ports_waiting": 10, "ports_most": 28_232}
    counts = {"users": 2, "in_flight": 1, "waiting": 0, "iterations": 4, "requests": 4, "sent_bytes": 400}
    counts |= {"received_bytes": 4000, "connections_opened": 2, "connections_open": 2, "resent": 0, "rerouted": 0}
    whole = {"thread": thread, "start_ns": start_ns, "end_ns": end_ns, "connect": [[500, 2]], "tls": []}
    whole |= {"timings": [timing], "statuses": [[200, 4]], "errors": [], "health": health} | counts
    for key, value in changed.items():
        if key in health:
            health[key] = value
        else:
            whole[key] = value
    return whole


@pytest.fixture
def a_record():
    return record


@pytest.fixture(name="bucket_of")
def _bucket_of():
    return bucket_of


@pytest.fixture
def numbers():
    return itertools.count()
