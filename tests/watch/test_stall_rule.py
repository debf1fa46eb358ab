"""Who a stalled group waited for: the parts add up, its own limit comes first, and who is elsewhere does not count."""

import random

from hypothesis import given
from hypothesis import strategies as st

from partywall.watch.stalls.rule import HOST, ITSELF, OTHER, TOP, UNKNOWN, Share, divided

MS = 10**6
TIMES = st.integers(0, 10**10)
AMOUNTS = st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e12), max_size=3)
SHARES = st.builds(Share, TIMES, TIMES, TIMES, st.none() | AMOUNTS, st.booleans())


def parts(shares, host=None, victim="victim"):
    return {pair.suspect: pair.stalled_ns for pair in divided(shares, host or {}) if pair.victim == victim}


@given(st.dictionaries(st.sampled_from([f"g{n}" for n in range(12)]), SHARES), AMOUNTS)
def test_the_parts_of_each_victim_are_its_stalled_time(shares, host):
    sums = dict.fromkeys(shares, 0)
    for pair in divided(shares, host):
        assert pair.stalled_ns > 0
        assert pair.victim != pair.suspect, "its own part has the name 'itself'"
        sums[pair.victim] += pair.stalled_ns
    assert sums == {name: share.stalled_ns for name, share in shares.items()}


@given(st.dictionaries(st.sampled_from([f"g{n}" for n in range(12)]), SHARES), AMOUNTS, TIMES)
def test_what_its_own_limit_stopped_is_never_a_neighbours(shares, host, own_ns):
    shares["victim"] = Share(own_ns, own_ns, own_ns, {"a": 1.0})
    assert parts(shares, host) == ({ITSELF: own_ns} if own_ns else {})


@given(SHARES, st.dictionaries(st.sampled_from([f"g{n}" for n in range(40)]), AMOUNTS), AMOUNTS)
def test_a_victim_has_a_bounded_number_of_suspects(victim, used, host):
    shares = {name: Share(0, used=amounts) for name, amounts in used.items()} | {"victim": victim}
    assert len(parts(shares, host).keys() - {ITSELF, HOST, UNKNOWN, OTHER}) <= TOP


def test_a_wait_is_divided_by_use():
    shares = {"victim": Share(400 * MS, used={"": 100.0}), "one": Share(0, used={"": 200.0})}
    assert parts(shares, {"": 100.0}) == {ITSELF: 100 * MS, "one": 200 * MS, HOST: 100 * MS}


def test_while_none_of_its_tasks_ran_only_others_used_the_cpu():
    shares = {"victim": Share(300 * MS, 300 * MS, used={"": 100.0}), "one": Share(0, used={"": 100.0})}
    assert parts(shares) == {"one": 300 * MS}


def test_a_limit_explains_the_time_in_which_all_waited_before_others_do():
    shares = {"victim": Share(900 * MS, 900 * MS, 800 * MS, {"": 100.0}), "one": Share(0, used={"": 100.0})}
    assert parts(shares) == {ITSELF: 800 * MS, "one": 100 * MS}


def test_a_neighbour_elsewhere_is_no_suspect():
    shares = {
        "victim": Share(100 * MS, used={"cpu 0": 10.0}),
        "beside": Share(0, used={"cpu 0": 30.0}),
        "elsewhere": Share(0, used={"cpu 1": 1000.0}),
    }
    assert parts(shares) == {ITSELF: 25 * MS, "beside": 75 * MS}


def test_a_victim_that_completed_no_request_waits_for_any_disk():
    shares = {"victim": Share(100 * MS, used={}), "writer": Share(0, used={"8:0": 10.0})}
    assert parts(shares) == {"writer": 100 * MS}


def test_what_cannot_be_divided_is_unknown():
    busy = Share(0, used={"": 10.0})
    assert parts({"victim": Share(MS), "one": busy}) == {UNKNOWN: MS}, "its use is not counted"
    assert parts({"victim": Share(MS, used={"": 0.0})}) == {UNKNOWN: MS}, "nobody used it"
    limited = Share(MS, used={"": 1.0}, is_limited=True)
    assert parts({"victim": limited, "one": busy}) == {UNKNOWN: MS}, "its limit may be the cause"


def test_small_suspects_are_together():
    shares = {f"g{n}": Share(0, used={"": 10.0 + n}) for n in range(TOP + 3)}
    found = parts(shares | {"victim": Share(1000 * MS, used={"": 0.0})})
    assert found.keys() == {*(f"g{n}" for n in range(3, TOP + 3)), OTHER}
    assert found[OTHER] == round(1000 * MS * 33 / sum(10 + n for n in range(TOP + 3)))


def test_the_order_of_groups_changes_no_part():
    shares = {f"g{n}": Share(n * MS, used={"": float(n)}) for n in range(4)}
    names = list(shares)
    random.Random(1).shuffle(names)
    first = {(pair.victim, pair.suspect): pair.stalled_ns for pair in divided(shares, {})}
    second = {(pair.victim, pair.suspect): pair.stalled_ns for pair in divided({n: shares[n] for n in names}, {})}
    assert first.keys() == second.keys()
    assert all(abs(first[key] - second[key]) <= 1 for key in first)
