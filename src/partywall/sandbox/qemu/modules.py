"""Finds the kernel modules that a guest needs, and their order, from the modules themselves.

A package that is only unpacked has no modules.dep, which depmod creates during installation. Each module lists its
dependencies in its .modinfo section.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from partywall.errors import CapabilityError
from partywall.host import Host, install

# A disk and its file system, the stream to the controller, the balloon, a network interface.
WANTED = ("virtio_pci", "virtio_blk", "ext4", "virtio_console", "virtio_balloon", "virtio_net")
# For checksums of the file system, which does not name their module as a dependency. Newer kernels have no such module.
# For hooks of a trace or a guard inside a guest, before kernel 6.6, and for the queues of a guard there. A guest starts
# without them.
IF_THERE = ("crc32c_generic", "sch_ingress", "cls_bpf", "sch_fq", "sch_tbf")
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


def _unzstd(data: bytes) -> bytes:
    try:
        return subprocess.run(["zstd", "-dcq"], input=data, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CapabilityError(
            f"modules of this kernel are compressed with zstd, which cannot be unpacked ({error}); "
            f"{install(Host.here(), 'zstd')}"
        ) from error


_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".ko": bytes,
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
    ".zst": _unzstd,
}


def collect(tree: Path, wanted: tuple[str, ...] = WANTED) -> dict[str, bytes]:
    """Contents of the modules below `tree` (a /lib/modules/RELEASE) that a guest needs, each after its dependencies.

    CapabilityError if one of `wanted` is neither there nor built in.
    """
    files = {_name(path): path for path in tree.rglob("*.ko*") if path.suffix in _UNPACK}
    wanted = (*wanted, *(name for name in IF_THERE if name in files))
    return ordered(wanted, lambda name: _read(files.get(name), name, tree), _built_in(tree))


def ordered(
    wanted: tuple[str, ...], read: Callable[[str], bytes], built_in: frozenset[str] = frozenset()
) -> dict[str, bytes]:
    """`wanted` and all dependencies by file name, dependencies first."""
    ordered_modules: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in built_in or f"{name}.ko" in ordered_modules:
            return
        content = read(name)
        for other in depends(content):
            add(other)
        ordered_modules[f"{name}.ko"] = content

    for name in wanted:
        add(name)
    return ordered_modules


def depends(module: bytes) -> tuple[str, ...]:
    """Names of the modules that this one needs."""
    match = _DEPENDS.search(module)
    names = match[1].decode().split(",") if match else []
    return tuple(name.replace("-", "_") for name in names if name)


def _read(path: Path | None, name: str, tree: Path) -> bytes:
    if path is None:
        raise CapabilityError(
            f"the kernel of {tree} has no module {name}, which guests need; use another: partywall vm prepare --fetch"
        )
    return _UNPACK[path.suffix](path.read_bytes())


def _name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _built_in(tree: Path) -> frozenset[str]:
    listing = tree / "modules.builtin"
    return (
        frozenset(_name(Path(line)) for line in listing.read_text().splitlines()) if listing.exists() else frozenset()
    )
