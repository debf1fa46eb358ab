"""Carries out a study of policies in a lab.

In each block of a part, every way gets one slot, in random order. Senders and guard start with the slot. Delivered
traffic is read at the sinks' ports from the kernel's counters, not from the guard.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator

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
    return sum(LAB_S + len(slots) * _spent_s(extent) for slots in left.values() if slots)


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
        emit(Doing(f"{name}: making vifs, link and sinks"))
        emit(Left(left_s))
        with _lab(study.parts[name]) as made:
            left_s -= LAB_S
            for way, block in slots:
                emit(Doing(f"{name}, {way}, block {block + 1} of {extent.blocks}"))
                emit(Left(left_s))
                take(Cell(part=name, way=way, block=block, streams=_slot(made, study.parts[name], way, extent)))
                left_s -= _spent_s(extent)


def _spent_s(extent: Extent) -> float:
    return START_S + SETTLE_S + extent.slot / 1e9


@contextlib.contextmanager
def _lab(part: Part) -> Iterator[Lab]:
    """A lab with a tenant for each vif, and a sink for each stream."""
    names = list(dict.fromkeys([*part.vifs, *part.streams]))
    with lab(names, f"{part.link}bit") as made:
        for name, stream in part.streams.items():
            if name != stream.vif:
                made.reach(stream.vif, name)
        yield made


def _slot(made: Lab, part: Part, way: str, extent: Extent) -> dict[str, Rate]:
    """The delivered traffic of each stream of a way."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_guarded(made, part, way))
        for name in part.ways[way].sends:
            stream = part.streams[name]
            stack.enter_context(
                sender(made, stream.vif, stream.frame_bytes, stream.offered, sink=name, port=stream.port)
            )
        time.sleep(SETTLE_S)
        before = made.read()
        time.sleep(extent.slot / 1e9)
        rates = before.rates(made.read())
    return {name: Rate(bps=rates[name][0], pps=rates[name][1]) for name in part.ways[way].sends}


@contextlib.contextmanager
def _guarded(made: Lab, part: Part, way: str) -> Iterator[None]:
    places = {name: {"interface": "eth0", "namespace": made.namespace(name)} for name in part.vifs}
    policy = part.policy_of(way, f"lab-{made.label.run}", places)
    if policy is None:
        yield
        return
    with keep(flatten(policy, resolve(policy))):
        yield
