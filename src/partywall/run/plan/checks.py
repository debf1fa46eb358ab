"""Checks whether a host can carry out a scenario and its plan: one list, for new runs and for those that go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from partywall.errors import CapabilityError, Failures, Problem
from partywall.host import Host, block, install
from partywall.host.label import WORK_ROOT
from partywall.host.settings import held as settings
from partywall.host.settings import idle
from partywall.run.document import factors
from partywall.run.document.scenario import Scenario
from partywall.run.plan.requirements import brings, sandboxes, workloads
from partywall.run.plan.room import check_disk, check_guest_memory, check_kernels, check_node_memory
from partywall.run.values.plan import Plan
from partywall.sandbox import cgroups, needs, qemu
from partywall.sandbox.document import Sandbox
from partywall.sandbox.libvirt import needs as libvirt_needs
from partywall.sandbox.needs import Sandboxes, keys_with
from partywall.sandbox.qemu import needs as qemu_needs
from partywall.sandbox.qemu.machine import PROGRAM

NEEDS: tuple[Callable[[Sandboxes, Host], Iterator[Problem]], ...] = (
    needs.lacking,
    qemu_needs.lacking,
    libvirt_needs.lacking,
)
"""What sandboxes lack on a host, by what they need."""


def check_plan(plan: Plan, host: Host, work_root: Path, *, waits: bool) -> None:
    """Everything that a plan needs of a host, at its beginning and whenever it goes on.

    CapabilityError or UsageError with all reasons at once. waits: whether the run waits for free memory.
    """
    failures = Failures()
    with failures.kept():
        check_guest_memory(plan, host, waits=waits)
    with failures.kept():
        check_node_memory(plan, host)
    with failures.kept():
        check_kernels(plan, host.facts)
    with failures.kept():
        check_disk(plan, host, work_root)
    failures.tell()


def check_host(scenario: Scenario, host: Host, work_root: Path = WORK_ROOT) -> None:
    """CapabilityError, all problems at once, for what the scenario needs and a host or its user lacks.

    work_root: the folder for sandboxes' files.
    """
    wanted = sandboxes(scenario)
    missing: list[Problem] = []
    if scenario.idle == "poll" and (why := idle.why_not(host)):
        message = f"idle CPUs cannot poll here: {why}; leave it out, and CPUs sleep as usual"
        missing.append(Problem(message, key="idle"))
    missing += _lacking_settings(scenario, host, work_root)
    missing += _lacking_for_disk_limits(wanted, host, work_root)
    missing += (problem for lacking in NEEDS for problem in lacking(wanted, host))
    missing += _lacking_for_migrations(scenario, host)
    missing += _lacking_programs(scenario, wanted, host)
    if missing:
        raise CapabilityError(*missing)


def _lacking_programs(scenario: Scenario, wanted: Sandboxes, host: Host) -> Iterator[Problem]:
    """Commands that are not on this host, and would run on it or in its containers."""
    for key, workload in workloads(scenario).items():
        used = {one.sandbox.backend for one in wanted[key]}
        if used <= {"qemu", "libvirt"} or bool(workload.sandbox.machine):
            continue
        for what, argv in (("command", workload.command), ("version", workload.version)):
            if argv and not brings(workload, argv[0]) and not host.which(argv[0]):
                message = f"{argv[0]!r} is not installed or not on the PATH; install it, or give its path"
                yield Problem(message, key=f"{key}.{what}")


def _lacking_for_migrations(scenario: Scenario, host: Host) -> Iterator[Problem]:
    """What prevents migrations from passing by."""
    keys = ", ".join(f"aggressors.{name}.migration" for name, a in scenario.aggressors.items() if a.migration)
    if keys and not host.which(PROGRAM):
        yield Problem(f"{PROGRAM} was not found", install(host, "qemu-system-x86"), key=keys)


def _lacking_settings(scenario: Scenario, host: Host, work_root: Path) -> Iterator[Problem]:
    """What prevents the host's settings of a scenario, at all levels of its factors."""
    constant = settings.wanted(scenario.host)
    for name, setting in settings.SETTINGS.items():
        key = settings.key(name)
        levels = scenario.factors.get(key, [constant[name]] if name in constant else [])
        if levels and (why := setting.why_not([str(level) for level in levels], work_root, host)):
            yield Problem(why, key=key)


def _lacking_for_disk_limits(wanted: Sandboxes, host: Host, work_root: Path) -> Iterator[Problem]:
    """What prevents disk limits for containers, constant or switched by slot. Other backends check this themselves."""
    limited = {key for key, each in wanted.items() if any(one.sandbox.throttle is not None for one in each)}
    held = [key for key in keys_with(wanted, "container") if key in limited]
    if not held:
        return
    why = block.lacking(work_root, host.root)
    try:
        cgroups.read(host.root).folder("io", "/")
    except CapabilityError as error:
        why = str(error)
    if why:
        yield Problem(why, key=", ".join(held))


def _on_qemu_here(wanted: Sandboxes) -> list[str]:
    """Keys of workloads whose guest runs on this host's QEMU, started by Partywall or a local libvirt."""
    return [key for key, each in wanted.items() if any(_is_on_qemu_here(one.sandbox) for one in each)]


def _is_on_qemu_here(box: Sandbox) -> bool:
    by_libvirt = box.backend == "libvirt" and box.domain is None and not box.machine
    return box.backend == "qemu" or (by_libvirt and (box.uri or "qemu").startswith("qemu"))


def with_accelerators(scenario: Scenario, host: Host) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario with `accel: auto` resolved for a host, and notes about the choice."""
    guests = _on_qemu_here(sandboxes(scenario))
    if not guests:
        return scenario, ()
    requested = {key: workloads(scenario)[key].sandbox.accel or "auto" for key in guests}
    chosen: dict[str, qemu.Accelerator] = {}
    for name in dict.fromkeys(requested.values()):
        try:
            chosen[name] = qemu.choose(name, host)
        except CapabilityError as error:
            keys = ", ".join(f"{key}.sandbox.accel" for key, wanted in requested.items() if wanted == name)
            raise CapabilityError(Problem(str(error), key=keys)) from error
    for key, name in requested.items():
        scenario = factors.apply(scenario, f"{key}.sandbox.accel", chosen[name].name)
    emulated = chosen.get("auto")
    notes = (f"guests are emulated (tcg): {emulated.why}",) if emulated and emulated.emulates else ()
    return scenario, notes


def tries_kvm(scenario: Scenario, host: Host) -> bool:
    """True if planning must first try to start a guest with KVM, which takes some seconds."""
    guests = _on_qemu_here(sandboxes(scenario))
    return any(workloads(scenario)[key].sandbox.accel != "tcg" for key in guests) and qemu.untried(host)
