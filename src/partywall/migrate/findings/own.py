"""What predictions of a guest of the user's own rest on: its earlier moves, and assumptions where there are none. Pure.

Nothing is tried out on such a guest. The costs that do not depend on its work are those of its earlier moves. What
these do not tell is assumed, widely: KVM and emulation differ by ten times in some of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from partywall import units
from partywall.migrate.document import DirtyCurve, MigrationPlan, Move, MoveFinding, Survey
from partywall.migrate.findings.prediction import FEWEST_LOOKS, Fixed, rate_window, rates_seen

LINK_SHARES = (0.80, 0.88, 0.92, 0.95, 0.97)
"""Of a link's stated rate, what a move gets: headers of TCP, Ethernet and QEMU take 4 to 6 %, other traffic more."""
VARIES, RATE_VARIES = 0.15, 0.03
"""By how much costs and the rate vary from move to move, as a share, where one or two moves have shown them."""
OFTEN = 0.1
"""Of the samples that the best known window has, the share that any other needs."""
ENOUGH = 3
"""Moves that show how much costs vary."""
MIB = 1 << 20


def assumed(link: float, memory: float) -> Fixed:
    """Costs of a move of which nothing is known but its link, in bytes/s, and the bytes of its guest.

    The upper ends of pauses and times are those of the emulated guests that predictions were checked with
    (docs/benchmarks.md, `migrate_predict.py`). The lower ends are meant for KVM, and were not measured.
    """
    return Fixed(
        setup_s=(0.01, 0.05, 0.10, 0.15, 0.20),
        syncs_s=tuple(ms / 1e3 * memory / (256 * MIB) for ms in (0.0, 3.0, 6.0)),
        rates=tuple(share * link for share in LINK_SHARES),
        empty_rates=(0.8e9, 1.2e9, 2e9, 4e9, 8e9),
        downtime_s=(0.002, 0.01, 0.02, 0.04, 0.08),
        waited_s=(0.01, 0.04, 0.08, 0.12, 0.20),
        looked=(0.9, 0.95, 1.0, 1.05),
        # Each page has a header, and devices have a state.
        extra_bytes=tuple(memory * share for share in (0.002, 0.004, 0.006, 0.010)),
        start_s=(0.01, 0.05, 0.10, 0.15, 0.20),
    )


def fixed_costs(moves: Sequence[MoveFinding], link: float | None, memory: float) -> Fixed | None:
    """Costs that a guest's earlier moves showed; what they do not tell is assumed. None if nothing tells the rate.

    link: its stated rate in bytes/s; memory: bytes of the guest.
    """
    usable = [(finding, rate) for finding in moves if (rate := _rate(finding.move)) is not None]
    if not usable:
        return None if link is None else assumed(link, memory)
    rates = [rate for _, rate in usable]
    fallback = assumed(fmean(rates), memory)
    downtimes = [(finding.move.downtime_ns or 0) / 1e9 for finding, _ in usable]
    seen = [each / rate for finding, rate in usable for each in rates_seen(finding.move, rate)]
    waited = [
        max(0.0, finding.values["clients_s"] - downtime)
        for (finding, _), downtime in zip(usable, downtimes, strict=True)
        if "clients_s" in finding.values
    ]
    started = [finding.values["start_s"] for finding, _ in usable if "start_s" in finding.values]
    return Fixed(
        # All that is neither sending nor the downtime, so that the parts add up to the whole.
        setup_s=_varied(
            [
                max(0.0, (finding.move.total_ns or 0) / 1e9 - downtime - _before(finding.move) / rate)
                for (finding, rate), downtime in zip(usable, downtimes, strict=True)
            ]
        ),
        # The rate is that of the whole memory: zero pages and looks at the bitmap are in it.
        syncs_s=(0.0,),
        rates=_varied(rates, RATE_VARIES),
        empty_rates=(math.inf,),
        downtime_s=_varied(
            [
                max(0.0, downtime - _left(finding.move) / rate)
                for (finding, rate), downtime in zip(usable, downtimes, strict=True)
            ]
        ),
        waited_s=_varied(waited) or fallback.waited_s,
        looked=tuple(seen) if len(seen) > 1 else fallback.looked,
        extra_bytes=fallback.extra_bytes,
        start_s=_varied(started) or fallback.start_s,
    )


def _rate(move: Move) -> float | None:
    """Bytes/s from the first to the last look before the guest stopped. Sending goes in bursts: whole passes count."""
    looks = [look for look in move.progress if move.paused_ns is None or look.at_ns <= move.paused_ns]
    if len(looks) < FEWEST_LOOKS or looks[-1].sent <= looks[0].sent:
        return None
    return (looks[-1].sent - looks[0].sent) / ((looks[-1].at_ns - looks[0].at_ns) / 1e9)


def _left(move: Move) -> float:
    """Bytes that were sent while the guest stood still. libvirt does not tell them: then as the last look had them."""
    sent = move.memory.get("downtime-bytes")
    if sent is not None:
        return sent
    looks = [look for look in move.progress if move.paused_ns is None or look.at_ns <= move.paused_ns]
    return min(looks[-1].left, move.memory.get("transferred", 0)) if looks else 0


def _before(move: Move) -> float:
    """Bytes that were sent before the guest stopped."""
    return max(0.0, move.memory.get("transferred", 0) - _left(move))


def _varied(values: Sequence[float], share: float = VARIES) -> tuple[float, ...]:
    """Of one or two values it is hardly known how much they vary: at least by a share."""
    if not values or len(values) >= ENOUGH:
        return tuple(values)
    middle = fmean(values)
    reach = max(share * middle, max(values) - middle)
    return (middle - reach, middle, middle + reach)


def copies_disks(plan: MigrationPlan) -> bool:
    """Whether the hypervisor copies disks within the move, in a time that nothing here predicts."""
    return plan.hosts is not None and plan.hosts.a.uri is not None and plan.guest.storage == "moved"


def used(moves: Sequence[MoveFinding]) -> int:
    """How many moves tell the rate of the link."""
    return sum(_rate(finding.move) is not None for finding in moves)


def rests_on(survey: Survey, moves: int, link: int | None) -> str:
    """What a prediction rests on, in words. link: its stated rate in bit/s."""
    if moves:
        costs = f"{units.counted(moves, 'earlier move')} of it"
    else:
        costs = f"the stated link of {units.format_bit_rate(link or 0)}, and on assumed costs of a move"
    return f"what the guest changed in up to {survey.windows_ns[-1] / 1e9:g} s, and on {costs}"


def known_of(survey: Survey) -> str:
    """What is known of the guest, in words."""
    size, content = units.format_bytes(survey.memory), units.format_bytes(survey.content)
    if survey.content_least is None:
        text = f"The guest had {content} of content in {size} of memory"
    else:
        least = units.format_bytes(survey.content_least)
        text = f"The guest had {least} to {content} of content in {size} of memory ({survey.content_from})"
    return f"{text}, and changed {', '.join(_changes(survey))} ({curve_of(survey).how})."


def _changes(survey: Survey) -> list[str]:
    """Bytes that changed in windows, the shortest and the longest."""
    seen = []
    known = _means(survey)
    for place in sorted({min(known), max(known)}) if known else ():
        changed = units.format_bytes(known[place])
        error = f" ± {units.format_bytes(survey.errors[place])}" if survey.errors else ""
        seen.append(f"{changed}{error} in {units.format_duration(survey.windows_ns[place])}")
    return seen


def curve_of(survey: Survey) -> DirtyCurve:
    """How much memory a guest changed, without the windows for which nobody watched long enough."""
    known = _means(survey)
    return DirtyCurve(
        workload=survey.workload,
        memory=survey.memory,
        content=survey.content,
        windows_s=tuple(survey.windows_ns[place] / 1e9 for place in known),
        changed=tuple(known.values()),
        how=survey.changes_from or "all pages were counted",
    )


def _means(survey: Survey) -> dict[int, float]:
    """Mean bytes that changed, by the place of each window that is known."""
    return {
        place: fmean(value for row in survey.changed if (value := row[place]) is not None)
        for place in known_windows(survey)
    }


def known_windows(survey: Survey) -> list[int]:
    """Places of the windows that were watched often enough. A host that is late for most samples misses short ones."""
    counts = [sum(row[place] is not None for row in survey.changed) for place in range(len(survey.windows_ns))]
    return [place for place, count in enumerate(counts) if count and count >= OFTEN * max(counts)]


def unpredictable(survey: Survey) -> str:
    """Why nothing is predicted of a guest of which only its own part is known."""
    curve = curve_of(survey)
    place = rate_window(curve.windows_s)
    rate = curve.changed[place] / curve.windows_s[place]
    return (
        f"The time of a move cannot be predicted, because it is not known what the link carries: add link: {{rate: "
        f"10Gbit/s}}, for example. Over less than {units.format_bit_rate(8 * rate)} a move cannot be expected to end."
    )
