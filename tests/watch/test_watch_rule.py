"""The rule that says when a disk is slow: how often it is wrong, and what it finds."""

import numpy as np
import pytest

from partywall.watch.record import Disk, Span, Use
from partywall.watch.rule import NEW_USUAL, Rule
from partywall.watch.sentences import who

SECOND = 10**9
DAY = 86_400
USUAL_NS = MS = 10**6


def period(latency_ns, busy=1.0, operations=100, uses=(), length_ns=SECOND):
    disk = Disk(
        disk="sda",
        reads=operations,
        read_bytes=4096 * operations,
        read_ns=MS * round(operations * latency_ns / MS),
        busy_ns=round(busy * length_ns),
        in_flight=4,
    )
    return disk, Span(at_ns=length_ns, length_ns=length_ns, disks=(disk,), uses=uses, counted=("sda",))


def told(rule, latencies, **more):
    """(number of the period, slow time) of all that begins or ends."""
    every = ((number, rule.take(*period(latency, **more))) for number, latency in enumerate(latencies))
    return [(number, slow) for number, slow in every if slow is not None]


def correlated(rng, count, rho, draw):
    noise, values, now = np.sqrt(1 - rho**2) * draw(rng, count), np.empty(count), 0.0
    for place in range(count):
        now = rho * now + noise[place]
        values[place] = now
    return values


UNHARMED = {
    "narrow": lambda rng, count: 0.1 * rng.normal(size=count),
    "wide": lambda rng, count: rng.normal(size=count),
    "heavy tails": lambda rng, count: 0.3 * rng.standard_t(3, size=count),
    "correlated": lambda rng, count: correlated(rng, count, 0.9, lambda rng, count: 0.5 * rng.normal(size=count)),
}
"""Logarithms of latencies, relative to the usual one, on a disk that no neighbour slows down."""


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", UNHARMED)
def test_false_alarms_are_rarer_than_one_a_day(kind, seed):
    latencies = USUAL_NS * np.exp(UNHARMED[kind](np.random.default_rng(seed), DAY))
    begun = [slow for _, slow in told(Rule(None, SECOND), latencies) if slow.end_ns is None]
    assert len(begun) <= 1


@pytest.mark.parametrize("spread", [0.1, 0.2])
def test_a_tenfold_latency_is_found_after_three_periods_and_ends_three_after_it(spread):
    rng = np.random.default_rng(2)
    factor = np.array([1] * 200 + [10] * 30 + [1] * 20)
    (begun, first), (ended, last) = told(Rule(None, SECOND), factor * USUAL_NS * np.exp(spread * rng.normal(size=250)))
    assert (begun, ended) == (202, 232)
    assert (first.by, first.way, last.length_ns) == ("usual", "reads", 30 * SECOND)
    assert first.usual_ns == pytest.approx(USUAL_NS, rel=0.1)
    assert last.latency_ns == pytest.approx(10 * USUAL_NS, rel=0.2)


def test_a_third_of_disturbed_periods_hides_no_neighbour():
    before = [USUAL_NS, 9 * USUAL_NS, 1.1 * USUAL_NS, 0.9 * USUAL_NS, USUAL_NS] * 100
    assert told(Rule(None, SECOND), before) == []
    rule = Rule(None, SECOND)
    told(rule, before)
    assert [number for number, _ in told(rule, [10 * USUAL_NS] * 5)] == [2]


def test_twenty_times_the_usual_latency_is_slow_however_much_it_varies():
    rule = Rule(None, SECOND)
    told(rule, [USUAL_NS, USUAL_NS, USUAL_NS, 30 * USUAL_NS, 30 * USUAL_NS] * 40, busy=0.5)
    assert told(rule, [19 * USUAL_NS] * 5) == []
    assert [number for number, _ in told(rule, [21 * USUAL_NS] * 5)] == [2]


def fast(latencies, operations, **more):
    """Periods of a disk whose times the kernel counts in whole ms."""
    at_ns = 0.0
    for latency_ns in latencies:
        before_ns, at_ns = at_ns, at_ns + operations * latency_ns
        disk, span = period(0, operations=operations, **more)
        yield disk.model_copy(update={"read_ns": MS * (int(at_ns / MS) - int(before_ns / MS))}), span


@pytest.mark.parametrize(("operations", "usual_ns"), [(6, 80_000), (5, 80_000), (20, 15_000), (100, 15_000)])
def test_the_usual_latency_of_a_fast_disk_is_not_that_of_whole_milliseconds(operations, usual_ns):
    rng, rule = np.random.default_rng(4), Rule(None, SECOND)
    calm = usual_ns * np.exp(0.1 * rng.normal(size=10_000))
    assert [rule.take(*each) for each in fast(calm, operations, busy=0.1)] == [None] * len(calm)
    healthy = [rule.take(*each) for each in fast([1.2 * usual_ns] * 20, 10_000)]
    assert healthy == [None] * 20
    few = [rule.take(*each) for each in fast([usual_ns] * 200, operations)]
    assert few == [None] * 200
    slow = [rule.take(*each) for each in fast([30 * usual_ns] * 5, 10_000)]
    assert [each.usual_ns for each in slow if each] == [pytest.approx(usual_ns, rel=0.15)]


def test_an_unsaturated_disk_is_never_slow():
    assert told(Rule(USUAL_NS, SECOND), [100 * USUAL_NS] * 500, busy=0.8) == []


def test_a_stated_limit_needs_no_usual_latency():
    (number, slow), *_ = told(Rule(USUAL_NS, SECOND), [2 * USUAL_NS] * 5)
    assert (number, slow.by, slow.bound_ns, slow.usual_ns) == (2, "limit", USUAL_NS, None)


def test_a_stated_limit_counts_even_if_the_usual_latency_is_exceeded_before():
    rule = Rule(20 * USUAL_NS, SECOND)
    told(rule, [USUAL_NS] * 100)
    every = told(rule, [10 * USUAL_NS] * 5 + [30 * USUAL_NS] * 5 + [USUAL_NS] * 3)
    assert [slow.by for _, slow in every] == ["usual", "limit"]
    assert every[-1][1].length_ns == 10 * SECOND


def test_short_periods_must_last_a_second_in_all():
    rule = Rule(USUAL_NS, SECOND // 10)
    assert [number for number, _ in told(rule, [2 * USUAL_NS] * 12, length_ns=SECOND // 10)] == [9]


def test_a_single_better_period_does_not_end_it():
    latencies = [2 * USUAL_NS] * 5 + [USUAL_NS / 2] + [2 * USUAL_NS] * 5 + [USUAL_NS / 2] * 3
    (_, _), (number, slow) = told(Rule(USUAL_NS, SECOND), latencies)
    assert number == 13
    assert slow.length_ns == 11 * SECOND


def test_a_disk_that_completes_nothing_is_slow():
    (_, slow), *_ = told(Rule(None, SECOND), [0] * 5, operations=0)
    assert (slow.by, slow.latency_ns, slow.worst_ns) == ("stuck", None, SECOND)


def test_a_disk_that_completes_discards_or_flushes_is_not_stuck():
    disk, span = period(0, operations=0)
    rule = Rule(None, SECOND)
    assert [rule.take(disk.model_copy(update={"others": 1}), span) for _ in range(5)] == [None] * 5


def test_a_lasting_change_becomes_usual():
    rng = np.random.default_rng(3)
    factor = np.array([1] * 200 + [10] * (NEW_USUAL + 500))
    every = told(Rule(None, SECOND), factor * USUAL_NS * np.exp(0.1 * rng.normal(size=len(factor))))
    assert [slow.end_ns is None for _, slow in every] == [True, False]


def test_the_neighbour_is_who_has_most_of_the_work_if_others_have_some():
    def slow_with(*uses):
        (_, slow), *_ = told(Rule(USUAL_NS, SECOND), [2 * USUAL_NS] * 5, uses=uses)
        return slow

    writer = Use(tenant="/writer", disk="sda", operations=90, read_bytes=0, write_bytes=90 * 4096)
    reader = Use(tenant="/reader", disk="sda", operations=10, read_bytes=10 * 4096, write_bytes=0)
    elsewhere = Use(tenant="/other", disk="sdb", operations=900, read_bytes=10**9, write_bytes=0)
    slow = slow_with(reader, writer, elsewhere)
    assert slow.neighbour.tenant == "/writer"
    assert [(share.tenant, share.operations) for share in slow.shares] == [("/writer", 0.9), ("/reader", 0.1)]
    assert slow_with(writer).neighbour is None
    halves = [reader.model_copy(update={"tenant": f"/{n}"}) for n in range(3)]
    assert slow_with(*halves).neighbour is None


def slow_by(*uses, **counts):
    disk, span = period(2 * USUAL_NS, uses=uses)
    disk = disk.model_copy(update=counts)
    rule = Rule(USUAL_NS, SECOND)
    return [rule.take(disk, span) for _ in range(3)][-1]


def test_a_tenant_that_may_never_have_used_the_disk_is_not_named_as_neighbour():
    reader = Use(tenant="/db", disk="", operations=None, read_bytes=100 * 4096, write_bytes=0)
    elsewhere = Use(tenant="/backup", disk="", operations=None, read_bytes=0, write_bytes=10**8)
    slow = slow_by(reader, elsewhere)
    assert slow.neighbour is None
    assert who(slow).startswith("Largest shares: ")
    assert "no watched tenant" not in who(slow)
    writer = Use(tenant="/writer", disk="sda", operations=90, read_bytes=0, write_bytes=75 * 4096)
    assert slow_by(writer, elsewhere).neighbour is None


def test_who_used_a_disk_is_not_known_until_bytes_of_processes_are_read():
    disk, span = period(2 * USUAL_NS)
    unread = span.model_copy(update={"unread": ("sda",)})

    def last(spans):
        rule = Rule(USUAL_NS, SECOND)
        return [rule.take(disk, each) for each in spans][-1]

    assert who(last([unread] * 3)).startswith("It is not known yet who used it")
    assert who(last([unread, span, unread])) == "No tenant that is watched used it."


def test_no_neighbour_is_named_if_most_bytes_are_of_no_watched_tenant():
    reader = Use(tenant="/reader", disk="sda", operations=75, read_bytes=30 * 4096, write_bytes=0)
    cron = Use(tenant="/cron", disk="sda", operations=5, read_bytes=10 * 4096, write_bytes=0)
    slow = slow_by(reader, cron)
    assert (slow.neighbour, slow.rest) == (None, pytest.approx(0.6))
    assert who(slow).startswith("Most bytes belong to no watched tenant (with cgroup version 1, ")
    more = reader.model_copy(update={"read_bytes": 45 * 4096})
    assert slow_by(more, cron).neighbour.tenant == "/reader"
    less = reader.model_copy(update={"read_bytes": 20 * 4096})
    most = cron.model_copy(update={"read_bytes": 40 * 4096})
    slow = slow_by(less, most)
    assert slow.rest == pytest.approx(0.4)
    assert (slow.neighbour, who(slow)[:15]) == (None, "Largest shares:")


def test_bytes_of_a_process_on_all_disks_are_an_upper_bound():
    def shares_with(*uses):
        (_, slow), *_ = told(Rule(USUAL_NS, SECOND), [2 * USUAL_NS] * 5, uses=uses)
        return [(share.tenant, share.at_most, share.bytes, share.operations) for share in slow.shares]

    guest = Use(tenant="qemu (7)", disk="", operations=None, read_bytes=10**9, write_bytes=0)
    assert shares_with(guest) == [("qemu (7)", True, 1.0, None)]
    writer = Use(tenant="/writer", disk="sda", operations=90, read_bytes=0, write_bytes=75 * 4096)
    assert shares_with(guest, writer) == [("/writer", False, 0.75, 0.9), ("qemu (7)", True, 0.25, None)]
