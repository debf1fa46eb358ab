"""Two hosts on one machine: network namespaces, joined by a link for migration and by a network for clients.

Each host is a namespace with a bridge. The guest's tap is a port of the bridge of the host that it is on, and both
bridges lead to a third, where the clients are. So the guest keeps its address when it moves, as on a real network
segment, and the clients' bridge learns its new port from what the guest, or its QEMU, announces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from partywall.host.label import Label
from partywall.sandbox import networks
from partywall.sandbox.lab import ip, tc
from partywall.sandbox.switch import BRIDGE, Port

Place = Literal["a", "b"]
Other = Literal["clients", "storage"]
PLACES: tuple[Place, Place] = ("a", "b")
# Addresses that RFC 2544 keeps for measuring: no user's own network has them.
CLIENTS, GUEST = "198.18.0.1/16", "198.18.1.1/16"
LINK = {"a": "198.19.0.1", "b": "198.19.0.2"}
MAC = "52:54:00:00:02:01"
LINK_PORT = "mig0"
STORAGE, STORAGE_PORT = {"server": "198.19.1.1", "a": "198.19.1.2", "b": "198.19.1.3"}, "storage0"
"""Where both hosts reach a server of disks, if there is one."""


@dataclass(frozen=True)
class Link:
    """Between the two hosts. rate: bit/s, or None for as fast as they are; delay_ns: one way.

    shared: whether clients reach the guest over it too: it is then the port of each host on their switch.
    """

    rate: int | None = None
    delay_ns: int = 0
    shared: bool = False

    def queue(self) -> tuple[str, ...]:
        """The qdisc that holds packets to the rate and delay; empty if there is nothing to hold."""
        if self.delay_ns:
            # netem does both; a queue that holds what is on its way during the delay, and some more.
            packets = max(1000, int((self.rate or 10**10) * self.delay_ns / 1e9 / 8 / 1500 * 2))
            rate = ("rate", f"{self.rate}bit") if self.rate else ()
            return ("netem", "delay", f"{self.delay_ns // 1000}us", *rate, "limit", str(packets))
        if self.rate:
            burst = max(64 << 10, self.rate // 8 // 250)
            return ("tbf", "rate", f"{self.rate}bit", "burst", str(burst), "latency", "50ms")
        return ()


class Network:
    """The namespaces of one run. `build` makes them; they go with the run (`sandbox.reaper`).

    storage: whether a third host serves disks to both. Their network to it has no limit.
    """

    def __init__(self, label: Label, link: Link, *, storage: bool = False) -> None:
        self.label = label
        self.link = link
        self.others: tuple[Other, ...] = ("clients", "storage") if storage else ("clients",)

    def namespace(self, place: Place | Other) -> str:
        return f"{self.label.run}-{place}"

    def enter(self, place: Place | Other) -> tuple[str, ...]:
        """What a command in a namespace begins with."""
        return ("nsenter", f"--net={networks.NETNS / self.namespace(place)}")

    def port(self, place: Place) -> Port:
        """The guest's tap on a host. The guest has the same addresses on both."""
        return Port(self.namespace(place), "tap0", MAC, GUEST, CLIENTS.partition("/")[0])

    def build(self) -> None:
        """TrialError if the host refuses."""
        every = [self.namespace(place) for place in (*PLACES, *self.others)]
        networks.note(self.label, every)
        for namespace in every:
            ip("netns", "add", namespace)
            # Without IPv6, whose own packets would mix with those of the guest.
            ip("netns", "exec", namespace, "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6 || true")
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
            ip("-n", namespace, "link", "set", BRIDGE, "up")
        clients = self.namespace("clients")
        ip("-n", clients, "addr", "add", CLIENTS, "dev", BRIDGE)
        for place in PLACES:
            self._join("uplink", self.namespace(place), f"to-{place}", clients)
        self._link()
        if "storage" in self.others:
            self._storage()

    def _join(self, port: str, host: str, far_port: str, far: str) -> None:
        _pair(port, host, far_port, far)
        for namespace, each in ((host, port), (far, far_port)):
            ip("-n", namespace, "link", "set", each, "master", BRIDGE, "up")

    def _link(self) -> None:
        a, b = (self.namespace(place) for place in PLACES)
        if not self.link.shared:
            _pair(LINK_PORT, a, LINK_PORT, b)
        for place in PLACES:
            namespace = self.namespace(place)
            if self.link.shared:
                # An interface of its own, so that its counters are those of migration alone.
                _pair(LINK_PORT, namespace, f"{LINK_PORT}-port", namespace)
                ip("-n", namespace, "link", "set", f"{LINK_PORT}-port", "master", BRIDGE, "up")
            ip("-n", namespace, "addr", "add", f"{LINK[place]}/30", "dev", LINK_PORT)
            ip("-n", namespace, "link", "set", LINK_PORT, "up")
            self._hold(namespace, "uplink" if self.link.shared else LINK_PORT, self.link)
            if self.link.shared:
                self._hold(self.namespace("clients"), f"to-{place}", replace(self.link, delay_ns=0))

    def _hold(self, namespace: str, port: str, link: Link) -> None:
        if queue := link.queue():
            tc(namespace, "qdisc", "replace", "dev", port, "root", *queue)

    def _storage(self) -> None:
        server = self.namespace("storage")
        ip("-n", server, "addr", "add", f"{STORAGE['server']}/24", "dev", BRIDGE)
        for place in PLACES:
            host, far = self.namespace(place), f"to-{place}"
            _pair(STORAGE_PORT, host, far, server)
            ip("-n", server, "link", "set", far, "master", BRIDGE, "up")
            ip("-n", host, "addr", "add", f"{STORAGE[place]}/24", "dev", STORAGE_PORT)
            ip("-n", host, "link", "set", STORAGE_PORT, "up")


def _pair(port: str, namespace: str, far_port: str, far: str) -> None:
    """Two connected interfaces, each in its namespace."""
    ip("link", "add", port, "netns", namespace, "type", "veth", "peer", "name", far_port, "netns", far)
