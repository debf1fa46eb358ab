"""Chooses the accelerator of guests: KVM if a guest starts with it, or else emulation (TCG).

That /dev/kvm opens proves nothing. Without nested page tables, a machine can be created whose guest never starts and
uses a whole core indefinitely. Therefore one guest is started with a deadline, and the result is stored until the host
reboots, its QEMU or the guests' kernel changes, or the user gives guests more time. A failure on a busy host is stored
for `doctor` only, and the next start tries again.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from partywall.errors import CapabilityError, UsageError
from partywall.files import write_whole
from partywall.host import Host, install, waits
from partywall.host.label import made_state_root, state_root
from partywall.sandbox.qemu import kernel
from partywall.sandbox.qemu.machine import PROGRAM

DEVICE = Path("/dev/kvm")
# On an idle host. A guest under KVM answers after one to two seconds.
DEADLINE_S = 7.0
VERDICT = "kvm.json"
Name = Literal["kvm", "tcg"]


@dataclass(frozen=True)
class Accelerator:
    """The accelerator of a guest, and the reason for the choice."""

    name: Name
    why: str

    @property
    def emulates(self) -> bool:
        return self.name == "tcg"


def choose(requested: str, host: Host) -> Accelerator:
    """`requested`: auto, kvm or tcg.

    CapabilityError for kvm if it does not work. Starts at most one guest for each host.
    """
    if requested == "tcg":
        return Accelerator("tcg", "requested")
    why_not = _reason_against(host)
    if why_not is None:
        return Accelerator("kvm", "a guest came up under KVM")
    if requested == "kvm":
        raise CapabilityError(f"accel: kvm does not work here: {why_not}; use accel: tcg, whose figures are emulated")
    return Accelerator("tcg", why_not)


def _reason_against(host: Host) -> str | None:
    if not host.exists(DEVICE):
        return f"{DEVICE} does not exist"
    if not _opens(host):
        return f"{DEVICE} may not be opened (join the group kvm)"
    attempt = _remembered(host)
    if attempt is None or not attempt.decides:
        attempt = _tried(host)
        _remember(attempt, host)
    return f"{DEVICE} opens, but a guest on it {attempt}" if attempt.failure else None


@dataclass(frozen=True)
class Attempt:
    """A guest that was started under KVM.

    failure: why it did not answer; empty if it did. within_s: its time in seconds. at: local time. busy: what kept the
    host busy meanwhile; empty if nothing did.
    """

    failure: str
    within_s: float
    at: str
    busy: str = ""

    @property
    def decides(self) -> bool:
        """True if another attempt would be expected to end alike."""
        if not self.failure:
            return True
        return not self.busy and self.within_s >= (waits.set_by_user() or 0)

    def __str__(self) -> str:
        busy = f", while {self.busy}" if self.busy else ""
        return f"did not come up at {self.at}{busy} ({self.failure})"


def _tried(host: Host) -> Attempt:
    within_s = waits.start_s(DEADLINE_S, host)
    at = time.strftime("%Y-%m-%d %H:%M")
    with waits.Watch(host) as watch:
        failure = host.try_kvm(within_s)
    return Attempt(failure, within_s, at, watch.busy)


def _opens(host: Host) -> bool:
    return host.access(host.path(DEVICE), os.R_OK | os.W_OK)


def qemu_version(host: Host) -> str:
    """The version of QEMU on a host's PATH. CapabilityError if there is none."""
    if not host.which(PROGRAM):
        raise CapabilityError(
            f"{PROGRAM} was not found, so backend: qemu cannot run; {install(host, 'qemu-system-x86')}"
        )
    said = host.output([PROGRAM, "--version"])
    return said.partition("\n")[0].removeprefix("QEMU emulator version ").strip()


def untried(host: Host) -> bool:
    """True if the next `auto` or `kvm` will have to start a guest."""
    if not _opens(host) or not host.which(PROGRAM):
        return False
    attempt = _remembered(host)
    return attempt is None or not attempt.decides


@dataclass(frozen=True)
class Verdict:
    """What is known about KVM here without starting a guest. works: it works, or nothing contradicts it yet."""

    works: bool
    text: str
    remedy: str = ""


def verdict(host: Host) -> Verdict:
    """The verdict for `doctor`. Starts nothing."""
    if not host.exists(DEVICE):
        return Verdict(
            works=False, text=f"{DEVICE} does not exist", remedy="use a host with hardware virtualisation enabled"
        )
    if not _opens(host):
        return Verdict(works=False, text=f"{DEVICE} may not be opened", remedy="join the group kvm, or run as root")
    attempt = _remembered(host) if host.which(PROGRAM) else None
    if attempt is None:
        return Verdict(works=True, text=f"{DEVICE} opens; 'partywall vm check' shows whether a guest starts with it")
    if not attempt.failure:
        return Verdict(works=True, text=f"{DEVICE} works")
    more = f"to try again with more time: {waits.VARIABLE}=2min partywall vm check"
    if attempt.decides:
        remedy = f"use a host that is not a guest, or one with nested page tables; {more}"
    else:
        remedy = f"the next guest tries again, and so does partywall vm check on an idle host; {more}"
    return Verdict(works=False, text=f"{DEVICE} opens, but a guest {attempt}", remedy=remedy)


def _verdict_file() -> Path:
    return state_root() / VERDICT


def _conditions(host: Host) -> dict[str, str]:
    """What the result of an attempt depends on."""
    return {"boot": host.boot, "qemu": qemu_version(host), "kernel": kernel.identity()}


def _remembered(host: Host) -> Attempt | None:
    """The last attempt under these conditions; None if there was none."""
    try:
        stored = json.loads(_verdict_file().read_text())
        return Attempt(**stored["attempt"]) if stored["conditions"] == _conditions(host) else None
    except (OSError, ValueError, TypeError, KeyError, UsageError):
        return None


def _remember(attempt: Attempt, host: Host) -> None:
    stored = {"conditions": _conditions(host), "attempt": asdict(attempt)}
    write_whole(made_state_root() / VERDICT, json.dumps(stored))
