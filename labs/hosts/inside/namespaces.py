"""Two network namespaces joined by a veth, and a sender of datagrams. Needs no more than Python and iproute2."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

NAMES = ("lab-a", "lab-b")
ADDRESSES = ("192.0.2.1", "192.0.2.2")
CLONE_NEWNET = 0x40000000


def run(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line; an error is shown with what it said."""
    return subprocess.run(command.split(), capture_output=True, text=True, check=False)


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """lab-a/va and lab-b/vb, up and with addresses; gone at the end."""
    first, other = NAMES
    try:
        for name in NAMES:
            _must(f"ip netns add {name}")
        _must(f"ip link add va netns {first} type veth peer name vb netns {other}")
        for name, interface, address in zip(NAMES, ("va", "vb"), ADDRESSES, strict=True):
            _must(f"ip -n {name} address add {address}/24 dev {interface}")
            _must(f"ip -n {name} link set {interface} up")
        yield
    finally:
        for name in NAMES:
            run(f"ip netns delete {name}")


def _must(command: str) -> None:
    done = run(command)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr.strip()}")


def guarding(policy: Path) -> subprocess.Popen[str]:
    """A guard that was started and may not have its hooks yet."""
    command = ["partywall", "guard", "run", str(policy), "--for", "140s"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def enter(name: str) -> None:
    """Moves this process into a namespace, in which it stays."""
    with Path(f"/run/netns/{name}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def send(seconds: float, rate_pps: float, size: int) -> int:
    """Sends datagrams from lab-a to lab-b's discard port at an even rate; returns how many left.

    To be called in a process of its own, for it stays in the namespace.
    """
    enter(NAMES[0])
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect((ADDRESSES[1], 9))
    began, sent = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        if sent >= (now - began) * rate_pps:
            time.sleep(0.0005)
            continue
        # A serial number at the front: no two datagrams look alike.
        with contextlib.suppress(OSError):
            sender.send(sent.to_bytes(8, "big") + bytes(size - 8))
        sent += 1
    return sent


def in_background(seconds: float, rate_pps: float, size: int) -> int:
    """Process number of a sender."""
    pid = os.fork()
    if pid == 0:
        send(seconds, rate_pps, size)
        os._exit(0)
    return pid


def received() -> dict[str, int]:
    """What lab-b's interface has received: the kernel's own counters."""
    folder = "/sys/class/net/vb/statistics"
    names = ("rx_bytes", "rx_packets")
    text = run(f"ip netns exec {NAMES[1]} cat {' '.join(f'{folder}/{name}' for name in names)}").stdout
    return dict(zip(names, map(int, text.split()), strict=True))
