"""Makes the plan.

Trials come from victims and levels; treatments from aggressors, intensities and live limits; time from the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from partywall.agent.catalogue import Catalogue
from partywall.errors import Failures, Problem, UsageError
from partywall.host.settings.held import HostSettings
from partywall.run.document import factors
from partywall.run.document.scenario import Scenario, Victim
from partywall.run.plan.pace import treatments
from partywall.run.plan.placement import RELATIVE, Topology, aggressor_cpus, listed, victim_cpus
from partywall.run.values.plan import Plan, Trial, meet
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.document import Sandbox
from partywall.units import counted

# A shorter turn would be mostly set-up. With many short turns, hosts compare as more alike than they are.
TURN_MIN_NS = 12_000_000_000
ROUNDS_MAX = 4
# Measured on a two-core machine: sandboxes start within 0.1 s, calibration takes 0.15 s for each aggressor, and files
# and pages take the rest.
SET_UP_NS = 1_000_000_000
SET_UP_PER_AGGRESSOR_NS = 250_000_000
# Measured on a two-core machine with emulated guests that start in parallel.
SET_UP_PER_GUEST_NS = 1_800_000_000


def make(
    scenario: Scenario,
    topology: Topology,
    catalogue: Catalogue,
    seed: int | None = None,
    elsewhere: Mapping[str, Topology] = MappingProxyType({}),
) -> Plan:
    """The plan of a checked scenario on a host. UsageError with all problems at once if the host has too few CPUs.

    elsewhere: the topologies of the scenario's other machines, by `Sandbox.machine`.
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
        warnings=(
            *_notes(scenario),
            *dict.fromkeys(text for trial in trials for text in (*_crowded(trial), *_pressed(trial))),
        ),
    )


def extended(plan: Plan, budget_ns: int, precision: float) -> Plan:
    """The same plan with a larger budget or another precision. Further rounds of turns follow those planned so far."""
    more = budget_ns - plan.scenario.budget
    rounds = plan.rounds + (_rounds(more, len(plan.trials)) if more > 0 else 1)
    scenario = plan.scenario.model_copy(update={"budget": budget_ns, "precision": precision})
    estimate_ns = budget_ns + sum(map(_set_up_ns, plan.trials)) * rounds
    return plan.model_copy(update={"scenario": scenario, "rounds": rounds, "estimate_ns": estimate_ns})


def _notes(scenario: Scenario) -> Iterator[str]:
    """Notes on factors that are compared between trials, although a user may expect them to vary inside blocks."""
    for path in factors.split(scenario)[1]:
        ats = factors.targets(scenario, path)
        if any(at[0] == "victims" and at[2:] == ("sandbox", "memory") for at in ats):
            yield (
                f"{path} changes between trials, not by slot: memory that the kernel reclaims under a lower ceiling "
                "does not return within a slot (a guest of backend: qemu, with no other factor of its backend, returns "
                "memory through its balloon)"
            )


def _crowded(trial: Trial) -> Iterator[str]:
    """Warnings about guests with more virtual CPUs than CPUs, which is seldom intended."""
    placed = {f"victims.{trial.victim_name}": (trial.victim.sandbox, trial.victim_cpus)} | {
        f"aggressors.{name}": (trial.aggressors[name].sandbox, cpus) for name, cpus in trial.aggressor_cpus.items()
    }
    for key, (sandbox, cpus) in placed.items():
        if sandbox.vcpus is not None and sandbox.vcpus > len(cpus):
            yield (
                f"{key}: {sandbox.vcpus} virtual CPUs take turns on {counted(len(cpus), 'CPU')} "
                f"({', '.join(map(str, cpus))}); the time they wait for each other counts as slowness of the guest"
            )


def _pressed(trial: Trial) -> Iterator[str]:
    """Warnings about neighbours on the CPUs of virtual users, whose waits would look like the service's."""
    if trial.victim.load is None:
        return
    for name, cpus in trial.aggressor_cpus.items():
        shared = sorted(set(cpus) & set(trial.victim_cpus))
        if shared and trial.aggressors[name].sandbox.machine == trial.victim.sandbox.machine:
            cpus_text = ", ".join(map(str, shared))
            yield (
                f"victims.{trial.victim_name}: its virtual users share CPU {cpus_text} with aggressor {name}, so what "
                "it costs them counts as the service's; put neighbours on the service's CPUs (docs/recipes.md)"
            )


def _set_up_ns(trial: Trial) -> int:
    """Set-up time before a measurement. Beside guests, there is one more guest, the null aggressor."""
    guests = sum(BACKENDS[sandbox.backend].is_machine for sandbox in trial.sandboxes)
    machines = SET_UP_PER_GUEST_NS * (guests + 1) if guests else 0
    return SET_UP_NS + SET_UP_PER_AGGRESSOR_NS * len(trial.aggressors) + machines


def _rounds(budget_ns: int, trials: int) -> int:
    return max(1, min(ROUNDS_MAX, budget_ns // (trials * TURN_MIN_NS)))


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
    topologies = {**topologies, "": _with_settings(topologies[""], scenario.host)}
    _check_lists({f"victims.{name}": victim.sandbox, **_by_key(scenario)}, topologies)
    own = victim_cpus(victim.sandbox.cpus, topologies[machine], f"victims.{name}.sandbox.cpus")
    placed = {
        other: _aggressor_cpus(aggressor.sandbox, own, machine, topologies, f"aggressors.{other}.sandbox.cpus")
        for other, aggressor in scenario.aggressors.items()
    }
    shared = frozenset(
        other
        for other, aggressor in scenario.aggressors.items()
        if meet(victim.sandbox, own, aggressor.sandbox, placed[other])
    )
    return Trial(
        id=f"{number:03d}-{name}",
        victim_name=name,
        victim=victim,
        victim_cpus=own,
        aggressors=scenario.aggressors,
        aggressor_cpus=placed,
        levels=levels,
        treatments=tuple(treatments(scenario, victim, concerned, catalogue, shared)),
        aside_cpus=tuple(cpu for cpu in topologies[machine].cpus if cpu not in own),
        host=scenario.host,
        offline_cpus=tuple(sorted(topologies[""].offline)),
    )


def _by_key(scenario: Scenario) -> dict[str, Sandbox]:
    return {f"aggressors.{name}": aggressor.sandbox for name, aggressor in scenario.aggressors.items()}


def _with_settings(topology: Topology, host: HostSettings) -> Topology:
    """The topology of this host under the settings of a trial. UsageError if no CPU is left."""
    if host.smt != "off":
        return topology
    left = topology.without_smt()
    if not left.cpus:
        message = f"every CPU that may be used here is offline with smt: off: {', '.join(map(str, topology.cpus))}"
        stay = ", ".join(map(str, sorted({left.offline[cpu] for cpu in topology.cpus})))
        raise UsageError(Problem(message, f"allow some of {stay} (taskset, cpuset), or leave it out", key="host.smt"))
    return left


def _check_lists(sandboxes: Mapping[str, Sandbox], topologies: Mapping[str, Topology]) -> None:
    """UsageError, all problems at once, for lists of CPUs that are not there."""
    failures = Failures()
    for key, sandbox in sandboxes.items():
        for name, spec in (("cpus", sandbox.cpus), ("host_cpus", sandbox.host_cpus)):
            if spec not in (None, *RELATIVE):
                with failures.kept():
                    listed(spec, topologies[sandbox.machine], f"{key}.sandbox.{name}")
    failures.tell()


def _aggressor_cpus(
    sandbox: Sandbox, victim: tuple[int, ...], machine: str, topologies: Mapping[str, Topology], key: str
) -> tuple[int, ...]:
    """CPUs of an aggressor. On another machine than the victim's, no CPU is the victim's or near it."""
    topology = topologies[sandbox.machine]
    if sandbox.machine == machine:
        return aggressor_cpus(sandbox.cpus, victim, topology, key)
    if sandbox.cpus in ("same", "next"):
        message = f"cpus: {sandbox.cpus} is relative to the victim, which is on another machine"
        raise UsageError(Problem(message, "give auto or a list such as 0,2-3", key=key))
    return victim_cpus(sandbox.cpus, topology, key)


def _roomy(victim: Victim, live: factors.Factors) -> Victim:
    """A victim whose memory limit is switched is created with the highest one."""
    levels = factors.memory_levels(victim, live)
    if not levels:
        return victim
    sandbox = victim.sandbox.model_copy(update={"memory": max(levels)})
    return victim.model_copy(update={"sandbox": sandbox})
