"""Finds the place of each vif on this host: namespace, interface and side. Reads the host and changes nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from partywall.errors import CapabilityError, Failures, Problem, UsageError
from partywall.guard.document import Link, Policy, Vif, link_path
from partywall.host.label import state_root
from partywall.sandbox.networks import in_namespace, own_name
from partywall.sandbox.vif import HostVif, find

NETNS = Path("/run/netns")
VIRSH_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True)
class VifPlace:
    """The place of a vif. namespace: a file that stands for it; None for the host's own."""

    interface: str
    namespace: str | None
    inside: bool


def resolve(policy: Policy, netns: Path = NETNS) -> Mapping[str, VifPlace]:
    """The place of every vif. UsageError with all that cannot be found."""
    located, problems = _located(policy, netns)
    if problems:
        raise UsageError(*problems)
    return located


def _located(policy: Policy, netns: Path) -> tuple[dict[str, VifPlace], list[Problem]]:
    located: dict[str, VifPlace] = {}
    problems: list[Problem] = []
    for name, vif in policy.vifs.items():
        try:
            located[name] = locate(vif, netns)
        except UsageError as error:
            problems += [Problem(p.message, p.remedy, key=f"vifs.{name}") for p in error.problems]
    return located, problems + _same(located)


def places(policy: Policy, netns: Path = NETNS) -> tuple[Mapping[str, VifPlace], Mapping[str, VifPlace]]:
    """The places of every vif, and of every link that has an interface.

    UsageError, for all at once, if a namespace or interface does not exist.
    """
    located, problems = _located(policy, netns)
    links: Mapping[str, VifPlace] = {}
    failures = Failures()
    with failures.kept():
        if problems:
            raise UsageError(*problems)
    with failures.kept():
        links = resolve_links(policy, netns)
    with failures.kept():
        look(policy, located, links)
    failures.tell()
    return located, links


def resolve_links(policy: Policy, netns: Path = NETNS) -> Mapping[str, VifPlace]:
    """The interface of every link that has one, by the link's name.

    UsageError, for all at once, if a namespace does not exist.
    """
    located, problems = {}, []
    for name, link in policy.by_link.items():
        if not link.interface:
            continue
        try:
            located[name] = _link(link, netns)
        except UsageError as error:
            problems += [Problem(p.message, p.remedy, key=".".join(link_path(name))) for p in error.problems]
    if problems:
        raise UsageError(*problems)
    return located


def _link(link: Link, netns: Path) -> VifPlace:
    namespace = _namespace(link.namespace, netns) if link.namespace else None
    return VifPlace(_named(link.interface, namespace), namespace, inside=False)


def identity(namespace: str | None) -> tuple[int, int] | str:
    """The identity of a namespace, equal for all files that stand for it; the file's name if it does not exist."""
    file = namespace or "/proc/self/ns/net"
    try:
        status = os.stat(file)  # noqa: PTH116 - as for any file
    except OSError:
        return file
    return (status.st_dev, status.st_ino)


def _same(located: Mapping[str, VifPlace]) -> list[Problem]:
    """Vifs that are the same interface under two names: a namespace's, or a domain's tap."""
    seen: dict[tuple[object, str], str] = {}
    problems = []
    for name, place in located.items():
        first = seen.setdefault((identity(place.namespace), place.interface), name)
        if first != name:
            said = f"it is the interface {place.interface} that {first} is already"
            problems.append(
                Problem(said, "name each interface once; flows: makes classes inside one", key=f"vifs.{name}")
            )
    return problems


def look(policy: Policy, located: Mapping[str, VifPlace], links: Mapping[str, VifPlace]) -> None:
    """Checks that every interface exists.

    UsageError with all that do not; CapabilityError if this cannot be checked.
    """
    places = {f"vifs.{name}.{_key(policy.vifs[name])}": place for name, place in located.items()}
    places |= {".".join((*link_path(name), "interface")): place for name, place in links.items()}
    there: dict[str | None, list[str]] = {}
    problems = []
    for key, place in places.items():
        if place.namespace not in there:
            there[place.namespace] = _interfaces(place.namespace)
        if place.interface not in (known := there[place.namespace]):
            where = f"in {place.namespace}" if place.namespace else "here"
            remedy = f"interfaces there: {', '.join(known[:12])}; or name its namespace"
            problems.append(Problem(f"there is no interface {place.interface!r} {where}", remedy, key=key))
    if problems:
        raise UsageError(*problems)


def _key(vif: Vif) -> str:
    return "domain" if vif.domain else "interface" if vif.interface else "sandbox"


def _interfaces(namespace: str | None) -> list[str]:
    try:
        return _inside(namespace, lambda: [name for _, name in socket.if_nameindex()])
    except PermissionError:
        raise CapabilityError(f"looking into {namespace} needs root; run with sudo") from None


def _named(interface: str, namespace: str | None) -> str:
    """The kernel's name of an interface. If it cannot be seen, the given one: `look` says what is wrong."""
    try:
        return _inside(namespace, lambda: own_name(interface))
    except OSError:
        return interface


def _inside(namespace: str | None, ask: Callable[[], T]) -> T:
    return ask() if namespace is None else in_namespace(Path(namespace), ask)


def locate(vif: Vif, netns: Path = NETNS) -> VifPlace:
    """The current place of one vif. UsageError if it cannot be found."""
    if vif.domain is not None:
        return VifPlace(_tap(vif.domain, vif.tap), None, inside=False)
    namespace = _namespace(vif.namespace, netns) if vif.namespace else None
    if vif.sandbox is not None:
        if (guest := _guest(vif.sandbox)) is not None:
            # A tap is the host's end: packets that the guest sends enter it.
            return VifPlace(guest.interface, str(guest.path), inside=vif.side == "inside")
        namespace = _sandbox(vif.sandbox)
    inside = vif.side == "inside" if vif.side else namespace is not None
    # The interface inside a sandbox always has this name.
    return VifPlace(_named(vif.interface or "eth0", namespace), namespace, inside)


def _namespace(text: str, netns: Path) -> str:
    path = Path(f"/proc/{text[4:]}/ns/net") if text.startswith("pid:") else netns / text
    if not _exists(path):
        remedy = "is the process alive?" if text.startswith("pid:") else "'ip netns' lists those with names"
        raise UsageError(Problem(f"there is no network namespace {text!r} ({path})", remedy))
    return str(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        raise CapabilityError(f"{path} cannot be accessed; run with sudo, and outside of a sandbox") from None


def _guest(name: str) -> HostVif | None:
    """The tap of a guest of a current run; None if no guest with a tap has this name."""
    vifs = find(name)
    if len(vifs) > 1:
        runs = ", ".join(vif.run for vif in vifs)
        raise UsageError(Problem(f"several runs have a sandbox {name!r}: {runs}", f"write RUN/{name}"))
    return vifs[0] if vifs else None


def _sandbox(name: str) -> str:
    """The namespace of a container of a current run, from the process ID that its runtime wrote."""
    run, _, own = name.rpartition("/")
    files = sorted(state_root().glob(f"{run or '*'}/bundles/{own}/pid"))
    alive = {file.parts[-4]: pid for file in files if (pid := _pid(file)) and Path("/proc", pid).exists()}
    if not alive:
        remedy = (
            "a sandbox exists only during its run, and needs backend: container, or qemu with network: bridge; "
            "start 'partywall guard run' after the run"
        )
        raise UsageError(Problem(f"no run has a container called {own!r} now, or a guest with a tap", remedy))
    if len(alive) > 1:
        raise UsageError(Problem(f"several runs have a sandbox {own!r}: {', '.join(alive)}", f"write RUN/{own}"))
    return f"/proc/{alive.popitem()[1]}/ns/net"


def _pid(file: Path) -> str:
    """The process ID in a file; empty if the file is gone, as when its run has just ended."""
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return ""


def _tap(domain: str, number: int) -> str:
    if shutil.which("virsh") is None:
        raise CapabilityError(f"domain {domain!r}: virsh is not installed; install libvirt-clients, or give interface:")
    command = ["virsh", "--quiet", "domiflist", "--domain", domain]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=VIRSH_S, check=False)
    except subprocess.TimeoutExpired:
        said = f"domain {domain!r}: virsh did not answer within {VIRSH_S:g} s"
        raise CapabilityError(f"{said}; check that libvirtd is running, or give interface:") from None
    if ran.returncode != 0:
        said = " ".join(ran.stderr.strip().splitlines()[:1])
        raise UsageError(Problem(f"libvirt domain {domain!r}: {said}", "'virsh list --all' lists them"))
    taps = [line.split()[0] for line in ran.stdout.splitlines() if line.split()]
    if not taps or taps[0] == "-":
        raise UsageError(Problem(f"libvirt domain {domain!r} has no tap now", "start it, and run again"))
    if number > len(taps):
        said = f"libvirt domain {domain!r} has no tap {number}; it has {len(taps)}: {', '.join(taps)}"
        raise UsageError(Problem(said, f"give tap: 1 to {len(taps)}"))
    return taps[number - 1]
