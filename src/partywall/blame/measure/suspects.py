"""Suspects: groups that are named or found by what they use, without the victim and what is never touched."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.blame.job import NEVER, BlameJob
from partywall.blame.measure import labels
from partywall.blame.measure.levers import Lever, lever
from partywall.blame.measure.owners import Kind
from partywall.blame.measure.places import place_of
from partywall.blame.record import Place
from partywall.errors import CapabilityError, Problem, UsageError
from partywall.files import kernel_text
from partywall.host import Host
from partywall.sandbox import cgroups, tenants
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.group_counts import disk_work, field, throttled_ns

FIND_S = 1.0


@dataclass(frozen=True)
class Suspect:
    """A group with its lever, and a function that reads what it has used: CPU seconds, or bytes."""

    name: str
    lever: Lever
    used: Callable[[], float]
    place: Place


@dataclass(frozen=True)
class Found:
    """The suspects, and why others are none of them."""

    suspects: tuple[Suspect, ...]
    left_out: tuple[str, ...]


def find(job: BlameJob, host: Host, victim: Sequence[int]) -> Found:
    """Finds the suspects of a job. victim: its processes.

    CapabilityError if one that is named cannot be held; UsageError if a named one is the victim or never touched. Where
    nobody is named, those that cannot be held are left out, and so are idle ones.
    """
    groups = cgroups.read(host.root)
    if why := groups.why_not():
        raise CapabilityError(f"this host has {why}, so no suspect can be held; run it on the host, as root")
    kept_out = _paths_of([os.getpid(), *victim], host) | ({_path(job.group)} if job.group else set())
    found = _named(job, host, groups, kept_out) if job.suspects else _unnamed(job, host, groups, kept_out)
    if not found.suspects:
        why = f" ({found.left_out[0]})" if found.left_out else ""
        remedy = "name some; partywall blame --help says how"
        raise UsageError(Problem(f"there is no suspect{why}", remedy, key="SUSPECT"))
    if len(found.suspects) > job.most:
        said = f"{len(found.suspects)} suspects are named, --most is {job.most}"
        raise UsageError(Problem(said, "name fewer, or give a larger --most", key="--most"))
    return found


def _named(job: BlameJob, host: Host, groups: Cgroups, kept_out: set[str]) -> Found:
    paths = list(dict.fromkeys(_group(text, host) for text in job.suspects))
    for path in paths:
        if why := _why_not(path, kept_out, job):
            raise UsageError(Problem(f"{path} {why}", "name another suspect", key="SUSPECT"))
    return Found(tuple(_suspect(job, host, groups, path) for path in paths), ())


def _unnamed(job: BlameJob, host: Host, groups: Cgroups, kept_out: set[str]) -> Found:
    found, left_out = list[Suspect](), list[str]()
    known = labels.Labels(has_systemd=_has_systemd(host))
    for path in _all(groups):
        why = _why_not(path, kept_out, job)
        if why := why or ("" if job.any else known.lacking(path)):
            left_out.append(f"{path} {why}")
            continue
        try:
            found.append(_suspect(job, host, groups, path))
        except CapabilityError as error:
            left_out.append(str(error).partition(" — ")[0])
    found, idle = _busiest(found, job.most)
    return Found(tuple(found), (*left_out, *(f"{name} uses less than the others" for name in idle)))


def _suspect(job: BlameJob, host: Host, groups: Cgroups, path: str) -> Suspect:
    kind = Kind(job.lever)
    held = lever(kind, path, groups, has_systemd=_has_systemd(host), device=job.device)
    return Suspect(path, held, reader(kind, path, groups, job.device), place_of(path, held, groups, host))


def _has_systemd(host: Host) -> bool:
    return host.path("/run/systemd/system").is_dir()


def _path(cgroup: str) -> str:
    return f"/{cgroup.strip('/')}"


def _group(text: str, host: Host) -> str:
    tenant = tenants.named(text, host)
    if tenant.cgroup is not None:
        return _path(tenant.cgroup)
    # The group in the hierarchy that limits CPU time.
    for line in (kernel_text(str(host.path(f"/proc/{tenant.pid}/cgroup"))) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or (not controllers and cgroups.read(host.root).is_v2):
            return _path(path)
    return "/"


def _paths_of(pids: Sequence[int], host: Host) -> set[str]:
    return {path for pid in pids for path in tenants.cgroups_of(host.path(f"/proc/{pid}")) if path != "/"}


def _why_not(path: str, kept_out: set[str], job: BlameJob) -> str:
    """Why a group is no suspect; empty if it is one."""
    if any(tenants.is_below(other, path) for other in kept_out):
        return "is the victim's own group, or that of this command"
    parts = path.split("/")
    own = [part for part in parts if part.endswith(tenants.UNITS)] + parts[-1:]
    never = [part for part in map(_without_service, own) if part in NEVER]
    never += [part for part in map(_without_service, parts) if part in job.never]
    return f"is never touched ({never[0]})" if never else ""


def _without_service(part: str) -> str:
    return part.removesuffix(".service")


def _all(groups: Cgroups) -> list[str]:
    top = groups.folder("cpu", "/")
    return [f"/{path.relative_to(top)}" for path in tenants.groups(top)]


def _busiest(found: list[Suspect], most: int) -> tuple[list[Suspect], list[str]]:
    before = [each.used() for each in found]
    time.sleep(FIND_S)
    used = [(each.used() - was, at) for at, (each, was) in enumerate(zip(found, before, strict=True))]
    order = [at for use, at in sorted(used, key=lambda pair: -pair[0]) if use > 0]
    kept = order[:most]
    return [found[at] for at in kept], [each.name for at, each in enumerate(found) if at not in kept]


def reader(kind: Kind, cgroup: str, groups: Cgroups, device: str) -> Callable[[], float]:
    """A function that reads what a group has used so far: CPU seconds, or bytes on a disk."""
    if kind is Kind.DISK:
        return _bytes(groups, cgroup, device)
    if groups.is_v2:
        file = groups.folder("cpu", cgroup) / "cpu.stat"
        return lambda: (field(_bytes_of(file), b"usage_usec ") or 0) / 1e6
    if (usage := groups.v1.get("cpuacct", Path("/nowhere")) / cgroup.strip("/") / "cpuacct.usage").exists():
        return lambda: float(kernel_text(str(usage)) or 0) / 1e9
    folder = groups.folder("cpu", cgroup)
    return lambda: sum(_ran_ns(pid) for pid in tenants.all_processes(folder)) / 1e9


def _ran_ns(pid: int) -> int:
    text = kernel_text(f"/proc/{pid}/schedstat")
    return int(text.split()[0]) if text else 0


def _bytes_of(file: Path) -> bytes:
    return (kernel_text(str(file)) or "").encode()


def _bytes(groups: Cgroups, cgroup: str, device: str) -> Callable[[], float]:
    folder = str(groups.folder("io", cgroup))

    def read() -> float:
        _, read_bytes, write_bytes = (disk_work(folder, is_v2=groups.is_v2) or {}).get(device, (0, 0, 0))
        return float(read_bytes + write_bytes)

    return read


def throttled(groups: Cgroups, cgroup: str) -> Callable[[], float] | None:
    """A function that reads how long limits of a group, or of those around it, have stopped it; None for the root."""
    if _path(cgroup) == "/":
        return None
    folder = groups.folder("cpu", cgroup)
    local = folder / "cpu.stat.local"
    file = local if local.exists() else folder / "cpu.stat"
    return lambda: throttled_ns(_bytes_of(file)) / 1e9
