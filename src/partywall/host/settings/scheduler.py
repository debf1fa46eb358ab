"""The I/O scheduler of the disk with a run's files.

Changing it waits until the requests in the disk's queue are done. Source: Documentation/block/switching-sched.rst.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from partywall.files import kernel_text
from partywall.host import Host, block

NAMES = ("none", "mq-deadline", "bfq", "kyber")


def offered(file: Path) -> tuple[str, ...]:
    """The schedulers that the kernel offers for a disk, the present one first; empty if it has none to choose."""
    words = (kernel_text(str(file)) or "").split()
    present = [word.strip("[]") for word in words if word.startswith("[")]
    return (*present, *(word for word in words if not word.startswith("[")))


def setting(folder: Path, host: Host) -> Path | None:
    """The kernel's file with the scheduler of the disk of a folder's files; None if it has none to choose."""
    device = block.device_of(folder, host.root)
    if device is None:
        return None
    file = host.path(f"/sys/dev/block/{device[0]}:{device[1]}/queue/scheduler")
    return file if file.exists() else None


def before(file: Path, _host: Host) -> dict[Path, str]:
    """What restores the present scheduler."""
    return {file: offered(file)[0]}


def why_not(names: Sequence[str], folder: Path, host: Host) -> str:
    """Why the disk of a folder cannot have these schedulers, with a remedy; empty if it can."""
    file = setting(folder, host)
    if file is None:
        return f"{folder} is on no disk with an I/O scheduler; give a folder on one with --work-dir"
    known = offered(file)
    if missing := [name for name in names if name not in known]:
        return (
            f"the kernel offers {', '.join(sorted(known))} for the disk of {folder}, and not {', '.join(missing)}; "
            f"load its module (modprobe {_module(missing[0])}), or leave it out"
        )
    return "" if host.euid == 0 else "changing the I/O scheduler of a disk needs root; run with sudo"


def _module(name: str) -> str:
    return {"kyber": "kyber-iosched"}.get(name, name)
