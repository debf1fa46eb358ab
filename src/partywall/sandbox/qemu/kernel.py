"""The kernel that guests boot: the host's own if it is readable, or else a downloaded one.

It is kept in a cache folder until another one is prepared. Nothing is installed or changed elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from partywall.errors import CapabilityError
from partywall.files import replace_folder_durably
from partywall.host.cache import cache_root
from partywall.host.label import Label
from partywall.sandbox import reaper
from partywall.sandbox.qemu import modules
from partywall.sandbox.qemu.unpack import unpacked

ARCHITECTURE = "x86_64"
# Debian's and Ubuntu's kernels for guests. Each package depends on the newest image of its kind.
META_PACKAGES = ("linux-image-cloud-amd64", "linux-image-virtual", "linux-image-amd64")
_IMAGE = re.compile(r"linux-image-\d\S+")
Say = Callable[[str], None]


@dataclass(frozen=True)
class GuestKernel:
    """A kernel image, and the modules a guest needs in the order of insertion. source: where it came from.

    wanted: the modules that were asked for, which may be built in; empty in caches of early versions.
    """

    release: str
    source: str
    modules: tuple[str, ...]
    wanted: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether it was made for all that guests of this version need."""
        return set(modules.WANTED) <= set(self.wanted)

    @property
    def folder(self) -> Path:
        return cache_root() / "guest-kernel"

    @property
    def packed(self) -> Path:
        """The compressed image as shipped, which every loader accepts."""
        return self.folder / "vmlinuz"

    @property
    def whole(self) -> Path | None:
        """The uncompressed image, if available."""
        file = self.folder / "vmlinux"
        return file if file.exists() else None

    @property
    def image(self) -> Path:
        """The image that QEMU boots: the uncompressed one if available, which saves the guest the work."""
        return self.whole or self.packed

    def module_contents(self) -> dict[str, bytes]:
        return {name: (self.folder / "modules" / name).read_bytes() for name in self.modules}

    @classmethod
    def prepared(cls) -> GuestKernel:
        """The prepared kernel. CapabilityError if there is none, or it is unreadable."""
        folder = cache_root() / "guest-kernel"
        try:
            content = json.loads((folder / "kernel.json").read_text())
            wanted = tuple(content.get("wanted", ()))
            kernel = cls(content["release"], content["source"], tuple(content["modules"]), wanted)
            for file in (kernel.image, *(folder / "modules" / name for name in kernel.modules)):
                file.open("rb").close()
        except FileNotFoundError as error:
            raise CapabilityError(
                f"no kernel for guests was prepared ({error.filename} is not there), so backend: qemu cannot run; "
                "get one with: partywall vm prepare"
            ) from None
        except (OSError, ValueError, KeyError) as error:
            raise CapabilityError(
                f"the kernel for guests cannot be used: {folder}: {error}; get it again with: partywall vm prepare"
            ) from None
        return kernel


def identity() -> str:
    """Identifies the image that guests boot among earlier and later ones; empty if there is none."""
    for name in ("vmlinux", "vmlinuz"):
        image = cache_root() / "guest-kernel" / name
        with contextlib.suppress(OSError):
            status = image.stat()
            return f"{image} {status.st_size} {status.st_mtime_ns}"
    return ""


def prepare(say: Say, *, image: Path | None = None, tree: Path | None = None, fetch: bool = False) -> GuestKernel:
    """Stores a kernel for guests in the cache and returns it. CapabilityError if none is available.

    image and tree: a kernel and its /lib/modules/RELEASE to use. fetch: ignores the host's own.
    """
    if platform.machine() != ARCHITECTURE:
        raise CapabilityError(
            f"backend: qemu supports {ARCHITECTURE} hosts, and this is {platform.machine()}; use another backend"
        )
    if image is not None and tree is not None:
        return _keep(image, tree, tree.name, f"{image}")
    if not fetch and (own := _own()):
        say(f"using the host's own kernel, {own[0]}")
        try:
            return _keep(*own, platform.release(), "the host's own")
        except CapabilityError as error:
            say(f"it is unusable: {error}; getting another")
    return _fetched(say)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A labelled folder in the cache, so that the next start removes what a killed process left."""
    try:
        cache_root().mkdir(parents=True, exist_ok=True)
        label = Label.create(f"vm-kernel-{secrets.token_hex(4)}", cache_root())
    except OSError as error:
        raise CapabilityError(
            f"{error.filename}: {error.strerror}; set $PARTYWALL_CACHE to a folder that you can write to"
        ) from error
    try:
        yield label.work
    finally:
        reaper.clean(label)


def _own() -> tuple[Path, Path] | None:
    image, tree = Path("/boot") / f"vmlinuz-{platform.release()}", Path("/lib/modules") / platform.release()
    return (image, tree) if os.access(image, os.R_OK) and os.access(tree / "modules.builtin", os.R_OK) else None


def _fetched(say: Say) -> GuestKernel:
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if not shutil.which(tool):
            raise CapabilityError(
                f"this host's own kernel cannot be read, and there is no {tool} to fetch another; "
                "name one: partywall vm prepare --kernel /boot/vmlinuz-… --modules /lib/modules/…"
            )
    package = _package()
    with _scratch() as folder:
        say(f"fetching the package {package} (some 30 MB; it is unpacked, not installed)")
        _run(["apt-get", "download", "-q", package], folder)
        say("unpacking it")
        _run(["dpkg", "-x", str(next(folder.glob("*.deb"))), "content"], folder)
        # Since the merge of /usr, modules may be in either place.
        trees = [*folder.glob("content/lib/modules/*"), *folder.glob("content/usr/lib/modules/*")]
        images = list(folder.glob("content/boot/vmlinuz-*"))
        if not trees or not images:
            raise CapabilityError(
                f"the package {package} contains no kernel with modules; name one with --kernel and --modules"
            )
        return _keep(images[0], trees[0], trees[0].name, f"package {package}")


def _package() -> str:
    """The newest image of the first meta package in this host's package lists."""
    for meta in META_PACKAGES:
        done = subprocess.run(
            ["apt-cache", "depends", meta], capture_output=True, text=True, errors="replace", check=False
        )
        if versions := _IMAGE.findall(done.stdout):
            return str(versions[0])
    raise CapabilityError(
        f"the package lists contain none of {', '.join(META_PACKAGES)}; run apt-get update, or name a kernel: "
        "partywall vm prepare --kernel /boot/vmlinuz-… --modules /lib/modules/…"
    )


def _run(argv: list[str], folder: Path) -> None:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise CapabilityError(f"{' '.join(argv[:2])}: {words[-1] if words else f'exit status {done.returncode}'}")


def _keep(image: Path, tree: Path, release: str, source: str) -> GuestKernel:
    """Copies the files that guests need to the cache, and replaces its folder atomically."""
    try:
        kept_modules = modules.collect(tree)
        kernel = GuestKernel(release, source, tuple(kept_modules), modules.WANTED)
        with _scratch() as folder:
            made = folder / "made"
            (made / "modules").mkdir(parents=True)
            shutil.copyfile(image, made / "vmlinuz")
            if (whole := unpacked(image.read_bytes())) is not None:
                (made / "vmlinux").write_bytes(whole)
            for file, content in kept_modules.items():
                (made / "modules" / file).write_bytes(content)
            (made / "kernel.json").write_text(json.dumps(asdict(kernel)))
            if kernel.folder.exists():
                kernel.folder.rename(folder / "old")
            replace_folder_durably(made, kernel.folder)
    except OSError as error:
        raise CapabilityError(
            f"{error.filename}: {error.strerror}; name a kernel that can be read with --kernel and --modules, "
            "and a folder that you can write to with $PARTYWALL_CACHE"
        ) from error
    return kernel
