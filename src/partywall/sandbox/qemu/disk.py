"""A guest's disk: a fully allocated file with an empty ext4 file system, or a device of the host with one.

A file's blocks are allocated in advance, because holes are neither throttled nor read from a device. A device is
claimed while its guest has it, so that nobody can mount it, and is left without a file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from pathlib import Path

from partywall import units
from partywall.errors import CapabilityError
from partywall.host import Host, install

SIZE = 1 << 30
# The share of a disk available to files. The journal and tables take more of a small disk.
ROOM, SMALL_ROOM, SMALL = 0.945, 0.85, 512 << 20
# The label of our file systems. One left by a killed run may be overwritten.
LABEL = "partywall"
# The exit status of blkid for a device without known content.
HOLDS_NOTHING = 2


def room(size: int) -> int:
    """Least bytes for files on a disk of this size."""
    return int(size * (ROOM if size >= SMALL else SMALL_ROOM))


def create(image: Path, size: int, content: Path | None = None) -> None:
    """Creates the file. content: a folder whose files it gets.

    CapabilityError if there is not enough space, or no program to create a file system.
    """
    with image.open("xb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            image.unlink()
            raise CapabilityError(
                f"{image}: no space for a guest's disk of {units.format_bytes(size)}: {error.strerror}; "
                "free some space, lower sandbox.disk.size or set --work-dir to a folder on another disk"
            ) from error
    _make_file_system(image, *_with(content))


class Device:
    """A block device of the host as a guest's disk. CapabilityError if that is impossible or not allowed.

    content: a folder whose files it gets.
    """

    def __init__(self, path: Path, *, overwrite: bool, content: Path | None = None) -> None:
        if why := unusable(path, overwrite=overwrite):
            raise CapabilityError(why)
        self.path = path
        # Few large files are stored there. With the default number of inodes, a large disk would take minutes.
        _make_file_system(path, "-T", "largefile4", "-L", LABEL, *_with(content))
        self._claim: int | None = _claim(path)

    def release(self) -> None:
        """Removes its file system. May be called twice."""
        if self._claim is None:
            return
        os.close(self._claim)
        self._claim = None
        # It may have been unplugged meanwhile.
        with contextlib.suppress(OSError):
            subprocess.run(["wipefs", "--quiet", "--all", str(self.path)], capture_output=True, check=False)


def unusable(device: Path, *, overwrite: bool) -> str:
    """Why this device cannot be a guest's disk, with a remedy; empty if it can."""
    try:
        if not stat.S_ISBLK(device.stat().st_mode):
            return f"{device} is not a block device; give one such as /dev/sdb, or leave device out for a file"
        os.close(_claim(device))
    except FileNotFoundError:
        return f"{device} does not exist; lsblk lists the host's block devices"
    except PermissionError:
        remedy = (
            "run with sudo" if os.geteuid() else "even root may not here: allow this container or service to use it"
        )
        return f"{device} may not be opened; {remedy}"
    except OSError as error:
        if error.errno != errno.EBUSY:
            return f"{device} cannot be opened: {error.strerror}; give another device"
        return f"{device} is in use (mounted, swap, or part of another device); free it, or give another device"
    held = "" if overwrite else holds(device)
    return f"{device} holds {held}; add overwrite: true beside device if its content may be lost" if held else ""


def holds(device: Path) -> str:
    """The content of a device according to its signatures; empty for none, or a file system made by Partywall."""
    try:
        done = subprocess.run(
            ["blkid", "-p", "-o", "export", str(device)], capture_output=True, text=True, errors="replace", check=False
        )
    except FileNotFoundError:
        return f"unknown content: blkid was not found ({install(Host.here(), 'util-linux')})"
    if done.returncode == HOLDS_NOTHING:
        return ""
    values = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if (values.get("TYPE"), values.get("LABEL")) == ("ext4", LABEL):
        return ""
    if "TYPE" in values:
        return f"{values['TYPE']}" + (f" called {values['LABEL']!r}" if "LABEL" in values else "")
    return f"a partition table ({values['PTTYPE']})" if "PTTYPE" in values else "unknown content"


def _claim(device: Path) -> int:
    """Opens a device so that no file system, swap or other device can use it. The kernel refuses if one does."""
    return os.open(device, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)


def _with(content: Path | None) -> tuple[str, ...]:
    return () if content is None else ("-d", str(content))


def _make_file_system(image: Path, *more: str) -> None:
    # The guest must not initialise anything in the background during a measurement.
    options = ("-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-m", "0", *more)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(image)], capture_output=True, check=True)
    except FileNotFoundError:
        raise CapabilityError(
            f"mkfs.ext4 was not found, so guests can have no disk; {install(Host.here(), 'e2fsprogs')}"
        ) from None
    except subprocess.CalledProcessError as error:
        raise CapabilityError(f"{image}: mkfs.ext4: {error.stderr.decode(errors='replace').strip()}") from error
