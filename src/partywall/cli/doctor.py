"""`partywall doctor`: shows what this host can do, what is missing, what that costs, and how to get it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from partywall import units
from partywall.agent import binary
from partywall.cli import output
from partywall.core import here
from partywall.errors import AgentError, CapabilityError, Exit, UsageError
from partywall.host import Host, block, install, memory_nodes
from partywall.host.label import WORK_ROOT, state_root
from partywall.load import tomcat
from partywall.sandbox import cgroups, delegation, libvirt, qemu, remedies, ssh
from partywall.sandbox.needs import lacking_for_containers
from partywall.sandbox.runtime import RUNTIMES

HANGING = 4
LIMITS = {
    "cpu": "CPU limits and weights",
    "memory": "memory limits",
    "io": "disk limits",
    "cpuset": "NUMA nodes of a container's memory",
}
"""The settings that sandboxes cannot have without a cgroup controller."""


@dataclass(frozen=True)
class Check:
    """One check. cost and remedy are empty if it succeeded. needed: nothing can be measured without it."""

    what: str
    found: str
    there: bool
    cost: str = ""
    remedy: str = ""
    needed: bool = False


def doctor(context: typer.Context, format_: output.FormatOption = output.Format.TEXT) -> int:
    """Show what this host can do, what is missing, what that costs, and how to get it."""
    if format_ == output.Format.JSON:
        checks = examined(context.obj)
        return output.write("doctor", {"checks": checks}, _exit(checks))
    return examine(Console(), context.obj)


def examine(console: Console, read: Callable[[], Host]) -> int:
    """Checks the host and shows the result. Returns 4 if nothing can be measured here. read: reads the host."""
    checks = examined(read)
    _show(console, checks)
    return _exit(checks)


def _exit(checks: Sequence[Check]) -> int:
    return Exit.CAPABILITY if any(check.needed and not check.there for check in checks) else Exit.HOLDS


def examined(read: Callable[[], Host]) -> list[Check]:
    """All checks of this host. read: reads the host."""
    checks: list[Check] = []
    host = Host.here()
    try:
        host = read()
        checks.append(Check("agent", "answers", there=True))
    except (CapabilityError, AgentError) as error:
        cost, remedy = "nothing can be measured", binary.remedy()
        checks.append(Check("agent", str(error), there=False, cost=cost, remedy=remedy, needed=True))
    # Without the agent, nothing is known about CPUs and memory.
    checks += [
        *(_host(host) if host.facts else []),
        *_backends(host),
        *([_hooks()] if host.facts else []),
        *_disk(host),
    ]
    checks += [
        Check(m["what"], m["why"], there=False, cost=m["cost"], remedy=m["remedy"])
        for m in host.facts.get("missing", [])
    ]
    return checks


def _host(host: Host) -> Iterator[Check]:
    facts = host.facts
    try:
        count = len(host.cpus)
    except CapabilityError:
        count = 0
    model = facts.get("cpu", {}).get("model") or "unknown model"
    shared_cpu = (
        "victim and aggressors can only share a CPU, "
        "so interference through caches and memory cannot be separated from lost CPU time"
    )
    yield Check(
        "CPUs",
        f"{count or 'an unknown number of'} allowed ({model})",
        there=count > 1,
        cost=shared_cpu,
        remedy="run on a host or cpuset with two or more",
    )
    for level, size in sorted(
        {(cache["level"], cache["size_bytes"]) for cache in facts.get("cpu", {}).get("caches", [])}
    ):
        yield Check(f"L{level} cache", units.format_bytes(size), there=True)
    if total := facts.get("memory", {}).get("total_bytes"):
        yield Check("memory", units.format_bytes(total), there=True)
    if nodes := memory_nodes(host):
        yield Check("NUMA nodes", "; ".join(map(str, nodes)), there=True)


def _backends(host: Host) -> Iterator[Check]:
    yield Check("backend process", "ready: pinning only, no limits", there=True)
    yield from _containers(host)
    yield from _guests(host)
    yield _ssh(host)
    yield _libvirt()
    absent = tomcat.missing(host)
    yield Check(
        "Tomcat",
        "installed" if not absent else "no Tomcat, or no Java",
        there=not absent,
        cost="the study papers/load-generation-netto cannot run",
        remedy=install(host, "tomcat10-common", "default-jre-headless"),
    )
    for tool, use in (("fio", "real-tools"), ("stress-ng", "real-tools")):
        there = host.which(tool) is not None
        yield Check(
            tool,
            "installed" if there else "not installed",
            there,
            cost=f"scenario {use} cannot run",
            remedy=install(host, tool),
        )


def _containers(host: Host) -> Iterator[Check]:
    mounted = cgroups.read(host.root)
    runtime = next((name for name in RUNTIMES if host.which(name)), "no OCI runtime")
    version = "version 2" if mounted.is_v2 else "version 1" if "cpu" in mounted.v1 else "not available"
    root = delegation.may_divide_all(mounted, host)
    user = "root" if root else "in a delegated scope" if delegation.find(mounted, host) else "not root"
    lacking = list(lacking_for_containers(host, argv=["partywall", "run", "SCENARIO"]))
    yield Check(
        "backend container",
        f"{runtime}, {user}, cgroups {version}{''.join(f'; {problem.message}' for problem in lacking)}",
        not lacking,
        cost="no limits, reservations or weights can be measured",
        remedy="; ".join(problem.remedy for problem in lacking),
    )
    if mounted.is_v2 and not root and delegation.manager_controllers(mounted, host):
        there = delegation.controllers(mounted, host)
        unheld = " and ".join(text for name, text in LIMITS.items() if name not in there)
        yield Check(
            "cgroup controllers",
            f"delegated: {' '.join(sorted(there))}",
            there.issuperset(LIMITS),
            cost=f"without root, {unheld} cannot be set",
            remedy=remedies.drop_in(),
        )


def _hooks() -> Check:
    try:
        here.check_hooks("partywall guard and trace")
    except CapabilityError as error:
        (problem,) = error.problems
        remedy = "run guard and trace with sudo, or give an agent these capabilities (docs/no-root.md)"
        return Check("eBPF hooks", problem.message, there=False, cost="guard and trace cannot run", remedy=remedy)
    return Check("eBPF hooks", "may be made", there=True)


def _guests(host: Host) -> Iterator[Check]:
    """Starts no guest: whether KVM works comes from the result of an earlier attempt."""
    cost = "nothing can be measured in virtual machines"
    looks: dict[str, Callable[[], str]] = {
        "backend qemu": functools.partial(_qemu, host),
        "kernel for guests": _guest_kernel,
    }
    for what, look in looks.items():
        try:
            yield Check(what, look(), there=True)
        except CapabilityError as error:
            state, _, remedy = str(error).partition("; ")
            yield Check(what, state, there=False, cost=cost, remedy=remedy)
    why = qemu.root.lacking(host)
    state, _, remedy = why.partition("; ")
    yield Check(
        "root images for guests",
        state or "can be built",
        there=not why,
        cost="guests cannot run your own commands, unless an image was built before",
        remedy=remedy,
    )
    verdict = qemu.verdict(host)
    slow = "guests are emulated; their figures are marked and cannot be compared with others"
    yield Check("KVM", verdict.text, verdict.works, cost=slow, remedy=verdict.remedy)


def _ssh(host: Host) -> Check:
    try:
        return Check("backend ssh", ssh.version(host), there=True)
    except CapabilityError as error:
        state, _, remedy = str(error).partition("; ")
        return Check("backend ssh", state, there=False, cost="other machines cannot be measured", remedy=remedy)


def _libvirt() -> Check:
    """Checks the library only. Whether a daemon answers is checked when a scenario uses it."""
    try:
        return Check("backend libvirt", f"libvirt-python {libvirt.version()}", there=True)
    except CapabilityError as error:
        state, _, remedy = str(error).partition("; ")
        return Check("backend libvirt", state, there=False, cost="libvirt domains cannot be measured", remedy=remedy)


def _qemu(host: Host) -> str:
    return f"QEMU {qemu.version(host)}"


def _guest_kernel() -> str:
    kernel = qemu.GuestKernel.prepared()
    return f"{kernel.release} ({kernel.source})"


def _disk(host: Host) -> Iterator[Check]:
    work = WORK_ROOT
    device = block.device_of(work, host.root)
    state = f"{work} on device {device[0]}:{device[1]}" if device else f"{work} is on no block device"
    cost = "disk kernels would measure memory or a network there, and disk limits cannot be set"
    try:
        free = f"{units.format_bytes(host.disk_usage(work).free)} free"
    except OSError as error:
        free, device = f"{error.strerror}", None
    yield Check(
        "disk", f"{state}, {free}", device is not None, cost=cost, remedy="partywall run --work-dir FOLDER-ON-A-DISK"
    )
    yield _state()


def _state() -> Check:
    try:
        root = state_root()
        state, writable = str(root), os.access(_first_existing(root), os.W_OK)
    except UsageError as error:
        (problem,) = error.problems
        state, writable = f"{problem.file}: {problem.message}", False
    return Check(
        "state folder",
        state,
        writable,
        cost="leftovers of killed runs cannot be found",
        remedy="set $PARTYWALL_STATE to a folder that you can write to",
        needed=True,
    )


def _first_existing(path: Path) -> Path:
    return path if path.exists() or path == path.parent else _first_existing(path.parent)


def _show(console: Console, checks: list[Check]) -> None:
    lacking = [check for check in checks if not check.there]
    for check in checks:
        if check.there:
            _print(console, ("✓ ", "green"), f"{check.what}: {check.found}")
    if not lacking:
        console.print("\nNothing is missing.")
        return
    needed = any(check.needed for check in lacking)
    says = "nothing can be measured without what is marked ✗" if needed else "everything else works without it"
    console.print(f"\nMissing here; {says}", style="bold", highlight=False)
    for check in sorted(lacking, key=lambda check: not check.needed):
        mark = ("✗ ", "bold red") if check.needed else ("– ", "yellow")
        _print(console, mark, (check.what, "bold"), f": {check.found}")
        _print(console, ("  costs: ", "dim"), check.cost)
        if check.remedy:
            _print(console, ("  get it: ", "dim"), check.remedy)


def _print(console: Console, *pieces: str | tuple[str, str]) -> None:
    """Prints one entry. Continuation lines are indented past the mark."""
    lines = Text.assemble(*pieces).wrap(console, max(console.width - HANGING, 20))
    for number, line in enumerate(lines):
        console.print(Text(" " * HANGING if number else "") + line, soft_wrap=True)
