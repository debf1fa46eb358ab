"""What a trace costs at each hop, above a hook that does nothing, by the number of flows.

Each form of a trace has a path of its own, and all paths are alike: three hops as in `hops.PATH`, and a sender of
frames. One path has empty hooks, one a trace that records every packet, one a trace that counts all packets and records
one in 64. With `--before AGENT`, there are paths with traces of another agent. The senders run in turn on one CPU, each
for some milliseconds, so that a change of the machine's speed meets all of them. In each round, forms move to other
paths.

Datagrams belong to 1, 1,000 or 100,000 flows, which take turns packet by packet: the worst order for what a trace
remembers of a flow.

The figure is the CPU time of a packet, of the sender and of the CPU's softirq thread, less that with empty hooks in the
same turn, divided by the hops: the median over turns with its interval. Turns in which empty hooks took a quarter more
than in the fastest tenth are left out: another tenant of the machine slowed it down. The bar is for 1 and 1,000 flows.

Accounts: at each hop, what is counted, and what is recorded or missed, must be what the interface itself counted.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from common import interval_of_median, program, ran_ns, work
from frame import NotMeasured, Options, Outcome, bench
from hops import SENDER_CPU, Spaces, Trace, counters, empty_hooks, network, path_of, sink, softirq_threads
from partywall.host.label import Label

JUDGED_FLOWS, MOST_FLOWS = (1, 1000), 100_000
EMPTY, EVERY, COUNTS = 0, 1, 64
"""Of how many packets one is recorded; the others are counted. 0: an empty hook."""
HOPS, HOP_NS_MOST = 3, 25.0
WARM, PACKETS = 1000, 5000
ACCOUNTED = 300_000
SLOWED = 1.25
LINKS = ("02:00:00:00:00:01", "02:00:00:00:00:02")


@dataclass(frozen=True)
class Form:
    """How packets are traced. agent: None for the one under test."""

    one_in: int
    agent: Path | None = None

    def __str__(self) -> str:
        name = "every packet" if self.one_in == EVERY else f"one in {self.one_in}"
        return f"{name} before" if self.agent else name

    @contextlib.contextmanager
    def traced(self, label: Label, hops: tuple[str, ...], times: int) -> Iterator[None]:
        """Traces the path meanwhile, so many times."""
        with contextlib.ExitStack() as stack:
            if self.one_in == EMPTY:
                stack.enter_context(empty_hooks(hops))
            else:
                for _ in range(times):
                    stack.enter_context(Trace(label, hops, self.one_in, agent=self.agent))
            yield


class Lane:
    """A path of three hops with its sender, flows.c, on the CPU of all senders."""

    def __init__(self, number: int, sender: Path) -> None:
        self.spaces: Spaces = (f"pwt{number}a", f"pwt{number}b", f"pwt{number}c")
        self.hops = path_of(self.spaces)
        self._sender = sender

    @contextlib.contextmanager
    def up(self) -> Iterator[Self]:
        """The path is there meanwhile. The sender waits for orders."""
        argv = ["nsenter", f"--net=/run/netns/{self.spaces[0]}", "taskset", "-c", str(SENDER_CPU)]
        argv += [str(self._sender), "eth0", *LINKS]
        with (
            network(self.spaces),
            sink(self.spaces[2], "0.0.0.0"),  # noqa: S104 - in a namespace of our own
            program(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as self._process,
        ):
            yield self

    def send(self, flows: int, packets: int) -> None:
        """Returns when all are sent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{flows} {packets}\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "sent\n":
            raise NotMeasured("the sender of frames ended; see its message above")

    def cost_ns(self, flows: int, softirq: list[Path]) -> float:
        """CPU time of a packet: of the sender, and of the softirq threads."""
        self.send(flows, WARM)
        tasks = [Path(f"/proc/{self._process.pid}"), *softirq]
        before_ns = sum(map(ran_ns, tasks))
        self.send(flows, PACKETS)
        return (sum(map(ran_ns, tasks)) - before_ns) / PACKETS


@dataclass(frozen=True)
class Extra:
    """Nanoseconds that a form takes at each hop more than an empty hook, turn by turn."""

    turns: Sequence[float]

    @property
    def met(self) -> bool:
        return interval_of_median(self.turns)[1] <= HOP_NS_MOST

    def __str__(self) -> str:
        low, high = interval_of_median(self.turns)
        return f"{statistics.median(self.turns):.1f} ns ({low:.1f} to {high:.1f})"


def extras(costs: Mapping[Form, Sequence[float]]) -> dict[Form, Extra]:
    """What each form takes at a hop more than an empty hook, in turns at the machine's full speed."""
    empty = np.array(costs[Form(EMPTY)])
    steady = empty <= SLOWED * np.quantile(empty, 0.1)
    forms = (form for form in costs if form.one_in != EMPTY)
    return {form: Extra(((np.array(costs[form]) - empty)[steady] / HOPS).tolist()) for form in forms}


def turns_of(at: Mapping[Form, Lane], flows: int, turns: int, chance: random.Random) -> Iterator[dict[Form, float]]:
    """In each turn, what a packet costs with every form, in random order."""
    softirq = softirq_threads(SENDER_CPU)
    for lane in at.values():
        # Fills the tables of flows.
        lane.send(flows, max(2 * flows, WARM))
    for _ in range(turns):
        yield {form: at[form].cost_ns(flows, softirq) for form in chance.sample(list(at), len(at))}


def measured(
    lanes: list[Lane], label: Label, forms: list[Form], all_flows: Sequence[int], turns: int, times: int
) -> dict[int, dict[Form, Extra]]:
    """By number of flows, the cost of each form. Each of as many rounds as there are paths has so many turns."""
    costs: dict[int, dict[Form, list[float]]] = {flows: {form: [] for form in forms} for flows in all_flows}
    chance = random.Random(1)
    for number in range(len(lanes)):
        at = {form: lanes[(number + place) % len(lanes)] for place, form in enumerate(forms)}
        with contextlib.ExitStack() as stack:
            for form, lane in at.items():
                stack.enter_context(form.traced(label, lane.hops, times))
            for flows in all_flows:
                for turn in turns_of(at, flows, turns, chance):
                    for form, cost_ns in turn.items():
                        costs[flows][form].append(cost_ns)
    for flows, of in costs.items():
        print(f"{named(flows)}, empty hooks: {statistics.median(of[Form(EMPTY)]):.0f} ns a packet", flush=True)
    return {flows: extras(of) for flows, of in costs.items()}


def accounts(lane: Lane, label: Label, one_in: int, *, early: bool) -> list[str]:
    """What does not add up when packets of many flows come as fast as they can. early: one comes before the trace."""
    before = [counters(hop) for hop in lane.hops]
    if early:
        lane.send(1, 1)
    with Trace(label, lane.hops, one_in) as trace:
        lane.send(MOST_FLOWS, ACCOUNTED)
        report = trace.finish()
    wrong = []
    for hop, was, seen in zip(lane.hops, before, report.hops, strict=True):
        passed = counters(hop) - was
        sums = {"counted": seen.counted_in + seen.counted_out + seen.untraced}
        if one_in == EVERY:
            sums["recorded or missed"] = seen.recorded + seen.missed + seen.untraced
        wrong += [f"{hop}: {number} {what}, {passed} passed" for what, number in sums.items() if number != passed]
    return wrong


def named(flows: int) -> str:
    return f"{flows:,} flow{'s' * (flows > 1)}"


@bench(
    plants={"twice": "each packet is traced twice", "early": "one packet passes before the trace begins"},
    needs=("gcc", "ip", "taskset", "nsenter"),
    more={"--before": {"type": Path, "metavar": "AGENT", "help": "another agent to compare with"}},
)
def main(options: Options) -> Outcome:
    if os.geteuid() != 0:
        raise NotMeasured("needs root (namespaces, hooks)")
    all_flows, turns = (JUDGED_FLOWS, 40) if options.quick else ((*JUDGED_FLOWS, MOST_FLOWS), 120)
    forms = [Form(EMPTY), Form(EVERY), Form(COUNTS)]
    forms += [Form(EVERY, options.before), Form(COUNTS, options.before)] if options.before else []
    with contextlib.ExitStack() as stack:
        label = stack.enter_context(work("trace-flows"))
        sender = Path(stack.enter_context(tempfile.TemporaryDirectory()), "flows")
        subprocess.run(["gcc", "-O2", "-o", sender, Path(__file__).with_name("flows.c")], check=True)
        lanes = [stack.enter_context(Lane(number, sender).up()) for number in range(len(forms))]
        extra = measured(lanes, label, forms, all_flows, turns, 2 if options.plant == "twice" else 1)
        early = options.plant == "early"
        wrong = [line for form in (EVERY, COUNTS) for line in accounts(lanes[0], label, form, early=early)]
    shown = [
        f"{named(flows)}: {', '.join(f'{form} {each}' for form, each in of.items())}" for flows, of in extra.items()
    ]
    every = {named(flows): extra[flows][Form(EVERY)] for flows in JUDGED_FLOWS}
    exact = f"{len(wrong)} accounts wrong"
    parts = {name: (str(each), each.met) for name, each in every.items()} | {"accounts": (exact, not wrong)}
    met = all(part_met for _, part_met in parts.values())
    return Outcome("; ".join([*shown, exact, *wrong]), met, parts)


if __name__ == "__main__":
    main()
