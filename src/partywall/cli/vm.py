"""`partywall vm`: gets a kernel for guests, and checks whether guests start on this host."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from partywall import units
from partywall.agent import binary
from partywall.cli import leftovers
from partywall.cli.group import group
from partywall.cli.live import Live
from partywall.core import execution, here
from partywall.errors import CapabilityError, Exit, Problem, UsageError
from partywall.events import Doing, Left
from partywall.files import write_whole
from partywall.host import Host, install
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Settings, make, qemu, reaper
from partywall.sandbox.qemu.initramfs import initramfs, loaded

app = group(
    "Virtual machines as sandboxes (backend: qemu).\n\n"
    "'prepare' gets a kernel for guests, once; 'check' starts a guest and shows the result. Then any scenario may\n"
    "have sandbox: {backend: qemu}. To run your own commands in a guest: sandbox: {backend: qemu, root: [PACKAGE]}.",
)


@app.command("prepare")
def prepare(
    kernel: Annotated[
        Path | None, typer.Option(help="A kernel image to use, e.g. /boot/vmlinuz-6.1.0; needs --modules.")
    ] = None,
    modules: Annotated[
        Path | None, typer.Option(help="The folder with its modules, e.g. /lib/modules/6.1.0; needs --kernel.")
    ] = None,
    fetch: Annotated[
        bool,
        typer.Option(
            "--fetch", help="Fetch a distribution's newest kernel, even if one is ready or the host's own is readable."
        ),
    ] = False,
    root: Annotated[
        list[str] | None,
        typer.Option(
            help="Build a root image from these packages instead, e.g. fio,stress-ng. Needs root and mmdebstrap."
        ),
    ] = None,
) -> int:
    """Get the kernel that guests boot: the host's own if it is readable, else a distribution's.

    The distribution's package is downloaded and unpacked into a cache folder ($PARTYWALL_CACHE, or /var/cache/partywall
    for root). Nothing is installed. An existing kernel there is kept, unless --fetch or --kernel is given.

    With --root: build the root image for guests whose scenario says sandbox: {root: [fio, stress-ng]}, from packages of
    the host's own distribution. A run builds missing images itself; this command builds them in advance, and root can
    build them for all users.
    """
    if root is not None:
        return _prepare_root([package for part in root for package in part.split(",") if package.strip()])
    if (kernel is None) != (modules is None):
        raise UsageError("--kernel and --modules belong together; give both, or neither")
    for option, path, is_right in (("--kernel", kernel, Path.is_file), ("--modules", modules, Path.is_dir)):
        if path is not None and not is_right(path):
            what = "file" if option == "--kernel" else "folder"
            raise UsageError(Problem(f"{path} is not a {what}", f"give the path of a {what}", key=option))
    console = Console()
    ready = None if fetch or kernel else _ready()
    with Live(console) as live:
        made = ready or qemu.prepare(lambda text: live(Doing(text)), image=kernel, tree=modules, fetch=fetch)
    words = "ready: guests boot" if ready else "guests boot"
    console.print(f"{words} {made.release} ({made.source}), kept in {made.folder}", highlight=False, soft_wrap=True)
    return Exit.HOLDS


def _ready() -> qemu.GuestKernel | None:
    """The prepared kernel, if it is usable, and was not prepared for guests of an earlier version."""
    try:
        kernel = qemu.GuestKernel.prepared()
    except CapabilityError:
        return None
    return kernel if kernel.is_complete else None


def _prepare_root(packages: list[str]) -> int:
    names = [package.strip() for package in packages]
    wrong = [name for name in names if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name)]
    if wrong:
        raise UsageError(f"--root: {wrong[0]!r} cannot be the name of a package; write for example fio,stress-ng")
    console = Console()
    leftovers.clean_up()
    with Live(console) as live, execution.terminated_as_interrupt():
        live(Doing("looking for the image"))
        host = Host.here()
        image = qemu.root.build(
            qemu.root.Recipe.of(names, host),
            lambda text: live(Doing(text)),
            host,
            lambda seconds: live(Left(seconds)),
        )
    size = units.format_bytes(image.file.stat().st_blocks * 512)
    held = ", ".join(image.packages) or "no added packages"
    console.print(f"a root with {held}, {size}, kept in {image.folder}", highlight=False, soft_wrap=True)
    return Exit.HOLDS


@app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(help="Where to write vmlinuz and initramfs; created if missing.")],
    uncompressed: Annotated[
        bool, typer.Option("--uncompressed", help="Unpack the kernel: Xen starts it eight times as fast.")
    ] = False,
) -> int:
    """Write the kernel and initramfs of guests into a folder, to copy to another host and name in sandbox.boot."""
    kernel = qemu.GuestKernel.prepared()
    image = kernel.whole if uncompressed else kernel.packed
    if image is None:
        raise CapabilityError(
            f"the kernel {kernel.release} could not be unpacked when it was prepared; leave out --uncompressed, or get "
            f"it again with the tools that unpack it: {install(Host.here(), 'zstd', 'lz4')} && "
            "partywall vm prepare --fetch"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "vmlinuz", image.read_bytes())
        agent = loaded(binary.find().read_bytes())
        write_whole(folder / "initramfs", initramfs(agent, kernel.module_contents()))
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}; give a folder that you can write to") from error
    Console().print(f"guests of {kernel.release} boot from {folder}", highlight=False, soft_wrap=True)
    return Exit.HOLDS


@app.command("check")
def check(
    accel: Annotated[str, typer.Option(help="auto, kvm or tcg (emulated).")] = "auto",
) -> int:
    """Start a guest, and show its accelerator, how soon its agent answers, and how precisely its clock is known."""
    if accel not in ("auto", "kvm", "tcg"):
        raise UsageError(Problem(f"must be auto, kvm or tcg, not {accel!r}", "leave it out for auto", key="--accel"))
    console = Console()
    leftovers.clean_up()
    version = qemu.version(Host.here())
    kernel = qemu.GuestKernel.prepared()
    if accel != "tcg":
        console.print("checking whether KVM can start a guest; the first time takes some seconds", highlight=False)
    chosen = qemu.choose(accel, here.this_host())
    label = Label.create(f"vm-check-{secrets.token_hex(4)}", WORK_ROOT)
    cpus = tuple(sorted(os.sched_getaffinity(0)))[:1]
    guest = make(Settings(name="guest", backend="qemu", cpus=cpus, files=False, accel=chosen.name), label)
    try:
        began = time.monotonic_ns()
        guest.start(lambda _method, _params: None)
        up_ns = time.monotonic_ns() - began
        guest.settle()
        error_ns = guest.clock_error_ns()
    finally:
        guest.stop()
        reaper.clean(label)
    emulated = ", so every figure is marked emulated" if chosen.emulates else ""
    for line in (
        f"QEMU {version}, kernel {kernel.release} ({kernel.source})",
        f"accelerator: {chosen.name} ({chosen.why}){emulated}",
        f"the agent answered {units.format_duration(up_ns)} after QEMU was started",
        f"the guest's clock is known to ± {error_ns / 1000:.0f} µs",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return Exit.HOLDS
