"""Divides the time in which a group was stalled among those it waited for, by what each of them used. Pure.

A group waits for a resource while others use it. So each interval's stalled time is divided in proportion to use:

* What its own limit stopped is `itself`, and comes first. A neighbour never gets any of that.
* While none of its tasks ran (PSI `full`), only others used the CPU. They share that part by their use.
* The rest is shared by everybody's use, the group's own included: two tasks of a group wait for each other.
* What no watched group used is the `host`: the kernel's own threads, interrupts, stolen time, other processes.
* `unknown` is what cannot be divided, because use was not counted, or because a limit of the group's own may be the
  cause and the kernel does not say how long it stopped the group.

The parts of a victim add up to its stalled time, exactly. Limits: this is an attribution by use, and no proof. It
supposes that those who use a resource share it evenly in the interval, and it does not see priorities, caches, memory
bandwidth or locks. `partywall blame` is the experiment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

ITSELF, HOST, UNKNOWN, OTHER = "itself", "host", "unknown", "other"
"""Suspects that are no group. OTHER: all groups beyond the largest."""
NO_SUSPECT = frozenset({ITSELF, HOST, UNKNOWN})
TOP = 3
"""The most suspects that a victim's interval names."""

Amounts = Mapping[str, float]
"""What was used, by the place: a set of CPUs, a disk. The unit is that of the resource."""


class Share(NamedTuple):
    """What one group waited for and used of one resource in one interval. Times in ns.

    stalled_ns: some task of it waited. all_ns: the part of it in which none of its tasks ran; 0 if that is unknown or
    says nothing. own_ns: how long its own limits stopped it. used: by place, with all places that it may use; None if
    it is not counted. is_limited: a limit of its own may have stopped it, and it is not counted how long.
    """

    stalled_ns: int
    all_ns: int = 0
    own_ns: int = 0
    used: Amounts | None = None
    is_limited: bool = False


class Pair(NamedTuple):
    """How long a victim waited because of a suspect."""

    victim: str
    suspect: str
    stalled_ns: int


class _Field(NamedTuple):
    """Who used some places: the sum, the host's part, and the largest groups."""

    total: float
    host: float
    largest: Sequence[tuple[float, str]]


def divided(shares: Mapping[str, Share], host: Amounts) -> Iterator[Pair]:
    """The pairs of all victims of one resource and interval. host: what no watched group used, by place."""
    fields: dict[frozenset[str], _Field] = {}
    for victim, share in shares.items():
        if share.stalled_ns <= 0:
            continue
        places = frozenset(share.used or ())
        if places not in fields:
            fields[places] = _field(places, shares, host)
        for suspect, stalled_ns in _parts(victim, share, fields[places]).items():
            yield Pair(victim, suspect, stalled_ns)


def _field(places: frozenset[str], shares: Mapping[str, Share], host: Amounts) -> _Field:
    """Without places, all of them: a group that completed no request waits for any disk."""
    every = [(_amount(share.used, places), name) for name, share in shares.items() if share.used]
    by_host = _amount(host, places)
    # One more than is named, because the victim may be among them.
    return _Field(by_host + sum(each[0] for each in every), by_host, heapq.nlargest(TOP + 1, every))


def _amount(used: Amounts, places: frozenset[str]) -> float:
    return sum(amount for place, amount in used.items() if not places or place in places)


def _parts(victim: str, share: Share, field: _Field) -> dict[str, int]:
    own_ns = min(max(0, share.own_ns), share.stalled_ns)
    left_ns = share.stalled_ns - own_ns
    parts = {ITSELF: own_ns} if own_ns else {}
    if not left_ns:
        return parts
    weights = None if share.used is None or share.is_limited else _weights(victim, share, left_ns, field)
    for suspect, stalled_ns in _whole(weights or {UNKNOWN: 1.0}, left_ns):
        parts[suspect] = parts.get(suspect, 0) + stalled_ns
    return parts


def _weights(victim: str, share: Share, left_ns: int, field: _Field) -> dict[str, float] | None:
    """The parts of what its own limit does not explain; None if nobody used the resource."""
    own = sum((share.used or {}).values())
    others = max(0.0, field.total - own)
    alone_ns = min(left_ns, max(0, share.all_ns - share.own_ns)) if others else 0
    shared_ns = left_ns - alone_ns
    if field.total <= 0:
        return None
    each = (alone_ns / others if others else 0.0) + shared_ns / field.total
    named = [(amount, name) for amount, name in field.largest if name != victim and amount > 0][:TOP]
    rest = others - field.host - sum(amount for amount, _ in named)
    weights = {name: amount * each for amount, name in named}
    weights |= {ITSELF: own * shared_ns / field.total, HOST: field.host * each, OTHER: max(0.0, rest) * each}
    return weights


def _whole(weights: Mapping[str, float], total_ns: int) -> Iterator[tuple[str, int]]:
    """Whole numbers in proportion to weights, whose sum is the total."""
    total, done, given = sum(weights.values()), 0.0, 0
    for name, weight in weights.items():
        done += weight
        # The last one gets what rounding left.
        upto = min(total_ns, round(total_ns * done / total)) if done < total else total_ns
        if upto > given:
            yield name, upto - given
        given = upto
