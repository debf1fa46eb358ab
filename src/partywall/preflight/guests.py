"""Requirements of guests on this host: QEMU, an accelerator, a kernel, root images, devices."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from partywall.errors import CapabilityError, Problem, TrialError
from partywall.host import Host
from partywall.model import factors
from partywall.model.scenario import Scenario, Workload
from partywall.preflight.requirements import backends, workloads
from partywall.sandbox import WORK_ROOT, Label, Settings, qemu, reaper, switch


def _on_qemu_here(scenario: Scenario) -> list[str]:
    """Keys of workloads whose guest runs on this host's QEMU, started by Partywall or a local libvirt."""

    def by_libvirt(key: str) -> bool:
        sandbox = workloads(scenario)[key].sandbox
        return sandbox.domain is None and not sandbox.machine and (sandbox.uri or "qemu").startswith("qemu")

    used = backends(scenario).items()
    return [key for key, names in used if "qemu" in names or ("libvirt" in names and by_libvirt(key))]


def with_accelerators(scenario: Scenario, host: Host) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario with `accel: auto` resolved for a host, and notes about the choice."""
    guests = _on_qemu_here(scenario)
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
    guests = _on_qemu_here(scenario)
    return any(workloads(scenario)[key].sandbox.accel != "tcg" for key in guests) and qemu.untried(host)


def try_kvm(within_s: float) -> str:
    """Why a guest with this host's KVM does not answer in time; empty if it does."""
    label = Label.create(f"vm-probe-{secrets.token_hex(4)}", WORK_ROOT)
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:1]
    try:
        guest = qemu.Qemu(Settings(name="probe", backend="qemu", cpus=cpus, files=False, accel="kvm"), label)
        try:
            guest.start(lambda _method, _params: None, within_s)
        finally:
            guest.stop()
    except TrialError as error:
        said = str(error).partition("did not come up: ")[2] or str(error)
        return said.partition("; its console")[0].splitlines()[0]
    finally:
        reaper.clean(label)
    return ""


def lacking_for_guests(scenario: Scenario, host: Host) -> Iterator[Problem]:
    """What prevents the scenario's guests from starting on a host."""
    if not any("qemu" in names for names in backends(scenario).values()):
        return
    checks: tuple[Callable[[], object], ...] = (functools.partial(qemu.version, host), qemu.GuestKernel.prepared)
    for check in checks:
        try:
            check()
        except CapabilityError as error:
            yield from error.problems
    yield from _lacking_for_roots(scenario, host)
    yield from lacking_devices(scenario)
    bridged = any(workload.sandbox.network == "bridge" for workload in workloads(scenario).values())
    if bridged and (why := switch.lacking(host)):
        yield Problem(why)


def lacking_devices(scenario: Scenario) -> Iterator[Problem]:
    """What prevents the host's devices from being guests' disks."""
    problems: list[Problem] = []
    for _, _, applied in factors.trials(scenario):
        for key, workload in workloads(applied).items():
            requested = workload.sandbox.disk
            if requested is None or requested.device is None:
                continue
            if why := qemu.disk.unusable(Path(requested.device), overwrite=requested.overwrite):
                problems.append(Problem(why, key=f"{key}.sandbox.disk.device"))
    yield from dict.fromkeys(problems)


def _rooted(scenario: Scenario) -> Iterator[tuple[str, Workload, tuple[str, ...]]]:
    """(key, workload, packages) of every workload whose guest has a root image."""
    for key, workload in workloads(scenario).items():
        if workload.sandbox.root is not None and "qemu" in backends(scenario)[key]:
            yield key, workload, workload.sandbox.root


def _lacking_for_roots(scenario: Scenario, host: Host) -> Iterator[Problem]:
    """What prevents guests from having the programs of their commands, as far as known without building an image."""
    wanted: dict[tuple[str, ...], list[tuple[str, Workload]]] = {}
    for key, workload, packages in _rooted(scenario):
        wanted.setdefault(packages, []).append((key, workload))
    for packages, held_by in wanted.items():
        keys = ", ".join(f"{key}.sandbox.root" for key, _ in held_by)
        try:
            recipe = qemu.root.Recipe.of(packages, host)
        except CapabilityError as error:
            yield from (replace(problem, key=keys) for problem in error.problems)
            continue
        image = qemu.root.cached(recipe)
        if image is None:
            yield from (Problem(why, key=keys) for why in qemu.root.unbuildable(recipe, host))
            continue
        for key, workload in held_by:
            if workload.command and not image.holds(workload.command[0]):
                yield _not_in_root(key, workload.command[0], packages)


def _not_in_root(key: str, program: str, packages: Sequence[str]) -> Problem:
    held = ", ".join(packages) or "no packages"
    message = f"the guest's root ({held}) does not contain {program!r}; add its package to {key}.sandbox.root"
    return Problem(message, key=f"{key}.command")


def roots_to_build(scenario: Scenario, host: Host) -> Iterator[str]:
    """Notes about root images that a run must build first."""
    wanted: dict[tuple[str, ...], list[str]] = {}
    for key, _, packages in _rooted(scenario):
        if qemu.root.cached(qemu.root.Recipe.of(packages, host)) is None:
            wanted.setdefault(packages, []).append(key)
    for packages, keys in wanted.items():
        held = ", ".join(packages) or "no packages"
        yield f"the root image of {', '.join(keys)} ({held}) is built first, once; this takes about another minute"


def build_roots(scenario: Scenario, say: Callable[[str], None], host: Host) -> None:
    """Builds the root images that the scenario's guests need and that do not exist yet.

    CapabilityError if one cannot be built, or does not contain the program of its command.
    """
    for key, workload, packages in _rooted(scenario):
        prefix = f"building the root image of {key} ({', '.join(packages) or 'no packages'}), once: "
        image = qemu.root.build(qemu.root.Recipe.of(packages, host), functools.partial(_said, say, prefix), host)
        if workload.command and not image.holds(workload.command[0]):
            raise CapabilityError(_not_in_root(key, workload.command[0], packages))


def _said(say: Callable[[str], None], prefix: str, text: str) -> None:
    say(prefix + text)
