"""The plan.

Trials come from victims and levels, treatments from aggressors, intensities and live limits, time from the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from partywall.agent.catalogue import Catalogue
from partywall.errors import Problem, UsageError
from partywall.model import factors
from partywall.model.finding import BASELINE
from partywall.model.plan import Limits, Plan, Treatment, Trial
from partywall.model.scenario import Aggressor, Sandbox, Scenario, Timing, Victim, Workload
from partywall.plan.placement import Topology, aggressor_cpus, victim_cpus
from partywall.plan.timing import ceil_to
from partywall.plan.weights import reserving

NULL = "null"
# Backends whose sandboxes are virtual machines.
MACHINES = ("qemu", "libvirt")

# A visit shorter than this is mostly set-up; a run of many short visits compares hosts that hardly differ.
VISIT_MIN_NS = 12_000_000_000
ROUNDS_MAX = 4
# Seen on a two-core machine: sandboxes start within 0.1 s, calibration takes 0.15 s an aggressor,
# files and pages the rest.
SET_UP_NS = 1_000_000_000
SET_UP_PER_AGGRESSOR_NS = 250_000_000
# The kernel enforces CPU limits by periods of 100 ms: a slot must hold several,
# and the one it begins in does not count.
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
# Seen on a two-core machine, where guests are emulated and come up side by side.
SET_UP_PER_GUEST_NS = 1_800_000_000


def make(
    scenario: Scenario,
    topology: Topology,
    catalogue: Catalogue,
    seed: int | None = None,
    elsewhere: Mapping[str, Topology] = MappingProxyType({}),
) -> Plan:
    """The plan of a checked scenario on a host. UsageError, all problems at once, if the host's CPUs do not suffice.

    elsewhere: the topologies of the other machines that sandboxes run on, by `Sandbox.machine`.
    """
    topologies = {**elsewhere, "": topology}
    live, _ = factors.split(scenario)
    cases = factors.trials(scenario)
    problems: list[Problem] = []
    trials: list[Trial] = []
    for number, (victim, levels, applied) in enumerate(cases):
        try:
            trials.append(_trial(number, victim, levels, applied, live, topologies, catalogue))
        except UsageError as error:
            problems += [p for p in error.problems if p not in problems]
    if problems:
        raise UsageError(*problems)
    rounds = _rounds(scenario.budget, len(trials))
    set_up_ns = sum(map(_set_up_ns, trials)) * rounds
    return Plan(
        scenario=scenario,
        seed=scenario.seed if seed is None else seed,
        trials=tuple(trials),
        rounds=rounds,
        timing=scenario.timing,
        estimate_ns=scenario.budget + set_up_ns,
    )


def _set_up_ns(trial: Trial) -> int:
    """What a visit spends before it measures. Beside guests the null aggressor is one more."""
    guests = sum(sandbox.backend in MACHINES for sandbox in trial.sandboxes)
    machines = SET_UP_PER_GUEST_NS * (guests + 1) if guests else 0
    return SET_UP_NS + SET_UP_PER_AGGRESSOR_NS * len(trial.aggressors) + machines


def _rounds(budget_ns: int, trials: int) -> int:
    return max(1, min(ROUNDS_MAX, budget_ns // (trials * VISIT_MIN_NS)))


def _trial(
    number: int,
    name: str,
    levels: factors.Levels,
    scenario: Scenario,
    live: factors.Factors,
    topologies: Mapping[str, Topology],
    catalogue: Catalogue,
) -> Trial:
    concerned = factors.concerning(scenario, live, name)
    victim = _roomy(scenario.victims[name], concerned)
    machine = victim.sandbox.machine
    own = victim_cpus(victim.sandbox.cpus, topologies[machine], f"victims.{name}.sandbox.cpus")
    placed = {
        other: _aggressor_cpus(aggressor.sandbox, own, machine, topologies, f"aggressors.{other}.sandbox.cpus")
        for other, aggressor in scenario.aggressors.items()
    }
    beside = {other for other, aggressor in scenario.aggressors.items() if aggressor.sandbox.machine == machine}
    shared = frozenset(other for other in beside if set(placed[other]) & set(own))
    return Trial(
        id=f"{number:03d}-{name}",
        victim_name=name,
        victim=victim,
        victim_cpus=own,
        aggressors=scenario.aggressors,
        aggressor_cpus=placed,
        levels=levels,
        treatments=tuple(_treatments(scenario, victim, concerned, catalogue, shared)),
        aside_cpus=tuple(cpu for cpu in topologies[machine].cpus if cpu not in own),
    )


def _aggressor_cpus(
    sandbox: Sandbox, victim: tuple[int, ...], machine: str, topologies: Mapping[str, Topology], key: str
) -> tuple[int, ...]:
    """On another machine than the victim's there is no CPU that is the victim's, or nearest to it."""
    topology = topologies[sandbox.machine]
    if sandbox.machine == machine:
        return aggressor_cpus(sandbox.cpus, victim, topology, key)
    if sandbox.cpus in ("same", "next"):
        message = f"cpus: {sandbox.cpus} is relative to the victim, which is on another machine"
        raise UsageError(Problem(message, "give auto or a list such as 0,2-3", key=key))
    return victim_cpus(sandbox.cpus, topology, key)


def _roomy(victim: Victim, live: factors.Factors) -> Victim:
    """A victim whose memory is switched is made with the most of it."""
    levels = factors.memory_levels(victim, live)
    if not levels:
        return victim
    sandbox = victim.sandbox.model_copy(update={"memory": max(levels)})
    return victim.model_copy(update={"sandbox": sandbox})


def _treatments(
    scenario: Scenario, victim: Victim, live: factors.Factors, catalogue: Catalogue, shared: frozenset[str]
) -> Iterator[Treatment]:
    """shared: the aggressors on the victim's own CPUs."""
    timing = scenario.timing
    if victim.command is not None:
        timing = timing.model_copy(update={"slot": max(timing.slot, COMMAND_SLOT_NS)})
    if any(workload.sandbox.backend in MACHINES for workload in (victim, *scenario.aggressors.values())):
        smooth = {"slot": max(timing.slot, GUEST_SLOT_NS), "guard": max(timing.guard, GUEST_GUARD_NS)}
        timing = timing.model_copy(update=smooth)
    if victim.load is not None:
        timing = timing.model_copy(update={"slot": max(timing.slot, LOAD_SLOT_NS)})
    base = _settle(victim, victim.probe, catalogue)
    guard_ns = max(timing.guard, base[0])
    yield Treatment(id=BASELINE, label="baseline", role="baseline", guard_ns=guard_ns, slot_ns=timing.slot)
    yield Treatment(id=NULL, label="null", role="null", intensities={NULL: 1.0}, guard_ns=guard_ns, slot_ns=timing.slot)
    pressed = list(_pressed(scenario.aggressors, timing, guard_ns, catalogue, shared))
    yield from pressed
    for levels in factors.combinations(live):
        if levels:
            yield from _limited(levels, pressed, timing, guard_ns)


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
