"""Chooses the accelerator of guests: KVM if a guest starts with it, or else emulation (TCG).

That /dev/kvm opens proves nothing. Without nested page tables, a machine can be created whose guest never starts and
uses a whole core indefinitely. Therefore one guest is started with a deadline, and the result is stored until the host
reboots, or its QEMU or the guests' kernel changes.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from partywall.errors import CapabilityError, UsageError
from partywall.files import write_whole
from partywall.host import Host, install
from partywall.host.label import made_state_root, state_root
from partywall.sandbox.qemu import kernel
from partywall.sandbox.qemu.machine import PROGRAM

DEVICE = Path("/dev/kvm")
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
    failure = _remembered(host)
    if failure is None:
        failure = host.try_kvm()
        _remember(failure, host)
    return f"{DEVICE} opens, but a guest on it did not come up ({failure})" if failure else None


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
    return _opens(host) and bool(host.which(PROGRAM)) and _remembered(host) is None


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
    failure = _remembered(host) if host.which(PROGRAM) else None
    if not failure:
        known = "works" if failure == "" else "opens; 'partywall vm check' shows whether a guest starts with it"
        return Verdict(works=True, text=f"{DEVICE} {known}")
    return Verdict(
        works=False,
        text=f"{DEVICE} opens, but a guest did not start with it ({failure})",
        remedy=f"use a host that is not a guest, or one with nested page tables; to try again: rm {_verdict_file()}",
    )


def _verdict_file() -> Path:
    return state_root() / VERDICT


def _circumstances(host: Host) -> dict[str, str]:
    """The conditions that the verdict depends on."""
    boot = host.text("/proc/sys/kernel/random/boot_id") or ""
    return {"boot": boot, "qemu": qemu_version(host), "kernel": kernel.identity()}


def _remembered(host: Host) -> str | None:
    """The stored reason why KVM failed, empty if it worked; None if it was not tried under these conditions."""
    try:
        content = json.loads(_verdict_file().read_text())
    except (OSError, ValueError, UsageError):
        return None
    failure = content.pop("failure", None)
    content.pop("at", None)
    return failure if content == _circumstances(host) and isinstance(failure, str) else None


def _remember(failure: str, host: Host) -> None:
    file = made_state_root() / VERDICT
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    write_whole(file, json.dumps(_circumstances(host) | {"failure": failure, "at": at}))
