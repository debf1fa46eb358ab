"""What the Xen lab boots: Debian's Xen, a small dom0 with Partywall's dependencies in it, and guests.

Nothing is installed on this host. Partywall itself is on the guests' disk, which is written for each lab.
"""

from __future__ import annotations

import gzip
import hashlib
import shutil
import stat
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from labs.building import Say, disk, need, run
from labs.hosts.image import key
from partywall.agent import binary
from partywall.errors import CapabilityError
from partywall.sandbox.qemu import modules
from partywall.sandbox.qemu.initramfs import archive, loaded
from partywall.sandbox.qemu.unpack import unpacked

HERE = Path(__file__).parent
CACHE = HERE / ".cache"
CLONE = HERE.parents[1]
# The guests' disk, as dom0 sees it.
GUESTS = "/boot/partywall"
# A folder of it: what a guest boots that sends.
SENDER = "sender"
ROOT_PACKAGES = (
    *("xen-utils-4.17", "xenstore-utils", "libvirt-daemon", "libvirt-daemon-driver-xen", "libvirt-clients"),
    *("iproute2", "kmod", "openssh-server", "python3"),
)
# The suite of the root; its Python, which runs Partywall in dom0; the folder with the dependencies of Partywall.
SUITE, PYTHON, SITE = "bookworm", "3.11", "/opt/partywall"
# Xen's driver is the only one that is wanted, and QEMU's keeps dom0 busy looking for an emulator.
DRIVERS_LEFT = ("libxl",)
LIBVIRT = 'listen_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\nlisten_addr = "0.0.0.0"\nauth_unix_rw = "none"\n'
# What dom0's kernel needs to reach its root.
DOM0_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
ROOT_MIB, GUESTS_MIB = 3000, 400
IGNORED = shutil.ignore_patterns("__pycache__")


def prepared(say: Say) -> Path:
    """The folder with everything that the lab boots, made if it is not there."""
    need(("mmdebstrap", "mkfs.ext4", "dpkg", "apt-get", "qemu-system-x86_64", "ssh", "ssh-keygen"), "make xen-lab")
    CACHE.mkdir(exist_ok=True)
    made_of = CACHE / "made-of"
    if not (CACHE / "root.img").exists() or not made_of.exists() or made_of.read_text() != _digest():
        _build(say)
        made_of.write_text(_digest())
    say("writing what the guests boot")
    _guests()
    return CACHE


def _build(say: Say) -> None:
    """Each step leaves a file or a folder, so that a second try goes on where the first one ended."""
    say("fetching Xen, dom0's kernel and busybox (some 75 MB)")
    _fetch("xen", "xen-hypervisor-4.17-amd64")
    _fetch("kernel", _newest("linux-image-amd64"))
    _fetch("busybox", "busybox-static")
    packages = ",".join(ROOT_PACKAGES)
    root = CACHE / f"root-{hashlib.sha256(packages.encode()).hexdigest()[:12]}.tar"
    if not root.exists():
        say("building dom0's root from packages (two minutes)")
        for old in CACHE.glob("root*.tar"):
            old.unlink()
        part = CACHE / "part.tar"
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", SUITE, part)
        part.rename(root)
    say("writing its disk, with what Partywall needs in dom0")
    _write_root(root)


def _digest() -> str:
    """A digest of everything that goes into dom0's disk."""
    made_of = (*ROOT_PACKAGES, *_dependencies(), SUITE, PYTHON, (HERE / "dom0-init").read_text())
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()


def _dependencies() -> list[str]:
    project = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    return [str(requirement) for requirement in project["dependencies"]]


def _fetch(name: str, package: str) -> None:
    folder = CACHE / name
    if folder.exists():
        return
    debs = CACHE / f"{name}.deb"
    shutil.rmtree(debs, ignore_errors=True)
    debs.mkdir()
    run("apt-get", "download", "-qq", package, cwd=debs)
    part = CACHE / f"{name}.part"
    shutil.rmtree(part, ignore_errors=True)
    run("dpkg", "-x", str(next(debs.glob("*.deb"))), str(part))
    part.rename(folder)


def _newest(meta: str) -> str:
    """The image that a meta package stands for."""
    said = run("apt-cache", "depends", meta)
    images = [word for word in said.split() if word.startswith("linux-image-") and word[12:13].isdigit()]
    if not images:
        raise CapabilityError(f"the package lists do not know {meta}; run apt-get update")
    return images[0]


def _tree() -> Path:
    return next((CACHE / "kernel").glob("*/modules/*"), next((CACHE / "kernel").glob("usr/lib/modules/*"), CACHE))


def _write_root(packed: Path) -> None:
    root, tree = CACHE / "root", _tree()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    run("tar", "-C", root, "-xf", packed)
    shutil.copytree(tree, root / "usr/lib/modules" / tree.name, symlinks=True, dirs_exist_ok=True)
    run("chroot", str(root), "depmod", tree.name)
    for driver in root.glob("usr/lib/*/libvirt/connection-driver/libvirt_driver_*.so"):
        if driver.stem.removeprefix("libvirt_driver_") not in DRIVERS_LEFT:
            driver.unlink()
    (root / "etc/libvirt").mkdir(exist_ok=True)
    (root / "etc/libvirt/lab.conf").write_text(LIBVIRT)
    (root / "boot/partywall").mkdir(parents=True)
    only = ("--only-binary=:all:", "--python-version", PYTHON, "--no-compile", "--target", root / SITE.lstrip("/"))
    run(sys.executable, "-m", "pip", "install", "--quiet", *only, *_dependencies())
    run("chroot", root, "python3", "-m", "compileall", "-q", SITE)
    (root / "root/.ssh").mkdir(mode=0o700)
    shutil.copy(key().with_suffix(".pub"), root / "root/.ssh/authorized_keys")
    shutil.copy(HERE / "dom0-init", root / "sbin/lab-init")
    (root / "sbin/lab-init").chmod(0o755)
    (CACHE / "initramfs").write_bytes(_initramfs(tree, DOM0_MODULES, {"init": (HERE / "initramfs-init").read_bytes()}))
    (CACHE / "vmlinux").write_bytes(_kernel())
    (CACHE / "xen.elf").write_bytes(gzip.decompress(next((CACHE / "xen").glob("boot/xen-*.gz")).read_bytes()))
    disk(CACHE / "part.img", root, ROOT_MIB)
    (CACHE / "part.img").rename(CACHE / "root.img")
    shutil.rmtree(root)


def _initramfs(tree: Path, wanted: tuple[str, ...], programs: Mapping[str, bytes]) -> bytes:
    """An initramfs with busybox, these modules and their dependencies, and programs."""
    contents = modules.collect(tree, wanted)
    folders = ("bin", "dev", "lib", "lib/modules", "proc", "sys", "root", "tmp")
    files = [(name, stat.S_IFDIR | 0o755, b"") for name in folders]
    files.append(("bin/busybox", stat.S_IFREG | 0o755, next((CACHE / "busybox").glob("**/bin/busybox")).read_bytes()))
    files += [(name, stat.S_IFREG | 0o755, content) for name, content in programs.items()]
    files += [(f"lib/modules/{name}", stat.S_IFREG | 0o644, content) for name, content in contents.items()]
    files.append(("lib/modules/order", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in contents).encode()))
    return archive(files)


def _guests() -> None:
    """On a disk of its own, for the agent in it changes and dom0's root does not. Partywall for dom0 is there too."""
    folder = CACHE / "guests"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "partywall", "vm", "export", str(folder), "--uncompressed")
    (folder / SENDER).mkdir()
    # Dom0's kernel also has the driver of a guest's network interface.
    shutil.copyfile(CACHE / "vmlinux", folder / SENDER / "vmlinuz")
    programs = {"init": (HERE / "sender-init").read_bytes(), "agent": loaded(binary.find().read_bytes())}
    (folder / SENDER / "initramfs").write_bytes(_initramfs(_tree(), ("xen_netfront",), programs))
    shutil.copytree(CLONE / "src" / "partywall", folder / "src" / "partywall", ignore=IGNORED)
    # Of no use to another Python, which then compiles for itself.
    run(sys.executable, "-m", "compileall", "-q", folder / "src")
    disk(CACHE / "guests.img", folder, GUESTS_MIB)


def _kernel() -> bytes:
    """Dom0's, unpacked, because Xen would need seconds for it."""
    packed = next((CACHE / "kernel").glob("boot/vmlinuz-*")).read_bytes()
    return unpacked(packed) or packed
