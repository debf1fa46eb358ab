"""A cluster file to a Cluster, or to a UsageError that holds every mistake with its line and remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from partywall.consolidate.document import POWER_CURVES, Cluster, Control, GuestSpec
from partywall.core.document.explain import Mistake, did_you_mean
from partywall.core.document.form import checked, opened
from partywall.core.document.reading import read
from partywall.core.document.shipped import find as find_file
from partywall.core.document.shipped import shipped_as
from partywall.errors import UsageError
from partywall.power import meters
from partywall.power.address import OF_THIS_HOST

KEY = "partywall_cluster"
_STAND_INS: dict[str, Any] = {KEY: 1, "name": "unnamed"}
_HOURS = re.compile(r"^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$")
_MAC = re.compile(r"^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$")
GUESTS_MAX = 100_000


def names() -> tuple[str, ...]:
    """The clusters that ship with Partywall, by name."""
    return shipped_as(lambda key: key == KEY)


def find(name_or_path: str) -> Path:
    """The file for a path, or for the name of a shipped cluster. Raises UsageError."""
    return find_file(name_or_path, names(), "cluster file")


def load(path: Path, *, placed: bool = True) -> Cluster:
    """Reads and checks a cluster file. Raises UsageError with all of its problems.

    placed: every guest must have a host. A simulation places guests itself.
    """
    return loads(read(path, "cluster file"), str(path), placed=placed)


def loads(raw: bytes, file: str, *, placed: bool = True) -> Cluster:
    """Like `load`, for bytes. file: its name in messages."""
    document = opened(raw, KEY, file, "a cluster file", "docs/consolidate.md")
    return checked(Cluster, document, file, lambda cluster: check(cluster, placed=placed), stand_ins=_STAND_INS)


def check(cluster: Cluster, *, placed: bool = True) -> Iterator[Mistake]:
    """Everything that is wrong with a cluster of the right form."""
    if cluster.hypervisor == "practice" and cluster.folder is None:
        yield Mistake(
            ("hypervisor",), "practice needs a folder for its files", "add folder: /tmp/practice, for example"
        )
    if cluster.hypervisor != "recorded":
        yield from _single(cluster)
    yield from _hosts(cluster)
    yield from _guests(cluster, placed=placed)
    yield from _apart(cluster)
    yield from _limits(cluster)
    yield from _curves(cluster)
    if placed:
        yield from _room(cluster)


def _single(cluster: Cluster) -> Iterator[Mistake]:
    """A real host or guest has its own name."""
    for kind, specs in (("hosts", cluster.hosts), ("guests", cluster.guests)):
        for name, spec in specs.items():
            if spec.count > 1:
                yield Mistake(
                    (kind, name, "count"), "count is only for simulations", f"write each of {kind} on its own"
                )


def _hosts(cluster: Cluster) -> Iterator[Mistake]:
    curves = [*cluster.power, *POWER_CURVES]
    for name, host in cluster.hosts.items():
        at = ("hosts", name)
        if host.power not in curves:
            said = f"there is no power curve {host.power!r}"
            remedy = did_you_mean(host.power, curves, f"define it under power, or use {', '.join(POWER_CURVES)}")
            yield Mistake((*at, "power"), said, remedy)
        if host.meter is not None:
            yield from _meter(host.meter, host.uri, (*at, "meter"))
        if host.control is not None:
            yield from _control(host.control, (*at, "control"))
        if host.control is not None and host.count > 1:
            said = f"{host.count} hosts cannot share one power control"
            yield Mistake((*at, "control"), said, "write each host on its own, without count")
        if cluster.hypervisor == "libvirt" and host.uri is None:
            yield Mistake(at, "libvirt needs the host's URI", "add uri: qemu+ssh://ADDRESS/system")
        if cluster.hypervisor == "libvirt" and host.control is None:
            yield Mistake(at, "it is not known how this host is switched on and off", "add control: {kind: redfish, …}")
    for name, count in Counter(cluster.host_names()).items():
        if count > 1:
            yield Mistake(("hosts",), f"two hosts are named {name}", "count adds numbers to names; rename one")


def _meter(name: str, uri: str | None, at: tuple[str, ...]) -> Iterator[Mistake]:
    """What is wrong with a meter's name. Whether there is such a meter is known when it is read."""
    from partywall.sandbox.libvirt.domain import is_local  # noqa: PLC0415 - slow to import

    try:
        address, _ = meters.check(name)
    except UsageError as error:
        yield from (Mistake(at, each.message, each.remedy) for each in error.problems)
        return
    if address.scheme in OF_THIS_HOST and uri is not None and not is_local(uri):
        said = f"{address.scheme} measures the host on which the manager runs, but {uri} is another"
        yield Mistake(at, said, "name a meter that is read over the network, such as redfish://admin@bmc/Chassis/1")


_NEEDED = {
    "redfish": ("address", "system"),
    "ipmi": ("address", "user", "password_file"),
    "wol": ("mac", "off", "state"),
    "command": ("on", "off", "state"),
}

_OPTIONAL = {"certificate": "redfish", "tls": "redfish", "cipher": "ipmi"}
"""Keys with a default, and the kind of control that has them."""


def _control(control: Control, at: tuple[str, ...]) -> Iterator[Mistake]:
    for key in _NEEDED[control.kind]:
        if getattr(control, key) is None:
            yield Mistake(at, f"{control.kind} needs {key}", f"add {key}; see docs/consolidate.md")
    if control.mac is not None and not _MAC.match(control.mac):
        yield Mistake((*at, "mac"), f"{control.mac!r} is not a hardware address", "write for example 52:54:00:12:34:56")
    if control.kind == "redfish" and control.address and not control.address.startswith(("http://", "https://")):
        yield Mistake((*at, "address"), f"{control.address!r} is not a URL", "begin with https://")
    for key, kind in _OPTIONAL.items():
        if getattr(control, key) is not None and control.kind != kind:
            yield Mistake((*at, key), f"{control.kind} has no {key}", f"leave it out; it is for {kind}")
    if control.tls is not None and control.certificate is not None:
        said = "with tls: insecure no certificate is checked"
        yield Mistake((*at, "certificate"), said, "leave out tls, or certificate")
    if control.user is not None and control.password_file is None:
        yield Mistake((*at, "user"), "a user needs a password", "add password_file: with a file that holds it")


def _guests(cluster: Cluster, *, placed: bool) -> Iterator[Mistake]:
    hosts = cluster.host_names()
    known = set(hosts)
    for name, guest in cluster.guests.items():
        at = ("guests", name)
        if guest.host is not None and guest.host not in known:
            remedy = did_you_mean(guest.host, hosts, "name one of hosts")
            yield Mistake((*at, "host"), f"there is no host {guest.host!r}", remedy)
        if placed and guest.host is None and cluster.hypervisor != "libvirt":
            yield Mistake(at, "it is not known where this guest runs", "add host:, or simulate instead")
        yield from _sizes(guest, at)
        for resource, loss in guest.suffers.items():
            if loss.low is not None and loss.low > loss.factor:
                said = f"the lower end {loss.low:g} is above the factor {loss.factor:g}"
                yield Mistake((*at, "suffers", resource, "low"), said, "give the lower end of the factor's interval")
        if guest.slo.isolation is not None and not guest.suffers:
            said = "without measured isolation factors this goal cannot be predicted"
            yield Mistake((*at, "slo", "isolation"), said, "add suffers: {RESOURCE: {factor: …}} from a run")
    for name, count in Counter(cluster.guest_names()).items():
        if count > 1:
            yield Mistake(("guests",), f"two guests are named {name}", "count adds numbers to names; rename one")
    if sum(guest.count for guest in cluster.guests.values()) > GUESTS_MAX:
        yield Mistake(("guests",), f"there are more than {GUESTS_MAX} guests", "divide the cluster")


def _sizes(guest: GuestSpec, at: tuple[str, ...]) -> Iterator[Mistake]:
    for key in ("demand", "peak", "promise"):
        value = getattr(guest, key)
        if value is not None and value > guest.cpus:
            yield Mistake(
                (*at, key), f"{value:g} cores are more than its {guest.cpus:g} CPUs", "raise cpus, or lower it"
            )
    if guest.demand is not None and guest.peak is not None and guest.peak < guest.demand:
        yield Mistake((*at, "peak"), f"the peak {guest.peak:g} is below the mean {guest.demand:g}", "swap them")
    if guest.content is not None and guest.content > guest.memory:
        yield Mistake((*at, "content"), "the content is larger than the memory", "give at most memory")
    if guest.working_set is not None and guest.working_set > guest.memory:
        yield Mistake((*at, "working_set"), "the working set is larger than the memory", "give at most memory")
    if guest.working_set is not None and guest.dirty_rate is None:
        yield Mistake((*at, "working_set"), "a working set needs a dirty rate", "add dirty_rate: 4MB/s, for example")
    if guest.slo.p99 is not None and guest.p99 is None:
        yield Mistake(
            (*at, "slo", "p99"), "without its present p99 this goal cannot be predicted", "add p99: as measured"
        )
    if guest.slo.p99 is not None and guest.p99 is not None and guest.p99 > guest.slo.p99:
        yield Mistake((*at, "p99"), "it breaks its goal already", "raise slo.p99, or first make the guest faster")


def _apart(cluster: Cluster) -> Iterator[Mistake]:
    known = cluster.guest_names()
    every = set(known)
    for number, group in enumerate(cluster.apart):
        at = ("apart", number)
        for place, name in enumerate(group):
            if name not in every:
                remedy = did_you_mean(name, known, "name guests")
                yield Mistake((*at, place), f"there is no guest {name!r}", remedy)
        for name, count in Counter(group).items():
            if count > 1:
                yield Mistake(at, f"{name} is named {count} times", "name it once")
        if len(group) < 2:
            yield Mistake(at, "a group of one guest keeps nothing apart", "name two guests or more")
        if len(set(group)) > len(cluster.host_names()):
            yield Mistake(at, f"{len(group)} guests cannot be apart on fewer hosts", "add hosts, or divide the group")


def _limits(cluster: Cluster) -> Iterator[Mistake]:
    limits = cluster.limits
    if limits.relief_risk < limits.overload_risk:
        said = f"relief_risk {limits.relief_risk:g} is below overload_risk {limits.overload_risk:g}"
        yield Mistake(("limits", "relief_risk"), said, "a host would be relieved as soon as it is filled; raise it")
    if limits.hours is not None and not _HOURS.match(limits.hours):
        yield Mistake(("limits", "hours"), f"{limits.hours!r} are not hours", "write for example 20:00-06:00")
    elif limits.hours is not None and len(set(limits.hours.split("-"))) == 1:
        said = f"{limits.hours!r} are no time: they begin and end at the same minute"
        yield Mistake(("limits", "hours"), said, "leave hours out for always, or give two times")
    if limits.keep_on > len(cluster.host_names()):
        said = f"{limits.keep_on} hosts cannot stay on, because there are {len(cluster.host_names())}"
        yield Mistake(("limits", "keep_on"), said, "give at most the number of hosts")


def _curves(cluster: Cluster) -> Iterator[Mistake]:
    for name, curve in cluster.power.items():
        at = ("power", name)
        if any(later < earlier for earlier, later in zip(curve.watts, curve.watts[1:], strict=False)):
            yield Mistake((*at, "watts"), "power falls as load grows", "list watts from idle to all CPUs busy")
        if not any(curve.watts):
            yield Mistake((*at, "watts"), "a host takes no power at any load", "give its measured watts")
        if curve.off > curve.watts[0]:
            said = f"a host that is off takes {curve.off:g} W, and idle {curve.watts[0]:g} W"
            yield Mistake((*at, "off"), said, "give at most the idle power")


def _room(cluster: Cluster) -> Iterator[Mistake]:
    """Guests that are where they cannot be."""
    if any(guest.host is not None and guest.count > 1 for guest in cluster.guests.values()):
        return
    hosts = {name: spec for kind, spec in cluster.hosts.items() for name in [kind] if spec.count == 1}
    for name, spec in hosts.items():
        own = {guest: each for guest, each in cluster.guests.items() if each.host == name}
        memory = sum(each.memory for each in own.values())
        if memory > spec.memory:
            said = f"its guests have {memory >> 20} MiB, more than its {spec.memory >> 20} MiB"
            yield Mistake(("hosts", name, "memory"), said, "raise memory, or correct the guests")
        promised = sum(each.promise for each in own.values())
        if promised > spec.cpus:
            said = f"{promised:g} cores are promised to its guests, more than its {spec.cpus:g} CPUs"
            yield Mistake(("hosts", name, "cpus"), said, "raise cpus, or lower promises")
        if own and spec.state == "off":
            yield Mistake(
                ("hosts", name, "state"), f"it is off, but {next(iter(own))} runs on it", "correct one of them"
            )
    place = {name: each.host for name, each in cluster.guests.items()}
    for number, group in enumerate(cluster.apart):
        for host, count in Counter(place.get(name) for name in group).items():
            if host is not None and count > 1:
                yield Mistake(("apart", number), f"{count} of them are on {host} now", "move them apart first")
