"""Whether a trace accounts for every packet, what it costs, and how fast records are aligned.

Two forms are measured: a trace that records every packet, and one that counts every packet and records one in 64
(`partywall trace --one-in 64`), part "rate, counts".

Rate: one sender of marked datagrams runs flat out through three hops (a container's interface, the bridge's port,
another container's interface), all on one CPU. Without a trace and with each form it sends in turn, for a third of a
second each. The rate is the packets for each second of CPU time of the sender and of the CPU's softirq thread, so
other programs on the CPU change it little. The neighbours of a turn are compared. The bar is for the form that counts:
what a record of every packet costs is judged by `trace_flows.py`.

Accounts: the same path flat out, with each form. At each hop, what was counted and not traced must add up to what the
interface itself counted, and so must what was recorded, missed and not traced, if every packet is recorded. What the
trace says was lost between two hops must be what their counters differ by.

Truth: a hop of our own loses 0.1 to 20 % of the packets, doubles and overtakes some. What the trace finds must be what
the hop did, to the packet; counts must differ by what it lost less what it doubled.

Alignment: records a second of one core, merge, matching and count together, of datagrams and of a stream.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import now_ns, rate, sleep_until
from common import Ratio, ran_ns, work
from frame import NotMeasured, Options, Outcome, bench
from hops import PATH, SENDER_CPU, SPACES, Trace, counters, network, sink, softirq_threads
from partywall.agent import binary
from partywall.agent.client import AgentClient, start_agent
from partywall.host.label import Label
from partywall.trace.hops import ask
from partywall.trace.record import Report, counted

ROOT = Path(__file__).parents[1]
RATE_LEAST, ALIGNED_LEAST = 0.95, 5e6
LOSSES_QUICK, LOSSES = (0.001, 0.02, 0.2), (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
FORMS = EVERY, COUNTS = 1, 64
"""Of how many packets one is recorded; the others are counted."""
UNTRACED = 0
TRUTH_PPS = 4000
SLOT_S = 0.33
LOSSY_PATH = ("pwta/tuna:out", "pwtc/tunc:in")


class Sender:
    """udp-send in the first namespace, on a CPU of its own; what nobody listens for is thrown away over there."""

    def __init__(self, label: Label, to: str, **params: Any) -> None:
        self._slices: list[dict[str, Any]] = []
        argv = ["nsenter", f"--net=/run/netns/{SPACES[0]}", str(binary.find()), "serve", "--cpus", str(SENDER_CPU)]
        self.client = AgentClient("sender", start_agent(argv, env=os.environ | label.environment), self._hear)
        self.client.greet()
        kernel = {"name": "udp-send", "params": {"to": to, "marker": True} | params}
        self.client.call("workload.start", id="s", work={"kernel": kernel}, pace="scheduled", work_dir=str(label.work))

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "slices":
            self._slices += params["slices"]

    def send(self, seconds: float) -> float:
        """Sends for so long, flat out but for a set rate; datagrams a second."""
        start = now_ns() + 5_000_000
        end = start + int(seconds * 1e9)
        # Calibrated by hand: the first time, to learn what flat out is.
        switches = [{"at_ns": start, "intensity": 1.0}, {"at_ns": end, "intensity": 0.0}]
        self.client.call("workload.schedule", id="s", switches=switches)
        sleep_until(end + 300_000_000)
        measured = rate(self._slices, start + int(seconds * 1e8), end)
        self._slices.clear()
        return measured

    def cost_ns(self, seconds: float) -> float:
        """CPU time of a packet, sending flat out for so long: of the sender, and of the softirq thread of its CPU."""
        threads = [*Path(f"/proc/{self.client.process.pid}/task").iterdir(), *softirq_threads(SENDER_CPU)]
        before_ns, before = sum(map(ran_ns, threads)), counters(PATH[0])
        self.send(seconds)
        return (sum(map(ran_ns, threads)) - before_ns) / (counters(PATH[0]) - before)

    def close(self) -> None:
        self.client.close()


@dataclass(frozen=True)
class Kept:
    """CPU time of a packet in ns, turn by turn, with one form of a trace and without one."""

    traced: list[float]
    untraced: list[float]

    @property
    def ratio(self) -> Ratio:
        """Of the rates."""
        return Ratio([other / own for own, other in zip(self.traced, self.untraced, strict=True)])

    @property
    def met(self) -> bool:
        return self.ratio.interval()[0] >= RATE_LEAST

    def __str__(self) -> str:
        extra_ns = statistics.median(own - other for own, other in zip(self.traced, self.untraced, strict=True))
        return f"{self.ratio} of the untraced rate, {extra_ns:.0f} ns more a packet"


def kept_rates(label: Label, turns: int) -> dict[int, Kept]:
    """The forms of a trace, by N: one packet in N is recorded. Each turn measures every form once."""
    sender = Sender(label, "10.79.0.2:9000", datagram_bytes=64, batch=64)
    costs: dict[int, list[float]] = {form: [] for form in (UNTRACED, *FORMS)}
    chance = random.Random(1)
    try:
        sender.client.call("workload.calibrate", timeout_s=60, id="s", for_ns=500_000_000)
        for _ in range(turns):
            for form in chance.sample(list(costs), len(costs)):
                with contextlib.nullcontext() if form == UNTRACED else Trace(label, PATH, form):
                    costs[form].append(sender.cost_ns(SLOT_S))
    finally:
        sender.close()
    return {form: Kept(costs[form], costs[UNTRACED]) for form in FORMS}


def accounts(label: Label, seconds: float, form: int) -> tuple[list[str], Report]:
    """What does not add up when packets come as fast as they can."""
    sender = Sender(label, "10.79.0.2:9000", datagram_bytes=64, batch=64)
    try:
        sender.client.call("workload.calibrate", timeout_s=60, id="s", for_ns=300_000_000)
        time.sleep(0.3)
        before = [counters(hop) for hop in PATH]
        with Trace(label, PATH, form) as trace:
            sender.send(seconds)
            report = trace.finish()
        own = [counters(hop) - was for hop, was in zip(PATH, before, strict=True)]
    finally:
        sender.close()
    wrong = []
    for hop, passed, seen in zip(PATH, own, report.hops, strict=True):
        kinds = {"counted": seen.counted_in + seen.counted_out}
        if form == EVERY:
            kinds["recorded or missed"] = seen.recorded + seen.missed
        wrong += [
            f"{hop}: {number} {kind} + {seen.untraced} untraced ≠ {passed} of the interface"
            for kind, number in kinds.items()
            if number + seen.untraced != passed
        ]
    return wrong + differing(by_form(report, form), own, PATH), report


def by_form(report: Report, form: int) -> Report:
    """What the trace says of packets and losses: from its records, or from its counts."""
    return report if form == EVERY else counted(ask(PATH[: len(report.hops)], one_in=form), report)


def differing(report: Report, own: list[int], hops: tuple[str, ...]) -> list[str]:
    """Where what the trace says was lost between two hops is not what the interfaces' own counters differ by.

    A packet that one hop's full ring left out may be counted at the hop before or after, so it is what may be wrong.
    """
    way = report.ways[0]
    wrong = []
    for at in range(1, len(hops)):
        gone = own[at - 1] - own[at]
        step = way.steps[at]
        total = step.lost + step.astray - step.stray
        slack = sum(hop.missed + hop.untraced for hop in report.hops[: at + 1]) + way.unfinished
        if abs(gone - total) > slack:
            wrong.append(f"{hops[at - 1]} to {hops[at]}: {total} lost, counters differ by {gone} (± {slack})")
    return wrong


def truth(label: Label, loss: float, seconds: float, seed: int, form: int) -> list[str]:
    """Where the trace and the lossy hop differ."""
    argv = [sys.executable, str(ROOT / "benches" / "lossy_hop.py"), SPACES[0], "tuna", SPACES[2], "tunc"]
    argv += [str(loss), "0.01", "0.01", str(seed)]
    sender = Sender(label, "10.79.1.2:9000", datagram_bytes=64, rate_pps=float(TRUTH_PPS), batch=1)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hop:
        try:
            assert hop.stdin is not None
            assert hop.stdout is not None
            hop.stdout.readline()
            with Trace(label, LOSSY_PATH, form) as trace:
                sender.send(seconds)
                way = by_form(trace.finish(), form).ways[0]
            hop.stdin.close()
            did = json.loads(hop.stdout.read())
        finally:
            sender.close()
            hop.kill()
    step = way.steps[1]
    by_trace = {
        "seen": way.steps[0].packets,
        "lost": step.lost,
        "doubled": step.duplicates,
        "overtaken": step.reordered,
        "delivered": way.delivered,
    }
    if form != EVERY:
        by_trace = {"seen": way.steps[0].packets, "fewer": step.lost - step.stray, "arrived": way.delivered}
        lost, doubled = did["lost"], did["doubled"]
        did = {"seen": did["seen"], "fewer": lost - doubled, "arrived": did["delivered"] + doubled}
    print(f"  loss {loss:.1%}, one in {form} recorded: trace {by_trace}, hop {did}", flush=True)
    return [
        f"loss {loss:.1%}, one in {form} recorded: {key} {by_trace[key]}, the hop {did[key]}"
        for key in did
        if by_trace[key] != did[key]
    ]


def aligned(packets: int) -> dict[str, float]:
    """Records a second a core, by kind."""
    argv = ["cargo", "run", "--release", "--quiet", "-p", "partywall-alignment", "--example", "speed", str(packets)]
    printed = subprocess.run(argv, cwd=ROOT / "agent", capture_output=True, text=True, check=True).stdout
    return {name: float(value) for name, value in (line.split() for line in printed.splitlines())}


@bench(plants={"lies": "the lossy hop keeps one loss to itself"})
def main(options: Options) -> Outcome:
    os.environ.update({"LOSSY_HOP_LIES": "1"} if options.plant else {})
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NotMeasured("needs root and iproute2 (namespaces, hooks)")
    turns, seconds, losses = (12, 0.8, LOSSES_QUICK) if options.quick else (60, 2.0, LOSSES)
    with work("trace-accounting") as label, network(), sink(SPACES[2], "0.0.0.0"):  # noqa: S104 - in a namespace of our own
        kept = kept_rates(label, turns)
        print(f"every packet recorded: {kept[EVERY]}\none in {COUNTS} recorded: {kept[COUNTS]}", flush=True)
        wrong: list[str] = []
        packets = 0
        for form in FORMS:
            unequal, report = accounts(label, seconds * 2, form)
            seen = report.hops[0].counted_out
            missed = sum(hop.missed for hop in report.hops)
            print(
                f"accounts, one in {form} recorded: {seen} packets, {missed} records missed and counted, wrong: "
                f"{unequal or 'nothing'}",
                flush=True,
            )
            wrong += unequal
            packets += seen
            for seed, loss in zip(itertools.count(1), losses, strict=False):
                wrong += truth(label, loss, 1.0 if options.quick else 5.0, seed, form)
    speed = aligned(1_000_000 if options.quick else 3_000_000)
    print(
        f"alignment: {', '.join(f'{name} {value / 1e6:.2f} M records/s' for name, value in speed.items())}", flush=True
    )
    exact = f"{len(wrong)} accounts wrong of {packets} packets and {len(FORMS) * len(losses)} lossy hops"
    figure = (
        f"{kept[COUNTS]} if one in {COUNTS} is recorded; {kept[EVERY]} if every packet is; {exact}; "
        f"alignment {min(speed.values()) / 1e6:.2f} M records/s/core{''.join(f'; {w}' for w in wrong)}"
    )
    parts = {
        "counts": (exact, not wrong),
        "rate, counts": (f"{kept[COUNTS]}, one in {COUNTS} recorded", kept[COUNTS].met),
        "alignment": (
            ", ".join(f"{name} {value / 1e6:.1f} M" for name, value in speed.items()),
            min(speed.values()) >= ALIGNED_LEAST,
        ),
    }
    met = all(part_met for _, part_met in parts.values())
    return Outcome(figure, met, parts)


if __name__ == "__main__":
    main()
