"""The treatments of a trial, and how long the slot and the guard of each must be.

A slot is as long as what is measured in it needs: CPU limits act by periods, neighbours on one CPU take turns, commands
report seldom, disks settle slowly.
"""

from __future__ import annotations

from collections.abc import Iterator

from partywall.agent.catalogue import Catalogue
from partywall.model import factors
from partywall.model.finding import BASELINE
from partywall.model.plan import Limits, Treatment
from partywall.model.scenario import Aggressor, Sandbox, Scenario, Timing, Victim, Workload
from partywall.model.weights import reserving
from partywall.pace.rhythm import ceil_to

NULL = "null"
# Backends whose sandboxes are virtual machines.
MACHINES = ("qemu", "libvirt")

# The kernel enforces CPU limits by periods of 100 ms: a slot must hold several, and the one it begins in does not
# count. Who has used up its share of a period only sees at the next one that it was switched off.
LIMIT_PERIOD_NS = 100_000_000
LIMIT_SLOT_NS = 5 * LIMIT_PERIOD_NS
LIMIT_GUARD_NS = 2 * LIMIT_PERIOD_NS
# A command's own pace of reporting is not known beforehand; slots that prove too short for it are lengthened.
COMMAND_SETTLE_NS = 50_000_000
COMMAND_SLOT_NS = 100_000_000
# Requests under way at a switch are answered in this time, of services that a host's neighbours can hurt.
LOAD_SETTLE_NS = 10_000_000
LOAD_SLOT_NS = 20_000_000
# A balloon fills at some hundred megabytes a second, also where the guest is emulated.
BALLOON_SLOT_NS = 1_000_000_000
BALLOON_GUARD_NS = 3_000_000_000
# Neighbours on one CPU take turns of some milliseconds, and one that just woke goes first: a slot must hold many turns.
TURNS_SLOT_NS = 60_000_000
TURNS_GUARD_NS = 10_000_000
# A guest's kernel hands out its CPU by ticks of 4 ms and is itself scheduled: its work is smooth over many of them.
GUEST_SLOT_NS = 100_000_000
GUEST_GUARD_NS = 10_000_000


def treatments(
    scenario: Scenario,
    victim: Victim,
    live: factors.Factors,
    catalogue: Catalogue,
    shared: frozenset[str] = frozenset(),
) -> Iterator[Treatment]:
    """What is compared in a block of a trial of `victim`, the baseline first.

    live: the factors switched by slot that concern it. shared: the aggressors on the victim's own CPUs.
    """
    timing = _timing(scenario, victim)
    base = _settle(victim, victim.probe, catalogue)
    guard_ns = max(timing.guard, base[0])
    yield Treatment(id=BASELINE, label="baseline", role="baseline", guard_ns=guard_ns, slot_ns=timing.slot)
    yield Treatment(id=NULL, label="null", role="null", intensities={NULL: 1.0}, guard_ns=guard_ns, slot_ns=timing.slot)
    pressed = list(_pressed(scenario.aggressors, timing, guard_ns, catalogue, shared))
    yield from pressed
    for levels in factors.combinations(live):
        if levels:
            yield from _limited(levels, pressed, timing, guard_ns)


def _timing(scenario: Scenario, victim: Victim) -> Timing:
    """The least slot and guard of every treatment of the trial."""
    slot_ns, guard_ns = scenario.timing.slot, scenario.timing.guard
    if victim.command is not None:
        slot_ns = max(slot_ns, COMMAND_SLOT_NS)
    if any(workload.sandbox.backend in MACHINES for workload in (victim, *scenario.aggressors.values())):
        slot_ns, guard_ns = max(slot_ns, GUEST_SLOT_NS), max(guard_ns, GUEST_GUARD_NS)
    if victim.load is not None:
        slot_ns = max(slot_ns, LOAD_SLOT_NS)
    if victim.sandbox.limited:
        slot_ns, guard_ns = _periods(slot_ns), max(guard_ns, LIMIT_GUARD_NS)
    return scenario.timing.model_copy(update={"slot": slot_ns, "guard": guard_ns})


def _periods(slot_ns: int) -> int:
    """A slot of whole periods of a limit, and of several."""
    return ceil_to(max(slot_ns, LIMIT_SLOT_NS), LIMIT_PERIOD_NS)


def _pressed(
    aggressors: dict[str, Aggressor], timing: Timing, guard_ns: int, catalogue: Catalogue, shared: frozenset[str]
) -> Iterator[Treatment]:
    for name, aggressor in aggressors.items():
        everyone = {other: aggressors[other] for other in (*aggressor.together, name)}
        settling = [_settle(one, one.stressor, catalogue) for one in everyone.values()]
        rise_ns, release_ns = (max(times) for times in zip(*settling, strict=True))
        slot_ns = timing.slot
        if any(one.command is not None for one in everyone.values()):
            slot_ns = max(slot_ns, COMMAND_SLOT_NS)
        if shared & everyone.keys():
            slot_ns, rise_ns = max(slot_ns, TURNS_SLOT_NS), max(rise_ns, TURNS_GUARD_NS)
        if any(one.sandbox.limited for one in everyone.values()):
            slot_ns, rise_ns = _periods(slot_ns), max(rise_ns, LIMIT_GUARD_NS)
            release_ns = max(release_ns, LIMIT_PERIOD_NS)
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


def _limited(levels: factors.Levels, pressed: list[Treatment], timing: Timing, guard_ns: int) -> Iterator[Treatment]:
    """The victim under live limits: alone, beside the null aggressor (an A/A check of its own), and with each other."""
    # Factors' paths end in the setting's name, or in braces with several; a checked scenario has no other live factors.
    named = {path.rpartition(".")[2]: level for path, level in levels.items()}
    settings = {key.rpartition(".")[2]: level for path, level in levels.items() for key in factors.spelled(path)}
    asked = Sandbox.model_validate(settings)
    promised = asked.cpu_reservation
    weight = asked.cpu_weight if promised is None else reserving(promised)
    limits = Limits(cpu_limit=asked.cpu_limit, cpu_weight=weight, memory=asked.memory)
    text = ",".join(f"{key.strip('{}').replace(',', '=')}={value}" for key, value in named.items())
    slot_ns, switch_ns = (LIMIT_SLOT_NS, LIMIT_GUARD_NS)
    if asked.memory is not None:
        slot_ns, switch_ns = (BALLOON_SLOT_NS, BALLOON_GUARD_NS)
    common = {"victim_limits": limits, "slot_ns": ceil_to(max(timing.slot, slot_ns), LIMIT_PERIOD_NS)}
    guard_ns = max(guard_ns, switch_ns)
    yield Treatment(id=text, label=text, role="limit", guard_ns=guard_ns, release_ns=switch_ns, **common)
    yield Treatment(
        id=f"{NULL},{text}",
        label=f"{NULL}, {text}",
        role="null",
        intensities={NULL: 1.0},
        guard_ns=guard_ns,
        release_ns=switch_ns,
        **common,
    )
    for treatment in pressed:
        changed = {
            "id": f"{treatment.id},{text}",
            "label": f"{treatment.label}, {text}",
            "guard_ns": max(treatment.guard_ns, guard_ns),
            "release_ns": max(treatment.release_ns, switch_ns),
        }
        yield treatment.model_copy(update=changed | common)


def _settle(workload: Workload, kernel: str | None, catalogue: Catalogue) -> tuple[int, int]:
    """How long its effect takes to come and go: the scenario's word, else the kernel's own."""
    if workload.settle is not None:
        return workload.settle, workload.settle
    if workload.load is not None:
        return LOAD_SETTLE_NS, LOAD_SETTLE_NS
    info = catalogue.kernel(kernel) if kernel else None
    return (info.settle.rise_ns, info.settle.release_ns) if info else (COMMAND_SETTLE_NS, COMMAND_SETTLE_NS)
