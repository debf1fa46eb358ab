"""The difference between two policies, and whether a running guard can go from one to the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from partywall import units
from partywall.core.document.decode import decode
from partywall.errors import Problem, UsageError
from partywall.guard.document import ONLY_LINK, Policy, Vif, link_path

RESTART = "start the guard with the changed policy again: it replaces the hooks without a gap"
PLACE = ("interface", "namespace", "domain", "tap", "sandbox", "side", "excess", "source")
"""What a running guard keeps of a vif."""
RULE = ("way", "protocol", "ports", "dscp")
"""What decides which packets belong to a flow class."""
FORMATS: Mapping[str, Callable[[float], str]] = {
    "guarantee": units.format_bit_rate,
    "ceiling": units.format_bit_rate,
    "capacity": units.format_bit_rate,
    "packets": units.format_packet_rate,
    "packets_guarantee": units.format_packet_rate,
} | dict.fromkeys(("period", "burst", "hold", "fallback_after", "delay", "jitter"), units.format_duration)


def refuse(running: Policy, new: Policy, file: str = "", text: str = "") -> None:
    """UsageError that lists what a running guard cannot change: which vifs and flow classes there are, and where.

    text: that of the new policy, for the lines of problems.
    """
    document = decode(text.encode("utf-8", "surrogatepass"), file) if text else None
    problems = [
        Problem(said, RESTART, file, document.line(tuple(key.split("."))) if document else None, key)
        for key, said in _fixed(running, new)
    ]
    if problems:
        raise UsageError(*problems)


def _fixed(running: Policy, new: Policy) -> Iterator[tuple[str, str]]:
    if running.name != new.name:
        yield "name", f"this policy is called {new.name!r}, and the running one {running.name!r}"
    yield from _fixed_links(running, new)
    if running.queue != new.queue:
        yield "queue", "the kind of queue cannot be changed while the guard runs"
    yield from _sets("vifs", "vif", running.vifs, new.vifs)
    if list(running.vifs) != list(new.vifs) and set(running.vifs) == set(new.vifs):
        yield "vifs", "the vifs are in another order than in the running policy"
    for name in running.vifs.keys() & new.vifs.keys():
        yield from _fixed_of_vif(running, new, name)


def _fixed_links(running: Policy, new: Policy) -> Iterator[tuple[str, str]]:
    names = set(running.by_link), set(new.by_link)
    if names[0] != names[1] and {ONLY_LINK} in names:
        yield "link", "one of the two policies has one link without a name, and the other has named links"
        return
    yield from _sets("links", "link", running.by_link, new.by_link)
    if list(running.by_link) != list(new.by_link) and names[0] == names[1]:
        yield "links", "the links are in another order than in the running policy"
    for name in running.by_link.keys() & new.by_link.keys():
        old, link = running.by_link[name], new.by_link[name]
        if (old.interface, old.namespace) != (link.interface, link.namespace):
            which = "the link" if name == ONLY_LINK else f"link {name!r}"
            yield ".".join(link_path(name)), f"the interface of {which} cannot be changed while the guard runs"


def _fixed_of_vif(running: Policy, new: Policy, name: str) -> Iterator[tuple[str, str]]:
    old, vif = running.vifs[name], new.vifs[name]
    key = f"vifs.{name}"
    for field in PLACE:
        if getattr(old, field) != getattr(vif, field):
            yield f"{key}.{field}", f"{field} of vif {name!r} cannot be changed while the guard runs"
    if running.link_name(old) != new.link_name(vif):
        yield f"{key}.link", f"the link of vif {name!r} cannot be changed while the guard runs"
    if _receives(running, old) != _receives(new, vif):
        yield f"{key}.receive", f"whether received traffic of vif {name!r} is limited cannot be changed"
    yield from _sets(f"{key}.flows", f"flow class of vif {name!r}", old.flows, vif.flows)
    if list(old.flows) != list(vif.flows) and set(old.flows) == set(vif.flows):
        yield f"{key}.flows", f"the flow classes of vif {name!r} are in another order than in the running policy"
    for flow in old.flows.keys() & vif.flows.keys():
        if any(getattr(old.flows[flow], field) != getattr(vif.flows[flow], field) for field in RULE):
            yield (
                f"{key}.flows.{flow}",
                f"which packets belong to flow class {flow!r} of vif {name!r} cannot be changed",
            )


def _receives(policy: Policy, vif: Vif) -> bool:
    """True if there is a hook for received traffic."""
    tenant = policy.tenants[vif.tenant] if vif.tenant else None
    return (
        vif.receive is not None
        or (tenant is not None and tenant.receive is not None)
        or any(flow.way == "receive" for flow in vif.flows.values())
    )


def _sets(key: str, what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in new.keys() - old.keys():
        yield f"{key}.{name}", f"{what} {name!r} is not in the running policy"
    for name in old.keys() - new.keys():
        yield f"{key}.{name}", f"{what} {name!r} of the running policy is missing"


def changes(running: Policy, new: Policy) -> tuple[str, ...]:
    """Every key whose value differs, as text: 'vifs.vm1.send.guarantee: 150 Mbit/s → 200 Mbit/s'."""
    old, now = (dict(_values(policy.model_dump(), ())) for policy in (running, new))
    keys = [*old, *(key for key in now if key not in old)]
    return tuple(
        f"{'.'.join(key)}: {_shown(key, old.get(key))} → {_shown(key, now.get(key))}"
        for key in keys
        if old.get(key) != now.get(key)
    )


def _values(part: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _values(value, (*path, str(key)))
    else:
        yield path, part


def _shown(path: tuple[str, ...], value: Any) -> str:
    if value is None:
        return "none"
    form = FORMATS.get(path[-1])
    return form(value) if form is not None and isinstance(value, int | float) else str(value)
