"""Network namespaces that a run created, and how the next start finds those of a killed run."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from partywall.files import write_whole
from partywall.host.label import Label

FILE = "networks.json"
NETNS = Path("/run/netns")
CLONE_NEWNET = 0x40000000
TIMEOUT_S = 20

T = TypeVar("T")


def note(label: Label, names: Iterable[str]) -> None:
    """Records the names of namespaces that will be created."""
    write_whole(label.state / FILE, json.dumps(list(names)))


def remove(label: Label) -> tuple[list[str], list[str]]:
    """Removes a run's namespaces with all interfaces in them: (removed, not removed)."""
    try:
        names = json.loads((label.state / FILE).read_text())
    except (OSError, ValueError):
        return [], []
    removed, left = [], []
    for name in (name for name in names if (NETNS / name).exists()):
        why = _deleted(name)
        if (NETNS / name).exists():
            left.append(f"network namespace {name} ({why})")
        else:
            removed.append(f"network namespace {name}")
    return removed, left


def _deleted(name: str) -> str:
    """Deletes a namespace. Returns why it could not."""
    command = ["ip", "netns", "del", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip()


def in_namespace(namespace: Path, make: Callable[[], T]) -> T:
    """Calls `make` inside a network namespace, in a thread that enters it and ends.

    OSError if it cannot be entered, and whatever `make` raises.
    """
    made: list[T] = []
    failed: list[Exception] = []

    def inside() -> None:
        try:
            _enter(namespace)
            made.append(make())
        except Exception as error:  # noqa: BLE001 - raised below, by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def own_name(interface: str) -> str:
    """The kernel's name of an interface in the caller's namespace; the given one if there is none.

    An interface may be named by its alternative name, or as `ip link` shows it, with its peer (eth0@if7).
    """
    for name in (interface, interface.partition("@")[0]):
        try:
            return socket.if_indextoname(socket.if_nametoindex(name))
        except OSError:
            continue
    return interface


def _enter(namespace: Path) -> None:
    file = os.open(namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(file, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))
    finally:
        os.close(file)
