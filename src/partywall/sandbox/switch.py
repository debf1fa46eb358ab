"""A run's own network: a bridge in its own namespace, with a port for each sandbox that requests one.

It has no connection to the host's networks. Sandboxes reach each other and the bridge's namespace, where the other ends
of network kernels listen. The namespace and everything in it is removed with the run.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError, TrialError
from partywall.files import write_whole
from partywall.host import Host, install
from partywall.host.label import Label
from partywall.sandbox import networks

BRIDGE = "br0"
# RFC 2544 reserves these addresses for measurements, so no user's network has them.
GATEWAY = "198.18.0.1"
PREFIX = 16
PORTS_MAX = 250
IP_S = 20


@dataclass(frozen=True)
class Port:
    """A tap on the bridge for one sandbox. address: the sandbox's, with prefix length; gateway: the bridge's.

    mtu: of the sandbox's interface in bytes; None for the usual one. ipv6: whether the sandbox has it.
    """

    namespace: str
    interface: str
    mac: str
    address: str
    gateway: str = GATEWAY
    mtu: int | None = None
    ipv6: bool = True

    @property
    def path(self) -> Path:
        return networks.NETNS / self.namespace

    @property
    def enter(self) -> tuple[str, ...]:
        """A command prefix for running in the namespace."""
        return ("nsenter", f"--net={self.path}")

    def plug(self) -> None:
        """Creates the port, and the bridge before the first one. TrialError if the host refuses."""
        if not self.path.exists():
            self._make_bridge()
        self.unplug()
        _ip("-n", self.namespace, "tuntap", "add", self.interface, "mode", "tap")
        _ip("-n", self.namespace, "link", "set", self.interface, "master", BRIDGE, "up")

    def unplug(self) -> None:
        """Removes the port if it exists. One that could not be removed in time is refused where it is made again."""
        command = ["ip", "-n", self.namespace, "link", "del", self.interface]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, check=False, timeout=20)

    def _make_bridge(self) -> None:
        _ip("netns", "add", self.namespace)
        _ip("-n", self.namespace, "link", "set", "lo", "up")
        _ip("-n", self.namespace, "link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0")
        _ip("-n", self.namespace, "addr", "add", f"{GATEWAY}/{PREFIX}", "dev", BRIDGE)
        _ip("-n", self.namespace, "link", "set", BRIDGE, "up")


@dataclass(frozen=True)
class Switch:
    """All ports of a run."""

    label: Label

    def port(self, name: str) -> Port:
        """The port of the sandbox called `name`, always the same one, not yet created.

        CapabilityError without the tools.

        The run's state records the port of each sandbox before anything is created.
        """
        if why := lacking(Host.here()):
            raise CapabilityError(f"sandbox {name}: {why}")
        networks.note(self.label, [self.label.run])
        number = self._number(name)
        return Port(
            namespace=self.label.run,
            interface=f"tap{number}",
            mac=f"52:54:00:00:01:{number:02x}",
            address=f"198.18.1.{number}/{PREFIX}",
        )

    def _number(self, name: str) -> int:
        file = self.label.state / "ports.json"
        names: list[str] = json.loads(file.read_text()) if file.exists() else []
        if name not in names:
            names.append(name)
            write_whole(file, json.dumps(names))
        if len(names) > PORTS_MAX:
            raise TrialError(f"sandbox {name}: the bridge of a run has {PORTS_MAX} ports at the most")
        return names.index(name) + 1


def lacking(host: Host) -> str:
    """What prevents bridges on a host, with a remedy; empty if nothing does."""
    if host.euid != 0:
        return "network: bridge needs root; run with sudo, or use network: user"
    missing = [tool for tool in ("ip", "nsenter") if host.which(tool) is None]
    remedy = install(host, "iproute2", "util-linux")
    return f"network: bridge needs {', '.join(missing)}; {remedy}" if missing else ""


def _ip(*arguments: str) -> None:
    command = ["ip", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=IP_S)
    except subprocess.TimeoutExpired:
        raise TrialError(f"{' '.join(command)} did not end within {IP_S} s; the kernel is busy") from None
    if done.returncode:
        raise TrialError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
