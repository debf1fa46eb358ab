"""Suspects: groups that are named or found by what they use, without the victim and what is never touched."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.blame.job import NEVER, BlameJob
from partywall.blame.measure import labels
from partywall.blame.measure.files import affinity
from partywall.blame.measure.groups import disk_of, every, group_of
from partywall.blame.measure.interfaces import Interface
from partywall.blame.measure.levers import Lever, lever
from partywall.blame.measure.owners import Kind
from partywall.blame.measure.places import place_of
from partywall.blame.measure.using import reader
from partywall.blame.record import Place
from partywall.errors import CapabilityError, Problem, UsageError
from partywall.files import kernel_text
from partywall.host import Host
from partywall.sandbox import cgroups, tenants
from partywall.sandbox.cgroups import Cgroups

FIND_S = 1.0
SETTLES_S = 0.5


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
    kept_out = _paths_of([os.getpid(), *victim], host) | (
        {group_of(job.group, host, "--group")} if job.group else set()
    )
    find_in = _named if job.suspects else _unnamed
    found = find_in(job, host, groups, kept_out, cpus_of(victim, host) if job.moves else frozenset())
    if not found.suspects:
        raise _nobody(found)
    if len(found.suspects) > job.most:
        said = f"{len(found.suspects)} suspects are named, --most is {job.most}"
        raise UsageError(Problem(said, "name fewer, or give a larger --most", key="--most"))
    return found


def cpus_of(victim: Sequence[int], host: Host) -> frozenset[int]:
    """The CPUs on which the victim's processes may run, their children too, with other threads of the same cores.

    A program that has just been started may still choose its CPUs, so they are read until they stay the same.
    """
    until, before = time.monotonic() + SETTLES_S, None
    while (now := frozenset[int]().union(*map(affinity, _descendants(victim)))) != before:
        before = now
        if time.monotonic() > until:
            break
        time.sleep(SETTLES_S / 5)
    cores = [frozenset(place["siblings"]) for place in host.facts.get("cpu", {}).get("places", ())]
    return now.union(*(core for core in cores if core & now))


def _descendants(pids: Sequence[int]) -> list[int]:
    """Processes with their children, and the children of these."""
    found, at = list(dict.fromkeys(pids)), 0
    while at < len(found):
        files = Path(f"/proc/{found[at]}/task").glob("*/children")
        found += [int(word) for file in files for word in (kernel_text(str(file)) or "").split()]
        at += 1
    return found


def expect_moves(job: BlameJob, found: Found) -> None:
    """UsageError if suspects are to be moved off the victim's CPUs, and these are not known."""
    if job.moves and not all(each.place.cpus for each in found.suspects):
        said = "--lever cpuset moves suspects off the victim's CPUs, and none of its processes is known on this host"
        raise UsageError(Problem(said, "use --lever cpu", key="--lever"))


def _nobody(found: Found) -> UsageError:
    """The error for a host without a suspect. Reasons are counted, and who is left out is not listed."""
    reasons = Counter(_reason(text) for text in found.left_out)
    if not reasons:
        said = "there is no suspect: this host has no groups but the victim's own"
        return UsageError(Problem(said, "run it on the host, and not in a container", key="SUSPECT"))
    counted = ", ".join(
        f"{why} ({count} {'group' if count == 1 else 'groups'})" for why, count in reasons.most_common()
    )
    remedy = "name groups as SUSPECT"
    if any(labels.ASKED in text for text in found.left_out):
        remedy += ", or add --any, which takes those without a label too; with --dry-run it only shows them"
    return UsageError(Problem(f"there is no suspect; left out: {counted}", remedy, key="SUSPECT"))


def _reason(text: str) -> str:
    """Why a group is left out, without its path and what differs from one group to the other."""
    return re.split(r"[;:]| \(", text.partition(" ")[2])[0]


def _named(job: BlameJob, host: Host, groups: Cgroups, kept_out: set[str], victims: frozenset[int]) -> Found:
    paths = list(dict.fromkeys(group_of(text, host, "SUSPECT") for text in job.suspects))
    for path in paths:
        if why := _why_not(path, kept_out, job):
            raise UsageError(Problem(f"{path} {why}", "name another suspect", key="SUSPECT"))
    return Found(tuple(_suspect(job, host, groups, path, victims) for path in paths), ())


def _unnamed(job: BlameJob, host: Host, groups: Cgroups, kept_out: set[str], victims: frozenset[int]) -> Found:
    found, left_out = list[Suspect](), list[str]()
    known = labels.Labels(has_systemd=_has_systemd(host))
    for path in every(groups):
        why = _why_not(path, kept_out, job)
        if why := why or ("" if job.any else known.lacking(path)):
            left_out.append(f"{path} {why}")
            continue
        try:
            found.append(_suspect(job, host, groups, path, victims))
        except CapabilityError as error:
            left_out.append(str(error).partition(" — ")[0])
    found, idle = _busiest(found, job.most)
    return Found(tuple(found), (*left_out, *(f"{name} uses less than the others" for name in idle)))


def _suspect(job: BlameJob, host: Host, groups: Cgroups, path: str, victims: frozenset[int]) -> Suspect:
    kind, device = Kind(job.lever), disk_of(job.device, host)
    held = lever(kind, path, groups, has_systemd=_has_systemd(host), device=device, victims=victims)
    place = place_of(path, held, groups, host).model_copy(update={"device": device if kind is Kind.DISK else ""})
    used = held.owner.sent if isinstance(held.owner, Interface) else reader(kind, path, groups, device)
    return Suspect(path, held, used, place)


def _has_systemd(host: Host) -> bool:
    return host.path("/run/systemd/system").is_dir()


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


def _busiest(found: list[Suspect], most: int) -> tuple[list[Suspect], list[str]]:
    before = [each.used() for each in found]
    time.sleep(FIND_S)
    used = [(each.used() - was, at) for at, (each, was) in enumerate(zip(found, before, strict=True))]
    order = [at for use, at in sorted(used, key=lambda pair: -pair[0]) if use > 0]
    kept = order[:most]
    return [found[at] for at in kept], [each.name for at, each in enumerate(found) if at not in kept]
