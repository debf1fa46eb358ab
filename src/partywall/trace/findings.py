"""The findings of a trace: losses with bounds, percentiles of delay, and the necessary notes. Pure.

Every packet is counted, without sampling, so a loss has no confidence interval. It has bounds: the tracer may have
missed a packet that counts as lost at a hop, and a packet that it missed at earlier hops may be lost without being
counted. If a trace records only some packets, losses are differences of counts, which missed records do not affect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from partywall import units
from partywall.core.report.wording import fits
from partywall.core.stats.histogram import Histogram, bucket_bounds
from partywall.trace.record import (
    ClockBound,
    Delay,
    HopFinding,
    Missed,
    Report,
    Step,
    TraceEvidence,
    TraceFindings,
    Way,
    WayFinding,
    counted,
    merged,
)
from partywall.trace.request import WAYS, Hop, TraceRequest

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
# A percentile needs several packets beyond it.
BEYOND_LEAST = 10
# Mean payload above which packets are larger than an Ethernet frame.
SEGMENT_BYTES = 1500


def findings(evidence: TraceEvidence) -> TraceFindings:
    """Figures and text of a whole trace."""
    request = evidence.start.asked
    recorded = merged(evidence.reports) if evidence.reports else _nothing(request)
    whole = counted(request, recorded) if request.one_in > 1 else recorded
    ways = tuple(_way(request, whole, number, evidence) for number in range(1 if request.one_way else len(WAYS)))
    by_hop = list(zip(request.hops, whole.hops, strict=True))
    order = _order(whole, ways)
    return TraceFindings(
        run=evidence.run,
        headline=_wrong_order(request, order) if order else headline(ways, whole.sampled),
        order=order,
        duration_ns=whole.end_ns - whole.start_ns,
        ways=ways,
        recorded={hop.name: seen.recorded for hop, seen in by_hop},
        missed={hop.name: seen.missed for hop, seen in by_hop},
        sampled=whole.sampled,
        cost=whole.cost,
        record_ns=evidence.record_ns,
        relays_record_ns=evidence.relays_record_ns,
        clocks=_clocks(evidence),
        gone=tuple(hop.name for hop, seen in by_hop if seen.gone),
        notes=(
            *_notes(evidence, whole, ways),
            *(_counting_notes(request, recorded, ways) if whole != recorded else ()),
            *(() if order else _next_steps(request, ways)),
        ),
    )


def _order(whole: Report, ways: Sequence[WayFinding]) -> tuple[str, ...]:
    """The hops as packets passed them, in forward order; empty if that is the given order."""
    for number, (way, finding) in enumerate(zip(whole.ways, ways, strict=False)):
        swapped = [
            _is_swapped(step.delay, of.clock_bound_ns) for step, of in zip(way.steps[1:], finding.steps, strict=True)
        ]
        if any(swapped):
            names = tuple(finding.hops[place] for place in _passed(way, swapped))
            return names if number == 0 else names[::-1]
    return ()


def _is_swapped(delay: Delay, bound_ns: int | None) -> bool:
    """True if most packets passed a hop before the one that was given before it, beyond the error of the clocks."""
    return delay.negative > delay.count and (bound_ns is None or delay.negative_max_ns > bound_ns)


def _passed(way: Way, swapped: Sequence[bool]) -> list[int]:
    """The places in the order in which the kept packets passed them. Without such packets, neighbours change places."""
    given = list(range(len(way.steps)))
    times = [
        [time for time in packet.at_ns if time is not None]
        for packet in way.packets or way.slowest
        if None not in packet.at_ns
    ]
    order = sorted(given, key=lambda place: median(at[place] - at[0] for at in times)) if times else given
    if order == given:
        for place in (place for place, is_swapped in enumerate(swapped) if is_swapped):
            order[place : place + 2] = order[place : place + 2][::-1]
    return order


def _wrong_order(request: TraceRequest, order: Sequence[str]) -> str:
    given = [hop.name for hop in request.hops]
    first, second = next((a, b) for a, b in pairwise(order) if given.index(a) > given.index(b))
    return (
        f"The hops are in the wrong order: packets passed {first} before {second}. Losses and delays have no place. "
        f"Repeat with: {' '.join(order)}"
    )


def quantiles(delay: Delay) -> dict[str, float]:
    """Percentiles with enough packets beyond them, mean, minimum and maximum; empty without packets.

    None exceeds the maximum.
    """
    if not delay.count:
        return {}
    values = {
        name: delay.within(_quantile(delay.counts, share))
        for name, share in SHARES.items()
        if share <= 0.5 or delay.count * (1 - share) >= BEYOND_LEAST
    }
    ends = {"min": delay.min_ns, "max": delay.max_ns}
    return (
        values | {"mean": delay.sum_ns / delay.count} | {name: float(ns) for name, ns in ends.items() if ns is not None}
    )


def _quantile(histogram: Histogram, share: float) -> float:
    wanted = share * sum(histogram.counts.values())
    reached = 0
    for index in sorted(histogram.counts):
        reached += histogram.counts[index]
        if reached >= wanted:
            break
    return sum(bucket_bounds(index)) / 2


def _nothing(request: TraceRequest) -> Report:
    way = Way(steps=(Step(),) * len(request.hops))
    return Report(start_ns=0, end_ns=0, ways=(way, way), hops=(Missed(),) * len(request.hops))


def _way(request: TraceRequest, whole: Report, number: int, evidence: TraceEvidence) -> WayFinding:
    way, names = whole.ways[number], request.names(number)
    missed = [hop.missed if request.one_in == 1 else 0 for hop in whole.hops][:: 1 if number == 0 else -1]
    bounds = _bounds(request, evidence)[:: 1 if number == 0 else -1]
    steps = tuple(_step(names, place, way.steps, missed, bounds) for place in range(1, len(names)))
    lost = sum(step.lost for step in way.steps)
    return WayFinding(
        way=WAYS[number],
        hops=names,
        sent=way.steps[0].packets,
        delivered=way.delivered,
        lost=lost,
        # A packet that arrived but counts as lost was missed at the last hop.
        lost_low=max(0, lost - missed[-1]),
        lost_high=lost + sum(missed[:-1]),
        unfinished=way.unfinished,
        other=way.other,
        alike=way.alike,
        forced=way.forced,
        steps=steps,
        total_ns=quantiles(way.total),
        clock_bound_ns=_between(bounds[0], bounds[-1]),
    )


def _step(
    names: Sequence[str], place: int, steps: Sequence[Step], missed: Sequence[int], bounds: Sequence[int | None]
) -> HopFinding:
    step, before = steps[place], steps[place - 1]
    return HopFinding(
        origin=names[place - 1],
        hop=names[place],
        packets=step.packets,
        lost=step.lost,
        lost_low=max(0, step.lost - missed[place]),
        # A packet missed at earlier hops counts as lost there, or not at all.
        lost_high=step.lost + sum(missed[:place]),
        lost_share=step.lost / before.packets if before.packets else None,
        astray=step.astray,
        duplicates=step.duplicates,
        reordered=step.reordered,
        skipped=step.skipped,
        stray=step.stray,
        negative=step.delay.negative,
        negative_max_ns=step.delay.negative_max_ns,
        clock_bound_ns=_between(*bounds[place - 1 : place + 1]),
        delay_ns=quantiles(step.delay),
    )


def _between(*bounds: int | None) -> int | None:
    """Largest error of a time between two hops, from the bounds of their clocks; None if it uses this host's alone."""
    known = [bound for bound in bounds if bound is not None]
    return sum(known) if known else None


def _bounds(request: TraceRequest, evidence: TraceEvidence) -> list[int | None]:
    """Largest clock error of each hop; None if it uses this host's clock."""
    widest = {bound.agent: bound.bound_ns for bound in _clocks(evidence)}
    return [None if hop.agent is None else widest.get(hop.agent) for hop in request.hops]


def _clocks(evidence: TraceEvidence) -> tuple[ClockBound, ...]:
    """The widest bound of each agent's clock."""
    agents = dict.fromkeys(bound.agent for bound in evidence.clocks)
    return tuple(max((b for b in evidence.clocks if b.agent == name), key=lambda b: b.bound_ns) for name in agents)


def headline(ways: Sequence[WayFinding], sampled: float = 1.0) -> str:
    """The most important result in at most three lines: losses and their place, and where the time is spent.

    The direction with the larger loss is first. sampled: the share of traced flows.
    """
    used = sorted((way for way in ways if way.sent), key=lambda way: -(way.lost / way.sent))
    if used:
        texts = [" ".join(_sentence(way, parts) for way in used) for parts in range(len(_PARTS), -1, -1)]
        return next(filter(fits, texts), texts[-1])
    others = sum(way.other for way in ways)
    if others:
        return (
            f"No packet passed the first hop, though {_count(others, 'packet')} passed others: "
            "check the order of the hops, and their hooks."
        )
    if sampled < 1:
        return (
            f"No packet was seen, but only {100 * sampled:.3g} % of the flows were traced, "
            "to stay within the budget of CPU time: give a larger --budget."
        )
    return "No packet was seen: nothing was sent along this path, or packets take another path."


def _sentence(way: WayFinding, parts: int) -> str:
    """One direction: what was lost, and as many of the other parts as there is room for."""
    return f"{way.way.capitalize()}: {_lost(way)}{''.join(part(way) for part in _PARTS[:parts])}."


def _tail(way: WayFinding) -> str:
    tail = (way.total_ns or {}).get("p99")
    return f"; 99 % take up to {units.format_duration(tail)}" if tail is not None else ""


def _half(way: WayFinding) -> str:
    return f"; half take up to {units.format_duration(way.total_ns['p50'])}" if way.total_ns else ""


def _astray(way: WayFinding) -> str:
    elsewhere = sum(step.astray for step in way.steps)
    packets = f"{units.format_decimals(elsewhere, 0)} more"
    return f"; {packets} took another path, or were lost entirely" if elsewhere else ""


def _lost(way: WayFinding) -> str:
    followed = way.sent - sum(step.astray for step in way.steps)
    packets = _count(followed, "packet")
    if not way.lost:
        return f"none of {packets} lost"
    worst = _lossiest(way)
    part = "all" if worst.lost == way.lost else "most"
    return f"{100 * way.lost / followed:.2g} % of {packets} lost, {part} between {worst.origin} and {worst.hop}"


def _lossiest(way: WayFinding) -> HopFinding:
    return max(way.steps, key=lambda step: step.lost)


def _longest(way: WayFinding) -> str:
    slowest = _slowest(way)
    if slowest is None:
        return ""
    step, share = slowest
    return f"; {100 * share:.0f} % of the time from {step.origin} to {step.hop}"


def _slowest(way: WayFinding) -> tuple[HopFinding, float] | None:
    """The step that takes most of the time, with its share; None if there is only one, or no time is known."""
    means = {step.hop: step.delay_ns.get("mean", 0.0) for step in way.steps}
    total = sum(means.values())
    if len(way.steps) < 2 or not total:
        return None
    step = max(way.steps, key=lambda step: means[step.hop])
    return step, means[step.hop] / total


# Of a headline, most important first.
_PARTS = (_tail, _longest, _half, _astray)


def _notes(evidence: TraceEvidence, whole: Report, ways: Sequence[WayFinding]) -> Iterator[str]:
    """Notes that qualify the figures."""
    if evidence.interrupted:
        yield "The trace was interrupted; about its last second is missing."
    for hop, seen in zip(evidence.start.asked.hops, whole.hops, strict=True):
        if seen.missed:
            effect = "up to this many losses there may be none, up to this many more may be lost at later hops, and "
            yield (
                f"{hop.name}: the tracer missed {_count(seen.missed, 'packet')} (a full ring): "
                f"{effect if evidence.start.asked.one_in == 1 else ''}delays lack them. Trace fewer flows "
                "(--protocol, --port, --host)."
            )
        if seen.gone:
            yield _gone(evidence, evidence.start.asked.hops.index(hop))
    if whole.sampled < 1:
        yield (
            f"To stay within its budget, the tracer reduced sampling to {100 * whole.sampled:.3g} % of the flows. "
            "Figures "
            "for these are exact; packets of others are not counted. Give a larger --budget for all."
        )
    for number, way in enumerate(ways):
        yield from _way_notes(way)
        first = whole.ways[number].steps[0]
        if way.lost and first.bytes > SEGMENT_BYTES * first.packets:
            size = units.format_bytes(first.bytes / first.packets)
            yield (
                f"{way.way}: packets are counted as seen by {way.hops[0]}, with {size} on average. If one was cut "
                "into segments "
                "on the path, a single lost segment counts as the whole packet."
            )


def _counting_notes(request: TraceRequest, recorded: Report, ways: Sequence[WayFinding]) -> Iterator[str]:
    """What counts do not show if only some packets are recorded."""
    number = sum(way.steps[0].packets for way in recorded.ways)
    yield (
        f"The tracer recorded one packet in {request.one_in}, {_count(number, 'packet')}: delays, order, duplicates "
        "and charts are those of recorded packets. All packets are counted at each hop, as segments on the wire. A "
        "loss is what a hop counted less than the one before; packets in flight at the start or at the end are in it."
    )
    for way in ways:
        for step in way.steps:
            if step.stray:
                yield (
                    f"{way.way}, {step.origin} to {step.hop}: {_count(step.stray, 'packet')} more were counted at "
                    f"{step.hop}: packets join the path there, were doubled, or were in flight when the trace began."
                )
    for each in recorded.ways:
        elsewhere = each.other + sum(step.astray for step in each.steps)
        if elsewhere:
            yield (
                f"Of the recorded packets, {_count(elsewhere, 'packet')} belong to flows that do not pass every hop. "
                "Counts include such flows: select those of the path with --protocol, --port or --host."
            )


def _next_steps(request: TraceRequest, ways: Sequence[WayFinding]) -> Iterator[str]:
    """Why a percentile is missing, and the command that shows the queue where packets are lost or held."""
    few = [step.delay_ns for way in ways for step in way.steps if "p50" in step.delay_ns and "p99" not in step.delay_ns]
    if few:
        yield f"p99 needs {_count(BEYOND_LEAST * 100, 'packet')} with a delay, so that ten lie beyond it."
    for name in dict.fromkeys(step.origin for way in ways if way.sent for step in _conspicuous(way)):
        hop = next(hop for hop in request.hops if hop.name == name)
        yield f"To see the queue of {name}, use: {_queue_command(hop)}"


def _conspicuous(way: WayFinding) -> Iterator[HopFinding]:
    """The steps that the headline names, if they lose packets or take more than half of the time."""
    if way.lost:
        yield _lossiest(way)
    slowest = _slowest(way)
    if slowest is not None and slowest[1] > 0.5:
        yield slowest[0]


def _queue_command(hop: Hop) -> str:
    show = f"tc -s qdisc show dev {hop.interface}"
    where = "" if hop.agent is None else f" (on {hop.agent})"
    if hop.namespace is None:
        return f"{show}{where}"
    if hop.namespace.isdigit():
        return f"nsenter -t {hop.namespace} -n {show}{where}"
    if "/" in hop.namespace:
        return f"nsenter --net={hop.namespace} {show}{where}"
    return f"ip netns exec {hop.namespace} {show}{where}"


def _gone(evidence: TraceEvidence, number: int) -> str:
    """When an interface disappeared, to the nearest report, and the effect on the figures."""
    start_ns = min(report.start_ns for report in evidence.reports)
    noticed_ns = next(report.end_ns for report in evidence.reports if report.hops[number].gone)
    name = evidence.start.asked.hops[number].name
    return (
        f"{name}: the interface disappeared {units.format_duration(noticed_ns - start_ns)} into the trace. Nothing was "
        "seen there afterwards: packets that only passed earlier hops count as lost, those seen later as passed "
        "unseen."
    )


def _way_notes(way: WayFinding) -> Iterator[str]:
    for step in way.steps:
        place = f"{way.way}, {step.origin} to {step.hop}"
        if step.negative:
            bound = step.clock_bound_ns
            within = "both use one clock, so packets pass them in another order: check the order of hops"
            if bound is not None:
                fits = "within" if step.negative_max_ns <= bound else "beyond"
                within = f"{fits} the clocks' bound of {units.format_duration(bound)}"
            yield (
                f"{place}: {_count(step.negative, 'delay')} are negative, by up to "
                f"{units.format_duration(step.negative_max_ns)} ({within}); percentiles exclude them."
            )
        if step.astray:
            yield (
                f"{place}: {_count(step.astray, 'packet')} belong to flows that never reached {step.hop}: they took "
                "another path, or were lost entirely. They are not counted as lost."
            )
        if step.skipped:
            yield f"{place}: {_count(step.skipped, 'packet')} passed {step.hop} unseen and were seen later."
    if way.alike:
        yield (
            f"{way.way}: {_count(way.alike, 'packet')} could not be distinguished from others of their flow (the same "
            "tag, or sent again by a TCP without timestamps): they are counted, but have no delay."
        )
    if way.forced:
        yield f"{way.way}: {_count(way.forced, 'packet')} were given up early: too many in flight; shorten --horizon"
    if way.unfinished and way.sent and way.unfinished > way.sent / 100:
        yield f"{way.way}: {_count(way.unfinished, 'packet')} were in flight at the end, or cut off by sampling."


def _count(number: int, what: str) -> str:
    return f"{units.format_decimals(number, 0)} {what}{'' if number == 1 else 's'}"
