"""A disk that is slower than this host's: a loop device over a file that QEMU's storage daemon serves at a set rate.

For measurements in which a disk has to be the bottleneck. Requests wait in the loop device, so the kernel counts them
there, under its name. The file system has no journal: a write that is synced is one request, and none waits for others.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError, TrialError
from partywall.host import Host, install, mounts
from partywall.host.host import ROOT
from partywall.host.label import Label
from partywall.host.processes import end_group

FOLDER = "slow-disk"
SIZE = 2 << 30
"""Bytes of the file, which takes only the room of what is written."""
PROGRAMS = {"qemu-storage-daemon": "qemu-utils", "losetup": "mount", "mkfs.ext4": "e2fsprogs", "mount": "mount"}
FUSE = Path("/dev/fuse")
START_S, TIMEOUT_S, STOP_S = 20.0, 60.0, 5.0
WAIT_S = 0.02


@dataclass(frozen=True)
class SlowDisk:
    """A mounted disk. device: its name in /sys/block, under which monitors read it."""

    folder: Path
    device: str


def missing(host: Host) -> str:
    """Why a host cannot have such a disk, with a remedy; empty if it can."""
    if host.euid != 0:
        return "a disk of a set rate is a loop device, which only root can make; run it with sudo"
    packages = [package for program, package in PROGRAMS.items() if not host.which(program)]
    if packages:
        return f"a disk of a set rate needs QEMU's storage daemon and a loop device; {install(host, *packages)}"
    return "" if host.exists(FUSE) else f"{FUSE} does not exist, so no file has a set rate; run modprobe fuse"


@contextlib.contextmanager
def slow_disk(label: Label, bytes_per_s: int) -> Iterator[SlowDisk]:
    """It is there until the end. TrialError if it cannot be made."""
    if said := missing(Host.here()):
        raise CapabilityError(said)
    folder = label.work / FOLDER
    (folder / "disk").mkdir(parents=True)
    for name in ("image", "served"):
        (folder / name).touch(mode=0o600)
    os.truncate(folder / "image", SIZE)
    _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(folder / "image"))
    daemon = subprocess.Popen(_daemon(folder, bytes_per_s), env=os.environ | label.environment, process_group=0)
    try:
        _wait_for(folder / "ready", daemon)
        device = _run("losetup", "--find", "--show", "--direct-io=on", str(folder / "served"))
        _run("mount", device, str(folder / "disk"))
        yield SlowDisk(folder / "disk", Path(device).name)
    finally:
        _, left = remove(label)
        end_group(daemon, STOP_S)
    if left:
        raise TrialError(f"the slow disk was not removed: {', '.join(left)}")


def remove(label: Label) -> tuple[list[str], list[str]]:
    """Unmounts the disk of a run and detaches its loop device: (removed, not removed). Programs keep what they use."""
    folder = label.work / FOLDER
    commands = [["umount", "--lazy", str(point)] for point in _points(folder)]
    # The loop device is between the disk that is mounted on it and the file below it.
    commands[1:1] = [["losetup", "--detach", device] for device in _devices(folder)]
    removed: list[str] = []
    left: list[str] = []
    for command in commands:
        try:
            _run(*command)
        except TrialError as error:
            left.append(f"{command[-1]} ({error})")
        else:
            removed.append(command[-1])
    return removed, left


def _points(folder: Path) -> list[Path]:
    """What is mounted in a folder, the last first."""
    return [mount.point for mount in reversed(mounts(ROOT)) if mount.point.is_relative_to(folder)]


def _devices(folder: Path) -> list[str]:
    """Loop devices over files of a folder."""
    found = []
    for file in sorted(Path("/sys/block").glob("loop*/loop/backing_file")):
        with contextlib.suppress(OSError):
            if Path(file.read_text().strip()).is_relative_to(folder):
                found.append(f"/dev/{file.parts[-3]}")
    return found


def _daemon(folder: Path, bytes_per_s: int) -> list[str]:
    return [
        "qemu-storage-daemon",
        *("--blockdev", f"driver=file,node-name=image,filename={folder}/image,cache.direct=on"),
        *("--object", f"throttle-group,id=rate,limits.bps-total={bytes_per_s}"),
        *("--blockdev", "driver=throttle,node-name=slow,file=image,throttle-group=rate"),
        *("--export", f"type=fuse,id=served,node-name=slow,mountpoint={folder}/served,writable=on"),
        *("--pidfile", f"{folder}/ready"),
    ]


def _wait_for(ready: Path, daemon: subprocess.Popen[bytes]) -> None:
    """Waits until the daemon serves its file: it writes its process ID once everything is set up."""
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise TrialError("QEMU's storage daemon does not serve the slow disk's file")
        time.sleep(WAIT_S)


def _run(*command: str) -> str:
    """A program's output. TrialError if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        raise TrialError(f"{' '.join(command)}: {error.stderr.strip()}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TrialError(f"{' '.join(command)}: {error}") from None
    return done.stdout.strip()
