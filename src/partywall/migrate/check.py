"""A migration plan file to a MigrationPlan, or to a UsageError that holds every mistake with its line and remedy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partywall.agent.catalogue import Catalogue
from partywall.agent.metric import MetricError, reader
from partywall.core.design import rounds
from partywall.core.document.explain import Mistake, did_you_mean
from partywall.core.document.form import checked, opened, spell_params
from partywall.core.document.reading import read
from partywall.core.document.shipped import find as find_file
from partywall.core.document.shipped import shipped_as
from partywall.migrate.document import Activity, Bystander, GuestSpec, HostSpec, HostsSpec, Method, MigrationPlan

OWN_WORK = "guest"
"""The one workload of a guest of the user's own."""
KEY = "partywall_migration"
_STAND_INS: dict[str, Any] = {KEY: 1, "name": "unnamed"}


def names() -> tuple[str, ...]:
    """The plans that ship with Partywall, by name."""
    return shipped_as(lambda key: key == KEY)


def find(name_or_path: str) -> Path:
    """The file that is meant: a path, or the name of a shipped plan. Raises UsageError."""
    return find_file(name_or_path, names(), "migration plan")


def load(path: Path, catalogue: Catalogue) -> MigrationPlan:
    """Reads and checks a plan. Raises UsageError with all of its problems."""
    return loads(read(path, "migration plan"), str(path), catalogue)


def loads(raw: bytes, file: str, catalogue: Catalogue) -> MigrationPlan:
    """Like `load`, of bytes at hand; `file` is what messages call it."""
    document = opened(raw, KEY, file, "a plan", "docs/migrate.md")
    data = copy.deepcopy(document.data)
    if data.get("hosts") is not None:
        # It does what it does, and is not idle.
        data.setdefault("workloads", {OWN_WORK: None})
    misspelt = _spell_out(data)
    return checked(
        MigrationPlan, document, file, lambda plan: check(plan, catalogue), data, misspelt, stand_ins=_STAND_INS
    )


def _spell_out(data: dict[str, Any]) -> list[Mistake]:
    """Converts sizes and durations among kernels' parameters to numbers. Changes `data`."""
    workloads = data.get("workloads")
    parts: dict[tuple[str, ...], Any] = {("bystander",): data.get("bystander")}
    if isinstance(workloads, dict):
        parts |= {("workloads", str(name)): part for name, part in workloads.items()}
    return [mistake for path, part in parts.items() for mistake in spell_params(part, path)]


def moves_of(plan: MigrationPlan) -> dict[int, tuple[int, tuple[str, str]]]:
    """By number in the plan's random order: the round of a move, and its workload and method."""
    return dict(enumerate(rounds(plan.cells, plan.moves, plan.seed, "moves")))


def check(plan: MigrationPlan, catalogue: Catalogue) -> Iterator[Mistake]:
    """Everything that is wrong with a plan of the right form."""
    yield from _kernels(plan, catalogue)
    for name, method in plan.methods.items():
        yield from _method(("methods", name), method)
    if plan.hosts is not None:
        yield from _own_hosts(plan, plan.hosts)
        yield from _untouched(plan)
    else:
        yield from _our_guest(plan)


def check_at(key: str, plan: MigrationPlan, catalogue: Catalogue) -> Iterator[Mistake]:
    """As `check`, for the plan at a key of another document."""
    for mistake in check(plan, catalogue):
        yield mistake._replace(path=(key, *mistake.path))


def _our_guest(plan: MigrationPlan) -> Iterator[Mistake]:
    """A guest that is started for the plan."""
    if plan.guest.domain is not None:
        yield Mistake(("guest", "domain"), "a domain is on hosts of your own", "add hosts:, or remove it")
    if plan.clients.address is not None:
        yield Mistake(("clients", "address"), "the guest of this plan gets its address from Partywall", "remove it")
    for name, activity in plan.workloads.items():
        if activity is not None:
            yield from _activity(("workloads", name), activity, plan.guest)
    if plan.calibration == 1:
        yield Mistake(("calibration",), "one move does not show how much costs vary", "give 2 or more, or 0")
    if plan.guest.storage != "shared" and plan.guest.root is None:
        said = "the guest has no disk that could be moved along or served"
        yield Mistake(("guest", "storage"), said, "add root: with a package, e.g. [nginx-light], or remove storage")
    if plan.guest.service is None:
        said = "virtual users need a web server in the guest"
        remedy = 'add guest: {root: [nginx-light], service: [nginx, -g, "daemon off;"]}'
        wanted = [("workloads", name, "http") for name, each in plan.workloads.items() if each and each.http]
        for place in [*([("clients", "http")] if plan.clients.http else []), *wanted]:
            yield Mistake(place, said, remedy)
    if plan.guest.service is not None and plan.guest.root is None and "/" not in plan.guest.service[0]:
        said = f"{plan.guest.service[0]} is not in the guest, which has no root image"
        yield Mistake(("guest", "service"), said, "add root: with the package that has it, e.g. [nginx-light]")


def _own_hosts(plan: MigrationPlan, hosts: HostsSpec) -> Iterator[Mistake]:
    for name, host in (("a", hosts.a), ("b", hosts.b)):
        yield from _own_host(("hosts", name), host)
    if (hosts.a.uri is None) != (hosts.b.uri is None):
        yield Mistake(("hosts",), "one host has libvirt and the other has not", "use the same on both")
    if hosts.a.uri is not None and hosts.a.uri == hosts.b.uri:
        yield Mistake(("hosts", "b", "uri"), "both hosts are the same", "name another daemon")
    if hosts.a.uri is not None and plan.guest.domain is None:
        yield Mistake(("guest",), "the domain that moves is not named", "add domain: with its name")
    if hosts.a.qmp is not None and len(plan.cells) * plan.moves > 1:
        yield Mistake(("moves",), "a QEMU that waits for a guest takes it once", "write one method, and moves: 1")


def _own_host(at: tuple[str, ...], host: HostSpec) -> Iterator[Mistake]:
    if (host.uri is None) == (host.qmp is None):
        remedy = "write uri: qemu+ssh://HOST/system for libvirt, or qmp: /PATH of QEMU's monitor"
        yield Mistake(at, "a host has a libvirt daemon or a monitor of QEMU", remedy)
    if host.ssh is not None and host.uri is not None:
        remedy = f"write uri: qemu+ssh://{host.ssh}/system"
        yield Mistake((*at, "ssh"), "a libvirt URI has its own way to the host", remedy)
    if host.qmp is not None and host.address is None:
        remedy = "add address: 10.0.0.2, for example"
        yield Mistake(at, "QEMU needs an address on which it takes the guest", remedy)


def _untouched(plan: MigrationPlan) -> Iterator[Mistake]:
    """A guest of the user's own moves as it is: nothing is started in it or beside it."""
    given = plan.guest.model_fields_set & {"root", "service", "verify", "memory", "vcpus", "accel"}
    for name in sorted(given):
        yield Mistake(("guest", name), "a guest of your own is as it is", "remove it")
    if plan.goal.p99 is not None:
        said = "what is done by a guest of your own has no response times that could be predicted"
        yield Mistake(("goal", "p99"), said, "write goal: {downtime: 300ms}, with clients.address")
    if plan.goal.downtime is not None and plan.clients.address is None:
        said = "without clients nobody sees how long the guest does not answer"
        yield Mistake(("goal", "downtime"), said, "add clients: {address: 10.0.0.5}, the guest's")
    if plan.guest.storage == "network":
        said = "a guest of your own has its disks where they are"
        yield Mistake(("guest", "storage"), said, "write moved, or shared if both hosts reach the same disks")
    if plan.calibration:
        yield Mistake(("calibration",), "nothing is tried out on a guest of your own", "remove it")
    if any(activity is not None for activity in plan.workloads.values()):
        yield Mistake(("workloads",), "a guest of your own has work of its own", "remove workloads")
    if plan.clients.http is not None:
        said = "virtual users of a guest of your own are not part of a migration"
        yield Mistake(("clients", "http"), said, "run 'partywall load' beside it, and remove http")
    if plan.link.delay:
        yield Mistake(("link", "delay"), "the link of your own hosts is as it is", "remove delay; rate may stay")
    if plan.bystander is not None:
        yield Mistake(("bystander",), "no neighbour is started on hosts of your own", "remove it")


def _kernels(plan: MigrationPlan, catalogue: Catalogue) -> Iterator[Mistake]:
    every: dict[tuple[str, ...], Activity | Bystander]
    every = {("workloads", name): activity for name, activity in plan.workloads.items() if activity}
    if plan.bystander is not None:
        every["bystander",] = plan.bystander
    for at, work in every.items():
        if work.kernel is None:
            if work.params:
                yield Mistake((*at, "params"), "params are for kernels", "add kernel:, or remove params")
        elif catalogue.kernel(work.kernel) is None:
            said = f"there is no kernel {work.kernel!r}"
            yield Mistake((*at, "kernel"), said, did_you_mean(work.kernel, catalogue.names()))
        else:
            for key, said, remedy in catalogue.check_params(work.kernel, work.params):
                yield Mistake((*at, "params", *key.split(".")) if key else (*at, "params"), said, remedy)


def _activity(at: tuple[str, ...], activity: Activity, guest: GuestSpec) -> Iterator[Mistake]:
    if activity.metric is not None:
        try:
            reader(activity.metric)
        except MetricError as error:
            yield Mistake((*at, "metric", error.key), str(error), error.remedy)
    if activity.command is None:
        if activity.metric is not None:
            yield Mistake((*at, "metric"), "only a command has a metric", "add command:, or remove metric")
        return
    if activity.kernel is not None:
        yield Mistake((*at, "command"), "a workload is a kernel or a command", "remove one of them")
    if guest.root is None and "/" not in activity.command[0]:
        said = f"{activity.command[0]} is not in the guest, which has no root image"
        yield Mistake((*at, "command"), said, "add guest.root: with the package that has it, e.g. [sysbench]")


def _method(at: tuple[str, ...], method: Method) -> Iterator[Mistake]:
    if method.compression and not method.multifd:
        yield Mistake((*at, "compression"), "compression needs multifd", "add multifd: 2, for example")
    if method.postcopy and method.multifd:
        said = "QEMU cannot combine post-copy and multifd"
        yield Mistake((*at, "multifd"), said, "remove one of them")
    if method.xbzrle and method.multifd:
        yield Mistake((*at, "xbzrle"), "QEMU cannot combine xbzrle and multifd", "remove one of them")
    if method.xbzrle_cache and not method.xbzrle:
        yield Mistake((*at, "xbzrle_cache"), "the cache is that of xbzrle", "add xbzrle: true, or remove it")
    if method.xbzrle_cache and method.xbzrle_cache & (method.xbzrle_cache - 1):
        yield Mistake((*at, "xbzrle_cache"), "QEMU needs a power of two", "write 16MiB, for example")
    if method.throttle_step and not method.auto_converge:
        yield Mistake(
            (*at, "throttle_step"), "the step is that of auto_converge", "add auto_converge: true, or remove it"
        )
    if method.stop_after is not None and (method.postcopy or method.cancel):
        said = "a guest that is stopped cannot be handed over or stay"
        yield Mistake((*at, "stop_after"), said, "remove stop_after, or postcopy and cancel")
    if method.dirty_limit and method.auto_converge:
        said = "QEMU cannot combine dirty_limit and auto_converge"
        yield Mistake((*at, "dirty_limit"), said, "remove one of them")
    if method.postcopy and method.cancel:
        yield Mistake((*at, "cancel"), "a move by post-copy cannot be cancelled", "remove postcopy or cancel")
