"""The tenants of a host, for those who measure what each of them uses: its cgroups, and processes that are guests.

A tenant is given as text: pid:NUMBER, cgroup:PATH, or a path below the cgroup mount; NAME=… names it. A name has no
colon and no slash, so that paths may have an equals sign. Only reads.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import Problem, UsageError, one_line
from partywall.files import kernel_text
from partywall.host import Host

GUESTS = ("qemu", "kvm", "firecracker", "cloud-hyperviso", "crosvm")
"""Beginnings of the names of programs that run a virtual machine. The kernel keeps 15 characters of a name."""
UNITS = (".service", ".scope")
"""Endings of the groups of systemd's units, each of which is one tenant with all groups below it."""
DEPTH_MAX = 6


@dataclass(frozen=True)
class Tenant:
    """A tenant: either a process, or a cgroup by its path in a hierarchy, without a slash at the beginning.

    The kernel allows any characters in names. So characters that cannot be printed are escaped in `name`.
    """

    name: str
    pid: int | None = None
    cgroup: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", one_line(self.name))


def named(text: str, host: Host) -> Tenant:
    """The tenant of a text. UsageError if there is no such process; whether a cgroup exists is not checked."""
    name, equals, rest = text.partition("=")
    if ":" in name or "/" in name:
        name, equals, rest = "", "", ""
    what = rest if equals else text
    kind, _, place = what.partition(":")
    if kind == "pid" and place.isdigit():
        if not (folder := host.path(f"/proc/{place}")).exists():
            raise UsageError(Problem(f"there is no process {place}", "give the number of a running process", key=text))
        return Tenant(name if equals else _comm(folder, place), pid=int(place))
    place = place if kind == "cgroup" else what
    return Tenant(name if equals else place or what, cgroup=place.lstrip("/"))


def no_cgroup(tenant: Tenant) -> UsageError:
    """The error for a cgroup that does not exist."""
    remedy = "give pid:NUMBER, or a cgroup such as /system.slice/nginx.service"
    return UsageError(Problem(f"there is no cgroup /{tenant.cgroup}", remedy, key=tenant.name))


def expect_apart(chosen: Sequence[Tenant], host: Host) -> None:
    """UsageError if two tenants have the same name, or if one is part of another: its work would count for both."""
    placed = [(tenant, _paths(tenant, host)) for tenant in chosen]
    problems = [
        problem
        for first, second in itertools.combinations(placed, 2)
        if (problem := _overlap(first, second) or _overlap(second, first) or _same_name(first[0], second[0]))
    ]
    if problems:
        raise UsageError(*dict.fromkeys(problems))


def _paths(tenant: Tenant, host: Host) -> list[str]:
    """The tenant's place in the hierarchies, as `cgroups_of` has it."""
    if tenant.cgroup is None:
        return cgroups_of(host.path(f"/proc/{tenant.pid}"))
    return [os.path.normpath(f"/{tenant.cgroup}")]


def _overlap(inner: tuple[Tenant, list[str]], outer: tuple[Tenant, list[str]]) -> Problem | None:
    (tenant, paths), (whole, places) = inner, outer
    if tenant.pid is not None and tenant.pid == whole.pid:
        return Problem(f"process {tenant.pid} is given twice", "give it once", key=tenant.name)
    if whole.cgroup is None or not any(is_below(path, places[0]) for path in paths):
        return None
    if tenant.cgroup is not None and paths == places:
        return Problem(f"{_described(whole)} is given twice", "give it once", key=tenant.name)
    said = f"{_described(tenant)} is part of {_described(whole)}: its work would count for both"
    return Problem(said, "give only one of the two", key=tenant.name)


def _same_name(first: Tenant, second: Tenant) -> Problem | None:
    if first.name != second.name:
        return None
    said = f"{_described(first)} and {_described(second)} have the same name"
    return Problem(said, "name one differently: NAME=…", key=first.name)


def _described(tenant: Tenant) -> str:
    """What a tenant is, whatever its name."""
    return f"process {tenant.pid}" if tenant.cgroup is None else f"cgroup /{one_line(tenant.cgroup).strip('/')}"


def cgroups_of(folder: Path | str) -> list[str]:
    """The paths of a process's cgroups, one a hierarchy. folder: its folder of /proc. Empty if it has ended."""
    return [line.split(":", 2)[-1] for line in (kernel_text(f"{folder}/cgroup") or "").split("\n") if line]


def is_below(path: str, cgroup: str) -> bool:
    """True if a path of a hierarchy is that of a cgroup, or of a group in it. Both begin with a slash."""
    return f"{path}/".startswith(f"{cgroup.rstrip('/')}/")


def groups(top: Path, *, empty: bool = False) -> Iterator[Path]:
    """The cgroups of containers, guests and services below the root of a hierarchy.

    A group without processes of its own, such as a slice of systemd or the parent of Docker's containers, is not a
    tenant: those below it are. empty: also groups without any process, of tenants that are about to start.
    """
    yield from _below(top, DEPTH_MAX, empty=empty)


def _below(folder: Path, depth: int, *, empty: bool) -> Iterator[Path]:
    for child in _folders(folder):
        if child.name.endswith(UNITS):
            if empty or all_processes(child):
                yield child
        elif not child.name.endswith(".slice") and _has_processes(child):
            yield child
        elif depth:
            below = list(_below(child, depth - 1, empty=empty))
            yield from below or ([child] if empty and not child.name.endswith(".slice") else [])


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                Path(path) for path in sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
            ]
    except OSError:
        # Groups may end at any time.
        return []


def _has_processes(folder: Path) -> bool:
    return bool(processes(folder))


def all_groups(folder: Path) -> Iterator[Path]:
    """A cgroup and those below it."""
    yield folder
    for child in _folders(folder):
        yield from all_groups(child)


def all_processes(folder: Path) -> list[int]:
    """The processes of a cgroup and of those below it."""
    return [pid for group in all_groups(folder) for pid in processes(group)]


def processes(folder: Path) -> list[int]:
    """The processes of a cgroup, without those of groups below it. Empty if it has ended."""
    return [int(pid) for pid in (kernel_text(f"{folder}/cgroup.procs") or "").split()]


def is_guest(comm: str) -> bool:
    """True if a process of this name runs a virtual machine."""
    return comm.startswith(GUESTS)


def _comm(folder: Path, pid: str) -> str:
    try:
        return f"{(folder / 'comm').read_text(encoding='utf-8', errors='replace').strip()} ({pid})"
    except OSError:
        return pid
