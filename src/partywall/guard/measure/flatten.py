"""Converts a policy and the places of its vifs to the form for the agent: names become numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partywall.guard.check import ports
from partywall.guard.document import RECEIVES, Flow, Link, Policy, Promise, Vif, on_link
from partywall.guard.measure.resolve import VifPlace

WAYS = ("send", "receive")
PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "sctp": 132}
CHECK_NS = 1_000_000_000


@dataclass(frozen=True)
class Flat:
    """The parameters of `guard.start` and `guard.remove`, and the names of its rows and hooks."""

    start: dict[str, Any]
    leaves: tuple[str, ...]
    hooks: tuple[str, ...]
    links: tuple[str, ...]
    """The name of each leaf's link."""

    @property
    def remove(self) -> dict[str, Any]:
        """Parameters of `guard.remove`."""
        return {"hooks": self.start["hooks"]}


def vif_of(hook: str) -> str:
    """The vif in a hook's name."""
    return hook.removesuffix(RECEIVES)


@dataclass
class _Lists:
    leaves: list[dict[str, Any]] = field(default_factory=list)
    totals: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[dict[str, Any]] = field(default_factory=list)

    def leaf(self, **content: Any) -> int:
        self.leaves.append(content)
        return len(self.leaves) - 1


def flatten(
    policy: Policy,
    located: Mapping[str, VifPlace],
    report_ns: int = 1_000_000_000,
    links: Mapping[str, VifPlace] | None = None,
) -> Flat:
    """The flat form. Each link has two pools, sent traffic and then received traffic.

    links: the places of the links' own interfaces, by the link's name.
    """
    lists = _Lists()
    tenants = {name: _total(lists, name, total.ceiling, total.packets) for name, total in policy.tenants.items()}
    receivers = {
        name: _total(lists, f"{name}{RECEIVES}", total.receive.ceiling, total.receive.packets)
        for name, total in policy.tenants.items()
        if total.receive
    }
    classes: dict[tuple[str, str], list[int]] = {}
    for name, vif in policy.vifs.items():
        tenant = [tenants[vif.tenant]] if vif.tenant else []
        of_class = classes.setdefault((policy.class_of(vif), policy.link_name(vif)), [])
        of_class.extend(_way(policy, lists, name, vif, located[name], tenant))
        together = [receivers[vif.tenant]] if vif.tenant in receivers else []
        if vif.receive is not None or together or any(flow.way == "receive" for flow in vif.flows.values()):
            _way(policy, lists, name, vif, located[name], together, way="receive")
    start = {
        "id": policy.name,
        "pools": [
            _pool(on_link(way, name), link, (links or {}).get(name) if way == "send" else None)
            for name, link in policy.by_link.items()
            for way in WAYS
        ],
        "totals": lists.totals,
        "leaves": lists.leaves,
        "hooks": lists.hooks,
        "goals": _goals(policy, classes),
        "period_ns": policy.period,
        "report_ns": max(report_ns, policy.period),
        "check_ns": max(CHECK_NS, policy.period),
        "fallback_after_ns": _fallback(policy),
        "queue": policy.queue,
        "division": policy.policy.replace("-", "_"),
    }
    names = tuple(leaf["name"] for leaf in lists.leaves)
    every = list(policy.by_link)
    leaf_links = tuple(every[leaf["pool"] // len(WAYS)] for leaf in lists.leaves)
    return Flat(start, names, tuple(names[hook["leaf"]] for hook in lists.hooks), leaf_links)


def _pool(name: str, link: Link, place: VifPlace | None) -> dict[str, Any]:
    where = {"namespace": place.namespace, "interface": place.interface} if place else None
    return {"name": name, "capacity_bps": link.capacity, "capacity_pps": link.packets, "link": where}


def _pool_of(policy: Policy, vif: Vif, way: str) -> int:
    return list(policy.by_link).index(policy.link_name(vif)) * len(WAYS) + WAYS.index(way)


def _goals(policy: Policy, classes: Mapping[tuple[str, str], list[int]]) -> list[dict[str, Any]]:
    """Goals of each service class on each link.

    They apply to sent traffic only, because received traffic is not queued here.
    """
    return [
        {
            "name": on_link(name, link),
            "pool": at * len(WAYS),
            "delay_ns": kind.delay,
            "jitter_ns": kind.jitter,
            "leaves": classes[name, link],
        }
        for name, kind in policy.service_classes.items()
        for at, link in enumerate(policy.by_link)
        if (kind.delay or kind.jitter) and (name, link) in classes
    ]


def _fallback(policy: Policy) -> int | None:
    """The delay until the fallback.

    At least three heartbeats, one for each period, so that a late one is not an alarm.
    """
    return max(policy.fallback_after, 3 * policy.period) if policy.if_daemon_dies == "guarantees" else None


def _way(
    policy: Policy, lists: _Lists, name: str, vif: Vif, place: VifPlace, totals: list[int], way: str = "send"
) -> list[int]:
    """One direction of a vif: its leaf, those of its flow classes, and the hook that distinguishes them."""
    sends = way == "send"
    whole = vif.send if sends else vif.receive or Promise()
    flows = {key: flow for key, flow in vif.flows.items() if flow.way == way}
    called = name if sends else f"{name}{RECEIVES}"
    if flows:
        # The vif's own limits apply to its flow classes together.
        totals = [_total(lists, called, whole.ceiling or policy.link_of(vif).capacity, whole.packets), *totals]
    leaf = _leaf(policy, lists, called, _rest(whole, flows), policy.class_of(vif), vif, way, totals)
    rules = [
        _rule(policy, lists, f"{called}:{key}", flow, whole, policy.class_of(vif, flow), vif, totals)
        for key, flow in flows.items()
    ]
    _hook(lists, place, leaf, rules, sends=sends, hold=vif.excess == "hold")
    return [leaf, *(rule["leaf"] for rule in rules)]


def _rest(whole: Promise, flows: Mapping[str, Flow]) -> Promise:
    """A vif's guarantees that remain after those of its flow classes."""
    bits = (whole.guarantee or 0) - sum(flow.guarantee or 0 for flow in flows.values())
    packets = (whole.packets_guarantee or 0) - sum(flow.packets_guarantee or 0 for flow in flows.values())
    return whole.model_copy(update={"guarantee": bits or None, "packets_guarantee": packets or None})


def _total(lists: _Lists, name: str, ceiling: int | None, packets: int | None) -> int:
    lists.totals.append({"name": name, "ceiling_bps": ceiling, "ceiling_pps": packets})
    return len(lists.totals) - 1


def _leaf(
    policy: Policy,
    lists: _Lists,
    name: str,
    promise: Promise,
    service_class: str,
    vif: Vif,
    way: str,
    totals: list[int],
) -> int:
    kind = policy.service_classes[service_class]
    # A packet that waits longer than half of the goal would break it.
    strict = min((goal for goal in (kind.delay, kind.jitter) if goal), default=None)
    return lists.leaf(
        name=name,
        pool=_pool_of(policy, vif, way),
        totals=totals,
        priority=kind.priority,
        guarantee_bps=promise.guarantee or 0,
        ceiling_bps=promise.ceiling or policy.link_of(vif).capacity,
        guarantee_pps=promise.packets_guarantee or 0,
        ceiling_pps=promise.packets,
        burst_ns=vif.burst or policy.burst,
        hold_ns=min(policy.hold, strict // 2) if strict else policy.hold,
        held_at_source=vif.source is not None and way == "send",
    )


def _rule(
    policy: Policy,
    lists: _Lists,
    name: str,
    flow: Flow,
    whole: Promise,
    service_class: str,
    vif: Vif,
    totals: list[int],
) -> dict[str, Any]:
    bounded = flow.model_copy(update={"ceiling": flow.ceiling or whole.ceiling})
    leaf = _leaf(policy, lists, name, bounded, service_class, vif, flow.way, totals)
    return {
        "leaf": leaf,
        "protocol": PROTOCOLS[flow.protocol] if flow.protocol else None,
        "ports": ports(flow.ports) if flow.ports else None,
        "dscp": flow.dscp,
    }


def _hook(lists: _Lists, located: VifPlace, leaf: int, rules: list[dict[str, Any]], *, sends: bool, hold: bool) -> None:
    # Inside its namespace, a tenant's packets leave the interface. At the host's end, they enter it.
    direction = "egress" if sends == located.inside else "ingress"
    place = {"namespace": located.namespace, "interface": located.interface, "direction": direction}
    # A tenant can bypass a hook that it can reach.
    backstop = sends and located.inside
    lists.hooks.append({**place, "leaf": leaf, "rules": rules, "hold": hold, "backstop": backstop})
