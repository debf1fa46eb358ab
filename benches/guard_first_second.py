"""Does a new vif keep its ceiling from its first packet on? At most 102 % and one burst in any 100 ms.

A guard is started, then a sender flat out; the sink's port is read every few milliseconds, and every pair of readings
at least 100 ms apart is a window. The same for an interface that is removed under a guard and created again: from the
moment it is up, frames are handed to it flat out, and its own counter is read.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import guards
from frame import Options, Outcome, bench
from partywall.sandbox.lab import Counted, ip, lab, sender
from partywall.sandbox.networks import NETNS, in_namespace

CEILING_BPS, BURST_NS, PACKET_BYTES = 50e6, 10_000_000, 1514
WINDOW_NS = 100_000_000
READ_NS_MAX = 500_000


def first_second(ceiling: str) -> list[Counted]:
    with lab(["new", "other"]) as made, guards.guarded(made, {"new": {"send": {"ceiling": ceiling}}}):
        idle = made.read()
        with sender(made, "new", PACKET_BYTES, None):
            readings = [idle]
            deadline = time.monotonic() + 1.2
            while time.monotonic() < deadline:
                readings.append(made.read())
                time.sleep(0.004)
    return readings


def recreated(ceiling: str) -> list[Counted]:
    """An interface of the same name, made again and filled at once by raw frames, which need no address."""
    with lab(["new"]) as made:
        space = made.namespace("new")
        pair = ("link", "add", "again0", "type", "veth", "peer", "name", "other0")
        ip("-n", space, *pair)
        with guards.guarded(made, {"new": {"interface": "again0", "send": {"ceiling": ceiling}}}):
            time.sleep(0.3)
            ip("-n", space, "link", "del", "again0")
            ip("-n", space, *pair)
            for name in ("other0", "again0"):
                ip("-n", space, "link", "set", name, "up")
            return in_namespace(NETNS / space, fill)


def fill() -> list[Counted]:
    """Runs in the tenant's namespace."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.bind(("again0", 0))
    out.setblocking(False)
    frame = bytes.fromhex("02000000000102000000000a0800") + bytes(PACKET_BYTES - 14)
    deadline = time.monotonic() + 1.2
    # Before the first frame nothing was carried: the interface is new.
    readings = [Counted(time.monotonic_ns(), {"new": 0}, {"new": 0})]
    while time.monotonic() < deadline:
        for _ in range(50):
            # A dropped packet is an error here, or a full buffer.
            with contextlib.suppress(OSError):
                out.send(frame)
        before_ns = time.monotonic_ns()
        fields = Path("/proc/thread-self/net/dev").read_text().partition("again0:")[2].split()
        # A reading that was interrupted says nothing about a window.
        if time.monotonic_ns() - before_ns < READ_NS_MAX:
            readings.append(Counted(before_ns, {"new": int(fields[9])}, {"new": int(fields[8])}))
    out.close()
    return readings


def worst(readings: list[Counted]) -> float:
    """The most that passed in a window, over what may."""
    burst_bits = CEILING_BPS * BURST_NS / 1e9 + PACKET_BYTES * 8
    return guards.fullest(readings, "new", WINDOW_NS, lambda bits, s: bits / (1.02 * CEILING_BPS * s + burst_bits))


def starts(title: str, act: Callable[[], list[Counted]], rounds: int) -> list[float]:
    times = []
    for number in range(rounds):
        readings = act()
        sent = (readings[-1].bytes["new"] - readings[0].bytes["new"]) * 8 / 1e6
        times.append(worst(readings))
        print(f"{title} {number + 1}: {sent:.1f} Mb passed in all, fullest window {times[-1]:.1%} of the limit")
    return times


@bench(plants={"ceiling": "a ceiling of 60 instead of 50 Mbit/s in the kernel"})
def main(options: Options) -> Outcome:
    rounds, ceiling = 5 if options.quick else 30, "60Mbit/s" if options.plant else "50Mbit/s"
    first = starts("start", lambda: first_second(ceiling), rounds)
    again = starts("created again", lambda: recreated(ceiling), rounds)
    figure = (
        f"fullest 100 ms window {max(first):.1%} of 102 % of the ceiling and one burst, over {rounds} starts; "
        f"{max(again):.1%} over {rounds} interfaces created again"
    )
    # A window that stays far below would mean that nothing was tried.
    return Outcome(figure, max(*first, *again) <= 1 and min(*first, *again) > 0.5)


if __name__ == "__main__":
    main()
