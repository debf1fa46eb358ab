"""Policies with one mistake each: how the good one is spoilt, and what must be said: line, key and words."""

from __future__ import annotations

from pathlib import Path

GOOD = (Path(__file__).parent / "good.yaml").read_text()


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """A text in which each pair's first part, which must be there, is replaced by its second."""
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


# What some policies also have, so that the mistake is the only one.
ALSO = {"more packets promised than there are": ("packets: 20k/s", "packets: 20k/s, packets_guarantee: 5k/s")}

# (what is replaced, by what, line or None, key, words)
BAD: dict[str, tuple[str, str, int | None, str, str]] = {
    "a sum that cannot be kept": (
        "guarantee: 700Mbit/s",
        "guarantee: 750Mbit/s",
        3,
        "link.capacity",
        "vm1 150 Mbit/s + vm2 750 Mbit/s + vm3 150 Mbit/s = 1.05 Gbit/s on 1 Gbit/s",
    ),
    "a source that is none": (
        "interface: vnet0",
        "interface: vnet0\n    source: eth0",
        None,
        "vifs.vm1.source",
        "'eth0' is not AGENT/INTERFACE",
    ),
    "a source where the hook is inside already": (
        "namespace: blue",
        "namespace: blue\n    source: vm2/eth0",
        None,
        "vifs.vm2.source",
        "the hook of this vif is inside already",
    ),
    "a guarantee above its ceiling": (
        "ceiling: 900Mbit/s",
        "ceiling: 600Mbit/s",
        17,
        "vifs.vm2.send.guarantee",
        "the guarantee 700 Mbit/s is above its ceiling, 600 Mbit/s",
    ),
    "a ceiling above the link": (
        "ceiling: 900Mbit/s",
        "ceiling: 9Gbit/s",
        17,
        "vifs.vm2.send.ceiling",
        "is above the link's capacity, 1 Gbit/s",
    ),
    "a bare number for a bit rate": ("capacity: 1Gbit/s", "capacity: 1000", 3, "link.capacity", "is not a bit rate"),
    "bytes for bits": ("capacity: 1Gbit/s", "capacity: 125MB/s", 3, "link.capacity", "is not a bit rate"),
    "nothing to divide": ("capacity: 1Gbit/s", "capacity: 0bit/s", 3, "link.capacity", "greater than 0"),
    "a packet rate in bits": ("packets: 20k/s", "packets: 20kbit/s", 12, "vifs.vm1.send.packets", "packet rate"),
    "an unknown service class": (
        "service_class: gold",
        "service_class: glod",
        16,
        "vifs.vm2.service_class",
        "no service class 'glod' — did you mean gold?",
    ),
    "no service class though there are several": (
        "    service_class: gold\n",
        "",
        13,
        "vifs.vm2.service_class",
        "service_class is missing, and the policy has several service classes — add service_class: one of gold, silver",
    ),
    "a service class where none is defined": (
        "service_classes: {gold: 2, silver: 1}\n",
        "",
        15,
        "vifs.vm2.service_class",
        "'gold': the policy has no service_classes — add service_classes: {gold: 1}",
    ),
    "an unknown tenant": (
        "    tenant: acme\n    send",
        "    tenant: acm\n    send",
        11,
        "vifs.vm1.tenant",
        "no tenant",
    ),
    "a tenant without vifs": ("tenant: acme", "excess: hold", 6, "tenants.acme", "no vif has this tenant"),
    "a tenant's ceiling below its promises": (
        "ceiling: 400Mbit/s",
        "ceiling: 200Mbit/s",
        6,
        "tenants.acme.ceiling",
        "= 300 Mbit/s, above its ceiling 200 Mbit/s",
    ),
    "a tenant's packets below its promises": (
        "send: {guarantee: 150Mbit/s, packets: 20k/s}",
        "send: {guarantee: 150Mbit/s, packets: 200k/s, packets_guarantee: 90k/s}",
        6,
        "tenants.acme.packets",
        "vm1 90 kp/s + vm3 0 p/s = 90 kp/s, above its ceiling 80 kp/s",
    ),
    "a misspelt key": ("guarantee: 700Mbit/s", "guarante: 700Mbit/s", 17, "vifs.vm2.send.guarante", "did you mean"),
    "a missing capacity": (", capacity: 1Gbit/s", "", 3, "link.capacity", "is missing"),
    "no vifs": (GOOD[GOOD.index("vifs:") :], "vifs: {}\n", 7, "vifs", "at least 1"),
    "no service classes": ("{gold: 2, silver: 1}", "{}", 4, "service_classes", "at least 1"),
    "a priority that is no number": ("gold: 2", "gold: high", 4, "service_classes.gold.priority", "integer"),
    "another version": ("partywall_guard: 1", "partywall_guard: 2", 1, "partywall_guard", "does not fit"),
    "ports without a protocol": ("protocol: udp, ", "", 20, "vifs.vm2.flows.voice.ports", "any protocol"),
    "ports backwards": ("5000-5100", "5100-5000", 20, "vifs.vm2.flows.voice.ports", "not a range of ports"),
    "ports that do not exist": ("5000-5100", "70000", 20, "vifs.vm2.flows.voice.ports", "not a range of ports"),
    "a dscp that does not exist": ("dscp: 8", "dscp: 64", 21, "vifs.vm2.flows.bulk.dscp", "less than or equal to 63"),
    "a flow class of everything": ("dscp: 8, ", "", 21, "vifs.vm2.flows.bulk", "fits every packet"),
    "flow classes promised more than their vif": (
        "guarantee: 10Mbit/s",
        "guarantee: 800Mbit/s",
        19,
        "vifs.vm2.flows",
        "more than the vif's own",
    ),
    "an interface named twice": ("interface: vnet1", "interface: vnet0", 22, "vifs.vm3", "is vm1 already"),
    "no place": ("    interface: vnet1\n", "", 22, "vifs.vm3", "neither interface nor domain"),
    "two places": (
        "interface: vnet1",
        "interface: vnet1\n    domain: web",
        22,
        "vifs.vm3",
        "both interface and domain",
    ),
    "a namespace of no process": ("namespace: blue", "namespace: 'pid:blue'", 15, "vifs.vm2.namespace", "no process"),
    "a name with a space": ("name: edge", "name: 'my edge'", 2, "name", "is not a name"),
    "a list": (GOOD, "- 1\n", 1, "", "keys with values, not a list"),
    "a tab": ("  vm1:", "\tvm1:", None, "", "tab"),
    "a key twice": ("name: edge", "name: edge\nname: core", 3, "name", "a second time"),
    "an impossible period": ("name: edge", "name: edge\nperiod: 1us", 3, "period", "greater than or equal to"),
    "a period without a unit": ("name: edge", "name: edge\nperiod: 50", 3, "period", "is not a duration"),
    "another word for dying": (
        "name: edge",
        "name: edge\nif_daemon_dies: panic",
        3,
        "if_daemon_dies",
        "'guarantees' or 'keep'",
    ),
    "a goal in delay without a link to watch": (
        "link: {interface: eth0, capacity: 1Gbit/s}\nservice_classes: {gold: 2, silver: 1}",
        "link: {capacity: 1Gbit/s}\nservice_classes: {gold: {priority: 2, delay: 2ms}, silver: 1}",
        4,
        "service_classes.gold",
        "needs the link's interface",
    ),
    "a goal without a unit": (
        "{gold: 2, silver: 1}",
        "{gold: {priority: 2, delay: 2}, silver: 1}",
        4,
        "service_classes.gold.delay",
        "is not a duration",
    ),
    "a service class without a priority": (
        "{gold: 2, silver: 1}",
        "{gold: {delay: 2ms}, silver: 1}",
        4,
        "service_classes.gold.priority",
        "is missing",
    ),
    "a misspelt goal": (
        "{gold: 2, silver: 1}",
        "{gold: {priority: 2, dely: 2ms}, silver: 1}",
        4,
        "service_classes.gold.dely",
        "did you mean delay?",
    ),
    "packets promised of nobody knows how many": (
        "packets: 20k/s",
        "packets_guarantee: 5k/s",
        12,
        "vifs.vm1.send.packets_guarantee",
        "needs the packets/s of the link",
    ),
    "packets promised above their ceiling": (
        "packets: 20k/s",
        "packets: 20k/s, packets_guarantee: 30k/s",
        12,
        "vifs.vm1.send.packets_guarantee",
        "the guarantee 30 kp/s is above its ceiling, 20 kp/s",
    ),
    "more packets promised than there are": (
        "capacity: 1Gbit/s}",
        "capacity: 1Gbit/s, packets: 4k/s}",
        3,
        "link.packets",
        "vm1 5 kp/s = 5 kp/s on 4 kp/s",
    ),
    "a sandbox in a namespace": (
        "namespace: blue",
        "namespace: blue\n    sandbox: web",
        16,
        "vifs.vm2.sandbox",
        "both sandbox and namespace",
    ),
    "a domain in a sandbox": (
        "    interface: vnet1\n",
        "    domain: web\n    sandbox: web\n",
        24,
        "vifs.vm3.sandbox",
        "found without a sandbox",
    ),
    "a flow class received with a guarantee nobody gave": (
        "bulk: {dscp: 8,",
        "bulk: {way: receive, guarantee: 5Mbit/s, dscp: 8,",
        19,
        "vifs.vm2.flows",
        "more than the vif's own",
    ),
    "a way that is none": ("bulk: {dscp: 8,", "bulk: {way: out, dscp: 8,", 21, "vifs.vm2.flows.bulk.way", "receive"),
    "an interface name no kernel takes": (
        "interface: eth0, capacity",
        "interface: an-interface-of-mine, capacity",
        3,
        "link.interface",
        "at most 15",
    ),
    "a hold longer than a second": ("name: edge", "name: edge\nhold: 5s", 3, "hold", "less than or equal to"),
    "a total that the published algorithm does not know": (
        "name: edge",
        "name: edge\npolicy: published",
        None,
        "tenants.acme",
        "the published algorithm has no total of a tenant in bit/s",
    ),
    "flow classes that the published algorithm does not know": (
        "name: edge",
        "name: edge\npolicy: published",
        None,
        "vifs.vm2.flows",
        "the published algorithm has no flow classes",
    ),
    "a division that is none": ("name: edge", "name: edge\npolicy: fair", 3, "policy", "published"),
}
