"""The treatments of a trial, and the slot and guard time that each needs.

Slots are long enough for what is measured in them: CPU limits act in periods, neighbours on one CPU alternate, commands
report seldom, and disks settle slowly.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from partywall.agent.catalogue import Catalogue
from partywall.run.document import factors
from partywall.run.document.scenario import Aggressor, Scenario, Timing, Victim, Workload
from partywall.run.plan.pace import ceilings
from partywall.run.plan.pace.rhythm import guard_ns, is_quick
from partywall.run.values.finding import BASELINE
from partywall.run.values.plan import Treatment
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.document import Limits, Sandbox
from partywall.sandbox.weights import reserving

NULL = "null"

# The halves of a slot are compared with each other.
SLOT_SLICES = 2
# The reporting interval of a command is not known in advance. Slots that prove too short are lengthened.
COMMAND_SETTLE_NS = 50_000_000
COMMAND_SLOT_NS = 100_000_000
# Requests in flight at a switch are answered within this time, by services that a host's neighbours can affect.
LOAD_SETTLE_NS = 10_000_000
LOAD_SLOT_NS = 20_000_000
# A balloon moves some hundred megabytes a second, also in emulated guests.
BALLOON_SLOT_NS = 1_000_000_000
BALLOON_GUARD_NS = 3_000_000_000
# Neighbours on one CPU alternate every few milliseconds, and one that just woke up runs first. A slot must contain many
# turns.
TURNS_SLOT_NS = 60_000_000
TURNS_GUARD_NS = 10_000_000
# A guest's kernel schedules by ticks of 4 ms and is itself scheduled. Its work is smooth over many ticks.
GUEST_SLOT_NS = 100_000_000
GUEST_GUARD_NS = 10_000_000


def treatments(
    scenario: Scenario,
    victim: Victim,
    live: factors.Factors,
    catalogue: Catalogue,
    shared: frozenset[str] = frozenset(),
) -> Iterator[Treatment]:
    """The treatments compared in a block of a trial of `victim`, the baseline first.

    Short slots are all as long as the guards between them on average, so that about half of their time is measured.
    live: the factors switched by slot that concern it. shared: the aggressors on the victim's own CPUs.
    """
    listed = list(_treatments(scenario, victim, live, catalogue, shared))
    quick = [t for t in listed if is_quick(t, scenario.timing.long)]
    grid_ns = scenario.timing.slice
    slot_ns = guard_ns(quick, grid_ns) // grid_ns * grid_ns if quick else 0
    for treatment in listed:
        yield treatment.model_copy(update={"slot_ns": max(treatment.slot_ns, slot_ns)})


def _treatments(
    scenario: Scenario, victim: Victim, live: factors.Factors, catalogue: Catalogue, shared: frozenset[str]
) -> Iterator[Treatment]:
    held = ceilings.of_victim(victim, catalogue)
    timing = _timing(scenario, victim, held)
    base = _settle(victim, victim.probe, catalogue)
    guard_ns = max(timing.guard, base[0], held.guard_ns)
    yield Treatment(id=BASELINE, label="baseline", role="baseline", guard_ns=guard_ns, slot_ns=timing.slot)
    yield Treatment(id=NULL, label="null", role="null", intensities={NULL: 1.0}, guard_ns=guard_ns, slot_ns=timing.slot)
    pressed = list(_pressed(scenario.aggressors, timing, guard_ns, held, catalogue, shared))
    yield from pressed
    for levels in factors.combinations(live):
        if levels:
            yield from _limited(levels, victim, pressed, timing, guard_ns, catalogue)


def _timing(scenario: Scenario, victim: Victim, held: ceilings.Ceiling) -> Timing:
    """The least slot and guard time of every treatment of the trial. held: the victim's permanent limit."""
    slot_ns, guard_ns = max(scenario.timing.slot, SLOT_SLICES * scenario.timing.slice), scenario.timing.guard
    if victim.command is not None:
        slot_ns = max(slot_ns, COMMAND_SLOT_NS)
    if any(BACKENDS[workload.sandbox.backend].is_machine for workload in (victim, *scenario.aggressors.values())):
        slot_ns, guard_ns = max(slot_ns, GUEST_SLOT_NS), max(guard_ns, GUEST_GUARD_NS)
    if victim.load is not None:
        slot_ns = max(slot_ns, LOAD_SLOT_NS)
    slot_ns = held.slot_ns(max(slot_ns, scenario.timing.long) if held.turn_ns else slot_ns)
    return scenario.timing.model_copy(update={"slot": slot_ns, "guard": guard_ns})


def _pressed(
    aggressors: dict[str, Aggressor],
    timing: Timing,
    guard_ns: int,
    held: ceilings.Ceiling,
    catalogue: Catalogue,
    shared: frozenset[str],
) -> Iterator[Treatment]:
    """held: the victim's ceiling. Neighbours on its CPU change when it has used up its turn."""
    turns_guard_ns = max(TURNS_GUARD_NS, ceilings.GUARD_TURNS * held.turn_ns)
    for name, aggressor in aggressors.items():
        everyone = {other: aggressors[other] for other in (*aggressor.together, name)}
        settling = [_settle(each, each.stressor, catalogue) for each in everyone.values()]
        rise_ns, release_ns = (max(times) for times in zip(*settling, strict=True))
        slot_ns = timing.slot
        if any(each.is_program for each in everyone.values()):
            slot_ns = max(slot_ns, COMMAND_SLOT_NS)
        if shared & everyone.keys():
            slot_ns, rise_ns = max(slot_ns, TURNS_SLOT_NS), max(rise_ns, turns_guard_ns)
            release_ns = max(release_ns, held.release_ns)
        for each in everyone.values():
            own = ceilings.of_sandbox(each, each.stressor, catalogue)
            slot_ns, rise_ns = own.slot_ns(slot_ns), max(rise_ns, own.guard_ns)
            release_ns = max(release_ns, own.release_ns)
        for intensity in aggressor.intensity:
            suffix = "" if len(aggressor.intensity) == 1 and intensity == 1 else f" at {intensity:g}"
            yield Treatment(
                id=f"{name}@{intensity:g}",
                label=f"{name}{suffix}",
                role="aggressor",
                aggressor=name,
                intensities=dict.fromkeys(aggressor.together, 1.0) | {name: intensity},
                guard_ns=max(guard_ns, rise_ns),
                slot_ns=slot_ns,
                release_ns=release_ns,
            )


def _limited(
    levels: factors.Levels,
    victim: Victim,
    pressed: list[Treatment],
    timing: Timing,
    guard_ns: int,
    catalogue: Catalogue,
) -> Iterator[Treatment]:
    """The victim under live limits: alone, beside the null aggressor (its own A/A check), and beside each aggressor."""
    limits = _limits(levels)
    text = ",".join("=".join((*_named(path), str(level))) for path, level in levels.items())
    held = ceilings.ceiling(limits, victim, victim.probe, catalogue)
    slot_ns, switch_ns, release_ns = held.slot_ns(timing.slot), held.guard_ns, ceilings.LIFTED_NS
    if limits.memory is not None:
        slot_ns, switch_ns, release_ns = max(slot_ns, BALLOON_SLOT_NS), BALLOON_GUARD_NS, BALLOON_GUARD_NS
    common = {"victim_limits": limits, "ceiling_rate": held.rate}
    guard_ns = max(guard_ns, switch_ns)
    own = common | {"guard_ns": guard_ns, "slot_ns": slot_ns, "release_ns": release_ns}
    yield Treatment(id=text, label=text, role="limit", **own)
    beside = f"{NULL}, {text}"
    yield Treatment(id=f"{NULL},{text}", label=beside, role="null", intensities={NULL: 1.0}, **own)
    for treatment in pressed:
        changed = {
            "id": f"{treatment.id},{text}",
            "label": f"{treatment.label}, {text}",
            "guard_ns": max(treatment.guard_ns, guard_ns),
            "slot_ns": max(treatment.slot_ns, slot_ns),
            "release_ns": max(treatment.release_ns, release_ns),
        }
        yield treatment.model_copy(update=changed | common)


def _named(path: str) -> Iterator[str]:
    return map(factors.setting, factors.spelled(path))


def _limits(levels: factors.Levels) -> Limits:
    """The limits in these levels. The only live factors of a checked scenario are limits."""
    settings: dict[str, Any] = {}
    for path, level in levels.items():
        for name in _named(path):
            *groups, key = name.split(".")
            functools.reduce(lambda place, group: place.setdefault(group, {}), groups, settings)[key] = level
    sandbox = Sandbox.model_validate(settings)
    promised = sandbox.cpu_reservation
    return Limits(
        cpu_limit=sandbox.cpu_limit,
        cpu_weight=sandbox.cpu_weight if promised is None else reserving(promised),
        memory=sandbox.memory,
        disk=sandbox.throttle,
    )


def _settle(workload: Workload, kernel: str | None, catalogue: Catalogue) -> tuple[int, int]:
    """The time for its effect to set in and to end: from the scenario, or else the kernel's own."""
    if workload.settle is not None:
        return workload.settle, workload.settle
    if workload.load is not None:
        return LOAD_SETTLE_NS, LOAD_SETTLE_NS
    info = catalogue.kernel(kernel) if kernel else None
    return (info.settle.rise_ns, info.settle.release_ns) if info else (COMMAND_SETTLE_NS, COMMAND_SETTLE_NS)
