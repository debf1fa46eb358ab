"""Finds the block device of a folder's files, on which a cgroup's disk limits are set. Only reads.

The kernel names a device for most file systems. An overlay writes to its upper folder, and btrfs hides its devices;
both are found in the table of mounts. Memory, networks and file systems on several devices cannot be limited. Source:
proc_pid_mountinfo(5), Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pydantic import Field

from partywall.host import Mount, mounts
from partywall.host.host import ROOT
from partywall.values import BytesPerSecond, Frozen

Device = tuple[int, int]


class Throttle(Frozen):
    """Disk limits per second, by direction, in bytes and in requests. None is no limit."""

    read_bps: BytesPerSecond | None = None
    write_bps: BytesPerSecond | None = None
    read_iops: int | None = Field(None, gt=0)
    write_iops: int | None = Field(None, gt=0)


def device_of(path: Path, root: Path = ROOT) -> Device | None:
    """Major and minor number of the whole disk with the files of `path`; None if there is no single one.

    root: the root folder of the host's files.
    """
    mount = mount_of(path, root)
    return _whole(_number(path, mount, root), root) or _behind(mount, root)


def lacking(path: Path, root: Path = ROOT) -> str:
    """Why disk work in `path` cannot be limited, with a remedy; empty if it can."""
    if device_of(path, root) is not None:
        return ""
    mount = mount_of(path, root)
    kind = mount.kind if mount else "an unknown file system"
    return (
        f"disk limits need a block device, and {path} is on {kind}, which is not on a single one; "
        "set --work-dir to a folder on a disk"
    )


def mount_of(path: Path, root: Path = ROOT) -> Mount | None:
    """The mount of `path`. The last of several on one point counts, because it covers the others."""
    resolved = path.resolve()
    holding = [mount for mount in mounts(root) if resolved.is_relative_to(mount.point)]
    return max(reversed(holding), key=lambda mount: len(mount.point.parts), default=None)


def _number(path: Path, mount: Mount | None, root: Path) -> Device | None:
    """The device of a folder. For inaccessible folders, it is read from the table of mounts."""
    try:
        number = _under(root, path).stat().st_dev
    except OSError:
        return None if mount is None else mount.device
    return os.major(number), os.minor(number)


def _behind(mount: Mount | None, root: Path) -> Device | None:
    if mount is None:
        return None
    # An overlay's upper folder is not visible from inside a container.
    upper = mount.option("upperdir")
    if mount.kind == "overlay" and upper is not None and _under(root, Path(upper)).is_dir():
        return device_of(Path(upper), root)
    if mount.kind == "btrfs":
        return _only_device(mount.source, root)
    return None


def _only_device(source: str, root: Path) -> Device | None:
    """The device of a btrfs file system, unless there are several."""
    pools = ([entry.name for entry in pool.glob("devices/*")] for pool in (root / "sys/fs/btrfs").glob("*-*"))
    device = _under(root, Path(source)).resolve()
    if [device.name] not in pools:
        return None
    try:
        status = device.stat()
    except OSError:
        return None
    return _whole((os.major(status.st_rdev), os.minor(status.st_rdev)), root) if stat.S_ISBLK(status.st_mode) else None


def _whole(device: Device | None, root: Path) -> Device | None:
    """The disk with this device number, or the disk of this partition; None if it is not a block device."""
    if device is None:
        return None
    folder = (root / "sys/dev/block" / f"{device[0]}:{device[1]}").resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    try:
        major, minor = (folder / "dev").read_text().split(":")
        return int(major), int(minor)
    except (OSError, ValueError):
        return None


def _under(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")
