"""Findings of a trace say what was found, and what must be said with it."""

import textwrap
from collections import Counter
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from partywall.core.report.charts import spec_of
from partywall.core.stats.histogram import bucket_of
from partywall.errors import Exit
from partywall.trace.capability import Traces
from partywall.trace.charts import all_charts
from partywall.trace.findings import findings, quantiles
from partywall.trace.measure.follow import Log
from partywall.trace.record import ClockBound, Delay, Missed, TraceDirectory, added_delays, merged
from partywall.trace.report import report as reported
from tests.trace.synthetic_trace import NOTHING, PACKET, delay, evidence, forward, report


def test_the_headline_names_the_loss_its_place_and_where_time_goes():
    result = findings(evidence())
    assert result.headline == (
        "Forward: 20 % of 10 packets lost, all between va and vm/eth0; "
        "60 % of the time from va to vm/eth0; half take up to 50 ns."
    )
    assert [(step.lost, step.duplicates, step.reordered) for step in result.ways[0].steps] == [(0, 0, 1), (2, 1, 0)]


def test_both_directions_are_in_two_lines_and_the_larger_loss_is_first():
    busy = forward(
        steps=tuple(
            step.model_copy(update={"packets": 123_456_789 - 1_000_000 * n, "lost": 1_000_000 * n})
            for n, step in enumerate(forward().steps)
        ),
        total=delay(*[50_000] * 2000),
    )
    calm = forward(steps=tuple(step.model_copy(update={"lost": 0, "packets": 2000}) for step in forward().steps))
    line = findings(evidence(report(ways=(calm, busy)))).headline
    assert line.startswith("Backward: ")
    assert "Forward: none of 2\u202f000 packets lost" in line
    assert len(textwrap.wrap(line, 80)) <= 3


def test_losses_that_may_be_the_tracers_own_are_bounds():
    missed = (Missed(recorded=10), Missed(recorded=10), Missed(recorded=7, missed=1))
    result = findings(evidence(report(hops=missed)))
    step = result.ways[0].steps[1]
    assert (step.lost_low, step.lost, step.lost_high) == (1, 2, 2)
    assert any("vm/eth0: the tracer missed 1 packet" in note for note in result.notes)


def test_packets_not_taken_down_before_may_be_lost_uncounted():
    missed = (Missed(recorded=8, missed=2), Missed(recorded=7, missed=3), Missed(recorded=7))
    result = findings(evidence(report(hops=missed)))
    assert [(step.lost_low, step.lost, step.lost_high) for step in result.ways[0].steps] == [(0, 0, 2), (2, 2, 7)]
    assert (result.ways[0].lost_low, result.ways[0].lost, result.ways[0].lost_high) == (2, 2, 7)


def test_negative_hops_are_reported_with_the_bound_of_the_clocks():
    steps = list(forward().steps)
    steps[2] = steps[2].model_copy(update={"delay": Delay(negative=3, negative_max_ns=400)})
    clocks = (ClockBound(agent="vm", offset_ns=5, bound_ns=300), ClockBound(agent="vm", offset_ns=5, bound_ns=900))
    result = findings(evidence(report(forward(steps=tuple(steps))), clocks=clocks))
    assert any(
        "3 delays are negative" in note and "within the clocks' bound of 900 ns" in note for note in result.notes
    )


def test_the_whole_path_has_the_bound_of_the_clocks_at_its_ends():
    bound = ClockBound(agent="vm", offset_ns=5, bound_ns=300)
    (way, back) = findings(evidence(clocks=(bound,))).ways
    assert [step.clock_bound_ns for step in way.steps] == [None, 300]
    assert (way.clock_bound_ns, back.clock_bound_ns) == (300, 300)
    assert findings(evidence()).ways[0].clock_bound_ns is None


def test_the_cost_of_a_record_is_stored_and_shown_wherever_the_tracer_ran(tmp_path):
    stored = TraceDirectory.begun(tmp_path / "trace", evidence().start, {})
    tracing = SimpleNamespace(record_ns=40, relays_record_ns={"vm": 900, "silent": None})
    log = Log(stored, lambda _event: None)
    log.hooked(tracing)
    log.report(report())
    stored.end()
    result = findings(stored.evidence())
    assert (result.record_ns, result.relays_record_ns) == (40, {"vm": 900, "silent": None})
    assert "s program, 900 ns on vm (without" in reported(result, stored.evidence()).notes[-1]


def test_sampling_and_an_early_end_are_said():
    notes = " ".join(findings(evidence(report(sampled=0.25), interrupted=True)).notes)
    assert "25 % of the flows" in notes
    assert "was interrupted" in notes


def test_nothing_seen_is_no_loss():
    assert findings(evidence(report(NOTHING))).headline.startswith("No packet was seen")
    assert "check the order of the hops" in findings(evidence(report(NOTHING.model_copy(update={"other": 4})))).headline
    sampled = findings(evidence(report(NOTHING, sampled=0.25))).headline
    assert "only 25 % of the flows were traced" in sampled
    assert "--budget" in sampled
    assert findings(evidence(report(NOTHING))).ways[0].steps[0].lost_share is None


def outcome(stored):
    return Traces().outcome((findings(stored), stored))


def swapped(**changes):
    """A path whose second hop is passed before its first one."""
    steps = list(forward().steps)
    steps[1] = steps[1].model_copy(update={"delay": Delay(negative=10, negative_max_ns=400)})
    packet = PACKET.model_copy(update={"at_ns": (1_020, 1_000, 1_050)})
    return report(forward(steps=tuple(steps), slowest=(packet,), packets=(packet,)), **changes)


def test_hops_in_the_wrong_order_name_no_place_and_say_the_right_order():
    stored = evidence(swapped())
    result = findings(stored)
    assert result.headline == (
        "The hops are in the wrong order: packets passed va before a/eth0. Losses and delays have no place. "
        "Repeat with: va a/eth0 vm/eth0"
    )
    assert result.order == ("va", "a/eth0", "vm/eth0")
    assert outcome(stored) is Exit.INCONCLUSIVE


def test_the_right_order_is_found_without_kept_packets_too():
    way = swapped().ways[0].model_copy(update={"packets": (), "slowest": ()})
    assert findings(evidence(report(way))).order == ("va", "a/eth0", "vm/eth0")


def test_the_right_order_of_a_trace_of_the_other_direction_is_forward():
    assert findings(evidence(report(ways=(NOTHING, swapped().ways[0])))).order == ("a/eth0", "vm/eth0", "va")


def test_delays_that_the_clocks_explain_are_no_wrong_order():
    steps = list(forward().steps)
    steps[2] = steps[2].model_copy(update={"delay": Delay(negative=8, negative_max_ns=400)})
    clocks = (ClockBound(agent="vm", offset_ns=5, bound_ns=900),)
    stored = evidence(report(forward(steps=tuple(steps))), clocks=clocks)
    assert findings(stored).order == ()
    assert outcome(stored) is Exit.HOLDS


def test_a_trace_that_saw_no_packet_is_inconclusive():
    assert outcome(evidence(report(NOTHING))) is Exit.INCONCLUSIVE
    assert outcome(evidence(report(NOTHING.model_copy(update={"other": 4})))) is Exit.INCONCLUSIVE
    assert outcome(evidence()) is Exit.HOLDS


def test_a_percentile_that_is_not_shown_has_its_reason():
    notes = " ".join(findings(evidence()).notes)
    assert "p99 needs 1\u202f000 packets with a delay" in notes
    many = forward(steps=tuple(s.model_copy(update={"delay": delay(*[20] * 1000)}) for s in forward().steps))
    assert "p99 needs" not in " ".join(
        findings(evidence(report(many.model_copy(update={"total": delay(*[50] * 1000)})))).notes
    )


def test_the_place_of_losses_or_delays_comes_with_the_command_that_shows_its_queue():
    assert findings(evidence()).notes[-1] == "To see the queue of va, use: tc -s qdisc show dev va"
    steps = list(forward().steps)
    steps[1] = steps[1].model_copy(update={"lost": 5})
    inside = findings(evidence(report(forward(steps=tuple(steps)))))
    assert "To see the queue of a/eth0, use: ip netns exec a tc -s qdisc show dev eth0" in inside.notes


def test_percentiles_need_packets_beyond_them():
    assert "p99" not in quantiles(delay(*[20] * 100))
    assert quantiles(delay(*[20] * 990, *[60] * 11))["p99"] == 60
    assert quantiles(Delay()) == {}


def measured(*times):
    """Delays in the agent's buckets, which are wider than a nanosecond from 64 ns on."""
    counts = Counter(bucket_of(ns) for ns in times)
    return Delay(histogram=tuple(counts.items()), sum_ns=sum(times), min_ns=min(times), max_ns=max(times))


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40))
def test_no_percentile_lies_beyond_the_shortest_or_the_longest_delay(times):
    result = quantiles(measured(*times))
    assert all(
        result["min"] <= result[name] <= result["max"] for name in ("p50", "p90", "p99", "p99.9") if name in result
    )


def test_the_percentiles_of_one_packet_are_its_delay():
    assert quantiles(measured(1_000_001)) == {"p50": 1_000_001, "mean": 1_000_001, "min": 1_000_001, "max": 1_000_001}


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), min_size=1, max_size=6))
def test_delays_add_up_in_any_grouping(groups):
    every = [ns for group in groups for ns in group]
    assert added_delays([delay(*group) for group in groups]) == delay(*every)


def test_reports_add_up():
    whole = merged([report(), report(start_ns=10**9, end_ns=2 * 10**9, sampled=0.5)])
    assert (whole.end_ns, whole.sampled, whole.ways[0].delivered, whole.hops[0].recorded) == (2 * 10**9, 0.5, 16, 20)
    assert whole.ways[0].steps[2].delay.count == 16


def test_the_page_holds_every_figure_without_its_script():
    _, render = Traces().files().documents["html"]
    page = render((findings(evidence()), evidence()))
    for text in ("2 (20 %)", "a/eth0 → va", "All hops were on one clock", "20 % of 10 packets lost", "<script>"):
        assert text in page, text


def test_every_chart_can_be_drawn():
    drawn = all_charts(evidence())
    assert set(drawn) == {f"forward-{kind}" for kind in ("losses", "histogram", "percentiles", "time", "waterfall")}
    for _, draw in drawn.values():
        assert draw().to_dict(validate=True)


def test_the_waterfall_adds_up_to_the_whole_way():
    rows = spec_of(all_charts(evidence())["forward-waterfall"][1]())["data"]["values"]
    assert [(row["step"], row["from_us"], row["to_us"]) for row in rows] == [
        ("a/eth0 → va", 0.0, 0.02),
        ("va → vm/eth0", 0.02, 0.05),
    ]


def counting(*counts, one_in=16, **changes):
    """A trace that recorded some packets, and counted so many at each hop."""
    hops = [Missed(recorded=10, counted_in=1, counted_out=count) for count in counts]
    traced = evidence(report(hops=tuple(hops), hooks=("out",) * 3, **changes))
    request = traced.start.asked.model_copy(update={"one_in": one_in})
    return traced.model_copy(update={"start": traced.start.model_copy(update={"asked": request})})


def test_losses_are_differences_of_counts_if_only_some_packets_are_recorded():
    way, back = findings(counting(1000, 1000, 990)).ways
    assert (way.sent, way.delivered, way.lost) == (1000, 990, 10)
    assert [(step.packets, step.lost, step.lost_low, step.lost_high) for step in way.steps] == [
        (1000, 0, 0, 0),
        (990, 10, 10, 10),
    ]
    assert way.steps[1].delay_ns["p50"] == 30
    assert (back.sent, back.delivered) == (1, 1)


def test_a_trace_that_counts_says_what_is_of_recorded_packets_only():
    result = findings(counting(1000, 1005, 990))
    assert result.ways[0].steps[0].stray == 5
    assert any("one packet in 16, 10 packets" in note for note in result.notes)
    assert any("5 packets more were counted at va" in note for note in result.notes)


def test_counts_of_flows_that_leave_the_path_are_named():
    result = findings(counting(1000, 1000, 990, way=forward(other=3)))
    assert any("3 packets belong to flows that do not pass every hop" in note for note in result.notes)
    assert not any("do not pass every hop" in note for note in findings(counting(1000, 1000, 990)).notes)


def test_a_trace_that_records_every_packet_does_not_use_counts():
    assert findings(counting(5, 5, 5, one_in=1)).ways == findings(evidence(report(hooks=("out",) * 3))).ways


def test_records_that_are_missed_make_no_count_uncertain():
    traced = counting(1000, 1000, 990)
    hops = tuple(hop.model_copy(update={"missed": 4}) for hop in traced.reports[0].hops)
    result = findings(traced.model_copy(update={"reports": (traced.reports[0].model_copy(update={"hops": hops}),)}))
    assert (result.ways[0].lost_low, result.ways[0].lost_high) == (10, 10)
    assert any("delays lack them" in note and "losses there may" not in note for note in result.notes)
