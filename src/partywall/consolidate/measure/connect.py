"""The hypervisor and the power controls that a cluster file names, and the hours in which hosts may be emptied."""

from __future__ import annotations

import datetime
from pathlib import Path

from partywall.consolidate.document import Cluster
from partywall.consolidate.measure.apply import as_observed
from partywall.consolidate.measure.control import CONTROLS
from partywall.consolidate.measure.libvirt import Libvirt
from partywall.consolidate.measure.practice import PracticeCluster
from partywall.consolidate.measure.seams import Hypervisor, Power
from partywall.errors import Problem, UsageError


def hypervisor_of(cluster: Cluster) -> Hypervisor:
    """UsageError if the state of the cluster is only recorded."""
    if cluster.hypervisor == "libvirt":
        return Libvirt(cluster)
    if cluster.hypervisor == "practice":
        return _practice(cluster)
    remedy = "set hypervisor: libvirt, or hypervisor: practice to try it out (docs/consolidate.md)"
    raise UsageError(Problem(f"{cluster.name} is a recorded state, which nothing can change", remedy))


def _practice(cluster: Cluster) -> PracticeCluster:
    """The cluster of files. It is created from the cluster file at first use.

    UsageError if the file names hosts or guests that the folder does not have.
    """
    folder, known = Path(cluster.folder or ""), (cluster.host_names(), cluster.guest_names())
    if PracticeCluster.exists(folder):
        made = PracticeCluster(folder, known=known)
        remedy = f"remove {folder}, and it is made again from the cluster file"
        if lacking := [
            Problem(f"{kind} {name} is not in {folder}, which was made before it was added", remedy)
            for kind, names in zip(("host", "guest"), made.lacks(), strict=True)
            for name in names
        ]:
            raise UsageError(*lacking)
        return made
    at = {name: spec.host for name, spec in cluster.guests.items() if spec.host is not None}
    try:
        PracticeCluster.create(folder, {name: spec.state == "on" for name, spec in cluster.hosts.items()}, at)
    except OSError as error:
        raise UsageError(Problem(f"{folder} cannot be created: {error.strerror}", "change folder")) from None
    return PracticeCluster(folder, known=known)


def powers_of(cluster: Cluster, hypervisor: Hypervisor) -> dict[str, Power]:
    """The power control of each host."""
    if isinstance(hypervisor, PracticeCluster):
        return {name: hypervisor.power(name) for name in cluster.hosts}
    controls = {name: spec.control for name, spec in cluster.hosts.items()}
    return {name: CONTROLS[control.kind](control) for name, control in controls.items() if control is not None}


def observed(cluster: Cluster) -> Cluster:
    """The cluster with its state as the hypervisor shows it. A recorded one is as it is."""
    if cluster.hypervisor == "recorded":
        return cluster
    return as_observed(cluster, hypervisor_of(cluster).observe())


def may_empty(hours: str | None, now: datetime.time) -> bool:
    """Whether hosts may be emptied at this time. hours: such as 20:00-06:00, or None for always."""
    if hours is None:
        return True
    begin, end = (datetime.time.fromisoformat(text) for text in hours.split("-"))
    return begin <= now < end if begin <= end else now >= begin or now < end
