"""What does the guard cost? CPU time a packet beside HTB in the same set-up, and a round of the loop for 10,000 vifs.

One sender flat out on one core, nothing limited; the same core does all the work as far as the sink's port. What
nothing costs is measured in turn with the guard and with HTB, and taken away. Both ways of treating excess are
judged, holding (the default) and dropping.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator

from common import arguments, conclude
from partywall import guard
from partywall.guard.flatten import Flat
from partywall.guard.lab import Lab, lab, policy, sender, tc
from partywall.guard.run import keep
from partywall.model.policy import Policy

VIFS, ROUND_BAR_NS = 10_000, 5_000_000


@contextlib.contextmanager
def nothing(_made: Lab) -> Iterator[None]:
    yield


@contextlib.contextmanager
def htb(made: Lab) -> Iterator[None]:
    inside = made.namespace("vm")
    tc(inside, *["qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10"])
    whole = ["classid", "1:10", "htb", "rate", "20gbit", "ceil", "20gbit"]
    tc(inside, "class", "add", "dev", "eth0", "parent", "1:", *whole)
    try:
        yield
    finally:
        tc(inside, "qdisc", "del", "dev", "eth0", "root")


def guarded(excess: str) -> Callable[[Lab], contextlib.AbstractContextManager[object]]:
    def start(made: Lab) -> contextlib.AbstractContextManager[object]:
        send = {"guarantee": "20Gbit/s", "packets": "50M/s"}
        asked = Policy.model_validate(policy(made, {"vm": {"excess": excess, "send": send}}, "20Gbit/s"))
        return keep(guard.flatten(asked, guard.resolve(asked)))

    return start


def cost_ns(made: Lab, seconds: float) -> float:
    """Wall time a packet on the one core that does everything."""
    before = made.read()
    time.sleep(seconds)
    return 1e9 / before.rates(made.read())["vm"][1]


def packets(size: int, rounds: int) -> dict[str, float]:
    ways = {"nothing": nothing, "htb": htb, "guard, dropping": guarded("drop"), "guard, holding": guarded("hold")}
    costs: dict[str, list[float]] = {way: [] for way in ways}
    cpus = os.sched_getaffinity(0)
    with lab(["vm"], None) as made:
        os.sched_setaffinity(0, {max(cpus)})
        with sender(made, "vm", size, None, batch=64):
            os.sched_setaffinity(0, {min(cpus)})
            for _ in range(rounds):
                for way, act in ways.items():
                    with act(made):
                        time.sleep(0.1)
                        costs[way].append(cost_ns(made, 0.4))
        os.sched_setaffinity(0, cpus)
    base = costs.pop("nothing")
    added = {way: [c - b for c, b in zip(found, base, strict=True)] for way, found in costs.items()}
    print(f"{size} bytes: a packet takes {statistics.median(base):.0f} ns with nothing; added:")
    for way, found in added.items():
        spread = statistics.quantiles(found, n=4)
        print(f"  {way}: {statistics.median(found):.0f} ns (half of them {spread[0]:.0f} to {spread[2]:.0f})")
    return {way: statistics.median(found) for way, found in added.items()}


def round_ns() -> tuple[int, int]:
    """The longest round of 10,000 vifs, the first of which writes every rate, and the longest deciding alone took."""
    with lab(["vm"], None) as made:
        asked = Policy.model_validate(policy(made, {"vm": {"send": {"guarantee": "1Mbit/s"}}}, "20Gbit/s"))
        flat = guard.flatten(asked, guard.resolve(asked))
        leaves = [flat.start["leaves"][0] | {"name": f"vif{number}"} for number in range(VIFS)]
        many = Flat(flat.start | {"leaves": leaves}, tuple(leaf["name"] for leaf in leaves), flat.hooks)
        longest, deciding = 0, 0
        with keep(many) as kept:
            for _ in range(4):
                report = kept.report(5)
                longest = max(longest, report.round_ns_max if report else 0)
                deciding = max(deciding, report.decide_ns_max if report else 0)
        return longest, deciding


def main() -> None:
    rounds = 4 if arguments(__doc__ or "").quick else 20
    small, large = packets(64, rounds), packets(1514, rounds)
    longest, deciding = round_ns()
    # Reading, deciding, writing, queues and goals; one hook, so what is spent on each interface is not in it.
    print(f"{VIFS} vifs: longest round {longest / 1e6:.2f} ms, of it {deciding / 1e6:.2f} ms to decide")
    ways = ("guard, holding", "guard, dropping")
    figure = "; ".join(
        f"{way} {small[way]:.0f} ns at 64 bytes (HTB {small['htb']:.0f}), "
        f"{large[way]:.0f} ns at 1500 (HTB {large['htb']:.0f})"
        for way in ways
    )
    figure += f"; {VIFS} vifs in {longest / 1e6:.2f} ms, {deciding / 1e6:.2f} to decide (bar 5)"
    cheaper = all(cost[way] < cost["htb"] for cost in (small, large) for way in ways)
    met = cheaper and 0 < longest < ROUND_BAR_NS
    conclude("guard-cost", figure, met=met)


if __name__ == "__main__":
    main()
