"""What a policy promises to each vif, and the sums of it, for those who check one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partywall import units
from partywall.core.report.value import Column, Row, Table
from partywall.guard.document import RECEIVES, Link, Policy, Promise, Total, Vif, on_link


def _rate(key: str, title: str, unit: str, without: str) -> Column:
    form = units.format_bit_rate if unit == "bit/s" else units.format_packet_rate

    def text(row: Row) -> str:
        return form(row[key]) if row[key] else without

    return Column(key, title, unit, text=text)


LINK = Column("link", "link")
RATES = (
    _rate("guarantee_bps", "guarantee", "bit/s", "none"),
    _rate("ceiling_bps", "ceiling", "bit/s", "no limit"),
    _rate("guarantee_pps", "packets guaranteed", "p/s", "none"),
    _rate("ceiling_pps", "packets at most", "p/s", "no limit"),
)


def table(policy: Policy) -> Table:
    """A row for each vif, flow class and total of a tenant, in each direction."""
    columns = (Column("vif", "vif"), *([LINK] if policy.links else []), Column("class", "service class"), *RATES)
    rows = [row for name, vif in policy.vifs.items() for row in _of_vif(policy, name, vif)]
    rows += [row for name, total in policy.tenants.items() for row in _of_tenant(policy, name, total)]
    return Table("promised", f"{policy.name}: guarantees and ceilings", columns, rows)


def sums(policy: Policy) -> Iterator[str]:
    """Sentences: the service classes and queue, if the policy leaves them open, and what each link guarantees."""
    if policy.has_default_class:
        yield "service classes: the policy has no service_classes, so all vifs are in one class (default)"
    yield f"queue for waiting packets: {policy.queue or 'fq if the kernel has it, else tbf'}"
    for name, link in policy.by_link.items():
        vifs = [vif for vif in policy.vifs.values() if policy.link_name(vif) == name]
        received = [vif.receive for vif in vifs if vif.receive]
        for way, promises in (("send", [vif.send for vif in vifs]), ("receive", received)):
            if promises:
                yield f"guaranteed to {on_link(way, name)}: {_sum(link, promises)}"


def _sum(link: Link, promises: Sequence[Promise]) -> str:
    bits = sum(promise.guarantee or 0 for promise in promises)
    packets = sum(promise.packets_guarantee or 0 for promise in promises)
    said = f"{units.format_bit_rate(bits)} of {units.format_bit_rate(link.capacity)}"
    if link.packets:
        said += f", {units.format_packet_rate(packets)} of {units.format_packet_rate(link.packets)}"
    return said


def _of_vif(policy: Policy, name: str, vif: Vif) -> Iterator[Mapping[str, Any]]:
    """Rows of a vif and of its flow classes, for each direction."""
    capacity, link = policy.link_of(vif).capacity, policy.link_name(vif)
    for suffix, promise in (("", vif.send), (RECEIVES, vif.receive)):
        if promise:
            yield _row(name + suffix, link, policy.class_of(vif), promise, promise.ceiling or capacity)
    for key, flow in vif.flows.items():
        whole, suffix = (vif.send, "") if flow.way == "send" else (vif.receive, RECEIVES)
        ceiling = flow.ceiling or (whole and whole.ceiling) or capacity
        yield _row(f"{name}:{key}{suffix}", link, policy.class_of(vif, flow), flow, ceiling)


def _of_tenant(policy: Policy, name: str, total: Total) -> Iterator[Mapping[str, Any]]:
    """Rows of a tenant's totals, for each direction."""
    mine = {key: vif for key, vif in policy.vifs.items() if vif.tenant == name}
    links = ", ".join(dict.fromkeys(policy.link_name(vif) for vif in mine.values()))
    for suffix, ceilings in (("", total), (RECEIVES, total.receive)):
        if ceilings:
            called = f"{name}{suffix}: {', '.join(mine)}"
            yield _row(called, links, "all of them", Promise(packets=ceilings.packets), ceilings.ceiling)


def _row(name: str, link: str, class_: str, promise: Promise, ceiling: int | None) -> Mapping[str, Any]:
    return {
        "vif": name,
        "link": link,
        "class": class_,
        "guarantee_bps": promise.guarantee,
        "ceiling_bps": ceiling,
        "guarantee_pps": promise.packets_guarantee,
        "ceiling_pps": promise.packets,
    }
