"""Do promises hold for senders that are not ours? iperf3 over TCP and UDP; a TCP flow's goodput within 5 %.

All three at once, over TCP and then over UDP at twice their promise: none below 95 % of its promise, and none above it
by more than 1 %, for all three together are promised the whole link.

Datagrams are offered at 900 Mb/s over a free link, first with nothing held back, then under guard: what iperf3's two
ends can carry here is the measure of what guard takes away.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from common import arguments, conclude
from partywall import guard
from partywall.guard.lab import Lab, lab, policy, sender
from partywall.model.policy import Policy

OFFERED = 900e6
PROMISED = {"vm1": 150e6, "vm2": 700e6, "vm3": 150e6}
# Of a full frame; timestamps are on.
PAYLOAD = 1448 / 1514
DATAGRAM = 1472


@contextlib.contextmanager
def servers(made: Lab) -> Iterator[None]:
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", made.namespace(f"{name}-sink"), "iperf3", "-s"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in made.names
    ]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def iperf(made: Lab, name: str, seconds: float, *options: str) -> subprocess.Popen[str]:
    to = made.address(name, counted=False)
    command = ["iperf3", "-c", to, "-t", f"{seconds:g}", "-O", "1", "-J", *options]
    inside = ["ip", "netns", "exec", made.namespace(name), *command]
    return subprocess.Popen(inside, stdout=subprocess.PIPE, text=True)


def received(process: subprocess.Popen[str]) -> float:
    out, _ = process.communicate(timeout=120)
    found: dict[str, Any] = json.loads(out)["end"]
    return float(found.get("sum_received", found.get("sum", {}))["bits_per_second"])


def together(made: Lab, seconds: float) -> dict[str, float]:
    """Datagrams of all at once, at twice what is promised; what arrived, in bits of whole frames a second."""
    started = {
        name: iperf(made, name, seconds, "-u", "-b", f"{2 * bps:.0f}", "-l", str(DATAGRAM))
        for name, bps in PROMISED.items()
    }
    return {name: received(process) * 1514 / DATAGRAM for name, process in started.items()}


def datagrams(made: Lab, seconds: float) -> tuple[float, float]:
    """What iperf3 offered of 900 Mb/s, and what of it arrived, in bit/s."""
    out, _ = iperf(made, "vm2", seconds, "-u", "-b", f"{OFFERED:.0f}", "-l", str(DATAGRAM)).communicate(timeout=120)
    end = json.loads(out)["end"]
    return float(end["sum_sent"]["bits_per_second"]), float(end["sum_received"]["bits_per_second"])


def main() -> None:
    seconds = 8.0 if arguments(__doc__ or "").quick else 60.0
    vifs = {
        name: {"service_class": "gold" if name == "vm2" else "silver", "send": {"guarantee": f"{bps:.0f}bit/s"}}
        for name, bps in PROMISED.items()
    }
    with lab(list(vifs)) as made, servers(made):
        free = datagrams(made, seconds)
        asked = Policy.model_validate(policy(made, vifs))
        with guard.keep(guard.flatten(asked, guard.resolve(asked))):
            tcp = {name: received(process) for name, process in {n: iperf(made, n, seconds) for n in vifs}.items()}
            with sender(made, "vm1", 1514, 40_000), sender(made, "vm3", 1514, 40_000):
                beside_udp = received(iperf(made, "vm2", seconds))
            held = datagrams(made, seconds)
            udp = together(made, seconds)
    for name, bps in tcp.items():
        print(f"TCP {name}: goodput {bps / 1e6:.1f} Mb/s, promised {PROMISED[name] / 1e6:.0f} on the link")
    print(f"TCP vm2 beside datagrams at three times their promise: {beside_udp / 1e6:.1f} Mb/s")
    for name, (sent, came) in {"unguarded": free, "under guard": held}.items():
        print(f"UDP vm2 alone, {name}: iperf3 sent {sent / 1e6:.1f} Mb/s of 900, {came / 1e6:.1f} arrived")
    for name, bps in udp.items():
        print(f"UDP {name} beside the others: {bps / 1e6:.1f} Mb/s of frames, promised {PROMISED[name] / 1e6:.0f}")
    shares = [bps / PROMISED[name] for name, bps in udp.items()]
    most = max(*(bps / PAYLOAD / PROMISED[name] for name, bps in tcp.items()), *shares)
    worst = min(*(bps / PROMISED[name] for name, bps in tcp.items()), beside_udp / PROMISED["vm2"])
    figure = f"TCP goodput at least {worst:.1%} of the guaranteed rate (bar 95 %; headers alone take {1 - PAYLOAD:.1%})"
    kept = held[1] / free[1]
    figure += f"; datagrams {kept:.1%} of what arrives unguarded (bar 98 %)"
    figure += f"; UDP at once at least {min(shares):.1%} of its promise (bar 95 %); nobody above {most:.1%} (bar 101 %)"
    conclude("guard-independent", figure, met=worst >= 0.95 and kept >= 0.98 and min(shares) >= 0.95 and most <= 1.01)


if __name__ == "__main__":
    main()
