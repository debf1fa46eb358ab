"""Carries out a study of policies in a lab for each link.

In each block of a part, every way gets one slot, in random order. Senders and guard start with the slot. Delivered
traffic is read at the sinks' ports from the kernel's counters, not from the guard.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from partywall.events import Doing, Emit, Left
from partywall.guard.flatten import flatten
from partywall.guard.resolve import resolve
from partywall.guard.run import keep
from partywall.plan import rounds
from partywall.sandbox.lab import Lab, lab, sender
from partywall.scenario.documents import validated
from partywall.study.policies.model import Cell, Extent, Part, Rate, Study

SETTLE_S = 0.8
"""Time until the guard's division is steady: a total that is split by use changes by a tenth a round."""
START_S = 0.4
"""Time to start senders and guard, for the estimate of the time left."""
LAB_S = 1.5
"""Time to create a lab, for the estimate of the time left."""

Slot = tuple[str, str, int]
"""(part, way, block)."""


def load(content: bytes, file: str) -> Study:
    """Reads a study file. UsageError with all mistakes in it."""
    return validated(Study, content, file, "see scenarios/papers/dba-vm-shares.yaml")


def slot_of(cell: Cell) -> Slot:
    return cell.part, cell.way, cell.block


def plan(study: Study, extent: Extent, seed: int, done: Collection[Slot] = ()) -> dict[str, list[tuple[str, int]]]:
    """By part: (way, block) in order. A block that is not complete is measured again as a whole."""
    order = {}
    for name, part in study.parts.items():
        slots = [(way, block) for block, way in rounds(list(part.ways), extent.blocks, seed, name)]
        lacking = {block for way, block in slots if (name, way, block) not in done}
        order[name] = [slot for slot in slots if slot[1] in lacking]
    return order


def duration_s(study: Study, extent: Extent, done: Collection[Slot] = ()) -> float:
    """Time for the remaining slots."""
    left = plan(study, extent, 0, done)
    return sum(
        LAB_S * len(study.parts[name].by_link) + len(slots) * _spent_s(extent) for name, slots in left.items() if slots
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
        with _labs(study.parts[name]) as made:
            left_s -= LAB_S * len(made)
            for way, block in slots:
                emit(Doing(f"{name}, {way}, block {block + 1} of {extent.blocks}"))
                emit(Left(left_s))
                take(Cell(part=name, way=way, block=block, streams=_slot(made, study.parts[name], way, extent)))
                left_s -= _spent_s(extent)


def _spent_s(extent: Extent) -> float:
    return START_S + SETTLE_S + extent.slot / 1e9


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


def _slot(labs: Mapping[str, Lab], part: Part, way: str, extent: Extent) -> dict[str, Rate]:
    """The delivered traffic of each stream of a way."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_guarded(labs, part, way))
        for name in part.ways[way].sends:
            stream = part.streams[name]
            made = labs[part.link_of(stream.vif)]
            stack.enter_context(
                sender(made, stream.vif, stream.frame_bytes, stream.offered, sink=name, port=stream.port)
            )
        time.sleep(SETTLE_S)
        before = {link: made.read() for link, made in labs.items()}
        time.sleep(extent.slot / 1e9)
        rates = {link: before[link].rates(made.read()) for link, made in labs.items()}
    got = {name: rates[part.link_of(part.streams[name].vif)][name] for name in part.ways[way].sends}
    return {name: Rate(bps=bps, pps=pps) for name, (bps, pps) in got.items()}


@contextlib.contextmanager
def _guarded(labs: Mapping[str, Lab], part: Part, way: str) -> Iterator[None]:
    places = {name: {"interface": "eth0", "namespace": labs[part.link_of(name)].namespace(name)} for name in part.vifs}
    run = next(iter(labs.values())).label.run
    policy = part.policy_of(way, f"lab-{run}", places)
    if policy is None:
        yield
        return
    with keep(flatten(policy, resolve(policy))):
        yield
