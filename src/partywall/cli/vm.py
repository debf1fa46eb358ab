"""`partywall vm`: get a kernel for guests, and see whether guests come up here."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from partywall import pipeline, units
from partywall.errors import Exit, UsageError
from partywall.sandbox import Label, Settings, make, qemu, reap, reaper

vm = typer.Typer(
    help="Virtual machines as sandboxes (backend: qemu).\n\n"
    "'prepare' gets a kernel for guests, once; 'check' starts a guest and says how it does. Then any scenario may\n"
    "have sandbox: {backend: qemu}.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@vm.command("prepare")
def prepare(
    kernel: Annotated[
        Path | None, typer.Option(help="A kernel image to use, e.g. /boot/vmlinuz-6.1.0; needs --modules.")
    ] = None,
    modules: Annotated[
        Path | None, typer.Option(help="The folder with its modules, e.g. /lib/modules/6.1.0; needs --kernel.")
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Fetch a distribution's kernel even if the host's own can be read.")
    ] = False,
) -> int:
    """Get the kernel that guests boot: the host's own if it can be read, else a distribution's.

    The distribution's package is fetched and unpacked into a cache folder ($PARTYWALL_CACHE, /var/cache/partywall for
    root); nothing is installed.
    """
    if (kernel is None) != (modules is None):
        raise UsageError("--kernel and --modules belong together; give both, or neither")
    for option, path, is_right in (("--kernel", kernel, Path.is_file), ("--modules", modules, Path.is_dir)):
        if path is not None and not is_right(path):
            raise UsageError(f"{option} {path}: there is no such {'file' if option == '--kernel' else 'folder'}")
    console = Console()
    made = qemu.prepare(lambda text: console.print(text, highlight=False), image=kernel, tree=modules, fetch=fetch)
    console.print(f"guests boot {made.release} ({made.source}), kept in {made.folder}", highlight=False, soft_wrap=True)
    return Exit.HOLDS


@vm.command("check")
def check(
    accel: Annotated[str, typer.Option(help="auto, kvm or tcg (emulated).")] = "auto",
) -> int:
    """Start a guest, and say what carries it, how soon its agent answers, and how well its clock is known."""
    if accel not in ("auto", "kvm", "tcg"):
        raise UsageError(f"--accel {accel}: there are auto, kvm and tcg")
    console = Console()
    reap()
    version = qemu.version()
    kernel = qemu.GuestKernel.prepared()
    if accel != "tcg":
        console.print("seeing whether KVM carries a guest (some seconds, the first time)", highlight=False)
    chosen = pipeline.choose_accelerator(accel)
    label = Label.create(f"vm-check-{secrets.token_hex(4)}", pipeline.WORK_ROOT)
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
    emulated = ", so every figure is marked emulated" if chosen.name == "tcg" else ""
    for line in (
        f"QEMU {version}, kernel {kernel.release} ({kernel.source})",
        f"accelerator: {chosen.name} ({chosen.why}){emulated}",
        f"the agent answered {units.format_duration(up_ns)} after QEMU was started",
        f"the guest's clock is known to ± {error_ns / 1000:.0f} µs",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return Exit.HOLDS
