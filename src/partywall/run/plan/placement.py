"""CPUs of a sandbox: resolves a scenario's `cpus` on the host's topology. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from partywall import units
from partywall.errors import Problem, UsageError
from partywall.host import cpus_of

RELATIVE = ("auto", "same", "next")
"""Words for CPUs that are chosen on the host, instead of a list."""


@dataclass(frozen=True)
class Topology:
    """The CPUs this user may use, and groups of CPUs that share something.

    The smallest groups come first: SMT core, then caches, then package. cores: the CPUs of each core with several.
    offline: CPUs that a setting of the host takes away, each with the CPU of its core that stays.
    """

    cpus: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = field(default=())
    cores: tuple[tuple[int, ...], ...] = field(default=())
    offline: Mapping[int, int] = field(default_factory=dict)

    def without_smt(self) -> Topology:
        """The same host with one CPU for each core: the kernel keeps the first."""
        offline = {cpu: min(core) for core in self.cores for cpu in core if cpu != min(core)}
        return replace(self, cpus=tuple(cpu for cpu in self.cpus if cpu not in offline), offline=offline)

    def nearest(self, cpu: int) -> tuple[int, ...]:
        """The other CPUs. Those that share the smallest group with `cpu` come first."""

        def distance(other: int) -> tuple[int, int]:
            shared = [len(group) for group in self.groups if cpu in group and other in group]
            return (min(shared, default=len(self.cpus) + 1), other)

        return tuple(sorted((other for other in self.cpus if other != cpu), key=distance))


def victim_cpus(spec: str, topology: Topology, key: str) -> tuple[int, ...]:
    """CPUs of a victim.

    'auto' is the first CPU other than CPU 0 if there are more than two, because interrupts prefer CPU 0.
    """
    if spec == "same":
        raise UsageError(
            Problem("a victim cannot be on the 'same' CPU as itself", "use auto or a list such as 0", key=key)
        )
    if spec in ("auto", "next"):
        return (topology.cpus[1] if len(topology.cpus) > 2 else topology.cpus[0],)
    return listed(spec, topology, key)


def aggressor_cpus(spec: str, victim: tuple[int, ...], topology: Topology, key: str) -> tuple[int, ...]:
    """CPUs of an aggressor: the victim's ('same'), the nearest other CPU ('auto', 'next'), or a list."""
    if spec == "same":
        return victim
    if spec in ("auto", "next"):
        others = [cpu for cpu in topology.nearest(victim[0]) if cpu not in victim]
        if not others:
            raise UsageError(
                Problem(
                    f"needs a CPU other than the victim's {_join(victim)}, "
                    f"and only {_join(topology.cpus)} may be used here",
                    "use cpus: same",
                    key=key,
                )
            )
        return tuple(others[: len(victim)])
    return listed(spec, topology, key)


def listed(spec: str, topology: Topology, key: str) -> tuple[int, ...]:
    """CPUs of a list such as 0,2-3. All of them must exist."""
    cpus = units.parse_cpus(spec)
    missing = [cpu for cpu in cpus if cpu not in topology.cpus]
    gone = [cpu for cpu in missing if cpu in topology.offline]
    problems = []
    if gone:
        named = ", ".join(f"{cpu} (sibling of {topology.offline[cpu]})" for cpu in gone)
        problems.append(f"with host.smt: off, CPU {named} is offline; there are {_join(topology.cpus)}")
    if unknown := [cpu for cpu in missing if cpu not in topology.offline]:
        problems.append(f"CPU {_join(unknown)} is not online or not allowed here; there are {_join(topology.cpus)}")
    if problems:
        raise UsageError(*(Problem(text, "name some of these, or auto", key=key) for text in problems))
    return cpus


def _join(cpus: Sequence[int]) -> str:
    return ", ".join(map(str, cpus))


def topology_of(facts: dict[str, Any]) -> Topology:
    """The usable CPUs, and what they share, from the facts of a host. CapabilityError if they are not known."""
    cpu = facts.get("cpu", {})
    places = cpu.get("places", [])
    packages = (
        [place["cpu"] for place in places if place["package"] == package]
        for package in dict.fromkeys(place["package"] for place in places if place["package"] is not None)
    )
    groups = (
        *(place["siblings"] for place in places),
        *(cache["shared_by"] for cache in cpu.get("caches", [])),
        *(node["cpus"] for node in facts.get("memory", {}).get("nodes", [])),
        *packages,
    )
    cores = dict.fromkeys(tuple(place["siblings"]) for place in places if len(place["siblings"]) > 1)
    return Topology(cpus_of(facts), tuple(dict.fromkeys(tuple(group) for group in groups)), tuple(cores))


def topologies_elsewhere(facts: dict[str, Any]) -> dict[str, Topology]:
    """The topologies of the other machines in a host's facts, by `Sandbox.machine`."""
    return {machine: topology_of(machine_facts) for machine, machine_facts in facts.get("machines", {}).items()}
