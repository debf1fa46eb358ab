"""Power control by commands: the user's own, `ipmitool`, and wake-on-LAN."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from partywall.consolidate.document import Control
from partywall.errors import CapabilityError, TrialError
from partywall.power import bmc

TIMEOUT_S = 60.0
WAKE_PORT = 9


@dataclass(frozen=True)
class Commands:
    """Commands that switch a host and say whether it is on: exit code 0 if it is, 1 if not."""

    on: Sequence[str]
    off: Sequence[str]
    state: Sequence[str]

    def switch_on(self) -> None:
        _run(self.on, (0,))

    def switch_off(self) -> None:
        _run(self.off, (0,))

    def is_on(self) -> bool:
        return _run(self.state, (0, 1)).returncode == 0


@dataclass(frozen=True)
class Ipmi:
    """A board management controller, through ipmitool. cipher: as for `partywall.power.bmc.Ipmitool`."""

    address: str
    user: str
    password_file: str
    cipher: int | None = None

    def switch_on(self) -> None:
        self._chassis("on")

    def switch_off(self) -> None:
        self._chassis("soft")

    def is_on(self) -> bool:
        said = self._chassis("status").strip()
        if not said.endswith((" is on", " is off")):
            # An answer that is not understood must not pass for "off".
            raise TrialError(f"ipmitool says neither on nor off for {self.address}: {said[:60]!r}")
        return said.endswith(" is on")

    def _chassis(self, action: str) -> str:
        # Two slashes, so that it is read as host and port; IPv6 addresses have brackets.
        place = urlsplit(f"//{self.address}")
        password = bmc.first_line(self.password_file)
        tool = bmc.Ipmitool(place.hostname or "", place.port, user=self.user, password=password, cipher=self.cipher)
        return tool.run("chassis", "power", action, timeout_s=TIMEOUT_S)


@dataclass(frozen=True)
class WakeOnLan:
    """A magic packet switches the host on; commands switch it off and say whether it is on."""

    mac: str
    off: Sequence[str]
    state: Sequence[str]

    def switch_on(self) -> None:
        packet = b"\xff" * 6 + bytes.fromhex(self.mac.replace(":", "")) * 16
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            try:
                sender.sendto(packet, ("255.255.255.255", WAKE_PORT))
            except OSError as error:
                raise TrialError(f"the magic packet for {self.mac} was not sent: {error.strerror}") from None

    def switch_off(self) -> None:
        _run(self.off, (0,))

    def is_on(self) -> bool:
        return _run(self.state, (0, 1)).returncode == 0


def of(control: Control) -> Commands | Ipmi | WakeOnLan:
    """The power control that a checked document describes."""
    match control.kind:
        case "ipmi":
            return Ipmi(control.address or "", control.user or "", control.password_file or "", control.cipher)
        case "wol":
            return WakeOnLan(control.mac or "", control.off or (), control.state or ())
        case _:
            return Commands(control.on or (), control.off or (), control.state or ())


def _run(command: Sequence[str], expected: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S)
    except FileNotFoundError:
        raise CapabilityError(f"{command[0]} is not installed; install it, or choose another control") from None
    except OSError as error:
        raise TrialError(f"{command[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise TrialError(f"{command[0]} did not end within {TIMEOUT_S:g} s") from None
    if done.returncode not in expected:
        said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
        raise TrialError(f"{' '.join(command[:1])} failed with exit code {done.returncode}: {said}")
    return done
