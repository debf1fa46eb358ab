"""Simultaneous multithreading (SMT, HyperThreading): whether each thread of a core is a CPU of its own.

While it is off, one CPU of each core is online, for the whole host. Source:
Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from partywall import units
from partywall.host import Host

SYSFS = "/sys/devices/system/cpu"
CONTROL, ACTIVE = f"{SYSFS}/smt/control", f"{SYSFS}/smt/active"
SWITCHES = ("on", "off")
FIXED = {
    "notsupported": (f"no core has a second thread that this kernel can see ({CONTROL} is notsupported)",),
    "forceoff": (f"SMT is off until the next boot ({CONTROL} is forceoff)", "boot without nosmt=force"),
    "notimplemented": (
        f"this kernel cannot switch SMT on this processor ({CONTROL} is notimplemented)",
        "switch it in the firmware",
    ),
    "": (f"this kernel cannot switch SMT (there is no usable {CONTROL})", "switch it in the firmware"),
}
"""Contents of the kernel's file that cannot be changed: the reason, and a remedy if there is one."""


def now(host: Host) -> str:
    """'on', 'off', or empty if unknown."""
    control, active = _control(host), host.text(ACTIVE)
    if control in (*SWITCHES, "forceoff", "notsupported"):
        return "on" if control == "on" else "off"
    if active in ("0", "1"):
        return SWITCHES[active == "0"]
    patterns = ("core_cpus_list", "thread_siblings_list")
    files = [file for name in patterns for file in host.path(SYSFS).glob(f"cpu[0-9]*/topology/{name}")]
    try:
        cores = [units.parse_cpus(text) for file in files if (text := host.text(file.relative_to(host.root)))]
    except ValueError:
        return ""
    return "" if not cores else SWITCHES[max(map(len, cores)) == 1]


def _control(host: Host) -> str:
    """The content of the kernel's file; empty if there is none, or nothing that is known. Some count threads."""
    control = host.text(CONTROL) or ""
    return control if control in (*SWITCHES, *FIXED) or control.isdecimal() else ""


def setting(_folder: Path, host: Host) -> Path | None:
    """The kernel's file; None if it cannot be changed."""
    return None if _control(host) in FIXED else host.path(CONTROL)


def before(file: Path, host: Host) -> dict[Path, str]:
    """What restores the present state. Switching on also brings CPUs online that were taken offline one by one."""
    files = sorted(host.path(SYSFS).glob("cpu[0-9]*/online"))
    offline = [each for each in files if host.text(each.relative_to(host.root)) == "0"]
    return {file: file.read_text(encoding="utf-8", errors="replace").strip(), **dict.fromkeys(offline, "0")}


def why_not(states: Sequence[str], _folder: Path, host: Host) -> str:
    """Why a host cannot have SMT on or off, with a remedy; empty if it can or already has it."""
    is_now = now(host)
    if all(state == is_now for state in states):
        return ""
    control = _control(host)
    if control in FIXED:
        why, *remedies = FIXED[control]
        choices = [*remedies, "leave it out", *([f"ask for {is_now}, which it is"] if is_now else [])]
        return f"{why}; {', or '.join(choices)}"
    return "" if host.euid == 0 else "switching SMT needs root; run with sudo"
