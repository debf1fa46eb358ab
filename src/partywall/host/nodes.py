"""The NUMA nodes of a host or another machine: which have memory, and which this process may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from partywall import units
from partywall.host.host import Host

_ALLOWED = "Mems_allowed_list:"


@dataclass(frozen=True)
class MemoryNode:
    """One node. memory: its bytes, None if unknown. cpus: their count. allowed: whether memory may be taken from it."""

    number: int
    memory: int | None
    cpus: int
    allowed: bool = True

    @property
    def why_not(self) -> str:
        """Why no memory can come from it; empty if it can."""
        if self.memory == 0:
            return "has no memory"
        return "" if self.allowed else "is not in cpuset.mems of this process's cgroup"

    def __str__(self) -> str:
        size = "unknown size" if self.memory is None else units.format_bytes(self.memory)
        return f"{self.number} ({size}, {units.counted(self.cpus, 'CPU')}{'' if self.allowed else ', not allowed'})"


def memory_nodes(host: Host, machine: str = "") -> tuple[MemoryNode, ...]:
    """The nodes of a machine by number, by default this host's; empty if none are known.

    machine: see `Sandbox.machine`.
    """
    facts: Mapping[str, Any] = host.facts if not machine else host.facts.get("machines", {}).get(machine, {})
    allowed = None if machine else _allowed(host)
    listed = (
        MemoryNode(node["node"], node["total_bytes"], len(node["cpus"]), allowed is None or node["node"] in allowed)
        for node in facts.get("memory", {}).get("nodes", [])
    )
    return tuple(sorted(listed, key=lambda node: node.number))


def _allowed(host: Host) -> tuple[int, ...] | None:
    """The nodes that this process may use; None if unknown. Source: proc_pid_status(5)."""
    lines = (host.text("/proc/self/status") or "").splitlines()
    text = next((line.removeprefix(_ALLOWED) for line in lines if line.startswith(_ALLOWED)), "")
    try:
        return units.parse_nodes(text)
    except ValueError:
        return None
