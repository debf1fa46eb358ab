"""What guests need of this host: QEMU, a kernel, root images, devices, and KVM if it works.

Leaves nothing behind but root images, and the stored result of whether KVM can start a guest.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from partywall.errors import CapabilityError, Problem, TrialError
from partywall.host import Host
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Settings, reaper, switch
from partywall.sandbox.needs import Sandboxes, Wanted, keys_with
from partywall.sandbox.qemu import GuestKernel, Qemu, disk, root, version


def try_kvm(within_s: float) -> str:
    """Why a guest with this host's KVM does not answer in time; empty if it does."""
    label = Label.create(f"vm-probe-{secrets.token_hex(4)}", WORK_ROOT)
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:1]
    try:
        guest = Qemu(Settings(name="probe", backend="qemu", cpus=cpus, files=False, accel="kvm"), label)
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


def lacking(wanted: Sandboxes, host: Host) -> Iterator[Problem]:
    """What prevents guests from starting on a host."""
    guests = {key: wanted[key] for key in keys_with(wanted, "qemu")}
    if not guests:
        return
    checks: tuple[Callable[[], object], ...] = (functools.partial(version, host), GuestKernel.prepared)
    for check in checks:
        try:
            check()
        except CapabilityError as error:
            yield from error.problems
    yield from _lacking_for_roots(guests, host)
    yield from lacking_devices(wanted)
    bridged = any(one.sandbox.network == "bridge" for each in wanted.values() for one in each)
    if bridged and (why := switch.lacking(host)):
        yield Problem(why)


def lacking_devices(wanted: Sandboxes) -> Iterator[Problem]:
    """What prevents the host's devices from being guests' disks."""
    problems = [
        Problem(why, key=f"{key}.sandbox.disk.device")
        for key, each in wanted.items()
        for requested in (one.sandbox.disk for one in each)
        if requested is not None and requested.device is not None
        if (why := disk.unusable(Path(requested.device), overwrite=requested.overwrite))
    ]
    yield from dict.fromkeys(problems)


def _rooted(wanted: Sandboxes) -> Iterator[tuple[str, Wanted, tuple[str, ...]]]:
    """(key, sandbox, packages) of every workload whose guest has a root image."""
    for key in keys_with(wanted, "qemu"):
        one = next((one for one in wanted[key] if one.sandbox.root is not None), None)
        if one is not None and one.sandbox.root is not None:
            yield key, one, one.sandbox.root


def _lacking_for_roots(wanted: Sandboxes, host: Host) -> Iterator[Problem]:
    """What prevents guests from having the programs of their commands, as far as known without building an image."""
    held_by: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for key, one, packages in _rooted(wanted):
        held_by.setdefault(packages, []).append((key, one.command))
    for packages, commands in held_by.items():
        keys = ", ".join(f"{key}.sandbox.root" for key, _ in commands)
        try:
            recipe = root.Recipe.of(packages, host)
        except CapabilityError as error:
            yield from (replace(problem, key=keys) for problem in error.problems)
            continue
        image = root.cached(recipe)
        if image is None:
            yield from (Problem(why, key=keys) for why in root.unbuildable(recipe, host))
            continue
        yield from (_not_in_root(key, name, packages) for key, name in commands if name and not image.holds(name))


def _not_in_root(key: str, program: str, packages: Sequence[str]) -> Problem:
    held = ", ".join(packages) or "no packages"
    message = f"the guest's root ({held}) does not contain {program!r}; add its package to {key}.sandbox.root"
    return Problem(message, key=f"{key}.command")


def roots_to_build(wanted: Sandboxes, host: Host) -> Iterator[str]:
    """Notes about root images that a run must build first."""
    missing: dict[tuple[str, ...], list[str]] = {}
    for key, _, packages in _rooted(wanted):
        if root.cached(root.Recipe.of(packages, host)) is None:
            missing.setdefault(packages, []).append(key)
    for packages, keys in missing.items():
        held = ", ".join(packages) or "no packages"
        yield f"the root image of {', '.join(keys)} ({held}) is built first, once; this takes about another minute"


def build_roots(wanted: Sandboxes, say: Callable[[str], None], host: Host) -> None:
    """Builds the root images that guests need and that do not exist yet.

    CapabilityError if one cannot be built, or does not contain the program of its command.
    """
    for key, one, packages in _rooted(wanted):
        prefix = f"building the root image of {key} ({', '.join(packages) or 'no packages'}), once: "
        image = root.build(root.Recipe.of(packages, host), functools.partial(_said, say, prefix), host)
        if one.command and not image.holds(one.command):
            raise CapabilityError(_not_in_root(key, one.command, packages))


def _said(say: Callable[[str], None], prefix: str, text: str) -> None:
    say(prefix + text)
