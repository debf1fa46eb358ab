"""Several tenants behind one network card, on one machine: namespaces joined by veth, and what is read there.

Each tenant is a namespace whose eth0 leads to a bridge; the bridge's `nic`, a veth with tbf at the link's rate, leads
to a second bridge, and from there each tenant's traffic to a sink of its own, so that what was delivered of whom is
told by counters that are nobody's but the kernel's. Benchmarks and studies stand on it. Needs root and iproute2;
whatever happens, the namespaces are removed, by the next start if need be.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.agent import binary
from partywall.agent.client import AgentClient, start_agent
from partywall.errors import CapabilityError, TrialError
from partywall.sandbox import networks
from partywall.sandbox.label import Label
from partywall.sandbox.reaper import clean

HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP
LINK_BURST, LINK_LATENCY = "256k", "20ms"


def ip(*arguments: str) -> str:
    """Runs ip; TrialError with what it said."""
    return _tool("ip", *arguments)


def tc(namespace: str, *arguments: str) -> str:
    """Runs tc in a namespace; TrialError with what it said."""
    return _tool("tc", "-n", namespace, *arguments)


def _tool(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise TrialError(f"{' '.join(command)}: {ran.stderr.strip()}")
    return ran.stdout


@dataclass(frozen=True)
class Counted:
    """What a sink was sent."""

    at_ns: int
    packets: dict[str, int]
    bytes: dict[str, int]

    def rates(self, later: Counted) -> dict[str, tuple[float, float]]:
        """(bit/s, packets/s) of each tenant between two readings."""
        seconds = (later.at_ns - self.at_ns) / 1e9
        return {
            name: (
                (later.bytes[name] - self.bytes[name]) * 8 / seconds,
                (later.packets[name] - self.packets[name]) / seconds,
            )
            for name in self.packets
        }


class Lab:
    """The tenants by name, and their sinks. rate: of the link, as tc writes it; None for none."""

    def __init__(self, names: list[str], rate: str | None, label: Label) -> None:
        self.names = names
        self.label = label
        self.holder: subprocess.Popen[bytes] | None = None
        self.rate = rate

    def namespace(self, name: str) -> str:
        """What a tenant's namespace, or 'switch' and 'far' of the two bridges, is called."""
        return f"{self.label.run}-{name}"

    def build(self) -> None:
        """Makes it; TrialError if the host refuses."""
        switch, far = self.namespace("switch"), self.namespace("far")
        every = ["switch", "far", *self.names, *(f"{name}-sink" for name in self.names)]
        networks.note(self.label, [self.namespace(name) for name in every])
        for name in (switch, far):
            self._namespace(name)
            ip("-n", name, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
            ip("-n", name, "link", "set", "br0", "up")
        self._pair(switch, "nic", far, "uplink")
        for number, name in enumerate(self.names, start=1):
            self._tenant(number, name)
        if self.rate:
            self.link("tbf", "rate", self.rate, "burst", LINK_BURST, "latency", LINK_LATENCY)
        self.holder = subprocess.Popen(
            ["ip", "netns", "exec", far, "sleep", "infinity"], env=os.environ | self.label.environment
        )
        deadline = time.monotonic() + 5
        while not self._counters() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _namespace(self, name: str) -> None:
        """Without IPv6, whose own reports and solicitations would count among the tenants' packets."""
        ip("netns", "add", name)
        for which in ("all", "default"):
            setting = f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6"
            if Path(setting).exists():
                ip("netns", "exec", name, "sh", "-c", f"echo 1 > {setting}")

    def link(self, *qdisc: str) -> None:
        """Replaces what gives packets out at the link."""
        tc(self.namespace("switch"), "qdisc", "replace", "dev", "nic", "root", *qdisc)

    def _pair(self, left: str, left_port: str, right: str, right_port: str) -> None:
        ip("link", "add", left_port, "netns", left, "type", "veth", "peer", "name", right_port, "netns", right)
        for namespace, port in ((left, left_port), (right, right_port)):
            ip("-n", namespace, "link", "set", port, "up")
            if namespace in (self.namespace("switch"), self.namespace("far")):
                ip("-n", namespace, "link", "set", port, "master", "br0")

    def _tenant(self, number: int, name: str) -> None:
        tenant, sink = self.namespace(name), self.namespace(f"{name}-sink")
        mac_tenant, mac_sink = f"02:00:00:00:01:{number:02x}", f"02:00:00:00:02:{number:02x}"
        for namespace, mac, switch, address, other, other_mac in (
            (tenant, mac_tenant, "switch", f"10.9.1.{number}", f"10.9.2.{number}", mac_sink),
            (sink, mac_sink, "far", f"10.9.2.{number}", f"10.9.1.{number}", mac_tenant),
        ):
            self._namespace(namespace)
            port = f"p{number}"
            self._pair(namespace, "eth0", self.namespace(switch), port)
            ip("-n", namespace, "link", "set", "eth0", "address", mac)
            ip("-n", namespace, "addr", "add", f"{address}/16", "dev", "eth0")
            ip("-n", namespace, "neigh", "add", other, "lladdr", other_mac, "dev", "eth0")
            ip("-n", namespace, "link", "set", "lo", "up")
            self._known(switch, mac, port)
        # Nobody has this address: what is sent there is counted at the sink's port and dropped at no cost.
        ip("-n", tenant, "neigh", "add", f"10.9.3.{number}", "lladdr", mac_sink, "dev", "eth0")
        self._known("switch", mac_sink, "nic")
        self._known("far", mac_tenant, "uplink")

    def _known(self, switch: str, mac: str, port: str) -> None:
        _tool("bridge", "-n", self.namespace(switch), "fdb", "replace", mac, "dev", port, "master", "static")

    def remove(self) -> None:
        """Takes all of it away."""
        if self.holder:
            self.holder.kill()
            self.holder.wait()
        clean(self.label)

    def address(self, name: str, *, counted: bool = True) -> str:
        """Where a tenant sends: an address that only counts, or its sink's own."""
        return f"10.9.{3 if counted else 2}.{self.names.index(name) + 1}"

    def _counters(self) -> dict[str, tuple[int, int]]:
        if self.holder is None:
            return {}
        found = {}
        for line in Path(f"/proc/{self.holder.pid}/net/dev").read_text().splitlines()[2:]:
            port, _, rest = line.partition(":")
            fields = rest.split()
            found[port.strip()] = (int(fields[8]), int(fields[9]))
        return found if "p1" in found else {}

    def read(self) -> Counted:
        """What every sink's port was given so far."""
        found = self._counters()
        at_ns = time.monotonic_ns()
        ports = {name: found[f"p{number}"] for number, name in enumerate(self.names, start=1)}
        return Counted(at_ns, {n: p for n, (_, p) in ports.items()}, {n: b for n, (b, _) in ports.items()})


@contextlib.contextmanager
def lab(names: list[str], rate: str | None = "1gbit") -> Iterator[Lab]:
    """A lab while the block runs. CapabilityError where it cannot be made."""
    lacking = [tool for tool in ("ip", "tc", "bridge") if shutil.which(tool) is None]
    if os.geteuid() != 0 or lacking:
        why = f"{', '.join(lacking)} (package iproute2)" if lacking else "root"
        raise CapabilityError(f"tenants in network namespaces need {why}")
    label = Label.create(f"pw{os.getpid()}", Path(tempfile.gettempdir()))
    made = Lab(names, rate, label)
    try:
        made.build()
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def sender(made: Lab, name: str, packet_bytes: int, rate_pps: float | None, batch: int = 16) -> Iterator[AgentClient]:
    """Datagrams of `packet_bytes` on the link (with all headers), at a rate or flat out."""
    command = ["ip", "netns", "exec", made.namespace(name), str(binary.find()), "serve", "--die-with-parent"]
    process = start_agent(command, env=os.environ | made.label.environment)
    client = AgentClient(name, process, lambda _method, _params: None)
    params: dict[str, Any] = {
        "datagram_bytes": packet_bytes - HEADERS,
        "to": f"{made.address(name)}:9",
        "batch": batch,
    }
    if rate_pps is not None:
        params["rate_pps"] = rate_pps
    try:
        client.greet()
        work = {"kernel": {"name": "udp-send", "params": params}}
        client.call("workload.start", id="send", work=work, pace="flat_out", work_dir=tempfile.gettempdir())
        yield client
    finally:
        client.close()
