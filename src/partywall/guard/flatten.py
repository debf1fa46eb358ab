"""A policy and the places of its vifs, made into what the agent is told: names become numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from partywall.guard.load import ports
from partywall.guard.resolve import Found
from partywall.model.policy import Flow, Policy, Promise, Vif

PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "sctp": 132}
CHECK_NS = 1_000_000_000


@dataclass(frozen=True)
class Flat:
    """What `guard.start` and `guard.remove` are sent, and what its rows and hooks are called."""

    start: dict[str, Any]
    leaves: tuple[str, ...]
    hooks: tuple[str, ...]

    @property
    def remove(self) -> dict[str, Any]:
        """Parameters of `guard.remove`."""
        return {"hooks": self.start["hooks"]}


@dataclass
class _Lists:
    leaves: list[dict[str, Any]] = field(default_factory=list)
    totals: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[dict[str, Any]] = field(default_factory=list)

    def leaf(self, **content: Any) -> int:
        self.leaves.append(content)
        return len(self.leaves) - 1


def flatten(policy: Policy, found: Mapping[str, Found], report_ns: int = 1_000_000_000) -> Flat:
    """The flat form. Pool 0 is what is sent, pool 1 what is received."""
    lists = _Lists()
    tenants = {name: _total(lists, name, total.ceiling, total.packets) for name, total in policy.tenants.items()}
    for name, vif in policy.vifs.items():
        _send(policy, lists, name, vif, found[name], tenants.get(vif.tenant or ""))
        if vif.receive is not None:
            leaf = _leaf(policy, lists, f"{name} (receives)", vif.receive, vif.service_class, pool=1)
            _hook(lists, found[name], leaf, [], sends=False, hold=vif.excess == "hold")
    capacity = policy.link.capacity
    start = {
        "id": policy.name,
        "pools": [{"name": way, "capacity_bps": capacity} for way in ("send", "receive")],
        "totals": lists.totals,
        "leaves": lists.leaves,
        "hooks": lists.hooks,
        "period_ns": policy.period,
        "report_ns": max(report_ns, policy.period),
        "check_ns": max(CHECK_NS, policy.period),
        "fallback_after_ns": _fallback(policy),
    }
    names = tuple(leaf["name"] for leaf in lists.leaves)
    return Flat(start, names, tuple(names[hook["leaf"]] for hook in lists.hooks))


def _fallback(policy: Policy) -> int | None:
    """A heartbeat comes once a period, so less than three of them would take a late one for a death."""
    return max(policy.fallback_after, 3 * policy.period) if policy.if_daemon_dies == "guarantees" else None


def _send(policy: Policy, lists: _Lists, name: str, vif: Vif, found: Found, tenant: int | None) -> None:
    kept = (vif.send.guarantee or 0) - sum(flow.guarantee or 0 for flow in vif.flows.values())
    own = vif.send.model_copy(update={"guarantee": kept or None})
    total = tenant
    if vif.flows:
        # The vif's own limits bind its flow classes together.
        total = _total(lists, name, vif.send.ceiling or policy.link.capacity, vif.send.packets)
    leaf = _leaf(policy, lists, name, own, vif.service_class, total=total)
    rules = [_rule(policy, lists, f"{name}:{key}", flow, vif, total) for key, flow in vif.flows.items()]
    _hook(lists, found, leaf, rules, sends=True, hold=vif.excess == "hold")


def _total(lists: _Lists, name: str, ceiling: int | None, packets: int | None) -> int:
    lists.totals.append({"name": name, "ceiling_bps": ceiling, "ceiling_pps": packets})
    return len(lists.totals) - 1


def _leaf(
    policy: Policy,
    lists: _Lists,
    name: str,
    promise: Promise,
    service_class: str,
    *,
    pool: int = 0,
    total: int | None = None,
) -> int:
    return lists.leaf(
        name=name,
        pool=pool,
        total=total,
        priority=policy.service_classes[service_class],
        guarantee_bps=promise.guarantee or 0,
        ceiling_bps=promise.ceiling or policy.link.capacity,
        ceiling_pps=promise.packets,
        burst_ns=policy.burst,
    )


def _rule(policy: Policy, lists: _Lists, name: str, flow: Flow, vif: Vif, total: int | None) -> dict[str, Any]:
    most = vif.send.ceiling or policy.link.capacity
    bounded = flow.model_copy(update={"ceiling": flow.ceiling or most})
    leaf = _leaf(policy, lists, name, bounded, flow.service_class or vif.service_class, total=total)
    return {
        "leaf": leaf,
        "protocol": PROTOCOLS[flow.protocol] if flow.protocol else None,
        "ports": ports(flow.ports) if flow.ports else None,
        "dscp": flow.dscp,
    }


def _hook(lists: _Lists, found: Found, leaf: int, rules: list[dict[str, Any]], *, sends: bool, hold: bool) -> None:
    # Inside its namespace a tenant sends by giving out; seen from the host's end it sends by what comes in.
    direction = "egress" if sends == found.inside else "ingress"
    place = {"namespace": found.namespace, "interface": found.interface, "direction": direction}
    lists.hooks.append({**place, "leaf": leaf, "rules": rules, "hold": hold})
