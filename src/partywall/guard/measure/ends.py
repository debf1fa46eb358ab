"""What the kernel says about the interfaces of a policy: which end of a veth each is, and what passes beside its hook.

Reads the host through `ip` of iproute2 and changes nothing. Without `ip`, or where it may not look, nothing is known.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.errors import CapabilityError, Problem, UsageError
from partywall.guard.document import Policy, link_path
from partywall.guard.measure.resolve import VifPlace, locate
from partywall.sandbox.networks import in_namespace

IP_S = 30.0
"""How long `ip` may take."""


@dataclass(frozen=True)
class _End:
    """An interface. bridge: whose port it is. beyond: the namespace of a veth's other end, as a number."""

    bridge: str | None
    beyond: int | None
    xdp: bool
    functions: bool
    card_port: bool

    @classmethod
    def of(cls, link: Mapping[str, Any]) -> _End:
        is_veth = link.get("linkinfo", {}).get("info_kind") == "veth"
        return cls(
            bridge=link.get("master"),
            beyond=link.get("link_netnsid") if is_veth else None,
            xdp="xdp" in link,
            functions=bool(link.get("vfinfo_list")),
            card_port=bool(link.get("phys_switch_id")),
        )


def _ends(namespace: str | None) -> dict[str, _End]:
    """The interfaces of a namespace by all their names; empty if it cannot be read."""

    def show() -> str:
        command = ["ip", "-json", "-details", "link", "show"]
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=IP_S
        ).stdout

    try:
        shown = json.loads(show() if namespace is None else in_namespace(Path(namespace), show))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return {name: _End.of(link) for link in shown for name in (link["ifname"], *link.get("altnames", ()))}


def _read(places: Mapping[str, VifPlace]) -> dict[str, _End]:
    """The interface of each place that can be read."""
    by_namespace = {namespace: _ends(namespace) for namespace in {place.namespace for place in places.values()}}
    known = ((name, by_namespace[place.namespace].get(place.interface)) for name, place in places.items())
    return {name: end for name, end in known if end is not None}


def check_sides(policy: Policy, located: Mapping[str, VifPlace]) -> None:
    """UsageError with every vif without `side` whose interface looks like the host's end, not like the tenant's."""
    unsaid = {name: at for name, at in located.items() if at.inside and policy.vifs[name].side is None}
    ends = _read(unsaid)
    problems = []
    for name, end in ends.items():
        place = unsaid[name]
        others = {
            ends[other].beyond
            for other, at in unsaid.items()
            if at.namespace == place.namespace and other in ends and ends[other].beyond is not None
        }
        if end.bridge is not None:
            why = f"is a port of {end.bridge}"
        elif end.beyond is not None and len(others) > 1:
            why = "has its other end in another namespace, and other vifs here have theirs in yet others"
        else:
            continue
        said = f"{place.interface} in {place.namespace} {why}, so it may be the host's end of its pair"
        remedy = "write side: outside if it is (what the tenant sends comes in through it), or side: inside"
        problems.append(Problem(said, remedy, key=f"vifs.{name}.side"))
    if problems:
        raise UsageError(*problems)


def check_sides_here(policy: Policy) -> None:
    """As `check_sides`, of the vifs that this host has; it need not have any."""
    located = {}
    for name, vif in policy.vifs.items():
        if vif.interface is None or vif.namespace is None:
            continue
        try:
            located[name] = locate(vif)
        except (UsageError, CapabilityError):
            continue
    check_sides(policy, located)


def beside_hooks(located: Mapping[str, VifPlace], links: Mapping[str, VifPlace]) -> Iterator[str]:
    """What may pass without meeting a hook, as far as it can be seen."""
    uplinks = {".".join((*link_path(name), "interface")): place for name, place in links.items()}
    for name, end in _read({**located, **uplinks}).items():
        if end.xdp:
            yield f"{name}: an XDP program is on the interface; packets that it redirects or answers meet no hook"
        if end.functions:
            yield f"{name}: the network card has virtual functions; what these send meets no hook of this host"
        if end.card_port:
            yield f"{name}: the interface is a port of a network card's switch; what the card forwards meets no hook"
