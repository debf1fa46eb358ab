"""A run's own network: a bridge in a namespace of its own, with a port for each sandbox that asks for one.

Nothing leads from it to the host's networks. Sandboxes reach each other, and the bridge itself, behind which the other
ends of network kernels listen. The namespace goes with the run, and with it all that is in it.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError, TrialError
from partywall.files import write_whole
from partywall.host import Host, install
from partywall.sandbox import networks
from partywall.sandbox.label import Label

BRIDGE = "br0"
# Addresses that RFC 2544 keeps for measuring: no user's own network has them.
GATEWAY = "198.18.0.1"
PREFIX = 16
PORTS_MAX = 250


@dataclass(frozen=True)
class Port:
    """A tap on the bridge, for one sandbox. address: the sandbox's, with its prefix length; gateway: the bridge's."""

    namespace: str
    interface: str
    mac: str
    address: str
    gateway: str = GATEWAY

    @property
    def path(self) -> Path:
        return networks.NETNS / self.namespace

    @property
    def enter(self) -> tuple[str, ...]:
        """What a command in the namespace begins with."""
        return ("nsenter", f"--net={self.path}")

    def plug(self) -> None:
        """Makes it, and the bridge if it is the first; TrialError if the host refuses."""
        if not self.path.exists():
            self._make_bridge()
        self.unplug()
        _ip("-n", self.namespace, "tuntap", "add", self.interface, "mode", "tap")
        _ip("-n", self.namespace, "link", "set", self.interface, "master", BRIDGE, "up")

    def unplug(self) -> None:
        """Takes it away, if it is there."""
        subprocess.run(
            ["ip", "-n", self.namespace, "link", "del", self.interface], capture_output=True, check=False, timeout=20
        )

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
        """The port of the sandbox called `name`, not made yet: always the same one. CapabilityError without the means.

        The run's state remembers who has which, before anything is made.
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
    """What keeps bridges from being made on a host, with the remedy; nothing if they can be."""
    if host.euid != 0:
        return "network: bridge needs root; run with sudo, or use network: user"
    missing = [tool for tool in ("ip", "nsenter") if host.which(tool) is None]
    remedy = install(host, "iproute2", "util-linux")
    return f"network: bridge needs {', '.join(missing)}; {remedy}" if missing else ""


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=20)
    if done.returncode:
        raise TrialError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
