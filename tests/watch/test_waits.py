"""Who waits for whom in a watch of disks: pairs of spans, sentences, the report's table, and old records."""

from __future__ import annotations

from partywall.watch import report
from partywall.watch.measure.waits import Waits
from partywall.watch.record import Pair, Span, Stalled
from tests.watch.hosts import S, Tree


def pair(victim="web", suspect="batch", resource="cpu", stalled_ns=S):
    return Pair(victim=victim, suspect=suspect, resource=resource, stalled_ns=stalled_ns)


def span(*pairs, length_ns=10 * S):
    return Span(at_ns=0, length_ns=length_ns, pairs=pairs, pairs_ns=length_ns)


def test_pairs_of_spans_add_up():
    whole = span(pair()) + span(pair(stalled_ns=2 * S), pair(suspect="other"))
    assert {each.key: each.stalled_ns for each in whole.pairs} == {
        ("web", "batch", "cpu"): 3 * S,
        ("web", "other", "cpu"): S,
    }


def test_the_sum_of_many_pairs_stays_when_the_shortest_are_put_together():
    many = span(*(pair(victim=f"v{number}", stalled_ns=number + 1) for number in range(100)))
    kept = many.trimmed(10)
    assert sum(each.stalled_ns for each in kept.pairs) == sum(each.stalled_ns for each in many.pairs)
    assert len(kept.pairs) == 11
    assert kept.pairs[0].victim == "v99"
    assert kept.pairs[-1].key == ("other", "other", "cpu")


def test_the_longest_wait_for_another_group_is_in_the_headline():
    seen = span(pair(stalled_ns=4 * S), pair(suspect="itself", stalled_ns=6 * S))
    assert report._waits(seen) == "; web waited for a CPU 40 % of the time because of batch (by use)"
    assert report._waits(span(pair(stalled_ns=S // 10))) == "", "too short to be said"
    assert report._waits(span(pair(suspect="host", stalled_ns=9 * S))) == "", "nobody's"
    table = report._pairs(seen)
    assert [(row["victim"], row["suspect"], row["stalled_share"]) for row in table.rows] == [
        ("web", "itself", 0.6),
        ("web", "batch", 0.4),
    ]


def test_a_host_without_groups_says_so_and_the_disks_are_watched_all_the_same(tmp_path):
    waits = Waits(tmp_path, lambda _: None, lambda: 0)
    assert ["who waits for whom" in text for text in waits.lacks()] == [True]
    assert waits.take(S) == ((), 0)
    waits.close()


def test_waits_of_a_host_become_pairs_and_a_stall_is_told(tmp_path):
    tree, told = Tree(tmp_path), list[Stalled]()
    tree.group("web.service")
    tree.group("batch.service")
    waits = Waits(tree.root, told.append, lambda: 0)
    assert waits.take(0) == ((), 0)
    for second in range(2, 12, 2):
        tree.group("web.service", used_s=0.1 * second, cpu=(0.5 * second, 0.5 * second))
        tree.group("batch.service", used_s=second)
        tree.host(busy_s=2.2, cpu=1)
        pairs, length_ns = waits.take(second * S)
        assert {each.suspect for each in pairs if each.victim == "web.service"} >= {"batch.service"}
        assert length_ns == 2 * S
    assert [each.has_ended for each in told] == [False]
    assert "web.service waits for a CPU" in told[0].text
    assert waits.take(11 * S) == ((), 0), "too early for another reading"
    waits.close()


def test_records_from_before_pairs_open():
    assert Span.model_validate({"at_ns": 0, "length_ns": 1}).pairs == ()
