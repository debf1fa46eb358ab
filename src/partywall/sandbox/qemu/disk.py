"""A guest's disk: a file of its full size with an empty ext4 in it.

Its blocks are allocated beforehand, for a hole is neither throttled nor read from a device.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from partywall import units
from partywall.errors import CapabilityError

SIZE = 1 << 30


def create(image: Path, size: int) -> None:
    """Makes the file; CapabilityError if there is no room, or nothing to make a file system with."""
    with image.open("xb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            image.unlink()
            raise CapabilityError(
                f"{image}: no room for a guest's disk of {units.format_bytes(size)}: {error.strerror}; "
                "free some space, lower sandbox.disk.size or set --work-dir to a folder on another disk"
            ) from error
    # Nothing may be left for the guest to initialise in the background while something is measured.
    options = ("-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-m", "0")
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(image)], capture_output=True, check=True)
    except FileNotFoundError:
        raise CapabilityError(
            "mkfs.ext4 was not found, so guests can have no disk; apt-get install e2fsprogs"
        ) from None
    except subprocess.CalledProcessError as error:
        raise CapabilityError(f"{image}: mkfs.ext4: {error.stderr.decode(errors='replace').strip()}") from error
