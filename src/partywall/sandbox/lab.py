"""Several tenants behind one network card on one machine, for benchmarks and studies: namespaces joined by veth.

Each tenant is a namespace whose eth0 leads to a bridge, or a guest whose tap is a port of it. The bridge's `nic`, a
veth with tbf at the link's rate, leads to a second bridge. From there each tenant's traffic goes to its own sink, so
that the kernel's counters show each tenant's delivered traffic independently of the guard. Needs root and iproute2. The
namespaces are always removed, if necessary by the next start.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.agent import binary
from partywall.agent.agents import Agents
from partywall.agent.client import AgentClient, Sink
from partywall.agent.inbox import Inbox
from partywall.errors import AgentError, CapabilityError, TrialError
from partywall.host import Host, install
from partywall.host.label import Label
from partywall.sandbox import networks
from partywall.sandbox.base import Settings
from partywall.sandbox.networks import NETNS, in_namespace
from partywall.sandbox.qemu import Qemu
from partywall.sandbox.reaper import clean
from partywall.sandbox.switch import Port

HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP
LINK_BURST, LINK_LATENCY = "256k", "20ms"
NOWHERE = "10.9.0.1"
"""A gateway address for guests that no host has."""
BOOT_S = 10.0
"""Time for starting guests, for the estimate of the time left."""
GUEST_BYTES = 512 << 20
"""Memory that a guest needs on the host."""
TOOL_S = 60.0
"""How long `ip` and `tc` may take."""
COUNTERS = "counters"
"""ID of the monitor in a guest."""
READ_S = 10.0
"""How long a guest may take to report its counters."""


def ip(*arguments: str) -> str:
    """Runs ip. TrialError with its error output."""
    return _tool("ip", *arguments)


def tc(namespace: str, *arguments: str) -> str:
    """Runs tc in a namespace. TrialError with its error output."""
    return _tool("tc", "-n", namespace, *arguments)


def _tool(*command: str) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=TOOL_S)
    except subprocess.TimeoutExpired:
        raise TrialError(f"{' '.join(command)}: it did not end within {TOOL_S:g} s") from None
    if ran.returncode:
        raise TrialError(f"{' '.join(command)}: {ran.stderr.strip()}")
    return ran.stdout


@dataclass(frozen=True)
class Counted:
    """Counters of the sinks."""

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
    """The tenants by name, and their sinks. rate: of the link, in tc's notation; None for no limit.

    accel: tenants are guests with this accelerator. mtu: of the tenants' interfaces in bytes; None for the usual one.
    """

    def __init__(
        self, names: list[str], rate: str | None, label: Label, *, accel: str | None = None, mtu: int | None = None
    ) -> None:
        self.names = names
        self.label = label
        self.mtu = mtu
        self.holder: subprocess.Popen[bytes] | None = None
        self.rate = rate
        self._listeners: dict[str, Sink] = {}
        self.guests = {name: self._guest(number, name, accel) for number, name in enumerate(names, 1) if accel}

    def namespace(self, name: str) -> str:
        """The namespace of a tenant, or of the bridges 'switch' and 'far'."""
        return f"{self.label.run}-{name}"

    def build(self) -> None:
        """Creates the lab. TrialError if the host refuses."""
        switch, far = self.namespace("switch"), self.namespace("far")
        tenants = [name for name in self.names if name not in self.guests]
        every = ["switch", "far", *tenants, *(f"{name}-sink" for name in self.names)]
        networks.note(self.label, [self.namespace(name) for name in every])
        for name in (switch, far):
            self._namespace(name)
            ip("-n", name, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
            ip("-n", name, "link", "set", "br0", "up")
        self._pair(switch, "nic", far, "uplink")
        for number, name in enumerate(self.names, start=1):
            self._tenant(number, name)
        self.relink()
        self.holder = subprocess.Popen(
            ["ip", "netns", "exec", far, "sleep", "infinity"], env=os.environ | self.label.environment
        )
        deadline = time.monotonic() + 5
        while not self._counters() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._boot()

    def _namespace(self, name: str) -> None:
        """Creates a namespace without IPv6, whose own reports and solicitations would count as tenants' packets."""
        ip("netns", "add", name)
        for which in ("all", "default"):
            setting = f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6"
            if Path(setting).exists():
                ip("netns", "exec", name, "sh", "-c", f"echo 1 > {setting}")

    def relink(self) -> None:
        """Restores the original link."""
        if self.rate:
            self.link("tbf", "rate", self.rate, "burst", LINK_BURST, "latency", LINK_LATENCY)

    def link(self, *qdisc: str) -> None:
        """Replaces the queueing discipline at the link."""
        tc(self.namespace("switch"), "qdisc", "replace", "dev", "nic", "root", *qdisc)

    def _pair(self, left: str, left_port: str, right: str, right_port: str) -> None:
        ip("link", "add", left_port, "netns", left, "type", "veth", "peer", "name", right_port, "netns", right)
        for namespace, port in ((left, left_port), (right, right_port)):
            ip("-n", namespace, "link", "set", port, "up")
            if namespace in (self.namespace("switch"), self.namespace("far")):
                ip("-n", namespace, "link", "set", port, "master", "br0")

    def _tenant(self, number: int, name: str) -> None:
        tenant, sink = self.namespace(name), self.namespace(f"{name}-sink")
        mac_tenant, mac_sink = _macs(number)
        counted = f"10.9.3.{number}"
        self._end(sink, "far", number, mac_sink, f"10.9.2.{number}", {f"10.9.1.{number}": mac_tenant})
        if name in self.guests:
            # A guest cannot learn this address's owner statically, so the sink answers for it.
            ip("-n", sink, "addr", "add", f"{counted}/32", "dev", "eth0")
        else:
            # Nobody has this address: packets to it are counted at the sink's port and dropped at no cost.
            known = {f"10.9.2.{number}": mac_sink, counted: mac_sink}
            self._end(tenant, "switch", number, mac_tenant, f"10.9.1.{number}", known)
            if self.mtu:
                ip("-n", tenant, "link", "set", "eth0", "mtu", str(self.mtu))
        self._known("switch", mac_sink, "nic")
        self._known("far", mac_tenant, "uplink")

    def _end(self, own: str, switch: str, number: int, mac: str, address: str, known: Mapping[str, str]) -> None:
        """Creates a namespace with eth0 on a bridge. known: MAC addresses of other hosts, by IP address."""
        port = _port(number)
        self._namespace(own)
        self._pair(own, "eth0", self.namespace(switch), port)
        ip("-n", own, "link", "set", "eth0", "address", mac)
        ip("-n", own, "addr", "add", f"{address}/16", "dev", "eth0")
        for other, other_mac in known.items():
            ip("-n", own, "neigh", "add", other, "lladdr", other_mac, "dev", "eth0")
        ip("-n", own, "link", "set", "lo", "up")
        self._known(switch, mac, port)

    def _guest(self, number: int, name: str, accel: str) -> Qemu:
        mac, _ = _macs(number)
        address = f"10.9.1.{number}/16"
        port = Port(self.namespace("switch"), _port(number), mac, address, NOWHERE, self.mtu, ipv6=False)
        cpus = sorted(os.sched_getaffinity(0))
        own = cpus[number % len(cpus)]
        return Qemu(Settings(name=name, backend="qemu", cpus=(own,), files=False, accel=accel), self.label, port)

    def _boot(self) -> None:
        """Starts all guests in parallel."""
        for name, guest in self.guests.items():
            guest.launch(functools.partial(self._hear, name))
        for name, guest in self.guests.items():
            guest.start(functools.partial(self._hear, name))
        for guest in self.guests.values():
            guest.settle()

    def _hear(self, name: str, method: str, params: dict[str, Any]) -> None:
        if listener := self._listeners.get(name):
            listener(method, params)

    def listen(self, name: str, listener: Sink | None) -> None:
        """Passes on what the agent of a guest reports; None: nobody reads it."""
        if listener is None:
            self._listeners.pop(name, None)
        else:
            self._listeners[name] = listener

    def look(self) -> None:
        """Keeps the guests' clocks on this host's. TrialError if one jumped."""
        for guest in self.guests.values():
            guest.look()

    @property
    def emulated(self) -> bool:
        """True if tenants run on an emulated processor."""
        return any(guest.client and guest.client.hello.get("emulated") for guest in self.guests.values())

    def port(self, name: str) -> str:
        """The bridge port of a tenant, or of its sink on the second bridge."""
        return _port(self.names.index(name) + 1)

    def given(self) -> dict[str, int]:
        """Packets that each guest has sent through its tap so far, before any hook or queue."""
        # The tap is in QEMU's own network namespace.
        return {name: interfaces_of(guest.pid or 0)[self.port(name)].received for name, guest in self.guests.items()}

    def handed(self, name: str) -> int:
        """Datagrams that a tenant in a namespace has passed to its kernel so far, including those it dropped.

        One that a queue or a hook at the tenant's own interface refuses counts as an error of the socket's buffer.
        """
        counts = in_namespace(NETNS / self.namespace(name), _udp_counts)
        return counts["OutDatagrams"] + counts["SndbufErrors"]

    def sent(self, name: str, interface: str) -> int:
        """Packets that an interface inside a guest has sent so far, as its agent reads them.

        While this runs, nobody else may listen to the guest. TrialError if the agent does not report the counter.
        """
        client = self.guests[name].client
        if client is None:
            raise TrialError(f"the guest {name} has no agent, so its counters cannot be read; start the study again")
        samples: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.listen(name, lambda method, params: samples.put(params) if method == "sample" else None)
        try:
            columns = client.call("monitor.start", id=COUNTERS, cpus=[])["counters"]
            client.call("monitor.schedule", id=COUNTERS, at_ns=[0])
            values = samples.get(timeout=READ_S)["values"]
        except queue.Empty:
            raise TrialError(
                f"the guest {name} did not report its counters within {READ_S:g} s; leave the host less to do"
            ) from None
        finally:
            with contextlib.suppress(AgentError):
                client.call("monitor.stop", id=COUNTERS)
            self.listen(name, None)
        names = [(column["subject"], column["name"]) for column in columns]
        packets = dict(zip(names, values, strict=True)).get((interface, "network_sent_packets_count"))
        if packets is None:
            raise TrialError(f"the guest {name} has no counter of interface {interface}; start the study again")
        return int(packets)

    def _known(self, switch: str, mac: str, port: str) -> None:
        _tool("bridge", "-n", self.namespace(switch), "fdb", "replace", mac, "dev", port, "master", "static")

    def remove(self) -> None:
        """Removes the lab."""
        for guest in self.guests.values():
            guest.stop()
        if self.holder:
            self.holder.kill()
            self.holder.wait()
        clean(self.label)

    def address(self, name: str, *, counted: bool = True) -> str:
        """The address that a tenant sends to: one that is only counted, or its sink's own."""
        return f"10.9.{3 if counted else 2}.{self.names.index(name) + 1}"

    def reach(self, name: str, other: str) -> None:
        """Lets a tenant in a namespace also send to another's sink, so that its streams are counted separately."""
        _, mac_sink = _macs(self.names.index(other) + 1)
        known = ("lladdr", mac_sink, "dev", "eth0")
        ip("-n", self.namespace(name), "neigh", "replace", self.address(other), *known)

    def _counters(self) -> dict[str, Interface]:
        interfaces = interfaces_of(self.holder.pid) if self.holder else {}
        return interfaces if "p1" in interfaces else {}

    def read(self) -> Counted:
        """Reads the counters of every sink's port."""
        counters = self._counters()
        at_ns = time.monotonic_ns()
        ports = {name: counters[self.port(name)] for name in self.names}
        return Counted(
            at_ns,
            {name: port.sent for name, port in ports.items()},
            {name: port.sent_bytes for name, port in ports.items()},
        )


@dataclass(frozen=True)
class Interface:
    """Packets received and sent, and bytes sent."""

    received: int
    sent: int
    sent_bytes: int


def interfaces_of(pid: int) -> dict[str, Interface]:
    """Interfaces in the network namespace of a process. OSError if it has ended."""
    interfaces = {}
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]:
        port, _, rest = line.partition(":")
        fields = [int(field) for field in rest.split()]
        interfaces[port.strip()] = Interface(received=fields[1], sent=fields[9], sent_bytes=fields[8])
    return interfaces


def _udp_counts() -> dict[str, int]:
    """UDP counters of the calling thread's network namespace."""
    text = Path("/proc/thread-self/net/snmp").read_text()
    names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Udp:"))
    return dict(zip(names, map(int, values), strict=True))


def _port(number: int) -> str:
    """The port of the tenant with this number, or of its sink."""
    return f"p{number}"


def _macs(number: int) -> tuple[str, str]:
    """MAC addresses of a tenant and of its sink."""
    return f"02:00:00:00:01:{number:02x}", f"02:00:00:00:02:{number:02x}"


def lacking() -> str:
    """What prevents a lab on this host, with a remedy; empty if nothing does."""
    # Root first, because the tools are often only on root's path.
    if os.geteuid() != 0:
        return "tenants in network namespaces need root; run with sudo"
    missing = [tool for tool in ("ip", "tc", "bridge") if shutil.which(tool) is None]
    if missing:
        return f"tenants in network namespaces need {', '.join(missing)}; {install(Host.here(), 'iproute2')}"
    return ""


@contextlib.contextmanager
def lab(
    names: list[str], rate: str | None = "1gbit", *, accel: str | None = None, mtu: int | None = None, number: int = 1
) -> Iterator[Lab]:
    """A lab while the block runs. See `Lab` for its parameters. CapabilityError if it cannot be created.

    number: tells several labs of one process apart, each with a link of its own.
    """
    if why := lacking():
        raise CapabilityError(why)
    own = f"-{number}" if number > 1 else ""
    label = Label.create(f"pw{os.getpid()}{own}", Path(tempfile.gettempdir()))
    try:
        made = Lab(names, rate, label, accel=accel, mtu=mtu)
    except BaseException:
        clean(label)
        raise
    try:
        made.build()
        yield made
    finally:
        made.remove()


@contextlib.contextmanager
def sender(
    made: Lab,
    name: str,
    packet_bytes: int,
    rate_pps: float | None,
    batch: int = 16,
    *,
    sink: str | None = None,
    port: int = 9,
    send_buffer_bytes: int | None = None,
) -> Iterator[AgentClient]:
    """Datagrams of `packet_bytes` on the link (including all headers), at a rate or flat out.

    sink: the tenant to whose sink they go, if not the sender's own; see `Lab.reach`. port: their destination port.
    send_buffer_bytes: of the sender's socket; one that never fills never makes it wait.
    """
    params: dict[str, Any] = {
        "datagram_bytes": packet_bytes - HEADERS,
        "to": f"{made.address(sink or name)}:{port}",
        "batch": batch,
    }
    if rate_pps is not None:
        params["rate_pps"] = rate_pps
    if send_buffer_bytes is not None:
        params["send_buffer_bytes"] = send_buffer_bytes
    work = {"kernel": {"name": "udp-send", "params": params}}
    with tenant(made, name) as (client, work_dir):
        client.call("workload.start", id="send", work=work, pace="flat_out", work_dir=work_dir)
        try:
            yield client
        finally:
            # The agent of a guest lasts as long as the lab.
            if name in made.guests:
                with contextlib.suppress(AgentError):
                    client.call("workload.stop", id="send")


@contextlib.contextmanager
def tenant(made: Lab, name: str, *options: str) -> Iterator[tuple[AgentClient, str]]:
    """The agent in a tenant's guest, or a new one in its namespace, and its folder for files.

    options: of a new one's command line.
    """
    guest = made.guests.get(name)
    if guest is not None and guest.client is not None:
        yield guest.client, guest.work_dir
        return
    with agent(made, name, *options) as client:
        yield client, tempfile.gettempdir()


@contextlib.contextmanager
def agent(made: Lab, name: str, *options: str) -> Iterator[AgentClient]:
    """An agent in a tenant's namespace while the block runs. options: of its command line."""
    command = ["ip", "netns", "exec", made.namespace(name), str(binary.find()), "serve", "--die-with-parent", *options]
    with Agents(messages=Inbox(0, lossy=True)) as agents:  # Nobody reads what it reports.
        yield agents.attach(name, command, os.environ | made.label.environment)
