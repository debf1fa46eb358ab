"""Do promises hold for senders that are not ours? iperf3 over TCP and UDP; a TCP flow's goodput within 5 %.

All three at once, over TCP at the paper's promises, and then over UDP at one and a half times four tenths of them, for
three iperf3 and their ends want more than two CPUs at a gigabit: none below 95 % of its promise, and none above it by
more than 1 %, for all three together are promised the whole link. What each sends is said beside: what somebody does
not offer is lent.

Datagrams are offered at 900 Mb/s over a free link, first with nothing held back, then under guard: what iperf3's two
ends can carry here is compared with what the guard leaves.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import guards
from frame import Options, Outcome, bench
from guards import PAYLOAD, received
from partywall.sandbox.lab import Lab, lab, sender

OFFERED = 900e6
PROMISED = {"vm1": 150e6, "vm2": 700e6, "vm3": 150e6}
# Of these, for datagrams of all three at once.
PART, OVER = 0.4, 1.5
DATAGRAM = 1472


@contextlib.contextmanager
def servers(made: Lab) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in made.names:
            stack.enter_context(guards.server(made.namespace(f"{name}-sink")))
        yield


def iperf(made: Lab, name: str, seconds: float, *options: str) -> subprocess.Popen[str]:
    return guards.client(made.namespace(name), made.address(name, counted=False), seconds, *options)


def datagrams(made: Lab, seconds: float, offered: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Datagrams of all named at once: what each sent of it and what arrived, in bits of frames a second."""
    started = {
        name: iperf(made, name, seconds, "-u", "-b", f"{bps * DATAGRAM / 1514:.0f}", "-l", str(DATAGRAM))
        for name, bps in offered.items()
    }
    counts = {}
    for name, process in started.items():
        end = guards.ended(process)
        sent, came = (float(end[way]["bits_per_second"]) for way in ("sum_sent", "sum_received"))
        counts[name] = (sent * 1514 / DATAGRAM, came * 1514 / DATAGRAM)
    return counts


def kept(made: Lab, part: float = 1.0) -> contextlib.AbstractContextManager[object]:
    """The promises, or a part of all of them and of the link."""
    vifs = {
        name: {
            "service_class": "gold" if name == "vm2" else "silver",
            "send": {"guarantee": f"{bps * part:.0f}bit/s"},
        }
        for name, bps in PROMISED.items()
    }
    return guards.guarded(made, vifs, f"{1e9 * part:.0f}bit/s")


@bench(plants={"link": "the link carries a tenth less than the policy says"}, needs=("iperf3",))
def main(options: Options) -> Outcome:
    seconds = 8.0 if options.quick else 60.0
    alone, at_once = {"vm2": OFFERED}, {name: PART * OVER * bps for name, bps in PROMISED.items()}
    with lab(list(PROMISED), "900mbit" if options.plant else "1gbit") as made, servers(made):
        free = datagrams(made, seconds, alone)["vm2"]
        with kept(made):
            tcp = {name: received(process) for name, process in {n: iperf(made, n, seconds) for n in PROMISED}.items()}
            with sender(made, "vm1", 1514, 40_000), sender(made, "vm3", 1514, 40_000):
                beside_udp = received(iperf(made, "vm2", seconds))
            held = datagrams(made, seconds, alone)["vm2"]
        loose = datagrams(made, seconds, at_once)
        with kept(made, PART):
            udp = datagrams(made, seconds, at_once)
    for name, bps in tcp.items():
        print(f"TCP {name}: goodput {bps / 1e6:.1f} Mb/s, promised {PROMISED[name] / 1e6:.0f} on the link")
    print(f"TCP vm2 beside datagrams at three times their promise: {beside_udp / 1e6:.1f} Mb/s")
    for name, (sent, came) in {"unguarded": free, "under guard": held}.items():
        print(f"UDP vm2 alone, {name}: iperf3 sent {sent / 1e6:.1f} Mb/s of 900, {came / 1e6:.1f} arrived")
    for name, (sent, came) in udp.items():
        print(
            f"UDP {name} beside the others: {came / 1e6:.1f} Mb/s, promised {PART * PROMISED[name] / 1e6:.0f}; offers "
            f" {at_once[name] / 1e6:.0f}, sent {sent / 1e6:.1f}; unguarded {loose[name][1] / 1e6:.1f} arrived"
        )
    shares = [came / PART / PROMISED[name] for name, (_, came) in udp.items()]
    most = max(*(bps / PAYLOAD / PROMISED[name] for name, bps in tcp.items()), *shares)
    worst = min(*(bps / PROMISED[name] for name, bps in tcp.items()), beside_udp / PROMISED["vm2"])
    figure = f"TCP goodput at least {worst:.1%} of the guaranteed rate (bar 95 %; headers alone take {1 - PAYLOAD:.1%})"
    alone_kept = held[1] / free[1]
    figure += f"; datagrams {alone_kept:.1%} of the datagrams that arrive unguarded (bar 98 %)"
    figure += f"; UDP at once at least {min(shares):.1%} of its promise (bar 99 %); nobody above {most:.1%} (bar 101 %)"
    return Outcome(figure, worst >= 0.95 and alone_kept >= 0.98 and min(shares) >= 0.99 and most <= 1.01)


if __name__ == "__main__":
    main()
