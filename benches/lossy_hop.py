"""A lossy hop of our own: carries packets from one tun device to another; loses, doubles and overtakes some by chance.

It runs as a program (`python lossy_hop.py SPACE_A TUN_A SPACE_B TUN_B LOSS DOUBLE OVERTAKE SEED`), says `ready`, and at
the end of its standard input says as JSON what it did, which is the truth that a trace is held against. With
$LOSSY_HOP_LIES it keeps one loss to itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import select
import struct
import sys
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
CLONE_NEWNET = 0x40000000
# How many packets overtake one that is held back.
HELD_FOR = 3
QUIET_S = 0.2


def tun(space: str, name: str) -> int:
    """Opens a tun device in a network namespace, and stays in it."""
    with Path(f"/run/netns/{space}").open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"entering {space}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


class Hop:
    """What is done to each packet, and the count of it. Only our own datagrams are touched; all else passes."""

    def __init__(self, out: int, loss: float, double: float, overtake: float, seed: int) -> None:
        self._out = out
        self._loss, self._double, self._overtake = loss, double, overtake
        self._chance = random.Random(seed)
        self._held: list[tuple[int, int, bytes]] = []
        self._furthest = -1
        self.truth = {"seen": 0, "lost": 0, "doubled": 0, "overtaken": 0, "delivered": 0}

    def take(self, packet: bytes) -> None:
        number = self.truth["seen"]
        self.truth["seen"] += 1
        if self._chance.random() < self._loss:
            self.truth["lost"] += 1
        elif self._chance.random() < self._overtake:
            self._held.append((number + HELD_FOR, number, packet))
        else:
            self._give(number, packet)
        for due in [held for held in self._held if held[0] <= number]:
            self._held.remove(due)
            self._give(due[1], due[2])

    def flush(self) -> None:
        for _, number, packet in self._held:
            self._give(number, packet)
        self._held.clear()

    def _give(self, number: int, packet: bytes) -> None:
        self.truth["overtaken"] += number < self._furthest
        self._furthest = max(self._furthest, number)
        self.truth["delivered"] += 1
        os.write(self._out, packet)
        if self._chance.random() < self._double:
            self.truth["doubled"] += 1
            os.write(self._out, packet)


def is_ours(packet: bytes) -> bool:
    return packet[28:36] == b"PWALLTAG"


def main() -> None:
    space_a, tun_a, space_b, tun_b, *figures = sys.argv[1:]
    loss, double, overtake, seed = map(float, figures)
    source, out = tun(space_a, tun_a), tun(space_b, tun_b)
    hop = Hop(out, loss, double, overtake, int(seed))
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([source, sys.stdin], [], [], QUIET_S)
        if source in ready:
            packet = os.read(source, 65536)
            if is_ours(packet):
                hop.take(packet)
        elif not ready:
            hop.flush()
        elif sys.stdin in ready:
            break
    hop.flush()
    if os.environ.get("LOSSY_HOP_LIES"):
        hop.truth["lost"] -= 1
    print(json.dumps(hop.truth), flush=True)


if __name__ == "__main__":
    main()
