"""`partywall doctor`: what this host can do, what is missing, what that costs, and how to get it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from partywall import pipeline, units
from partywall.errors import AgentError, CapabilityError, Exit, UsageError
from partywall.load import tomcat
from partywall.sandbox import WORK_ROOT, block, cgroups, libvirt, qemu, ssh
from partywall.sandbox.label import state_root

HANGING = 4


@dataclass(frozen=True)
class Check:
    """One thing looked at. cost and remedy are empty when it is there; needed: without it nothing can be measured."""

    what: str
    found: str
    there: bool
    cost: str = ""
    remedy: str = ""
    needed: bool = False


def examine(console: Console) -> int:
    """Looks, shows, and ends with 4 if nothing can be measured here."""
    checks: list[Check] = []
    facts: dict[str, Any] = {}
    try:
        facts = pipeline.host_facts()
        checks.append(Check("agent", "answers", there=True))
    except (CapabilityError, AgentError) as error:
        checks.append(
            Check("agent", str(error), there=False, cost="nothing can be measured", remedy="make build", needed=True)
        )
    checks += [*_host(facts), *_backends(), *_disk()]
    checks += [
        Check(m["what"], m["why"], there=False, cost=m["cost"], remedy=m["remedy"]) for m in facts.get("missing", [])
    ]
    _show(console, checks)
    return Exit.CAPABILITY if any(check.needed and not check.there for check in checks) else Exit.HOLDS


def _host(facts: dict[str, Any]) -> Iterator[Check]:
    cpus = sorted(os.sched_getaffinity(0))
    model = facts.get("cpu", {}).get("model") or "unknown model"
    one = (
        "victim and aggressors can only share a CPU, "
        "so what comes through caches and memory cannot be told from lost turns"
    )
    yield Check(
        "CPUs",
        f"{len(cpus)} allowed ({model})",
        there=len(cpus) > 1,
        cost=one,
        remedy="run on a host or cpuset with two or more",
    )
    for level, size in sorted(
        {(cache["level"], cache["size_bytes"]) for cache in facts.get("cpu", {}).get("caches", [])}
    ):
        yield Check(f"L{level} cache", units.format_bytes(size), there=True)
    if total := facts.get("memory", {}).get("total_bytes"):
        yield Check("memory", units.format_bytes(total), there=True)


def _backends() -> Iterator[Check]:
    yield Check("backend process", "ready: pinning only, no limits", there=True)
    runtime = next((name for name in ("crun", "runc") if shutil.which(name)), None)
    root = os.geteuid() == 0
    found = cgroups.read()
    version = "version 2" if found.is_v2 else "version 1" if "cpu" in found.v1 else "no cpu controller"
    text = f"{runtime or 'no OCI runtime'}, {'root' if root else 'not root'}, cgroups {version}"
    ready = bool(runtime) and root and version != "no cpu controller"
    remedy = "; ".join(
        part
        for part, lacking in (
            ("apt-get install crun", not runtime),
            ("run as root", not root),
            ("mount cgroup version 2", version == "no cpu controller"),
        )
        if lacking
    )
    yield Check(
        "backend container", text, ready, cost="no limits, reservations or weights can be measured", remedy=remedy
    )
    yield from _guests()
    yield _ssh()
    yield _libvirt()
    lacking = tomcat.missing()
    yield Check(
        "Tomcat",
        "installed" if not lacking else "no Tomcat, or no Java",
        there=not lacking,
        cost="the study papers/load-generation-netto cannot run",
        remedy="apt-get install tomcat10-common default-jre-headless",
    )
    for tool, use in (("fio", "real-tools"), ("stress-ng", "real-tools")):
        there = shutil.which(tool) is not None
        yield Check(
            tool,
            "installed" if there else "not installed",
            there,
            cost=f"scenario {use} cannot run",
            remedy=f"apt-get install {tool}",
        )


def _guests() -> Iterator[Check]:
    """Starts nothing: whether KVM carries a guest is told from what was remembered."""
    cost = "nothing can be measured in virtual machines"
    looks: dict[str, Callable[[], str]] = {"backend qemu": _qemu, "kernel for guests": _guest_kernel}
    for what, look in looks.items():
        try:
            yield Check(what, look(), there=True)
        except CapabilityError as error:
            found, _, remedy = str(error).partition("; ")
            yield Check(what, found, there=False, cost=cost, remedy=remedy)
    why = qemu.root.lacking()
    found, _, remedy = why.partition("; ")
    yield Check(
        "root images for guests",
        found or "can be built",
        there=not why,
        cost="no commands of yours in guests, unless an image was built before",
        remedy=remedy,
    )
    verdict = qemu.verdict()
    slow = "guests are emulated: their figures are marked so, and compare with nothing else"
    yield Check("KVM", verdict.text, verdict.works, cost=slow, remedy=verdict.remedy)


def _ssh() -> Check:
    try:
        return Check("backend ssh", ssh.version(), there=True)
    except CapabilityError as error:
        found, _, remedy = str(error).partition("; ")
        return Check("backend ssh", found, there=False, cost="no machines elsewhere can be measured", remedy=remedy)


def _libvirt() -> Check:
    """The library alone: whether a daemon answers is told when one is asked for."""
    try:
        return Check("backend libvirt", f"libvirt-python {libvirt.version()}", there=True)
    except CapabilityError as error:
        found, _, remedy = str(error).partition("; ")
        return Check("backend libvirt", found, there=False, cost="no domains of libvirt can be measured", remedy=remedy)


def _qemu() -> str:
    return f"QEMU {qemu.version()}"


def _guest_kernel() -> str:
    kernel = qemu.GuestKernel.prepared()
    return f"{kernel.release} ({kernel.source})"


def _disk() -> Iterator[Check]:
    work = WORK_ROOT
    device = block.device_of(work)
    free = shutil.disk_usage(work).free
    found = f"{work} on device {device[0]}:{device[1]}" if device else f"{work} is on no block device"
    cost = "disk kernels measure memory or a network there, and disk limits cannot be set"
    yield Check(
        "disk",
        f"{found}, {units.format_bytes(free)} free",
        device is not None,
        cost=cost,
        remedy="partywall run --work-dir FOLDER-ON-A-DISK",
    )
    yield _state()


def _state() -> Check:
    try:
        root = state_root()
        found, writable = str(root), os.access(_first_existing(root), os.W_OK)
    except UsageError as error:
        (problem,) = error.problems
        found, writable = f"{problem.file}: {problem.message}", False
    return Check(
        "state folder",
        found,
        writable,
        cost="what a killed run leaves behind could not be found again",
        remedy="set $PARTYWALL_STATE to a folder of yours",
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
    says = "nothing can be measured without what is marked ✗" if needed else "all else works without"
    console.print(f"\nMissing here; {says}", style="bold", highlight=False)
    for check in sorted(lacking, key=lambda check: not check.needed):
        mark = ("✗ ", "bold red") if check.needed else ("– ", "yellow")
        _print(console, mark, (check.what, "bold"), f": {check.found}")
        _print(console, ("  costs: ", "dim"), check.cost)
        if check.remedy:
            _print(console, ("  get it: ", "dim"), check.remedy)


def _print(console: Console, *pieces: str | tuple[str, str]) -> None:
    """One entry; where it goes on in the next line it stays clear of the marks."""
    lines = Text.assemble(*pieces).wrap(console, max(console.width - HANGING, 20))
    for number, line in enumerate(lines):
        console.print(Text(" " * HANGING if number else "") + line, soft_wrap=True)
