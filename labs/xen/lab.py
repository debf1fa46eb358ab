"""Xen without a machine for it: Xen and a small dom0 in an emulated PC, and a run on two PV guests inside.

`make xen-lab`. Fetches Debian packages once and builds dom0's root from them; nothing is installed but what
`make xen-lab` names. The emulator ends with this program, however that ends.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from labs.building import Say, disk, drive, free_port, need, run
from partywall.errors import CapabilityError, PartywallError, TrialError
from partywall.model.plan import Limits
from partywall.sandbox import Label, Settings, make, reaper
from partywall.sandbox.libvirt.leftovers import domain_name
from partywall.sandbox.libvirt.library import connect
from partywall.sandbox.qemu import modules
from partywall.sandbox.qemu.initramfs import archive

HERE = Path(__file__).parent
CACHE = HERE / ".cache"
ROOT_PACKAGES = "xen-utils-4.17,xenstore-utils,libvirt-daemon,libvirt-daemon-driver-xen,iproute2,kmod"
# Xen's driver is the only one that is wanted, and QEMU's keeps dom0 busy looking for an emulator.
DRIVERS_LEFT = ("libxl",)
LIBVIRT = 'listen_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\nlisten_addr = "0.0.0.0"\nauth_unix_rw = "none"\n'
LIBVIRT_PORT = 16509
READY_S = 300.0
SPAN_S = 8.0
CAP_POINTS, RATIO_LEAST = 0.03, 1.5
# All that the emulated machine has: the credit scheduler weighs domains over the whole pool, so that on one CPU of two
# each of two guests would get nearly what it wants by its credit, and 200 against 100 would be 1.2 : 1 (seen).
CPUS = (0, 1)
# What dom0's kernel needs to reach its root; AMD models stop libvirt's Xen driver, and newer ones crash here.
DOM0_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
CPU = "Westmere"
# Dom0, Xen's own, and up to four guests of 256 MiB.
MEMORY_MIB = 2048
# Shares come first, they say whether cap and weight hold. The others are parts of the study vits.yaml.
SHARES = "shares"
PARTS = (SHARES, "cache", "memory", "communication")


def prepared(say: Say) -> Path:
    """The folder with everything that the lab boots, made if it is not there."""
    need(("mmdebstrap", "mkfs.ext4", "dpkg", "apt-get", "qemu-system-x86_64"), "make xen-lab")
    CACHE.mkdir(exist_ok=True)
    if not (CACHE / "root.img").exists():
        _build(say)
    say("writing what the guests boot")
    _guests()
    return CACHE


def _build(say: Say) -> None:
    """Each step leaves a file or a folder, so that a second try goes on where the first one ended."""
    say("fetching Xen, dom0's kernel and busybox (some 75 MB)")
    _fetch("xen", "xen-hypervisor-4.17-amd64")
    _fetch("kernel", _newest("linux-image-amd64"))
    _fetch("busybox", "busybox-static")
    if not (CACHE / "root.tar").exists():
        say("building dom0's root from packages (two minutes)")
        part = CACHE / "part.tar"
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={ROOT_PACKAGES}", "bookworm", str(part))
        part.rename(CACHE / "root.tar")
    say("writing its disk")
    _write_root()


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


def _write_root() -> None:
    root, tree = CACHE / "root", _tree()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    run("tar", "-C", str(root), "-xf", str(CACHE / "root.tar"))
    shutil.copytree(tree, root / "usr/lib/modules" / tree.name, symlinks=True, dirs_exist_ok=True)
    run("chroot", str(root), "depmod", tree.name)
    for driver in root.glob("usr/lib/*/libvirt/connection-driver/libvirt_driver_*.so"):
        if driver.stem.removeprefix("libvirt_driver_") not in DRIVERS_LEFT:
            driver.unlink()
    (root / "etc/libvirt").mkdir(exist_ok=True)
    (root / "etc/libvirt/lab.conf").write_text(LIBVIRT)
    (root / "boot/partywall").mkdir(parents=True)
    shutil.copy(HERE / "dom0-init", root / "sbin/lab-init")
    (root / "sbin/lab-init").chmod(0o755)
    (CACHE / "initramfs").write_bytes(_initramfs(tree))
    (CACHE / "xen.elf").write_bytes(gzip.decompress(next((CACHE / "xen").glob("boot/xen-*.gz")).read_bytes()))
    disk(CACHE / "part.img", root, 1500)
    (CACHE / "part.img").rename(CACHE / "root.img")
    shutil.rmtree(root)


def _initramfs(tree: Path) -> bytes:
    contents = modules.collect(tree, DOM0_MODULES)
    files = [(name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "dev", "lib", "lib/modules", "proc", "sys", "root")]
    files.append(("bin/busybox", stat.S_IFREG | 0o755, next((CACHE / "busybox").glob("**/bin/busybox")).read_bytes()))
    files.append(("init", stat.S_IFREG | 0o755, (HERE / "initramfs-init").read_bytes()))
    files += [(f"lib/modules/{name}", stat.S_IFREG | 0o644, content) for name, content in contents.items()]
    files.append(("lib/modules/order", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in contents).encode()))
    return archive(files)


def _guests() -> None:
    """On a disk of its own, for the agent in it changes and dom0's root does not."""
    folder = CACHE / "guests"
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "partywall", "vm", "export", str(folder), "--uncompressed")
    disk(CACHE / "guests.img", folder, 160)


class Lab:
    """The emulated machine. Use as a context manager."""

    def __init__(self, folder: Path, say: Say) -> None:
        self._say = say
        self._console = folder / "console"
        self.port = free_port()
        kernel = next((folder / "kernel").glob("boot/vmlinuz-*"))
        self._argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-name", "partywall-xen-lab"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "pc", "-cpu", CPU),
            *("-m", str(MEMORY_MIB), "-smp", "2", "-accel", "tcg,thread=multi,tb-size=256"),
            *("-serial", f"file:{self._console}", "-kernel", str(folder / "xen.elf")),
            *("-append", "dom0_mem=448M,max:448M console=com1 com1=115200,8n1 loglvl=warning sched=credit"),
            *("-initrd", f"{kernel} console=hvc0 quiet,{folder / 'initramfs'}"),
            *drive("root", folder / "root.img"),
            *drive("guests", folder / "guests.img"),
            *("-netdev", f"user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:{LIBVIRT_PORT}"),
            *("-device", "virtio-net-pci,netdev=n"),
        ]

    @property
    def uri(self) -> str:
        return f"xen+tcp://127.0.0.1:{self.port}/system"

    def __enter__(self) -> Self:
        self._console.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        began = time.monotonic()
        while "lab: ready" not in self._said():
            waited = time.monotonic() - began
            if self._process.poll() is not None or waited > READY_S:
                self.__exit__()
                errors = self._process.stderr.read() if self._process.stderr else ""
                ended = "\n".join(f"  {line}" for line in self._said().splitlines()[-12:])
                raise TrialError(f"dom0 did not come up in {waited:.0f} s {errors}; its console ended with:\n{ended}")
            self._say(f"booting Xen and dom0: {waited:.0f} s (usually 20 to 60)")
            time.sleep(2)
        self._say(f"libvirt answers in dom0 after {time.monotonic() - began:.0f} s: {self.uri}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        return self._console.read_text(errors="replace") if self._console.exists() else ""


def held(uri: str, say: Say) -> bool:
    """Whether Xen's own accounts say that two guests, which want all of the CPUs, got what they were promised.

    A weight of two to one is to make a clear difference (an emulated machine's credit is not exact); a cap is to hold.
    """
    label = Label.create(f"xen-lab-{os.getpid()}", Path("/var/tmp"))  # noqa: S108 - a folder of the lab's own
    guests = [make(_guest(name, uri, weight), label) for name, weight in (("favoured", 200.0), ("usual", 100.0))]
    try:
        for guest in guests:
            guest.launch(_unheard)
        for guest in guests:
            say(f"starting guest {guest.settings.name}")
            client = guest.start(_unheard)
            guest.settle()
            work = {"kernel": {"name": "integer", "params": {}}}
            start = {"work": work, "pace": "flat_out", "threads": len(CPUS), "work_dir": guest.work_dir}
            client.call("workload.start", timeout_s=120, id="w", **start)
        first, second = _shares(uri, label)
        say(
            f"weight 200 against 100 on both CPUs: {first:.1%} and {second:.1%} of their time, {first / second:.2f} : 1"
        )
        kept = first / second >= RATIO_LEAST
        for cap in (0.25, 0.5):
            guests[0].limit(Limits(cpu_limit=cap))
            got = _shares(uri, label)[0]
            # Less is the host's doing, which had other work for its CPUs.
            kept &= cap / 2 <= got <= cap + CAP_POINTS
            say(f"cap of {cap:.0%}: {got:.1%} of both CPUs' time")
        say("cap and weight hold" if kept else "cap or weight does NOT hold")
        return kept
    finally:
        for guest in guests:
            guest.stop()
        reaper.clean(label)


def measured(uri: str, parts: Sequence[str], out: Path, say: Say) -> int:
    """The shares as a run, and the parts of VITS as a study; the worse of their exit codes."""
    vits = [part for part in parts if part != SHARES]
    jobs = [("run", SHARES, [])] if SHARES in parts else []
    jobs += [("study", "vits", [f"--only={part}*" for part in vits])] if vits else []
    codes = []
    for command, name, options in jobs:
        file = CACHE / f"{name}.yaml"
        file.write_text((HERE / f"{name}.yaml").read_text().replace("@URI@", uri))
        say(f"{command} {name}, kept in {out / name}")
        argv = [sys.executable, "-m", "partywall", command, str(file), *options, "--out", str(out / name)]
        codes.append(subprocess.call(argv))
    return max(codes)


def _guest(name: str, uri: str, weight: float) -> Settings:
    place = Settings(name=name, backend="libvirt", cpus=CPUS, uri=uri, boot="/boot/partywall", files=False)
    return replace(place, cpu_weight=weight, memory=136 << 20)


def _unheard(_method: str, _params: dict[str, Any]) -> None:
    """What guests report of their work is not looked at here."""


def _shares(uri: str, label: Label) -> list[float]:
    """Of the emulated machine's time, what each guest's virtual CPUs ran in the next seconds, by Xen's accounts."""
    connection = connect(uri)
    try:
        domains = [connection.lookupByName(domain_name(label, name)) for name in ("favoured", "usual")]
        before, began = [domain.info()[4] for domain in domains], time.monotonic_ns()
        time.sleep(SPAN_S)
        after, ended = [domain.info()[4] for domain in domains], time.monotonic_ns()
    finally:
        connection.close()
    return [(late - early) / (ended - began) / len(CPUS) for late, early in zip(after, before, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="folder for a run directory of each part; runs/xen-lab-… if not given")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--shell", action="store_true", help="do not run: print the URI and wait until Enter")
    parser.add_argument("--quick", action="store_true", help="cap and weight alone, without the parts")
    arguments = parser.parse_args()

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        with Lab(prepared(say), say) as lab:
            if arguments.shell:
                input(f"try: virsh -c {lab.uri} list; Enter ends the lab ")
                return 0
            kept = arguments.part is not None or held(lab.uri, say)
            if arguments.quick:
                return int(not kept)
            out = arguments.out or Path("runs") / f"xen-lab-{time.strftime('%Y%m%d-%H%M%S')}"
            return max(int(not kept), measured(lab.uri, arguments.part or PARTS, out, say))
    except PartywallError as error:
        print(error, file=sys.stderr)
        return int(error.exit)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
