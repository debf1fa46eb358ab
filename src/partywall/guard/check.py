"""Reads a policy file. A UsageError contains all mistakes with file, line, key and remedy.

Pure except for reading the file. The host is not checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from partywall import units
from partywall.core.document.decode import Document, Path, decode, key_text
from partywall.core.document.explain import Mistake, did_you_mean, shown
from partywall.core.document.formats import refuse_other
from partywall.core.document.reading import text as read_text
from partywall.errors import Problem, UsageError, one_line
from partywall.guard.document import ONLY_LINK, Ceilings, Flow, Link, Policy, Promise, Vif, link_path

FLOWS_MAX = 6
IS_INSIDE = "the hook of this vif is inside already: in the namespace of its packets' sender"
"""What is wrong with `source` at a vif whose hook is not at the host's end."""
_PORTS = re.compile(r"^\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?$")


def load(path: str | FilePath) -> Policy:
    """Reads and checks a policy file. Raises UsageError with all of its problems."""
    return loads(read_text(FilePath(path), "policy"), str(path))


def loads(content: str, file: str = "<text>") -> Policy:
    """Like `load`, for text. `file` is its name in messages."""
    refuse_other(content, ("partywall_guard",), file)
    document = decode(content.encode("utf-8", "surrogatepass"), file)
    if not isinstance(document.data, dict):
        message = f"a policy must be keys with values, not {shown(document.data)}"
        raise UsageError(Problem(message, "begin with partywall_guard: 1; see docs/guard.md", file, 1))
    policy, mistakes = _validate(document.data)
    if policy is not None:
        mistakes = list(check(policy))
    problems = [*document.problems, *(_problem(mistake, document, file) for mistake in mistakes)]
    if problems or policy is None:
        raise UsageError(*sorted(problems, key=lambda problem: problem.line or 0))
    return policy


def ports(text: str) -> tuple[int, int]:
    """'5000-5100' → (5000, 5100). ValueError if it is no range of ports."""
    match = _PORTS.match(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{text!r} is not a range of ports; write for example 5001 or 5000-5100")
    return first, last


# Form


def _validate(data: dict[str, Any]) -> tuple[Policy | None, list[Mistake]]:
    try:
        return Policy.model_validate(data), []
    except ValidationError as error:
        return None, [_mistake(details) for details in error.errors(include_url=False)]


def _mistake(details: ErrorDetails) -> Mistake:
    path = tuple(part for part in details["loc"] if part != "[key]")
    value, kind = details["input"], details["type"]
    if kind == "extra_forbidden":
        known = model.model_fields if (model := _model(path[:-1])) else {}
        return Mistake(path, "this key is not known here", did_you_mean(str(path[-1]), known))
    if kind == "missing":
        return Mistake(path, "this key is missing", _purpose(path))
    if kind == "value_error":
        message, _, remedy = str(details["ctx"]["error"]).partition("; ")
        return Mistake(path, message, remedy)
    if kind == "string_pattern_mismatch":
        rule = "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        return Mistake(path, f"{shown(value)} is not a name", rule)
    said = details["msg"].replace("Input should", "it should").replace("valid dictionary", "keys with values")
    return Mistake(path, f"{shown(value)} does not fit: {said}", _purpose(path))


def _model(path: Path) -> type[BaseModel] | None:
    """The part of the format at `path`. Names of vifs, tenants and flows lead to the model of their kind."""
    model: type[BaseModel] = Policy
    for part in path:
        field = model.model_fields.get(str(part))
        inner = _models(field.annotation) if field else [model]
        if not inner:
            return None
        model = inner[0]
    return model


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in _models(part)]


def _purpose(path: Path) -> str:
    holder = _model(path[:-1])
    field = holder.model_fields.get(str(path[-1])) if holder else None
    return f"{path[-1]}: {field.description}" if field and field.description else "see docs/guard.md"


def _problem(mistake: Mistake, document: Document, file: str) -> Problem:
    line = document.line(mistake.path)
    return Problem(one_line(mistake.message), one_line(mistake.remedy), file, line, key_text(mistake.path))


# Checks across keys


def check(policy: Policy) -> Iterator[Mistake]:
    """All mistakes of a policy that has the right form."""
    if not policy.by_link or (policy.link and policy.links):
        # Every other check needs to know the links.
        yield from _no_link(policy)
        return
    yield from _links(policy)
    yield from _goals(policy)
    for name, vif in policy.vifs.items():
        yield from _vif(policy, ("vifs", name), vif)
    yield from _twice(policy)
    yield from _tenants(policy)
    yield from _sums(policy)
    yield from _published(policy)


def _published(policy: Policy) -> Iterator[Mistake]:
    """What the published algorithm does not divide."""
    if policy.policy != "published":
        return
    remedy = "leave it out, or write policy: max-min"
    for name, kind in policy.service_classes.items():
        if kind.delay or kind.jitter:
            yield Mistake(("service_classes", name), "the published algorithm has no goals for delay or jitter", remedy)
    for name, total in policy.tenants.items():
        if total.ceiling or (total.receive and total.receive.ceiling):
            yield Mistake(("tenants", name), "the published algorithm has no total of a tenant in bit/s", remedy)
    for name, vif in policy.vifs.items():
        if vif.flows:
            yield Mistake(("vifs", name, "flows"), "the published algorithm has no flow classes", remedy)
    for name, link in policy.by_link.items():
        if link.packets:
            said = "the published algorithm does not divide the packets/s of a link"
            yield Mistake((*link_path(name), "packets"), said, remedy)


def _no_link(policy: Policy) -> Iterator[Mistake]:
    if policy.links:
        said = "both link and links are given"
        yield Mistake(("links",), said, "give one: link for all vifs, or links: and link: at each vif")
    else:
        said = "this key is missing" if "links" not in policy.model_fields_set else "no link is given"
        yield Mistake(("link",), said, f"{_purpose(('link',))}; e.g. link: {{capacity: 1Gbit/s}}")


def _links(policy: Policy) -> Iterator[Mistake]:
    seen: dict[tuple[str | None, str], str] = {}
    for name, link in policy.by_link.items():
        at = link_path(name)
        if link.namespace is not None and (mistake := _namespace((*at, "namespace"), link.namespace)):
            yield mistake
        first = seen.setdefault((link.namespace, link.interface), name)
        if link.interface and first != name:
            said = f"{link.interface} is the interface of link {first!r} already"
            yield Mistake((*at, "interface"), said, "give each link its own; vifs of one interface share one link")
        if name != ONLY_LINK and not any(vif.link == name for vif in policy.vifs.values()) and len(policy.links) > 1:
            yield Mistake(at, "no vif has this link", f"write link: {name} at its vifs")


def _goals(policy: Policy) -> Iterator[Mistake]:
    """A delay goal needs the link's interface, because delay is measured at its queue."""
    for name, kind in policy.service_classes.items():
        for link_name in _links_of_class(policy, name) if kind.delay or kind.jitter else ():
            if not policy.by_link[link_name].interface:
                what = "the link's interface" if link_name == ONLY_LINK else f"the interface of link {link_name!r}"
                said = f"a goal for delay or jitter needs {what}, to watch its queue"
                yield Mistake(("service_classes", name), said, f"add interface: to {'.'.join(link_path(link_name))}")


def _links_of_class(policy: Policy, name: str) -> list[str]:
    """The links that a service class uses. The only link also if no vif has the class."""
    if len(policy.by_link) == 1:
        return list(policy.by_link)
    used = {vif.link for vif in policy.vifs.values() if policy.class_of(vif) == name}
    return [link for link in policy.by_link if link in used]


def _vif(policy: Policy, at: Path, vif: Vif) -> Iterator[Mistake]:
    yield from _named(at, vif)
    for key in ("namespace", "sandbox"):
        if vif.domain is not None and getattr(vif, key) is not None:
            yield Mistake((*at, key), f"a libvirt domain's tap is found without a {key}", f"leave {key} out")
    if vif.sandbox is not None and vif.namespace is not None:
        yield Mistake((*at, "sandbox"), "both sandbox and namespace are given", "a sandbox has its own; give one")
    if vif.namespace is not None and (mistake := _namespace((*at, "namespace"), vif.namespace)):
        yield mistake
    if vif.source is not None and (vif.side == "inside" or (vif.namespace is not None and vif.side is None)):
        yield Mistake((*at, "source"), IS_INSIDE, "leave source out, or write side: outside for a guest's tap")
    yield from _class(policy, at, vif)
    if vif.tenant is not None:
        yield from _known((*at, "tenant"), vif.tenant, policy.tenants, "tenant")
    yield from _flows(policy, at, vif)
    mistakes = list(_link(policy, at, vif))
    # What a vif may be promised depends on its link.
    yield from mistakes or _promises(policy, at, vif)


def _promises(policy: Policy, at: Path, vif: Vif) -> Iterator[Mistake]:
    link = policy.link_of(vif)
    for key, promise in (("send", vif.send), ("receive", vif.receive)):
        if promise:
            yield from _promise(link, (*at, key), promise)
    for way, whole in _wholes(vif):
        for name, flow in vif.flows.items():
            if flow.way == way:
                yield from _promise(link, (*at, "flows", name), flow, whole.ceiling or link.capacity)


def _wholes(vif: Vif) -> tuple[tuple[str, Promise], ...]:
    """Each direction, and what the whole vif is promised there."""
    return ("send", vif.send), ("receive", vif.receive or Promise())


def _link(policy: Policy, at: Path, vif: Vif) -> Iterator[Mistake]:
    if vif.link is not None and policy.link:
        said = f"there is no link {vif.link!r}: the policy has one link, without a name"
        remedy = f"leave link out, or write links: {{{vif.link}: ...}} instead of link at the top"
        yield Mistake((*at, "link"), said, remedy)
    elif vif.link is not None:
        yield from _known((*at, "link"), vif.link, policy.links, "link")
    elif len(policy.by_link) > 1:
        said = "the key link is missing, and the policy has several links"
        yield Mistake((*at, "link"), said, f"add link: one of {', '.join(policy.links)}")


def _class(policy: Policy, at: Path, vif: Vif) -> Iterator[Mistake]:
    if vif.service_class is not None:
        yield from _known_class(policy, at, vif.service_class)
    elif len(policy.service_classes) > 1:
        names = ", ".join(policy.service_classes)
        said = "the key service_class is missing, and the policy has several service classes"
        yield Mistake((*at, "service_class"), said, f"add service_class: one of {names}")


def _known_class(policy: Policy, at: Path, name: str) -> Iterator[Mistake]:
    if policy.has_default_class and name not in policy.service_classes:
        said = f"there is no service class {name!r}: the policy has no service_classes"
        yield Mistake((*at, "service_class"), said, f"add service_classes: {{{name}: 1}}, or leave service_class out")
    else:
        yield from _known((*at, "service_class"), name, policy.service_classes, "service class")


def _named(at: Path, vif: Vif) -> Iterator[Mistake]:
    if vif.interface is not None and vif.domain is not None:
        yield Mistake(
            at, "both interface and domain are given", "give one: interface: its name, or domain: a libvirt domain"
        )
    if vif.interface is None and vif.domain is None and vif.sandbox is None:
        said = "neither interface nor domain is given"
        yield Mistake(at, said, "give one: interface: its name, domain: a libvirt domain, or sandbox: of a run")
    if vif.domain is None and vif.tap != 1:
        yield Mistake(
            (*at, "tap"), "tap counts the taps of a libvirt domain, and none is given", "give domain:, or leave tap out"
        )


def _namespace(at: Path, text: str) -> Mistake | None:
    if text.startswith("pid:") and not text[4:].isdecimal():
        return Mistake(at, f"{text!r} names no process", "write for example pid:1234")
    return None if text and "\0" not in text else Mistake(at, f"{text!r} names no namespace", "'ip netns' lists them")


def _promise(link: Link, at: Path, promise: Promise, most: int | None = None) -> Iterator[Mistake]:
    ceiling = promise.ceiling or most or link.capacity
    if promise.guarantee is not None and promise.guarantee > ceiling:
        what = "its ceiling" if promise.ceiling else "the link's capacity" if most is None else "the vif's ceiling"
        message = f"the guarantee {_rate(promise.guarantee)} is above {what}, {_rate(ceiling)}"
        yield Mistake((*at, "guarantee"), message, f"promise at most {_rate(ceiling)}, or raise {what}")
    if promise.ceiling is not None and promise.ceiling > (most or link.capacity):
        limit = most or link.capacity
        what = "the link's capacity" if most is None else "the vif's ceiling"
        message = f"the ceiling {_rate(promise.ceiling)} is above {what}, {_rate(limit)}"
        yield Mistake((*at, "ceiling"), message, f"give at most {_rate(limit)}, or leave it out")
    if promise.packets_guarantee is not None:
        yield from _packets(link, at, promise, promise.packets_guarantee)


def _packets(link: Link, at: Path, promise: Promise, guarantee: int) -> Iterator[Mistake]:
    here = (*at, "packets_guarantee")
    if link.packets is None:
        said = "packets_guarantee needs the packets/s of the link"
        yield Mistake(here, said, "add packets: to link: the packets/s that it, or this host, carries")
    if promise.packets is not None and guarantee > promise.packets:
        said = f"the guarantee {_packet_rate(guarantee)} is above its ceiling, {_packet_rate(promise.packets)}"
        yield Mistake(here, said, "promise less, or raise packets")


def _flows(policy: Policy, at: Path, vif: Vif) -> Iterator[Mistake]:
    for way, whole in _wholes(vif):
        flows = {name: flow for name, flow in vif.flows.items() if flow.way == way}
        yield from _flows_of(at, flows, whole, way)
    for name, flow in vif.flows.items():
        here = (*at, "flows", name)
        if flow.service_class is not None:
            yield from _known_class(policy, here, flow.service_class)
        if flow.protocol is None and flow.ports is None and flow.dscp is None:
            yield Mistake(here, "this flow class fits every packet", "give protocol, ports or dscp")
        if flow.ports is not None:
            yield from _ports((*here, "ports"), flow.ports, flow.protocol)


def _flows_of(at: Path, flows: Mapping[str, Flow], whole: Promise, way: str) -> Iterator[Mistake]:
    """The flow classes of one direction, which share the guarantees of their vif."""
    if len(flows) > FLOWS_MAX:
        yield Mistake((*at, "flows"), f"{len(flows)} flow classes to {way}", f"one vif can have {FLOWS_MAX}; join some")
    promised = sum(flow.guarantee or 0 for flow in flows.values())
    if promised > (whole.guarantee or 0):
        parts = " + ".join(_rate(flow.guarantee or 0) for flow in flows.values())
        message = f"the guarantees {parts} of its flow classes are {_rate(promised)}, more than the vif's own"
        yield Mistake((*at, "flows"), message, f"raise {way}.guarantee to {_rate(promised)}, or promise less")
    packets = sum(flow.packets_guarantee or 0 for flow in flows.values())
    if packets > (whole.packets_guarantee or 0):
        message = f"its flow classes are promised {_packet_rate(packets)}, more than the vif's own"
        remedy = f"raise {way}.packets_guarantee to {_packet_rate(packets)}, or promise less"
        yield Mistake((*at, "flows"), message, remedy)


def _ports(at: Path, text: str, protocol: str | None) -> Iterator[Mistake]:
    if protocol not in ("tcp", "udp"):
        yield Mistake(at, f"ports are given for {protocol or 'any protocol'}", "add protocol: tcp or udp")
    try:
        ports(text)
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        yield Mistake(at, message, remedy)


def _twice(policy: Policy) -> Iterator[Mistake]:
    seen: dict[tuple[str | int | None, ...], str] = {}
    for name, vif in policy.vifs.items():
        place = (vif.namespace, vif.sandbox, vif.interface, vif.domain, vif.tap)
        if place in seen:
            message = f"{vif.interface or vif.domain} is {seen[place]} already"
            yield Mistake(("vifs", name), message, "name each interface once; flows: makes classes inside one")
        seen.setdefault(place, name)


def _tenants(policy: Policy) -> Iterator[Mistake]:
    for name, total in policy.tenants.items():
        mine = {key: vif for key, vif in policy.vifs.items() if vif.tenant == name}
        sent = {key: vif.send for key, vif in mine.items()}
        yield from _tenant(("tenants", name), sent, total)
        if total.receive:
            received = {key: vif.receive or Promise() for key, vif in mine.items()}
            yield from _tenant(("tenants", name, "receive"), received, total.receive)
        if not mine:
            yield Mistake(("tenants", name), "no vif has this tenant", f"write tenant: {name} at its vifs")


def _tenant(at: Path, promises: Mapping[str, Promise], most: Ceilings) -> Iterator[Mistake]:
    """For bits and packets: the guarantees of a tenant's vifs must fit below the tenant's ceilings."""
    bits = {key: promise.guarantee or 0 for key, promise in promises.items()}
    packets = {key: promise.packets_guarantee or 0 for key, promise in promises.items()}
    limits = (("ceiling", bits, most.ceiling, _rate), ("packets", packets, most.packets, _packet_rate))
    for key, promised, limit, format_rate in limits:
        total = sum(promised.values())
        if limit is not None and total > limit:
            parts = " + ".join(f"{name} {format_rate(rate)}" for name, rate in promised.items())
            message = f"its vifs are promised {parts} = {format_rate(total)}, above its ceiling {format_rate(limit)}"
            yield Mistake((*at, key), message, "raise the ceiling, or promise less")


def _sums(policy: Policy) -> Iterator[Mistake]:
    """All guarantees of one direction on one link together must fit the link."""
    for link_name, link in policy.by_link.items():
        # A vif that names no link is counted only if there is no choice.
        vifs = {name: vif for name, vif in policy.vifs.items() if vif.link == link_name or len(policy.by_link) == 1}
        for way in ("send", "receive"):
            promises = {name: getattr(vif, way) or Promise() for name, vif in vifs.items()}
            bits = {name: promise.guarantee for name, promise in promises.items() if promise.guarantee}
            yield from _sum((*link_path(link_name), "capacity"), way, bits, link.capacity, _rate)
            if link.packets is not None:
                packets = {n: promise.packets_guarantee for n, promise in promises.items() if promise.packets_guarantee}
                yield from _sum((*link_path(link_name), "packets"), way, packets, link.packets, _packet_rate)


def _sum(
    at: Path, way: str, given: Mapping[str, int], there: int, format_rate: Callable[[int], str]
) -> Iterator[Mistake]:
    total = sum(given.values())
    if total > there:
        listed = " + ".join(f"{name} {format_rate(guarantee)}" for name, guarantee in list(given.items())[:8])
        more = f" + {len(given) - 8} more" if len(given) > 8 else ""
        message = (
            f"the guarantees to {way} cannot all be kept: {listed}{more} = {format_rate(total)} on {format_rate(there)}"
        )
        yield Mistake(at, message, f"promise {format_rate(total - there)} less")


def _known(at: Path, name: str, known: Iterable[str], what: str) -> Iterator[Mistake]:
    if name not in known:
        yield Mistake(at, f"there is no {what} {name!r}", did_you_mean(name, known))


def _rate(bps: int) -> str:
    return units.format_bit_rate(bps)


def _packet_rate(pps: int) -> str:
    return units.format_packet_rate(pps)
