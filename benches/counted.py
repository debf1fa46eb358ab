"""A disk of its own, and cgroups whose requests on it the kernel counts: what a watch of disks is tried on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partywall.sandbox import cgroups

TOOLS = ("losetup", "mkfs.ext4", "mount")
POLL_S, POLLS = 0.05, 1200
"""How often a group is tried to be removed, whose processes may still be ending."""


@dataclass(frozen=True)
class Disk:
    """name: of the device, such as loop0. folder: where its file system is mounted."""

    name: str
    folder: Path

    @property
    def number(self) -> str:
        """Major and minor number, as 7:0."""
        return Path(f"/sys/block/{self.name}/dev").read_text().strip()


def lacking() -> str:
    """What is missing on this host; empty if nothing is."""
    if os.geteuid():
        return "root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return ", ".join(missing)
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "loop devices"
    return "" if _top() else "an io controller (cgroup version 2, or blkio of version 1)"


def _top() -> Path | None:
    """The hierarchy that counts requests."""
    mounted = cgroups.read()
    return mounted.unified if "io" in mounted.unified_controllers else mounted.v1.get("blkio")


@contextlib.contextmanager
def disk(folder: Path, size_bytes: int, *, direct: bool = False) -> Iterator[Disk]:
    """An ext4 on a loop device, whose image is in `folder`.

    direct: past the page cache of the image, so that requests take the time of the disk below.
    """
    image, place = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    with contextlib.ExitStack() as stack:
        argv = ["losetup", "-f", "--show", *(["--direct-io=on"] if direct else []), image]
        device = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
        stack.callback(subprocess.run, ["losetup", "-d", device], check=True)
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        place.mkdir()
        subprocess.run(["mount", device, place], check=True)
        stack.callback(subprocess.run, ["umount", place], check=True)
        yield Disk(Path(device).name, place)


@contextlib.contextmanager
def groups(on: Disk, name: str, tenants: Sequence[str]) -> Iterator[Path]:
    """A cgroup `name` with one below it for each tenant. Processes in them must end before the block does."""
    top = _top()
    assert top is not None, "see `lacking`"
    parent = top / name
    with contextlib.ExitStack() as stack:
        parent.mkdir()
        stack.callback(parent.rmdir)
        if (parent / "cgroup.subtree_control").exists():
            (parent / "cgroup.subtree_control").write_text("+io")
        else:
            # Version 1 counts from the first limit on. This one limits nothing, and ends with the loop device.
            (top / "blkio.throttle.read_bps_device").write_text(f"{on.number} 0")
        for tenant in tenants:
            (parent / tenant).mkdir()
            stack.callback(_remove, parent / tenant)
        yield parent


def _remove(group: Path) -> None:
    """Removes a cgroup once its processes have ended."""
    # Counted, so that a machine that stands still for a while uses up no deadline.
    for left in reversed(range(POLLS)):
        try:
            group.rmdir()
        except OSError:
            if not left:
                raise
            time.sleep(POLL_S)
        else:
            return
