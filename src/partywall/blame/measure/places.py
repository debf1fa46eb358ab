"""Where the limits of suspects are, and which tool changes them. Only reads."""

from __future__ import annotations

import shlex

from partywall.blame.measure.domains import Domain
from partywall.blame.measure.interfaces import Interface
from partywall.blame.measure.levers import Lever
from partywall.blame.measure.owners import Kind
from partywall.blame.measure.units import CPUS_PROPERTY, Unit, cpus_of
from partywall.blame.record import Place
from partywall.host import Host
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.group_names import ENGINE, TOOLS

RUNTIMES = ("crun", "runc")


def place_of(cgroup: str, lever: Lever, groups: Cgroups, host: Host) -> Place:
    """The place of a suspect's limit."""
    return _place(cgroup, lever, groups, host).model_copy(update={"undo": undoing(lever), "cpus": lever.cpus})


def undoing(lever: Lever) -> str:
    """A command that sets the limit of before."""
    owner = lever.owner
    if isinstance(owner, Interface):
        return owner.undo_text
    if isinstance(owner, Unit) and lever.kind is Kind.CPU:
        quota = "" if lever.capacity is None else f"{100 * lever.capacity:g}%"
        return f"systemctl set-property --runtime {shlex.quote(owner.unit)} CPUQuota={quota}"
    if isinstance(owner, Unit) and lever.kind is Kind.CPUSET and (bits := owner.before[0][1][1]):
        cpus = ",".join(map(str, cpus_of(bits)))
        return f"systemctl set-property --runtime {shlex.quote(owner.unit)} {CPUS_PROPERTY}={cpus}"
    commands = [shlex.join(each.argv) for each in owner.undo.commands]
    files = (f"echo {shlex.quote(text.strip())} > {shlex.quote(str(path))}" for path, text in owner.undo.files.items())
    return "; ".join((*commands, *files))


def _place(cgroup: str, lever: Lever, groups: Cgroups, host: Host) -> Place:
    controller = {Kind.DISK: "io", Kind.CPUSET: "cpuset"}.get(lever.kind, "cpu")
    folder, owner = str(groups.folder(controller, cgroup)), lever.owner
    if isinstance(owner, Interface):
        where = {"known_as": str(owner.namespace), "interface": owner.interface, "mtu": owner.mtu}
        return Place(tool="tc", folder=folder, is_v2=groups.is_v2, **where)
    if container := ENGINE.search(cgroup):
        return Place(tool=TOOLS[container[1]], known_as=container[2], folder=folder, is_v2=groups.is_v2)
    if isinstance(owner, Unit):
        return Place(tool="systemd", known_as=owner.unit, folder=folder, is_v2=groups.is_v2)
    if isinstance(owner, Domain):
        about = {"known_as": owner.uuid, "vcpus": owner.vcpus, "disk": owner.disk}
        return Place(tool="libvirt", folder=folder, is_v2=groups.is_v2, **about)
    name = cgroup.rstrip("/").rsplit("/", 1)[-1]
    runtime = next((each for each in RUNTIMES if host.path(f"/run/{each}/{name}").is_dir()), None)
    if runtime is not None:
        return Place(tool=runtime, known_as=name, folder=folder, is_v2=groups.is_v2)
    return Place(folder=folder, is_v2=groups.is_v2)
