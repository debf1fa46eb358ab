"""Fresh roots of stock Debian, to install, use and remove what is released."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labs.building import need, run
from partywall.host.cache import cache_root

SUITES = {"deb12": "bookworm", "deb13": "trixie"}
# A stock host has Python. pipx is for trying it; the rest is what the tried commands need.
PACKAGES = ("python3", "python3-venv", "pipx", "man-db", "ca-certificates", "procps", "iproute2")
MOUNTS = """\
root=$1; shift
mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" || exit 125
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \\
    DEBIAN_FRONTEND=noninteractive chroot "$root" sh -c 'cd "$HOME" && exec "$@"' - "$@"
"""
# What package managers and caches of documentation write by themselves.
NOT_OURS = ("var/lib/apt", "var/lib/dpkg", "var/cache/apt", "var/cache/debconf", "var/cache/man", "var/log")


@contextlib.contextmanager
def fresh(distribution: str) -> Iterator[Path]:
    """A new root, removed at the end."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        root = Path(name) / "root"
        root.mkdir()
        run("tar", "--extract", "--file", archive(SUITES[distribution]), "--directory", root)
        yield root


def archive(suite: str) -> Path:
    """The root as an archive, made if it is not in the cache."""
    need(("mmdebstrap",), "make bench-setup")
    file = cache_root() / "roots" / f"{suite}.tar"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part.tar")
        options = (
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            '--aptopt=Acquire::Languages "none"',
        )
        run("mmdebstrap", *options, suite, part)
        shutil.move(part, file)
    return file


def inside(root: Path) -> tuple[str, ...]:
    """The command that runs another one in a root, in /root. What it mounts ends with it."""
    own = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
    return (*own, "sh", "-c", MOUNTS, "-", str(root))


def files(root: Path) -> set[str]:
    """All paths below a root, but for what package managers write."""
    found: set[str] = set()
    for folder, folders, names in os.walk(root):
        place = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if str(place / name) not in NOT_OURS]
        found |= {str(place / name) for name in (*folders, *names)}
    return found
