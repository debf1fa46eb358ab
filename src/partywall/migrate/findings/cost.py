"""From moves and what clients saw of them to findings: three blackouts side by side, response times, and intervals.

A guest cannot see its own blackout: its clocks stand still with it. So the blackout is measured from outside, three
ways: by QEMU's events, by how far the guest's clock fell back behind the host's, and by the clients' longest time
without an answer. QEMU's own `downtime` ends when the source is done, which is earlier than when the guest goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from partywall import units
from partywall.core.stats import rounds
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.migrate.document import (
    METRICS,
    POSTCOPY,
    PRECOPY,
    Advice,
    Bin,
    CellFinding,
    Figure,
    Gap,
    Measured,
    MigrationEvidence,
    MigrationFindings,
    MigrationPlan,
    Move,
    MoveFinding,
    Part,
    PassFinding,
    Prediction,
    Responses,
    Survey,
)
from partywall.migrate.findings import own, prediction
from partywall.migrate.findings.advice import SURE, advise, is_modelled
from partywall.migrate.findings.response import Service, quantiles, until_answered

Table = npt.NDArray[Any]
Tables = Mapping[str, Table]
"""Of a move, see `migrate.record.COLUMNS`; one that is not there is empty."""
EMPTY = {
    "pings": np.zeros((0, 3), np.int64),
    "work": np.zeros((0, 3)),
    "users": np.zeros((0, 4)),
    "bystander": np.zeros((0, 3)),
    "announced": np.zeros((0, 1)),
}

HAND_OVER = "hand-over"
HAND_OVER_NS = 1e9
"""A figure of work has a value for each second, so the second around the hand-over shows most."""

FEWEST = 3
"""Moves of a cell below which no interval is given."""
LEVEL = 0.95
PREDICTED_LEVEL = 0.90
PERCENTILES = ("p50_ratio", "p99_ratio", "p99_s", "users_p99_ratio")
SETTLED_NS = 200_000_000
"""A gap that begins this much after the set-up of a move is over is not the set-up's."""
OPEN_NS = 200_000_000
"""How long to wait for answers to the last requests after watching ends. Later answers count as lost."""

BIN_NS = 50_000_000
SLOW = 2.0
"""How many times as long as before an answer takes while a service is slowed down."""
FEWEST_BINS = 5
"""Parts of the time before a move that its usual response needs."""


def findings(evidence: MigrationEvidence, table: Callable[[str, int], Table]) -> MigrationFindings:
    """Everything that is known of a series. table: of a move, by its name and the move's number."""

    def finding_of(move: Move) -> MoveFinding:
        return move_finding(move, {name: table(name, move.number) for name in EMPTY})

    moves = tuple(map(finding_of, evidence.moves))
    calibration = list(map(finding_of, evidence.calibration))
    known, plan = basis(evidence, calibration), evidence.plan
    cells = tuple(_cells(evidence, moves, predictions(plan, known)))
    advice = tuple(advices(plan, known))
    return MigrationFindings(
        name=evidence.name,
        headline=_headline(evidence, cells, advice, known),
        outcome=_outcome(evidence, cells, advice),
        moves=moves,
        cells=cells,
        advice=advice,
        curves=tuple(map(own.curve_of, evidence.surveys)),
        notes=(*known.said, *((known.lacking,) if known.lacking and moves else ()), *_notes(evidence, moves)),
        rests_on=known.rests_on,
    )


# One move


def move_finding(move: Move, tables: Tables) -> MoveFinding:
    """What a move was to its guest and its clients."""
    pings, work, users, bystander, announced = ({**EMPTY, **tables}[name] for name in EMPTY)
    gaps = _gaps(pings)
    handover, start = _handover(move, gaps), _start_gap(move, gaps)
    pauses = [gap for gap in (handover, start) if gap is not None]
    events_ns = move.resumed_ns - move.paused_ns if move.paused_ns and move.resumed_ns else None
    finding = MoveFinding(
        move=move,
        clients_gap=handover,
        clients_ns=handover.ns if handover and not handover.is_open else None,
        start_ns=start.ns if start else None,
        events_ns=events_ns,
        parts=tuple(_parts(move, handover, announced[:, 0])),
        passes=tuple(_passes(move)),
        longest_s=_longest(move, gaps),
        responses=_responses(move, pings),
        work=_work(move, work),
        bystander=_rates(move, bystander[:, 1], bystander[:, 2]),
        timeline=tuple(_timeline(move, pings)),
        users=_users(move, users),
        users_timeline=tuple(_users_timeline(move, users)),
        slower_ns=_slower(move, pings, pauses),
    )
    values = {name: value for name, value in _values(finding, pings, pauses).items() if value is not None}
    return finding.model_copy(update={"values": values})


def _values(finding: MoveFinding, pings: Table, pauses: Sequence[Gap]) -> dict[str, float | None]:
    """See `migrate.document.METRICS`."""
    move = finding.move
    return {
        "total_s": _in_seconds(move.total_ns),
        "downtime_s": _in_seconds(move.downtime_ns),
        "events_s": _in_seconds(finding.events_ns),
        "stopped_s": _in_seconds(move.stopped_ns),
        "clients_s": _in_seconds(finding.clients_ns),
        "longest_s": finding.longest_s if finding.longest_s is not None and math.isfinite(finding.longest_s) else None,
        "start_s": _in_seconds(finding.start_ns),
        "sent_bytes": move.memory.get("transferred"),
        "link_bytes": sum(move.link_bytes.values()) if len(move.link_bytes) == 2 else None,
        "passes": move.memory.get("dirty-sync-count"),
        "p50_ratio": _times(finding, "p50_ns"),
        "p99_ratio": _times(finding, "p99_ns"),
        "brownout_s": _brownout_s(finding, pauses),
        "p99_s": _in_seconds(_p99(finding, pings)),
        "users_mean_ratio": _times(finding, "mean_ns", users=True),
        "users_p99_ratio": _times(finding, "p99_ns", users=True),
        "users_longest_s": _in_seconds(_slowest(finding)),
        "users_timeouts": move.timeouts,
        "users_rate_ratio": _times(finding, "rate", users=True),
        "work_ratio": _share_of_work(finding.work),
        "bystander_ratio": _share_of_work(finding.bystander),
        "source_cpu_s": _in_seconds(move.cpu_ns.get("source")),
        "destination_cpu_s": _in_seconds(move.cpu_ns.get("destination")),
    }


def _p99(finding: MoveFinding, pings: Table) -> float | None:
    """p99 response during the move, of virtual users if there are any."""
    if finding.users:
        return finding.users["during"].p99_ns if "during" in finding.users else None
    move = finding.move
    # A request may be answered by a later one that was due after the move.
    after = pings[pings[:, 0] >= move.begin_ns]
    waits = until_answered(after[:, 0], after[:, 2])[: int((after[:, 0] < move.end_ns).sum())]
    return float(np.quantile(waits, 0.99)) if len(waits) else None


def _slowest(finding: MoveFinding) -> float | None:
    """The longest response of virtual users during the move, ns."""
    return finding.users["during"].max_ns if "during" in finding.users else None


def _slower(move: Move, pings: Table, pauses: Sequence[Gap]) -> tuple[float, ...]:
    """By how much answers during the move were slower than before, without those that waited for a pause."""
    before, during = (
        pings[(pings[:, 2] > 0) & (pings[:, 0] >= begin) & (pings[:, 0] < end)]
        for begin, end in (_phases(move)[name] for name in ("before", "during"))
    )
    waited = np.zeros(len(during), bool)
    for gap in pauses:
        waited |= (during[:, 0] < gap.end_ns) & (during[:, 2] >= gap.end_ns)
    usual, slow = (quantiles(each[:, 2] - each[:, 0]) for each in (before, during[~waited]))
    return tuple(max(0.0, late - soon) for late, soon in zip(slow, usual, strict=True)) if usual and slow else ()


def _timeline(move: Move, pings: Table) -> Iterator[Bin]:
    """Response times over the time at which requests were due."""
    answered = pings[pings[:, 2] > 0]
    places = (answered[:, 0] - move.begin_ns) // BIN_NS
    waits = answered[:, 2] - answered[:, 0]
    for place in np.unique(places):
        own = waits[places == place]
        yield Bin(at_s=place * BIN_NS / 1e9, median_ns=float(np.median(own)), slowest_ns=float(own.max()))


def _brownout_s(finding: MoveFinding, pauses: Sequence[Gap]) -> float | None:
    """For how long half of the answers took over SLOW times as long as before the move, without its pauses.

    In parts of BIN_NS. None if too little was seen before.
    """
    usual = [each.median_ns for each in finding.timeline if each.at_s < 0]
    if len(usual) < FEWEST_BINS:
        return None
    limit_ns, slow = SLOW * statistics.median(usual), 0
    for each in finding.timeline:
        begin_ns = finding.move.begin_ns + each.at_s * 1e9
        is_pause = any(gap.begin_ns < begin_ns + BIN_NS and gap.end_ns > begin_ns for gap in pauses)
        slow += each.at_s >= 0 and not is_pause and each.median_ns > limit_ns
    return slow * BIN_NS / 1e9


def _gaps(pings: Table) -> list[Gap]:
    """Times from one answer to the next, longest first; the last hundred would be ordinary anyway.

    If requests at the end have no answer, the time from the last answer on is one too.
    """
    if not len(pings):
        return []
    answered = np.sort(pings[pings[:, 2] > 0, 2])
    lengths = np.diff(answered)
    longest = np.argsort(lengths)[::-1][:100]
    gaps = [Gap(begin_ns=int(answered[n]), end_ns=int(answered[n + 1])) for n in longest]
    begin_ns, end_ns = int(answered[-1]) if len(answered) else int(pings[0, 0]), int(pings[-1, 0])
    if end_ns > begin_ns:
        gaps.append(Gap(begin_ns=begin_ns, end_ns=end_ns, is_open=True))
    return sorted(gaps, key=lambda gap: -gap.ns)


def _handover(move: Move, gaps: Sequence[Gap]) -> Gap | None:
    """The longest gap in which the guest was paused."""
    if move.paused_ns is None or move.resumed_ns is None:
        return None
    low, high = move.paused_ns, move.resumed_ns
    return next((gap for gap in gaps if gap.begin_ns < high and gap.end_ns > low), None)


def _longest(move: Move, gaps: Sequence[Gap]) -> float | None:
    """The longest gap from the start of the move on, in s; infinite if nobody answered any more."""
    gap_after = next((gap for gap in gaps if gap.end_ns > move.begin_ns), None)
    if gap_after is None:
        return None
    return math.inf if gap_after.is_open and gap_after.ns > OPEN_NS else gap_after.ns / 1e9


def _start_gap(move: Move, gaps: Sequence[Gap]) -> Gap | None:
    """The longest gap while the move was set up."""
    handover = _handover(move, gaps)
    until_ns = move.begin_ns + (move.setup_ns or 0) + SETTLED_NS
    if move.paused_ns is not None:
        until_ns = min(until_ns, move.paused_ns)
    return next(
        (gap for gap in gaps if gap != handover and gap.end_ns > move.begin_ns and gap.begin_ns < until_ns), None
    )


def _parts(move: Move, gap: Gap | None, announced: Table) -> Iterator[Part]:
    """What the clients' gap is made of. Times are of one clock, so the parts add up to the gap.

    announced: when the guest or its QEMU announced where it is; without any, that part is left out.
    """
    if gap is None or gap.is_open or move.paused_ns is None or move.resumed_ns is None:
        return
    done_ns = min(move.paused_ns + (move.downtime_ns or 0), move.resumed_ns)
    ends = {
        "last answer to STOP": move.paused_ns,
        "STOP to the end of the source's work (QEMU's downtime)": done_ns,
        "data on its way and device state, until RESUME": move.resumed_ns,
    }
    # A QEMU may announce its guest before the guest goes on.
    known = announced[(announced >= move.paused_ns) & (announced <= gap.end_ns)]
    if len(known):
        ends["until the network knows the guest's new place (ARP)"] = max(int(known[0]), move.resumed_ns)
    names = (*ends, "until the first answer" if len(known) else "RESUME to the first answer")
    edges = (gap.begin_ns, *(min(max(at, gap.begin_ns), gap.end_ns) for at in ends.values()), gap.end_ns)
    for name, (begin, end) in zip(names, itertools.pairwise(edges), strict=True):
        yield Part(name=name, ns=end - begin)


def _passes(move: Move) -> Iterator[PassFinding]:
    """Passes over the memory, from looks at the move. Those that began and ended between two looks are left out."""
    groups = [list(looks) for _, looks in itertools.groupby(move.progress, key=lambda look: look.passes)]
    firsts = [group[0] for group in groups]
    for group, after in itertools.zip_longest(groups, firsts[1:]):
        first, sent = group[0], 0 if group is groups[0] else group[0].sent
        end = after or group[-1]
        yield PassFinding(
            number=first.passes,
            begin_s=(first.at_ns - move.begin_ns) / 1e9,
            seconds=(end.at_ns - first.at_ns) / 1e9,
            sent=end.sent - sent,
            dirty_rate=after.dirty_rate if after else None,
        )


def _responses(move: Move, pings: Table) -> dict[str, Responses]:
    phases = _phases(move)
    return {
        name: _response(pings[(pings[:, 0] >= begin) & (pings[:, 0] < end)]) for name, (begin, end) in phases.items()
    }


def _phases(move: Move) -> dict[str, tuple[int, int]]:
    return {
        # Disks are copied before the move begins.
        "before": (0, move.begin_ns - (move.storage_ns or 0)),
        "during": (move.begin_ns, move.end_ns),
        "after": (move.end_ns, np.iinfo(np.int64).max),
    }


def _response(pings: Table) -> Responses:
    """A request without an answer is slower than any other: left out, it would make a move look better."""
    if not len(pings):
        return Responses(sent=0, lost=0)
    waits = np.where(pings[:, 2] > 0, pings[:, 2] - pings[:, 0], np.inf)
    answered = waits[np.isfinite(waits)]
    p50, p99 = np.quantile(waits, (0.5, 0.99), method="inverted_cdf")
    return Responses(
        sent=len(waits),
        lost=len(waits) - len(answered),
        p50_ns=p50 if math.isfinite(p50) else None,
        p99_ns=p99 if math.isfinite(p99) else None,
        max_ns=answered.max() if len(answered) else None,
    )


def _users(move: Move, users: Table) -> dict[str, Responses]:
    """Response times of virtual users by phase.

    An answer counts in the second in which it measured. One that waited for the hand-over comes in the second after the
    move, so that second belongs to the move. Seconds without an answer are no rows, but they are time.
    """
    if not len(users):
        return {}
    edges = (float(users[:, 0].min()), float(move.begin_ns), move.end_ns + 1e9, float(users[:, 1].max()))
    users_by_phase = {}
    for name, (begin, end) in zip(("before", "during", "after"), itertools.pairwise(edges), strict=True):
        own = users[(users[:, 1] > begin) & (users[:, 1] <= end)]
        if end > begin:
            users_by_phase[name] = _of_seconds(own, (end - begin) / 1e9)
    return users_by_phase


def _of_seconds(rows: Table, length_s: float) -> Responses:
    answered, lost = rows[rows[:, 2] >= 0], int(rows[rows[:, 2] < 0, 3].sum())
    count = int(answered[:, 3].sum())
    if not count:
        return Responses(sent=lost, lost=lost, rate=0.0)
    order = np.argsort(answered[:, 2])
    times, counts = answered[order, 2], np.cumsum(answered[order, 3])
    # Those that failed are slower than any other, as above.
    places = [int(np.searchsorted(counts, share * (count + lost))) for share in (0.5, 0.99)]
    p50, p99 = (float(times[place]) if place < len(times) else None for place in places)
    return Responses(
        sent=count + lost,
        lost=lost,
        rate=count / length_s,
        mean_ns=float((answered[:, 2] * answered[:, 3]).sum() / count),
        p50_ns=p50,
        p99_ns=p99,
        max_ns=float(times[-1]),
    )


def _users_timeline(move: Move, users: Table) -> Iterator[Bin]:
    for start, end in sorted({(start, end) for start, end in users[:, :2]}):
        timeline = _of_seconds(users[users[:, 0] == start], (end - start) / 1e9)
        if timeline.p50_ns is not None and timeline.max_ns is not None:
            at_s = ((start + end) / 2 - move.begin_ns) / 1e9
            yield Bin(at_s=at_s, median_ns=timeline.p50_ns, slowest_ns=timeline.max_ns)


def _work(move: Move, work: Table) -> dict[str, float]:
    """Rates by phase. The guest's times become the host's by the guest's own stop: it began where clients lost it."""
    if not len(work) or move.offset_ns is None:
        return {}
    stopped_ns = move.stopped_ns or 0
    at_ns = work[:, 1] + move.offset_ns
    if move.paused_ns is not None:
        at_ns = np.where(at_ns > move.paused_ns, at_ns + stopped_ns, at_ns)
    return _rates(move, at_ns, work[:, 2]) | _at_hand_over(move, at_ns, work[:, 2])


def _at_hand_over(move: Move, at_ns: Table, work: Table) -> dict[str, float]:
    """The rate of the second around the hand-over, or of a longer time if the guest stands still for longer."""
    if move.paused_ns is None or move.resumed_ns is None:
        return {}
    middle_ns = (move.paused_ns + move.resumed_ns) / 2
    low = min(float(move.paused_ns), middle_ns - HAND_OVER_NS / 2)
    high = max(float(move.resumed_ns), middle_ns + HAND_OVER_NS / 2)
    if not at_ns.min() <= low < high <= at_ns.max():
        return {}
    inside = (at_ns >= low) & (at_ns < high)
    return {HAND_OVER: float(work[inside].sum() / (high - low) * 1e9)}


def _rates(move: Move, at_ns: Table, work: Table) -> dict[str, float]:
    """Work a second by phase. at_ns: when each slice ended."""
    if not len(work):
        return {}
    rates = {}
    begin_ns, end_ns = float(at_ns.min()), float(at_ns.max())
    for name, (low, high) in _phases(move).items():
        inside = (at_ns >= low) & (at_ns < high)
        length_ns = min(high, end_ns) - max(low, begin_ns)
        if inside.any() and length_ns > 0:
            rates[name] = float(work[inside].sum() / length_ns * 1e9)
    return rates


# A cell


@dataclass(frozen=True)
class Basis:
    """What predictions rest on: facts of each workload; fixed costs of pre-copy (False) and post-copy (True).

    In words: rests_on, what they rest on; said, what is known of the guest; lacking, why nothing is predicted.
    """

    facts: Mapping[str, prediction.Facts]
    fixed: Mapping[bool, prediction.Fixed]
    rests_on: str = ""
    said: tuple[str, ...] = ()
    lacking: str = ""


def basis(evidence: MigrationEvidence, calibration: Sequence[MoveFinding]) -> Basis:
    """From surveys and calibration moves alone. A guest of the user's own has earlier moves instead of these."""
    if evidence.plan.hosts is not None:
        return _own_basis(evidence, calibration)
    fixed: dict[bool, prediction.Fixed] = {}
    # Memory that a workload has used stays full of its content when it ends, so what counts is the most that was seen.
    fullest = max(evidence.surveys, key=lambda survey: survey.content, default=None)
    content = fullest.content if fullest else None
    for postcopy in (False, True):
        family = POSTCOPY if postcopy else PRECOPY
        own = [finding for finding in calibration if finding.move.method == family]
        # Without a completed calibration move nothing is predicted.
        with contextlib.suppress(ValueError):
            fixed[postcopy] = prediction.fixed_of(own, content)
    facts = {
        survey.workload: _facts(survey, fullest, evidence.about)
        for survey in evidence.surveys
        if fullest is not None and any(value is not None for row in survey.changed for value in row)
    }
    times = units.counted(evidence.plan.calibration, "move")
    rests_on = (
        f"{times} of the idle guest by each kind of method, and on how the guest's memory changed and its clients "
        "were answered before it moved"
    )
    return Basis(facts, fixed, rests_on)


def _own_basis(evidence: MigrationEvidence, earlier: Sequence[MoveFinding]) -> Basis:
    """Of a guest of the user's own, which has one workload."""
    if not evidence.surveys:
        return Basis({}, {})
    survey, link = evidence.surveys[-1], evidence.plan.link.rate
    if own.copies_disks(evidence.plan):
        lacking = "Nothing is predicted of a move in which libvirt copies the disks: how long that takes is not known."
        return Basis({}, {}, lacking=lacking)
    said = (own.known_of(survey),)
    fixed = {
        postcopy: costs
        for postcopy, family in ((False, PRECOPY), (True, POSTCOPY))
        if (costs := _own_costs(earlier, family, link, survey.memory)) is not None
    }
    if not fixed:
        return Basis({}, {}, said=said, lacking=own.unpredictable(survey))
    facts = dict.fromkeys(evidence.plan.workloads, _facts(survey, survey, evidence.about))
    return Basis(facts, fixed, own.rests_on(survey, own.used(earlier), link), said)


def _own_costs(earlier: Sequence[MoveFinding], family: str, link: int | None, memory: int) -> prediction.Fixed | None:
    """By the moves of the same family. Those of the other one still tell what the link carries."""
    same = [finding for finding in earlier if finding.move.method == family]
    rate = None if link is None else link / 8
    other = None if same else own.fixed_costs(earlier, None, memory)
    return own.fixed_costs(same, rate if other is None else max(other.rates), memory)


def _facts(survey: Survey, fullest: Survey, about: Mapping[str, Any]) -> prediction.Facts:
    """fullest: the survey whose content counts. about: of the record, with the limits that its hypervisor has."""
    usual = about.get("defaults", {})
    # QEMU's 0 is no limit.
    bandwidth = float(usual.get("max-bandwidth", prediction.BANDWIDTH)) or math.inf
    limit_s = usual["downtime-limit"] / 1e3 if "downtime-limit" in usual else prediction.DOWNTIME_LIMIT_S
    return prediction.Facts(
        survey.memory, fullest.content, math.inf,
        curve=_curve(survey), layout=fullest.layout, service=_service(survey),
        content_least=fullest.content_least, bandwidth=bandwidth, downtime_s=limit_s,
    )  # fmt: skip


def advices(plan: MigrationPlan, known: Basis) -> Iterator[Advice]:
    """Which method to use for each workload."""
    for workload, facts in known.facts.items():
        yield advise(workload, plan.methods, plan.goal, facts, known.fixed, plan.give_up / 1e9, plan.seed)


def _service(survey: Survey) -> Service | None:
    """What clients saw before the moves."""
    if survey.service is None or not survey.service.quantiles_ns:
        return None
    seen = survey.service
    return Service(tuple(each / 1e9 for each in seen.quantiles_ns), seen.rate, seen.users)


def _curve(survey: Survey) -> prediction.Curve:
    """A dirty curve of the windows that were watched often enough."""
    changed = np.array(survey.changed, np.float64)
    known = own.known_windows(survey)
    windows = tuple(survey.windows_ns[place] / 1e9 for place in known)
    errors = tuple(survey.errors[place] for place in known) if survey.errors else ()
    return prediction.Curve(windows, changed[:, known], errors)


def predictions(plan: MigrationPlan, known: Basis) -> dict[tuple[str, str], Prediction]:
    """The predicted cost of each cell, if enough is known about it."""
    return {
        (workload, name): prediction.predict(facts, costs, method, plan.give_up / 1e9, plan.seed)
        for workload, facts in known.facts.items()
        for name, method in plan.methods.items()
        if (costs := known.fixed.get(method.postcopy is not None)) is not None and is_modelled(method)
    }


def in_words(forecast: Prediction, give_up_ns: int) -> str:
    """A prediction in one line."""
    limit = units.format_duration(give_up_ns)
    if not forecast.converges:
        chance = f" (a chance of {100 * forecast.chance:.0f} %)" if forecast.chance > 0.005 else ""
        return f"it is not expected to end within {limit}{chance}, and is cancelled then"
    total, waits, sent = (forecast.spans[name] for name in ("total_s", "longest_s", "sent_bytes"))
    chance = (
        "" if forecast.chance > SURE else f"; it ends within {limit} with a chance of {100 * forecast.chance:.0f} %"
    )
    return (
        f"{_ms(total.value)} ({_ms(total.low)} to {_ms(total.high)}), {units.format_bytes(sent.value)}; the guest is "
        f"away for {_ms(waits.value)} ({_ms(waits.low)} to {_ms(waits.high)}){chance}"
    )


def _cells(
    evidence: MigrationEvidence,
    moves: Sequence[MoveFinding],
    predicted: Mapping[tuple[str, str], Prediction],
) -> Iterator[CellFinding]:
    first = next(iter(evidence.plan.methods))
    limits = evidence.plan.goal.limits
    for workload, method in evidence.plan.cells:
        own = [finding for finding in moves if finding.move.cell == (workload, method)]
        base = {
            finding.move.round: finding
            for finding in moves
            if finding.move.cell == (workload, first) and finding.move.outcome == "completed"
        }
        outcomes: dict[str, int] = {}
        for finding in own:
            outcomes[finding.move.outcome] = outcomes.get(finding.move.outcome, 0) + 1
        ended = [finding for finding in own if finding.move.outcome in ("completed", "cancelled")]
        reached = None
        if limits and own:
            reached = all(
                finding.move.outcome == "completed"
                and all(finding.values.get(metric, math.inf) <= limit for metric, limit in limits.items())
                for finding in own
            )
        yield CellFinding(
            workload=workload,
            method=method,
            outcomes=outcomes,
            figures=dict(_figures(ended, base if method != first else {})),
            reaches_goal=reached,
            prediction=(forecast := predicted.get((workload, method))),
            measured=dict(_measured(forecast, own)) if forecast else {},
        )


def _measured(forecast: Prediction, moves: Sequence[MoveFinding]) -> Iterator[tuple[str, Measured]]:
    """What was measured of each figure that was predicted."""
    for name, span in forecast.spans.items():
        values = [
            finding.values[name] for finding in moves if finding.move.outcome == "completed" and name in finding.values
        ]
        if values:
            mean = rounds.student(values, PREDICTED_LEVEL) if len(values) >= FEWEST else None
            yield (
                name,
                Measured(
                    value=float(np.mean(values)),
                    n=len(values),
                    inside=sum(span.low <= value <= span.high for value in values),
                    low=max(0.0, mean.low) if mean else None,
                    high=mean.high if mean else None,
                ),
            )


def _figures(moves: Sequence[MoveFinding], base: Mapping[int, MoveFinding]) -> Iterator[tuple[str, Figure]]:
    for name in METRICS:
        values = [finding.values[name] for finding in moves if name in finding.values]
        # A percentile that is never reached is missing: of the other moves alone it would look better than it was.
        if not values or (name in PERCENTILES and len(values) < len(moves)):
            continue
        pairs = [
            (value, other)
            for finding in moves
            if finding.move.round in base
            and (value := finding.values.get(name, 0)) > 0
            and (other := base[finding.move.round].values.get(name, 0)) > 0
        ]
        interval = rounds.student(values, LEVEL) if len(values) >= FEWEST else None
        if interval is not None:
            # None of the metrics can be negative, but that the guest's clock is known to some microseconds only.
            interval = interval.model_copy(update={"low": max(0.0, interval.low)})
        yield name, Figure(value=float(np.mean(values)), n=len(values), interval=interval, ratio=_ratio(pairs))


def _ratio(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    if len(pairs) < FEWEST:
        return None
    return rounds.ratio([value for value, _ in pairs], [other for _, other in pairs], LEVEL)


def _in_seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


def _times(finding: MoveFinding, name: str, *, users: bool = False) -> float | None:
    responses = finding.users if users else finding.responses
    before, during = (getattr(responses.get(phase), name, None) for phase in ("before", "during"))
    return during / before if before and during else None


def _share_of_work(rates: Mapping[str, float]) -> float | None:
    before, during = rates.get("before"), rates.get("during")
    return during / before if before and during is not None else None


# In words


def _headline(evidence: MigrationEvidence, cells: Sequence[CellFinding], advice: Sequence[Advice], known: Basis) -> str:
    lost = sum(cell.outcomes.get(outcome, 0) for cell in cells for outcome in ("lost", "paused"))
    spoilt = sum(move.is_spoilt for move in evidence.moves)
    if spoilt:
        of = len(evidence.moves)
        return f"After {units.counted(spoilt, 'move')} of {of} the guest's memory or disk was not what it had been."
    if not evidence.moves and known.lacking:
        return known.lacking
    if not evidence.moves and advice:
        return f"For {advice[0].workload}, {advice[0].text}."
    if lost:
        return f"{units.counted(lost, 'move')} of {len(evidence.moves)} lost the guest."
    return _waits(evidence, cells)


def _waits(evidence: MigrationEvidence, cells: Sequence[CellFinding]) -> str:
    """How long clients waited, if there were any."""
    shown = [(cell, cell.figures["clients_s"].value) for cell in cells if "clients_s" in cell.figures]
    if not shown:
        ended = [move.total_ns for move in evidence.moves if move.outcome == "completed" and move.total_ns is not None]
        if not ended:
            return "No move was completed."
        return f"The guest moved in {_ms(statistics.median(ended) / 1e9)}; no clients were watched."
    best, worst = (choose(shown, key=lambda each: each[1]) for choose in (min, max))
    text = f"Clients waited {_ms(worst[1])} at a hand-over ({worst[0].workload}, {worst[0].method})"
    if best != worst:
        text += f", and {_ms(best[1])} in the best case ({best[0].workload}, {best[0].method})"
    downtimes = [cell.figures["downtime_s"].value for cell, _ in shown if "downtime_s" in cell.figures]
    seen = [each for _, each in shown]
    share = sum(downtimes) / sum(seen) if downtimes else None
    return f"{text}; QEMU's own figure is {100 * share:.0f} % of the time that clients saw." if share else f"{text}."


def _ms(seconds: float) -> str:
    return units.format_duration(seconds * 1e9)


def _outcome(evidence: MigrationEvidence, cells: Sequence[CellFinding], advice: Sequence[Advice]) -> Outcome:
    if not evidence.moves:
        known = bool(advice) and not evidence.interrupted
        return Outcome.INCONCLUSIVE if not known else _of_advice(advice)
    gone = any(cell.outcomes.get("lost") or cell.outcomes.get("paused") for cell in cells)
    if gone or any(move.is_spoilt for move in evidence.moves):
        return Outcome.VIOLATED
    if evidence.plan.goal.limits:
        reached = {cell.workload for cell in cells if cell.reaches_goal}
        return Outcome.HOLDS if reached >= set(evidence.plan.workloads) else Outcome.VIOLATED
    ended = all(move.outcome in ("completed", "cancelled") for move in evidence.moves)
    return Outcome.HOLDS if ended and not evidence.interrupted else Outcome.INCONCLUSIVE


def _of_advice(advice: Sequence[Advice]) -> Outcome:
    return Outcome.HOLDS if all(each.reaches for each in advice) else Outcome.VIOLATED


def _notes(evidence: MigrationEvidence, moves: Sequence[MoveFinding]) -> Iterator[str]:
    if evidence.about.get("emulated"):
        yield "The guest was emulated: times are longer than with KVM, and only ratios within this host mean much."
    for place, (ahead_ns, bound_ns) in evidence.about.get("clocks_ahead_ns", {}).items():
        yield (
            f"The clock of host {place} was {units.format_duration(abs(ahead_ns))} "
            f"{'ahead of' if ahead_ns >= 0 else 'behind'} this machine's; times of its events are corrected, to "
            f"{units.format_duration(bound_ns)} either way."
        )
    if evidence.interrupted:
        yield "The series was interrupted: not every combination was moved equally often."
    off = [
        abs(finding.events_ns - finding.move.stopped_ns)
        for finding in moves
        if finding.events_ns is not None and finding.move.stopped_ns is not None
    ]
    if off:
        yield (
            f"QEMU's events and the guest's clock agree on the blackout within {_ms(float(np.median(off)) / 1e9)} "
            f"(median; at most {_ms(max(off) / 1e9)})."
        )
    spoilt = [finding for finding in moves if finding.move.is_spoilt]
    if spoilt:
        yield f"After {units.counted(len(spoilt), 'move')} the guest's memory or disk was not what it had been."
    checked = [finding.move for finding in moves if finding.move.checked_pages is not None]
    if checked:
        last = checked[-1]
        where = "memory and disk" if evidence.plan.guest.root is not None else "memory"
        yield f"The guest checked {last.checked_pages} pages of its {where}; {last.wrong_pages or 'none'} lost a write."
