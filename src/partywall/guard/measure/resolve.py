"""Finds the place of each vif on this host: namespace, interface and side. Reads the host and changes nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
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
    failures = Failures()
    located = _located(policy, netns, failures)
    failures.tell()
    return located


def _located(policy: Policy, netns: Path, failures: Failures) -> dict[str, VifPlace]:
    located: dict[str, VifPlace] = {}
    for name, vif in policy.vifs.items():
        with failures.kept(), _named_as(f"vifs.{name}"):
            located[name] = locate(vif, netns)
    with failures.kept():
        _refuse_same(located)
    return located


@contextlib.contextmanager
def _named_as(key: str) -> Iterator[None]:
    """Names the part of the policy that a problem is about."""
    try:
        yield
    except UsageError as error:
        problems = (Problem(problem.message, problem.remedy, key=key) for problem in error.problems)
        raise UsageError(*problems, is_early=error.is_early) from None


def places(policy: Policy, netns: Path = NETNS) -> tuple[Mapping[str, VifPlace], Mapping[str, VifPlace]]:
    """The places of every vif, and of every link that has an interface.

    UsageError, for all at once, if a namespace or interface does not exist.
    """
    failures = Failures()
    located = _located(policy, netns, failures)
    links: Mapping[str, VifPlace] = {}
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
    located, failures = {}, Failures()
    for name, link in policy.by_link.items():
        if link.interface:
            with failures.kept(), _named_as(".".join(link_path(name))):
                located[name] = _link(link, netns)
    failures.tell()
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


def _refuse_same(located: Mapping[str, VifPlace]) -> None:
    """UsageError with the vifs that are the same interface under two names: a namespace's, or a domain's tap."""
    seen: dict[tuple[object, str], str] = {}
    problems = []
    for name, place in located.items():
        first = seen.setdefault((identity(place.namespace), place.interface), name)
        if first != name:
            said = f"it is the interface {place.interface} that {first} is already"
            problems.append(
                Problem(said, "name each interface once; flows: makes classes inside one", key=f"vifs.{name}")
            )
    if problems:
        raise UsageError(*problems)


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
        raise UsageError(*problems, is_early=True)


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
        of_process = text.startswith("pid:")
        remedy = "is the process alive?" if of_process else "'ip netns' lists those with names"
        # A later process with this number is another one.
        raise UsageError(Problem(f"there is no network namespace {text!r} ({path})", remedy), is_early=not of_process)
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
        said = f"no run has a container called {own!r} now, or a guest with a tap"
        raise UsageError(Problem(said, remedy), is_early=True)
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
        raise CapabilityError(f"{said}; check that libvirtd is running, or give interface:", is_early=True) from None
    if ran.returncode != 0:
        said = " ".join(ran.stderr.strip().splitlines()[:1])
        # The same exit code if the domain is not defined, and if libvirtd does not answer yet.
        raise UsageError(Problem(f"libvirt domain {domain!r}: {said}", "'virsh list --all' lists them"), is_early=True)
    taps = [line.split()[0] for line in ran.stdout.splitlines() if line.split()]
    if not taps or taps[0] == "-":
        said = f"libvirt domain {domain!r} has no tap now"
        raise UsageError(Problem(said, "start it, and run again"), is_early=True)
    if number > len(taps):
        said = f"libvirt domain {domain!r} has no tap {number}; it has {len(taps)}: {', '.join(taps)}"
        raise UsageError(Problem(said, f"give tap: 1 to {len(taps)}"))
    return taps[number - 1]
