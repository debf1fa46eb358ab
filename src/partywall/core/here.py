"""The host of this process, as an agent on it reports it, and the checks of it that capabilities share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partywall import processor, units
from partywall.agent import binary
from partywall.agent.agents import Agents
from partywall.agent.catalogue import shipped
from partywall.agent.client import AgentClient
from partywall.agent.memory_check import Checks
from partywall.errors import CapabilityError, Problem, UsageError
from partywall.host import Host
from partywall.host.settings import governor, held, ledger
from partywall.sandbox import Reaped, privileges, reap, remedies
from partywall.sandbox.qemu.needs import try_kvm


@contextlib.contextmanager
def host_agent() -> Iterator[AgentClient]:
    """An agent on the host, outside any sandbox, for facts and checks."""
    with Agents() as agents:
        yield agents.attach("host", [str(binary.find()), "serve", "--die-with-parent", "--only", "memory"])


def this_host() -> Host:
    """The host of this process, with the facts that the agent reports."""
    with host_agent() as agent:
        facts = dict(agent.call("facts"))
    return Host(described(facts, Host.here()), try_kvm=try_kvm)


def described(facts: dict[str, Any], host: Host) -> dict[str, Any]:
    """An agent's facts, extended with each kernel's entry in the catalogue and what the host lacks or refuses."""
    kernels = shipped()
    entries = {name: info.model_dump(mode="json") for name in kernels.names() if (info := kernels.kernel(name))}
    refused = {
        "governors_refused": governor.refused(host),
        "settings_refused": held.refused(host),
        "instructions_lacking": processor.lacking(host.root / "proc/cpuinfo"),
    }
    return facts | {"kernels": entries} | refused


def host_facts() -> dict[str, Any]:
    """The facts that the agent reports of this host."""
    return this_host().facts


def in_words(facts: Mapping[str, Any]) -> str:
    """A machine's CPUs and kernel, from its facts."""
    cpus = units.counted(len(facts["cpus_allowed"]), "CPU")
    return f"{cpus} ({facts['cpu'].get('model') or 'unknown model'}), Linux {facts['kernel'].get('release')}"


def check_free_memory(needed: int, what: str, checks: Checks) -> None:
    """The same check for what has no plan, such as a load. what: what needs the memory, for messages.

    CapabilityError if the host has less; a warning if it may not be physically present.
    """
    with host_agent() as agent:
        checks.require(agent, needed, what)


def check_programs(host: Host) -> None:
    """CapabilityError if a host's agent has no eBPF programs, which guard and trace need."""
    lacking = next((missing for missing in host.facts["missing"] if missing["what"] == "eBPF programs"), None)
    if lacking is not None:
        raise CapabilityError(f"no eBPF programs: {lacking['why']}; {lacking['remedy']}")


def check_hooks(what: str) -> None:
    """CapabilityError if the agent may not attach eBPF programs to interfaces. what: the command that needs it."""
    with host_agent() as agent:
        missing = privileges.lacking(agent.process.pid)
    if missing:
        raise CapabilityError(remedies.lacking_hooks(what, missing, Host.here()))


def clean_up(*, forget: bool = False) -> tuple[ledger.Restored, list[Reaped]]:
    """Restores settings and removes what dead runs left on this host. forget: also forgets what cannot be reached."""
    return ledger.put_back(forget=forget), reap(forget=forget)


def check_folder(work_root: Path) -> None:
    """UsageError if the files of disk kernels cannot be created there."""
    if not work_root.is_dir():
        what = "this is not a folder" if work_root.exists() else "the folder does not exist"
    elif not os.access(work_root, os.W_OK | os.X_OK):
        what = "you may not write there"
    else:
        return
    raise UsageError(
        Problem(f"{work_root}: {what}", "give a writable folder on the disk to be measured", key="--work-dir")
    )
