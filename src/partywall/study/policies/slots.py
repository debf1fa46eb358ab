"""Carries out a study of policies in a lab for each link.

In each block of a part, every way gets one slot at each load, in random order. Senders and guard start with the slot.
Delivered traffic is read at the sinks' ports from the kernel's counters, not from the guard.

Where losses count, a sender's socket never fills, so that it never waits, and queues or hooks drop what is too much.
Its datagrams are counted from the first one until all queues are empty, so none that still waits counts as lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeVar

from partywall.core.design import rounds
from partywall.core.document.formats import validated
from partywall.errors import TrialError
from partywall.events import Doing, Emit, Left
from partywall.guard.measure.flatten import flatten
from partywall.guard.measure.resolve import resolve
from partywall.guard.measure.run import keep
from partywall.sandbox.lab import Counted, Lab, lab, sender
from partywall.study.policies.model import Cell, Extent, Part, Rate, Study, Turn
from partywall.study.promises.lab import Class, htb

SETTLE_S = 0.8
"""Time until the guard's division is steady: a total that is split by use changes by a tenth a round."""
START_S = 0.4
"""Time to start senders and guard, for the estimate of the time left."""
LAB_S = 1.5
"""Time to create a lab, for the estimate of the time left."""

SEND_BUFFER_BYTES = 64 << 20
"""Of each socket where losses count: more than all queues of the lab hold."""
QUIET_S, DRAIN_S, DRAINED_WITHIN_S = 0.1, 0.2, 10.0
"""Queues are empty if nothing arrives for this time; what it takes, for the estimate of the time left; and at most."""

Slot = tuple[str, str, int, float | None]
"""(part, way, block, load)."""


def load(content: bytes, file: str) -> Study:
    """Reads a study file. UsageError with all mistakes in it."""
    return validated(Study, content, file, "see scenarios/papers/dba-vm-shares.yaml")


def slot_of(cell: Cell) -> Slot:
    return cell.part, cell.way, cell.block, cell.load


def plan(study: Study, extent: Extent, seed: int, done: Collection[Slot] = ()) -> dict[str, list[Slot]]:
    """The slots of each part in order. A block that is not complete is measured again as a whole."""
    order = {}
    for name, part in study.parts.items():
        slots = [(name, way, block, load) for block, (way, load) in rounds(part.turns, extent.blocks, seed, name)]
        lacking = {slot[2] for slot in slots if slot not in done}
        order[name] = [slot for slot in slots if slot[2] in lacking]
    return order


def duration_s(study: Study, extent: Extent, done: Collection[Slot] = ()) -> float:
    """Time for the remaining slots."""
    left = plan(study, extent, 0, done)
    return sum(
        LAB_S * len(study.parts[name].by_link) + len(slots) * _spent_s(study.parts[name], extent)
        for name, slots in left.items()
        if slots
    )


def carry_out(
    study: Study,
    extent: Extent,
    seed: int,
    take: Callable[[Cell], None],
    emit: Emit,
    done: Collection[Slot] = (),
) -> None:
    """Measures all blocks that are not done. take: receives each slot."""
    left_s = duration_s(study, extent, done)
    for name, slots in plan(study, extent, seed, done).items():
        if not slots:
            continue
        emit(Doing(f"{name}: making vifs, links and sinks"))
        emit(Left(left_s))
        part = study.parts[name]
        with _labs(part) as made:
            left_s -= LAB_S * len(made)
            for _, way, block, load in slots:
                at = "" if load is None else f" at {load:g}"
                emit(Doing(f"{name}, {way}{at}, block {block + 1} of {extent.blocks}"))
                emit(Left(left_s))
                streams = _slot(made, part, (way, load), extent)
                take(Cell(part=name, way=way, block=block, load=load, streams=streams))
                left_s -= _spent_s(part, extent)


def _spent_s(part: Part, extent: Extent) -> float:
    return START_S + SETTLE_S + extent.slot / 1e9 + (DRAIN_S if part.loads else 0.0)


@contextlib.contextmanager
def _labs(part: Part) -> Iterator[Mapping[str, Lab]]:
    """A lab for each link, by its name, with a tenant for each of the link's vifs and a sink for each stream."""
    with contextlib.ExitStack() as stack:
        labs = {}
        for number, (link, bps) in enumerate(part.by_link.items(), start=1):
            streams = {name: stream for name, stream in part.streams.items() if part.link_of(stream.vif) == link}
            vifs = [name for name in part.vifs if part.link_of(name) == link]
            labs[link] = stack.enter_context(lab(list(dict.fromkeys([*vifs, *streams])), f"{bps}bit", number=number))
            for name, stream in streams.items():
                if name != stream.vif:
                    labs[link].reach(stream.vif, name)
        yield labs


class Reading(NamedTuple):
    """What arrived at the sinks, by link; and the datagrams that each stream's vif handed over, if losses count."""

    arrived: Mapping[str, Counted]
    handed: Mapping[str, int]


def _read(labs: Mapping[str, Lab], part: Part) -> Reading:
    vifs = {name: stream.vif for name, stream in part.streams.items() if part.loads}
    handed = {name: labs[part.link_of(vif)].handed(vif) for name, vif in vifs.items()}
    return Reading({link: made.read() for link, made in labs.items()}, handed)


def _slot(labs: Mapping[str, Lab], part: Part, turn: Turn, extent: Extent) -> dict[str, Rate]:
    """The delivered traffic of each stream of a way, and its losses if they count."""
    way, load = turn
    with _guarded(labs, part, way):
        begun = _read(labs, part)
        with _sending(labs, part, way, load):
            time.sleep(SETTLE_S)
            before = _read(labs, part)
            time.sleep(extent.slot / 1e9)
            after = _read(labs, part)
        ended = _drained(labs, part) if part.loads else after
    rates = {link: before.arrived[link].rates(arrived) for link, arrived in after.arrived.items()}
    got = {name: Rate(bps=bps, pps=pps) for name, (bps, pps) in _each(part, way, rates).items()}
    if not part.loads:
        return got
    lost = {name: _lost(part, name, begun, ended) for name in got}
    handed = {name: (after.handed[name] - before.handed[name]) * 1e9 / extent.slot for name in got}
    return {
        name: rate.model_copy(update={"lost": lost[name], "handed_pps": handed[name]}) for name, rate in got.items()
    }


T = TypeVar("T")


def _each(part: Part, way: str, by_link: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """What was read of each stream of a way."""
    return {name: by_link[part.link_of(part.streams[name].vif)][name] for name in part.ways[way].sends}


@contextlib.contextmanager
def _sending(labs: Mapping[str, Lab], part: Part, way: str, load: float | None) -> Iterator[None]:
    """The senders of a way. The one whose load varies starts last and ends first, so it never sends alone."""
    varied = part.loads.stream if part.loads else None
    with contextlib.ExitStack() as stack:
        for name in sorted(part.ways[way].sends, key=lambda name: name == varied):
            stream = part.streams[name]
            sending = sender(
                labs[part.link_of(stream.vif)],
                stream.vif,
                stream.frame_bytes,
                part.offered(name, load),
                sink=name,
                port=stream.port,
                send_buffer_bytes=SEND_BUFFER_BYTES if part.loads else None,
            )
            stack.enter_context(sending)
        yield


def _drained(labs: Mapping[str, Lab], part: Part) -> Reading:
    """Waits until nothing arrives any more. TrialError if that takes too long."""
    deadline, reading = time.monotonic() + DRAINED_WITHIN_S, _read(labs, part)
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        earlier, reading = reading, _read(labs, part)
        if all(earlier.arrived[link].packets == arrived.packets for link, arrived in reading.arrived.items()):
            return reading
    raise TrialError(f"packets still arrive {DRAINED_WITHIN_S:g} s after all senders ended; leave the host less to do")


def _lost(part: Part, name: str, begun: Reading, ended: Reading) -> float | None:
    """The share of a stream's datagrams that never arrived; None if it sent nothing."""
    link = part.link_of(part.streams[name].vif)
    arrived = ended.arrived[link].packets[name] - begun.arrived[link].packets[name]
    handed = ended.handed[name] - begun.handed[name]
    return max(0.0, 1 - arrived / handed) if handed else None


@contextlib.contextmanager
def _guarded(labs: Mapping[str, Lab], part: Part, way: str) -> Iterator[None]:
    """The guard or tc as a way says."""
    places = {name: {"interface": "eth0", "namespace": labs[part.link_of(name)].namespace(name)} for name in part.vifs}
    run = next(iter(labs.values())).label.run
    policy = part.policy_of(way, f"lab-{run}", places)
    if policy is None:
        yield
    elif part.ways[way].tc:
        (made,), (link,) = labs.values(), part.by_link.values()
        classes = {name: Class(vif.send.guarantee or 0, vif.send.ceiling or link) for name, vif in policy.vifs.items()}
        with htb(made, link, classes):
            yield
    else:
        with keep(flatten(policy, resolve(policy))):
            yield
