"""Checks whether the memory and files of a plan's workloads fit into guests, limits, and the host's memory and disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partywall import units
from partywall.agent import memory
from partywall.agent.catalogue import shipped
from partywall.errors import CapabilityError, Problem, UsageError
from partywall.host import Host, memory_nodes
from partywall.run.document.scenario import Workload
from partywall.run.plan.settings import keeps_files, switches_disk
from partywall.run.values.plan import Plan, Trial
from partywall.sandbox import qemu
from partywall.sandbox.document import Disk

MEMORY_LEAST = 64 << 20
# Memory beyond a guest's default is added in steps of this size.
GUEST_STEP = 64 << 20
DISK_STEP = 256 << 20


def _kernels(trial: Trial) -> Iterator[tuple[str, str | None, Workload]]:
    """(key, kernel, workload) of every workload of a trial."""
    yield f"victims.{trial.victim_name}", trial.victim.probe, trial.victim
    for name, aggressor in trial.aggressors.items():
        yield f"aggressors.{name}", aggressor.stressor, aggressor


def _caches(workload: Workload, facts: dict[str, Any]) -> dict[int, int]:
    """The caches of the machine that the workload or its guest runs on."""
    return memory.caches_of(facts.get("machines", {}).get(workload.sandbox.machine, facts))


def _held(trial: Trial, facts: dict[str, Any]) -> Iterator[tuple[str, Workload, int]]:
    """(key, workload, bytes used by its kernel) of every workload of a trial."""
    for key, kernel, workload in _kernels(trial):
        caches = _caches(workload, facts)
        yield key, workload, memory.held_bytes(kernel, workload.params, workload.threads, shipped(), caches)


def _file_bytes(kernel: str | None, workload: Workload) -> int:
    return memory.file_bytes(kernel, workload.params, workload.threads, shipped())


def check_kernels(plan: Plan, facts: dict[str, Any]) -> None:
    """UsageError if a kernel needs more memory or disk space than its sandbox has."""
    if problems := [p for trial in plan.trials for p in (*beyond_memory(trial, facts), *beyond_disk(trial))]:
        raise UsageError(*dict.fromkeys(problems))


def beyond_memory(trial: Trial, facts: dict[str, Any]) -> Iterator[Problem]:
    """Kernels that the memory limit of their own sandbox would kill."""
    for key, workload, held in _held(trial, facts):
        limit = workload.sandbox.memory
        beside = memory.AGENT_BYTES
        if workload.sandbox.guest:
            limit = _least_memory(trial, key) or limit or qemu.MEMORY
            beside += qemu.kernel_bytes(limit)
        if limit is not None and held + beside > limit:
            needed = units.format_bytes(held + beside)
            yield Problem(
                f"its kernel and agent use {needed}, and the limit of its sandbox is {units.format_bytes(limit)}",
                f"give at least {needed}, or a smaller size in {key}.params",
                key=f"{key}.sandbox.memory",
            )


def _least_memory(trial: Trial, key: str) -> int | None:
    """The lowest memory limit that a victim is switched to; None if it is not switched."""
    limits = (treatment.victim_limits for treatment in trial.treatments if key.startswith("victims."))
    return min((limit.memory for limit in limits if limit is not None and limit.memory is not None), default=None)


def with_room(trial: Trial, facts: dict[str, Any]) -> Trial:
    """The trial with enough memory in guests for their kernels, where the scenario sets no size."""
    trial = _with(trial, {key: _with_memory(workload, held) for key, workload, held in _held(trial, facts)})
    return _with(trial, {key: _with_disk(trial, key, kernel, workload) for key, kernel, workload in _kernels(trial)})


def with_rings(trial: Trial, facts: dict[str, Any]) -> Trial:
    """The trial with buffer sizes in guests that suit the host's caches, whatever caches a guest's kernel reports."""
    changed = {
        key: workload.model_copy(
            update={"params": memory.sized(kernel, workload.params, shipped(), _caches(workload, facts))}
        )
        for key, kernel, workload in _kernels(trial)
        if workload.sandbox.guest
    }
    return _with(trial, changed)


def _with(trial: Trial, workloads: Mapping[str, Workload]) -> Trial:
    """The trial with replaced workloads, by key."""
    aggressors = {name: workloads.get(f"aggressors.{name}", aggressor) for name, aggressor in trial.aggressors.items()}
    victim = workloads.get(f"victims.{trial.victim_name}", trial.victim)
    return trial.model_copy(update={"victim": victim, "aggressors": aggressors})


def _with_memory(workload: Workload, held: int) -> Workload:
    needed = -(-qemu.memory_for(held + memory.AGENT_BYTES) // GUEST_STEP) * GUEST_STEP
    if not workload.sandbox.guest or workload.sandbox.memory is not None or needed <= qemu.MEMORY:
        return workload
    return workload.model_copy(update={"sandbox": workload.sandbox.model_copy(update={"memory": needed})})


def _with_disk(trial: Trial, key: str, kernel: str | None, workload: Workload) -> Workload:
    size, files = _image_bytes(trial, key, workload), _file_bytes(kernel, workload)
    set_disk = workload.sandbox.disk or Disk()
    if not workload.sandbox.guest or not size or set_disk.size is not None or not files or files <= _room(size):
        return workload
    disk = set_disk.model_copy(update={"size": _size_for(files)})
    return workload.model_copy(update={"sandbox": workload.sandbox.model_copy(update={"disk": disk})})


def check_guest_memory(plan: Plan, host: Host, *, waits: bool = False) -> None:
    """CapabilityError if the guests of one trial do not fit into the host's available memory or our part of it.

    waits: whether the run waits for free memory, so that only the size of the memory counts here. A host that does not
    report its memory passes.
    """
    needed = max(map(guest_memory, plan.trials), default=0)
    there, word = (host.most_memory, "there") if waits else (host.usable_memory, "available")
    if there is not None and needed > there:
        waiting = "" if waits else ", or wait for other programs to end with --wait-for-memory"
        raise CapabilityError(
            f"the guests of one trial need {units.format_bytes(needed)} of memory, and {units.format_bytes(there)} are "
            f"{word}; lower sandbox.memory or migration.memory, or list fewer aggressors{waiting}"
        )


def check_node_memory(plan: Plan, host: Host) -> None:
    """CapabilityError if sandboxes of one trial need more memory than the NUMA nodes that they are bound to have.

    Only this host's nodes are checked. Nodes of unknown size pass. Nodes without memory are a problem of their own.
    """
    sizes = {node.number: node.memory for node in memory_nodes(host)}
    problems = [problem for trial in plan.trials for problem in _beyond_nodes(trial, host.facts, sizes)]
    if problems:
        raise CapabilityError(*dict.fromkeys(problems))


def _beyond_nodes(trial: Trial, facts: dict[str, Any], sizes: Mapping[int, int | None]) -> Iterator[Problem]:
    """For each set of nodes, what all sandboxes bound to these nodes, or to some of them, need together."""
    bound = list(_bound(trial, facts))
    for nodes, key in {nodes: key for key, nodes, _ in reversed(bound)}.items():
        needed = sum(size for _, others, size in bound if others <= nodes)
        there = [size for node in nodes if (size := sizes.get(node))]
        if len(there) == len(nodes) and needed > sum(there):
            numbers = ", ".join(map(str, sorted(nodes)))
            named = f"nodes {numbers} together have" if len(nodes) > 1 else f"node {numbers} has"
            yield Problem(
                f"the sandboxes of one trial that are bound there need {units.format_bytes(needed)} of memory, and "
                f"NUMA {named} {units.format_bytes(sum(there))}",
                "lower sandbox.memory or the sizes in params, or name further nodes",
                key=f"{key}.sandbox.memory_nodes",
            )


def _bound(trial: Trial, facts: dict[str, Any]) -> Iterator[tuple[str, frozenset[int], int]]:
    """(key, nodes, bytes) of every sandbox on this host whose memory is bound to nodes."""
    for key, workload, held in _held(trial, facts):
        box = workload.sandbox
        if box.memory_nodes is not None and not box.machine:
            needed = box.memory or qemu.MEMORY if box.guest else held + memory.AGENT_BYTES
            yield key, frozenset(units.parse_nodes(box.memory_nodes)), needed


def guest_memory(trial: Trial) -> int:
    """Bytes of memory of all guests of a trial on this host: the victim's, every aggressor's, the null aggressor's.

    Guests of migrations are among them.
    """
    moving = sum(a.migration.held_bytes for a in trial.aggressors.values() if a.migration is not None)
    own = [s.memory or qemu.MEMORY for s in trial.sandboxes if s.guest and not s.machine]
    return moving + sum(own) + (qemu.MEMORY if own else 0)


def memory_needed(trial: Trial, facts: dict[str, Any], machine: str = "") -> int:
    """The least bytes that a trial's kernels and agents use on a machine, according to their parameters.

    The memory of commands is not known.
    """
    held = [held for _, workload, held in _held(trial, facts) if workload.sandbox.machine == machine]
    return MEMORY_LEAST + sum(held) + len(held) * memory.AGENT_BYTES


def check_disk(plan: Plan, host: Host, work_root: Path) -> None:
    """CapabilityError if the files of disk kernels, or of guests' disks, do not fit on their file system."""
    disk = host.disk_usage(work_root)
    needed = max((_files_of(trial, disk.total) for trial in plan.trials), default=0)
    if needed > disk.free:
        raise CapabilityError(
            f"files of disk kernels and guests' disks, with the space kept free: {units.format_bytes(needed)} are "
            f"needed in {work_root} at a time, and {units.format_bytes(disk.free)} are free; give another --work-dir, "
            "a smaller file_bytes, or a smaller sandbox.disk.size"
        )


def _files_of(trial: Trial, total: int) -> int:
    """Bytes that a trial's workloads need in this host's work folder, on a disk of `total` bytes."""
    here = [w for w in _kernels(trial) if not w[2].sandbox.machine and w[2].sandbox.domain is None]
    images = sum(_image_bytes(trial, key, workload) for key, _, workload in here if workload.sandbox.guest)
    files = sum(_file_bytes(kernel, w) for _, kernel, w in here if not w.sandbox.guest)
    return images + (files + memory.left_free(total) if files else 0)


def _image_bytes(trial: Trial, key: str, workload: Workload) -> int:
    """Bytes of the file of a guest's disk; 0 if its disk is a device, or if it has none here (Xen, other machines)."""
    box, set_disk = workload.sandbox, workload.sandbox.disk or Disk()
    if box.machine or (box.uri or "").startswith("xen"):
        return 0
    switched = key.startswith("victims.") and switches_disk(trial)
    if set_disk.device is not None or not (box.disk or switched or keeps_files(workload)):
        return 0
    return set_disk.size or qemu.disk.SIZE


def beyond_disk(trial: Trial) -> Iterator[Problem]:
    """Workloads whose files do not fit on their own guest's disk."""
    for key, kernel, workload in _kernels(trial):
        if not workload.sandbox.guest or not (size := _image_bytes(trial, key, workload)):
            continue
        files, room = _file_bytes(kernel, workload), _room(size)
        if files and files > room:
            yield Problem(
                f"its files need {units.format_bytes(files)}, and a guest's disk of {units.format_bytes(size)} leaves "
                f"{units.format_bytes(max(room, 0))}, because {units.format_bytes(memory.left_free(size))} stay free",
                f"give a size of {units.format_bytes(_size_for(files))}, or a smaller file_bytes in {key}.params",
                key=f"{key}.sandbox.disk.size",
            )
        copies = sum(file.size or 0 for file in workload.files)
        if copies > qemu.disk.room(size):
            yield Problem(
                f"its files have {units.format_bytes(copies)}, and a guest's disk of {units.format_bytes(size)} has "
                f"room for {units.format_bytes(qemu.disk.room(size))}",
                "give a larger size, or leave out files",
                key=f"{key}.sandbox.disk.size",
            )


def _room(size: int) -> int:
    """Bytes available to a kernel's files on a disk of this size."""
    return qemu.disk.room(size) - memory.left_free(size)


def _size_for(files: int) -> int:
    """The smallest disk, in whole steps, that fits files of this size."""
    steps = -(-files // DISK_STEP)
    while _room(steps * DISK_STEP) < files:
        steps += 1
    return steps * DISK_STEP
