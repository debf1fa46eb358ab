"""Root file systems of stock hosts: Debian's packages, Partywall's dependencies, and a way in by ssh.

Nothing of Partywall itself is in an image: the wheel is brought to the running host, so one image serves all versions.
An image is kept under the hash of its sources, this file included, in the cache folder that guests' kernels are
kept in too. What nobody has used for a month is removed when an image is made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from labs.building import Say, disk, run
from labs.hosts.catalogue import Image
from partywall.errors import TrialError
from partywall.host.cache import cache_root

HERE = Path(__file__).parent
CACHE = cache_root() / "hosts"
CLONE = HERE.parents[1]
DISK_MIB = 8192
UNUSED_S = 30 * 24 * 3600
USER = "alice"
VENV = "/opt/partywall"
WHEELS = "/opt/wheels"
# Extras that the tests need; tools that only check code are left out.
TEST_EXTRAS = ("hypothesis", "pytest", "pytest-timeout", "pytest-cov", "selenium", "trustme")
# Work of the distribution that comes at a time of its own, and would lie across what is measured.
MASKED = ("apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer", "systemd-timesyncd")
NETWORK = "[Match]\nName=en*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n"
PIN = "Package: {}\nPin: release n={}-backports\nPin-Priority: 900\n"


@dataclass(frozen=True)
class Built:
    """What QEMU boots."""

    disk: Path
    kernel: Path
    initrd: Path


def key() -> Path:
    """The private key that opens the hosts; made if it is not there."""
    path = CACHE / "key"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "partywall-hosts", "-f", path)
    return path


def built(image: Image, say: Say) -> Built:
    """The image, made if it is not in the cache."""
    folder = CACHE / f"{image.name}-{digest(image)}"
    if not folder.exists():
        prune(CACHE, say)
        wheels = _wheels(image, say)
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _build(image, part, wheels, say)
        part.rename(folder)
    os.utime(folder)
    return Built(folder / "disk.img", folder / "vmlinuz", folder / "initrd.img")


def prune(cache: Path, say: Say, now_s: float | None = None) -> None:
    """Removes images and wheels that were last used a month ago or longer, and what was begun and never finished."""
    now_s = time.time() if now_s is None else now_s
    for folder in sorted(cache.glob("*/")):
        if now_s - folder.stat().st_mtime > UNUSED_S:
            say(f"{folder.name}: removing it, since nobody has used it for a month")
            shutil.rmtree(folder)


def requirements() -> list[str]:
    """What pip installs: the dependencies, and packages for the tests."""
    project = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    tests = [line for line in project["optional-dependencies"]["dev"] if _name(line) in TEST_EXTRAS]
    return [*project["dependencies"], *tests]


def _name(requirement: str) -> str:
    return requirement.split(">")[0].split("=")[0].split("<")[0].strip()


def digest(image: Image) -> str:
    """The name of an image's sources."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    made_of = {"recipe": recipe, "image": asdict(image), "requirements": requirements(), "key": _public_key()}
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


def _public_key() -> str:
    return key().with_suffix(".pub").read_text()


def _wheels(image: Image, say: Say) -> Path:
    """A folder with the wheels of all requirements, for the image's Python."""
    digest = hashlib.sha256("\n".join(requirements()).encode()).hexdigest()[:12]
    folder = CACHE / f"wheels-{image.python}-{digest}"
    if not folder.exists():
        say(f"{image.name}: fetching the wheels of Partywall's dependencies for Python {image.python}")
        part = folder.with_suffix(".part")
        only = ("--only-binary=:all:", "--python-version", image.python)
        run(sys.executable, "-m", "pip", "download", "--quiet", *only, "-d", part, *requirements())
        part.rename(folder)
    os.utime(folder)
    return folder


def _build(image: Image, folder: Path, wheels: Path, say: Say) -> None:
    root = folder / "root"
    say(f"{image.name}: building its root from Debian's packages (half a minute to some minutes)")
    run("mmdebstrap", *_mmdebstrap(image), image.suite, root)
    say(f"{image.name}: installing Partywall's dependencies in it")
    _customise(root)
    _install(root, wheels)
    shutil.copy(next((root / "boot").glob("vmlinuz-*")), folder / "vmlinuz")
    shutil.copy(next((root / "boot").glob("initrd.img-*")), folder / "initrd.img")
    say(f"{image.name}: writing its disk")
    disk(folder / "disk.img", root, DISK_MIB)
    shutil.rmtree(root)


def _mmdebstrap(image: Image) -> list[str]:
    options = ["--quiet", "--variant=minbase", f"--include={','.join(image.packages)}"]
    options += ['--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io"]
    options += ["--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*"]
    # Packages of Java put links there, and cannot be installed if it is missing.
    options.append('--essential-hook=mkdir -p "$1/usr/share/man/man1"')
    if image.backports:
        sources, pins = '"$1/etc/apt/sources.list"', '"$1/etc/apt/preferences.d/backports"'
        pin = PIN.format(" ".join(image.backports), image.suite).replace("\n", "\\n")
        # The backports come from the same mirror as the release, whichever that is.
        also = f"sed -n 's/ {image.suite} / {image.suite}-backports /p' {sources}"
        options.append(f'--setup-hook=lines=$({also}); echo "$lines" >> {sources}')
        options.append(f"--setup-hook=mkdir -p \"$1/etc/apt/preferences.d\"; printf '{pin}' > {pins}")
    return options


def _customise(root: Path) -> None:
    _write(root / "etc/hostname", "stock\n")
    _write(root / "etc/hosts", "127.0.0.1 localhost stock\n")
    _write(root / "etc/fstab", "/dev/vda / ext4 defaults 0 1\n")
    _write(root / "etc/systemd/network/10-lab.network", NETWORK)
    _chroot(root, "systemctl", "--quiet", "enable", "systemd-networkd", "ssh")
    _chroot(root, "systemctl", "--quiet", "disable", "nginx", "systemd-networkd-wait-online")
    _chroot(root, "systemctl", "--quiet", "mask", *MASKED)
    _chroot(root, "useradd", "--create-home", "--shell", "/bin/bash", USER)
    for home, owner in (("root", "root"), (f"home/{USER}", USER)):
        _write(root / home / ".ssh/authorized_keys", _public_key())
        _chroot(root, "chown", "-R", f"{owner}:{owner}", f"/{home}/.ssh")
        (root / home / ".ssh").chmod(0o700)


def _install(root: Path, wheels: Path) -> None:
    """By the host's own Python, outside emulation: what pip does there does not depend on the kernel."""
    shutil.copytree(wheels, root / WHEELS.lstrip("/"))
    # With the distribution's packages, because libvirt's is built for its own libvirt.
    _chroot(root, "python3", "-m", "venv", "--system-site-packages", VENV)
    _chroot(root, f"{VENV}/bin/pip", "install", "--quiet", "--no-index", "--find-links", WHEELS, *requirements())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _chroot(root: Path, *argv: str) -> None:
    """The environment is the host's own: what is set for pip or Python here means nothing there."""
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    done = subprocess.run(["chroot", str(root), *argv], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrialError(f"in {root.parent.name}: {' '.join(argv[:3])}: {done.stderr.strip()[-300:]}")
