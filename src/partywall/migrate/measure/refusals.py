"""Why a guest cannot be moved, checked before anything moves: one sentence each, with a remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from partywall import units
from partywall.migrate.document import Method
from partywall.migrate.measure import qmp
from partywall.migrate.measure.end import Info
from partywall.sandbox.qemu.machine import LOSSY_MULTIPLE

SHOWN = 6


def refusals(
    source: Info, destination: Info, methods: Mapping[str, Method], *, moves_storage: bool = False
) -> list[str]:
    """Everything that is wrong, between two ends as they are now."""
    return [
        *_guest(source),
        *_features(source, destination, methods),
        *_machine(source, destination),
        *_cpu(source, destination),
        *_memory(source, destination),
        *_size(source, destination),
        *([*_disk(source, destination), *_disks(source, destination)] if moves_storage else ()),
    ]


def _guest(source: Info) -> Iterator[str]:
    if not source.runs:
        yield f"the guest does not run on {source.host}; start it there, or exchange the hosts of the plan"
    if source.moving:
        yield f"the guest on {source.host} is moving already; wait until that move has ended, or cancel it"
    if source.emulated and source.exact and source.memory is not None and source.memory % LOSSY_MULTIPLE == 0:
        size = units.format_bytes(source.memory)
        yield (
            f"the emulated guest on {source.host} has {size} of memory, a multiple of "
            f"{units.format_bytes(LOSSY_MULTIPLE)}: QEMU loses writes of such guests when they move; give it "
            f"{units.format_bytes(LOSSY_MULTIPLE // 2)} less"
        )
    for why in source.blockers:
        yield f"the guest on {source.host} cannot move: {why.rstrip('.')}; detach that device first"


def _features(source: Info, destination: Info, methods: Mapping[str, Method]) -> Iterator[str]:
    for each in (source, destination):
        if each.features:
            yield from qmp.lacking(methods, each.features, f"hypervisor on {each.host} ({each.version})")


def _machine(source: Info, destination: Info) -> Iterator[str]:
    if source.machine and destination.machines and source.machine not in destination.machines:
        yield (
            f"{destination.host} ({destination.version}) does not know the guest's machine type {source.machine}; "
            "move it to a host with the same version or a newer one"
        )


def _cpu(source: Info, destination: Info) -> Iterator[str]:
    if destination.cpus is None or not source.cpu:
        return
    if lacking := sorted(source.cpu - destination.cpus):
        more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
        yield (
            f"{destination.host} lacks CPU features that the guest has: {', '.join(lacking[:SHOWN])}{more}; start the "
            "guest with a CPU model that both hosts have"
        )


def _memory(source: Info, destination: Info) -> Iterator[str]:
    if source.memory is None or destination.memory_free is None or source.memory <= destination.memory_free:
        return
    need, free = (units.format_bytes(each) for each in (source.memory, destination.memory_free))
    yield f"{destination.host} has {free} of memory free, and the guest needs {need}; free some there"


def _size(source: Info, destination: Info) -> Iterator[str]:
    if not (source.exact and destination.exact) or source.memory == destination.memory:
        return
    theirs, ours = (units.format_bytes(each or 0) for each in (destination.memory, source.memory))
    yield f"the QEMU on {destination.host} has {theirs} of memory, and the guest {ours}; start it with the same -m"


def _disks(source: Info, destination: Info) -> Iterator[str]:
    for name, size in source.disks.items():
        there = destination.disks.get(name)
        if there is None:
            yield f"the QEMU on {destination.host} lacks the guest's disk {name}; start it with an image for that disk"
        elif there < size:
            own, needed = (units.format_bytes(each) for each in (there, size))
            yield f"the disk {name} on {destination.host} has {own}, and the guest's has {needed}; make it as large"


def _disk(source: Info, destination: Info) -> Iterator[str]:
    if source.disk is None or destination.disk_free is None or source.disk <= destination.disk_free:
        return
    need, free = (units.format_bytes(each) for each in (source.disk, destination.disk_free))
    yield f"{destination.host} has {free} of disk free, and the guest's disk takes {need}; free some there"
