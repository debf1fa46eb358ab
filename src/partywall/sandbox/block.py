"""Which block device holds a folder's files: the one on which a cgroup's disk limits are set. Reads only.

The kernel names a device for most file systems. An overlay writes into the folder on top of it, and btrfs hides what
it lies on; both are told by the table of mounts. Memory, networks and several devices at once cannot be limited.
Source: proc_pid_mountinfo(5), Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

Device = tuple[int, int]


@dataclass(frozen=True)
class Mount:
    """One line of the table of mounts."""

    point: Path
    kind: str
    source: str
    upper: str | None


@dataclass(frozen=True)
class Host:
    """Where the kernel tells of devices and mounts."""

    dev_block: Path = Path("/sys/dev/block")
    btrfs: Path = Path("/sys/fs/btrfs")
    mountinfo: Path = Path("/proc/self/mountinfo")


HERE = Host()


def device_of(path: Path, host: Host = HERE) -> Device | None:
    """Major and minor number of the whole disk that holds the files of `path`; None if no single one does."""
    return _whole(path.stat().st_dev, host) or _behind(mount_of(path, host), host)


def lacking(path: Path, host: Host = HERE) -> str:
    """Why what is done in `path` cannot be limited, and what would do; empty if it can."""
    if device_of(path, host) is not None:
        return ""
    mount = mount_of(path, host)
    kind = mount.kind if mount else "a file system that is not known"
    return (
        f"disk limits need a block device, and {path} is on {kind}, behind which no single one was found; "
        "set --work-dir to a folder on a disk"
    )


def mount_of(path: Path, host: Host = HERE) -> Mount | None:
    """The mount that holds `path`; of several on one point the last, which covers the others."""
    asked = path.resolve()
    holding = [mount for mount in map(_mount, host.mountinfo.read_text().splitlines()) if _holds(mount, asked)]
    return max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)


def _mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    kind, source, options = (*after.split(" "), "", "")[:3]
    upper = next((option[9:] for option in options.split(",") if option.startswith("upperdir=")), None)
    return Mount(Path(_plain(before.split(" ")[4])), kind, _plain(source), None if upper is None else _plain(upper))


def _plain(text: str) -> str:
    """Blanks and the like are written as octal numbers."""
    for code in (" ", "\t", "\n", "\\"):
        text = text.replace(f"\\{ord(code):03o}", code)
    return text


def _holds(mount: Mount, path: Path) -> bool:
    return path.is_relative_to(mount.point)


def _behind(mount: Mount | None, host: Host) -> Device | None:
    if mount is None:
        return None
    # From inside a container the folder on top is not to be seen.
    if mount.kind == "overlay" and mount.upper is not None and Path(mount.upper).is_dir():
        return device_of(Path(mount.upper), host)
    if mount.kind == "btrfs":
        return _only_device(mount.source, host)
    return None


def _only_device(source: str, host: Host) -> Device | None:
    """Of a btrfs, unless it is spread over several."""
    pools = ([entry.name for entry in pool.glob("devices/*")] for pool in host.btrfs.glob("*-*"))
    if [Path(source).resolve().name] not in pools:
        return None
    found = Path(source).stat()
    return _whole(found.st_rdev, host) if stat.S_ISBLK(found.st_mode) else None


def _whole(device: int, host: Host) -> Device | None:
    """The disk that a device number is, or is a part of; None if it is no block device's."""
    entry = host.dev_block / f"{os.major(device)}:{os.minor(device)}"
    if not entry.exists():
        return None
    folder = entry.resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    major, minor = (folder / "dev").read_text().split(":")
    return int(major), int(minor)
