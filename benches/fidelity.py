"""Whether the kernels measure what established programmes measure: the same work beside each peer, in turn, by pairs.

Peers: mbw (memory copy), a pointer chase in C that is compiled here, as Debian packages none (chase.c: cache and
memory latency), fio (disk; on the very same file), iperf3 (TCP and UDP on loopback; each end on the same CPU as ours).
Memory is allocated anew for each measurement on both sides, since where pages lie decides about caches.

Each item's figure is the median over pairs of our speed over the peer's, with its interval. Bar: within 0.97 to 1.03,
or faster for a reason that is printed and was checked on this host in the same minute.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import Kernel, Resident, now_ns
from common import Ratio, arguments, conclude, interleaved
from partywall import pipeline
from partywall.sandbox import Label, reap, reaper

LOW, HIGH = 0.97, 1.03
MIB = 1 << 20
CPU, OTHER = 0, max(os.sched_getaffinity(0))
PORT = 5219
NEEDED = ("mbw", "fio", "iperf3", "gcc", "taskset", "strace")
SETTLE_S = 0.1


@dataclass(frozen=True)
class Item:
    """One comparison. ours, peer: speed, more is better. why: checks and tells why ours is faster, or None."""

    name: str
    ours: Callable[[], float]
    peer: Callable[[], float]
    why: Callable[[], str | None] = lambda: None


@dataclass(frozen=True)
class Outcome:
    name: str
    ratio: Ratio
    reason: str | None

    @property
    def met(self) -> bool:
        median = self.ratio.median
        return LOW <= median <= HIGH or (median > HIGH and self.reason is not None)

    def __str__(self) -> str:
        mark = "ok " if self.met else "OFF"
        return f"{mark} {self.name:<44} {self.ratio}" + (f"; faster because {self.reason}" if self.reason else "")


def output(*argv: str, cpu: int | None = None) -> str:
    pinned = ["taskset", "-c", str(cpu), *argv] if cpu is not None else argv
    done = subprocess.run(pinned, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} failed: {done.stderr or done.stdout}")
    return done.stdout


class Bench:
    """Makes the items. seconds: how long one measurement takes."""

    def __init__(self, label: Label, folder: Path, seconds: float, stack: ExitStack) -> None:
        self.label, self.folder, self.seconds, self.stack = label, folder, seconds, stack
        self.number = 0

    def fresh(self, kernel: Kernel) -> float:
        """The rate of a kernel that is started for this measurement, as the peers are."""
        self.number += 1
        with Resident(self.label, kernel, [CPU], seed=self.number) as resident:
            return resident.stretch(self.seconds, settle_s=SETTLE_S)

    # Memory

    def copy(self) -> Item:
        """One call of memcpy for the whole block. That is -t1 of mbw as packaged (1.2.2), whatever its label says.

        With -t0 it runs a loop of its own, and with -t2 it stays in its source, which then comes from the cache.
        """
        size = 64 * MIB
        runs = max(20, round(self.seconds * 7e9 / size))

        def peer() -> float:
            text = output("mbw", "-q", "-n", str(runs), "-t1", str(size // MIB), cpu=CPU)
            elapsed = [float(s) for s in re.findall(r"^\d+\s.*Elapsed: ([\d.]+)", text, re.MULTILINE)]
            # The same part is left out at the start as of ours.
            kept = elapsed[round(len(elapsed) * SETTLE_S / (SETTLE_S + self.seconds)) :]
            return size * len(kept) / sum(kept)

        ours = Kernel("memory-copy", {"block_bytes": size, "chunk_bytes": size})
        return Item("memory copy, 64 MiB in one call (mbw)", lambda: self.fresh(ours), peer)

    def chase(self, name: str, kernel: str, size: int, order: str, *, huge: bool) -> Item:
        program = self.folder / "chase"
        if not program.exists():
            output("gcc", "-O2", "-o", str(program), str(Path(__file__).with_name("chase.c")))

        def peer() -> float:
            timing = [str(SETTLE_S), str(self.seconds)]
            return 1e9 / float(
                output(str(program), str(size), order, str(int(huge)), str(self.number), *timing, cpu=CPU)
            )

        ours = Kernel(kernel, {"bytes": size, "order": order, "huge_pages": huge})
        pages = "2 MiB" if huge else "4 KiB"
        return Item(f"{name} {order}, {size // 1024} KiB, {pages} pages (chase)", lambda: self.fresh(ours), peer)

    # Disk

    def disk(self, direction: str, request: int, order: str = "sequential", depth: int = 1) -> Item:
        """On one and the same file: that of our kernel has no name, but fio reaches it through /proc."""
        params = {"request_bytes": request, "file_bytes": 64 * MIB, "order": order, "queue_depth": depth}
        resident = self.stack.enter_context(Resident(self.label, Kernel(f"disk-direct-{direction}", params), [CPU]))
        rw = ("rand" if order == "random" else "") + direction
        engine = "psync" if depth == 1 else "io_uring"
        assert resident.facts[0]["engine"] in ("pread", "pwrite", "io_uring"), resident.facts

        def peer() -> float:
            # Without scrambling fio writes the same bytes again, as our kernel does.
            argv = ["fio", "--name=peer", f"--filename={nameless(resident.pid)}", "--allow_file_create=0", "--thread"]
            argv += [f"--rw={rw}", f"--bs={request}", f"--size={64 * MIB}", "--direct=1", "--scramble_buffers=0"]
            argv += [f"--ioengine={engine}", f"--iodepth={depth}", f"--cpus_allowed={CPU}", "--output-format=json"]
            argv += ["--time_based", f"--runtime={self.seconds * 1e3:.0f}ms", f"--ramp_time={SETTLE_S * 1e3:.0f}ms"]
            job = json.loads(output(*argv))["jobs"][0][direction]
            return job["io_bytes"] * 1e3 / job["runtime"]

        name = f"direct {order} {direction}, {request // 1024} KiB, depth {depth} (fio {engine})"
        return Item(name, lambda: resident.stretch(self.seconds, settle_s=SETTLE_S), peer)

    # Network

    @contextmanager
    def talking(self, kernel: Kernel, receiver: str) -> Iterator[Resident]:
        """A kernel that sends from one CPU to the other, started for this measurement as iperf3's ends are."""
        self.number += 1
        with Resident(self.label, kernel, [CPU, OTHER], seed=self.number) as resident:
            resident.pin(receiver, OTHER)
            resident.pin("stress-0", CPU)
            yield resident

    def sent(self, kernel: Kernel, receiver: str) -> float:
        with self.talking(kernel, receiver) as resident:
            return resident.stretch(self.seconds, settle_s=SETTLE_S)

    def tcp(self) -> Item:
        def peer() -> float:
            sent = self.iperf("-l", "128K")["sum_sent"]
            return sent["bytes"] / sent["seconds"]

        ours = Kernel("tcp-stream", {"message_bytes": 128 << 10})
        return Item("TCP stream on loopback, 128 KiB (iperf3)", lambda: self.sent(ours, "stream reader"), peer)

    def udp(self, size: int) -> Item:
        ours = Kernel("udp-send", {"datagram_bytes": size, "batch": 1})

        def peer() -> float:
            total = self.iperf("-u", "-b", "0", "-l", str(size))["sum"]
            return float(total["packets"] / total["seconds"])

        def why() -> str | None:
            with self.talking(ours, "udp receiver") as resident:
                return self.why_udp(resident, size)

        name = f"UDP datagrams on loopback, {size} B (iperf3)"
        return Item(name, lambda: self.sent(ours, "udp receiver"), peer, why)

    def why_udp(self, resident: Resident, size: int) -> str | None:
        """Counts the system calls of both senders: one send a datagram on both sides, and what comes on top."""
        ours = self.calls_of_ours(resident)
        with tempfile.NamedTemporaryFile("r", dir=self.folder) as report:
            self.iperf("-u", "-b", "0", "-l", str(size), before=("strace", "-c", "-o", report.name))
            peers = calls(Path(report.name).read_text())
        sent, selects = peers.get("write", 0), peers.get("pselect6", 0)
        a_datagram = sum(ours.values()) / max(1, ours.get("sendto", 0))
        if not sent or selects < 0.05 * sent or a_datagram > 1.02:
            return None
        more = f"iperf3 calls pselect6 {selects / sent:.2f} times a datagram"
        return f"{more}, ours nothing but sendto ({a_datagram:.3f} calls; all counted)"

    def calls_of_ours(self, resident: Resident) -> dict[str, int]:
        """System calls of the worker thread while it is switched on."""
        on_ns = now_ns() + 500_000_000
        resident.schedule([(on_ns, 1.0), (on_ns + 500_000_000, 0.0)])
        with tempfile.NamedTemporaryFile("r", dir=self.folder) as report:
            argv = [
                "timeout",
                "-s",
                "INT",
                "1.5",
                "strace",
                "-c",
                "-p",
                str(resident.thread("stress-0")),
                "-o",
                report.name,
            ]
            subprocess.run(argv, capture_output=True, timeout=20, check=False)
            resident.forget()
            return calls(Path(report.name).read_text())

    def iperf(self, *options: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
        seconds, cpus = str(max(1, round(self.seconds))), f"{CPU},{OTHER}"
        argv = [*before, "iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-t", seconds, "-A", cpus, "-J", *options]
        for _ in range(20):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
            answer: dict[str, Any] = json.loads(done.stdout)
            if "error" not in answer:
                end: dict[str, Any] = answer["end"]
                return end
            time.sleep(0.2)  # the server is still busy with the client before
        raise RuntimeError(f"iperf3: {answer['error']}")

    def items(self, *, quick: bool) -> Iterator[Item]:
        """Made one after the other, as the disk's and the network's stay resident."""
        yield self.copy()
        yield self.chase("L2 latency", "cache", 512 << 10, "random", huge=True)
        yield self.disk("read", 8 << 10)
        yield self.disk("read", 8 << 10, "random", depth=16)
        yield self.disk("write", 128 << 10)
        yield self.tcp()
        yield self.udp(1024)
        if quick:
            return
        yield self.chase("L1 latency", "cache", 24 << 10, "random", huge=False)
        yield self.chase("L2 exceeded", "cache", 1280 << 10, "sequential", huge=True)
        yield self.chase("L3 latency", "cache", 8 << 20, "random", huge=True)
        yield self.chase("memory latency", "memory-latency", 256 << 20, "random", huge=False)
        yield self.chase("memory latency", "memory-latency", 256 << 20, "random", huge=True)
        yield self.chase("memory latency", "memory-latency", 256 << 20, "sequential", huge=False)
        yield self.disk("read", 128 << 10)
        yield self.disk("write", 8 << 10)
        yield self.udp(16384)


def calls(report: str) -> dict[str, int]:
    """How often each system call was made, from the table of strace -c."""
    rows = [line.split() for line in report.splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) >= 5 and row[3].isdigit() and row[-1] != "total"}


def nameless(pid: int) -> str:
    """The path to the one file without a name that the agent has open."""
    folder = Path(f"/proc/{pid}/fd")
    found = [fd for fd in folder.iterdir() if str(fd.readlink()).endswith("(deleted)")]
    return str(found[0])


@contextmanager
def iperf_server() -> Iterator[None]:
    with subprocess.Popen(["iperf3", "-s", "-p", str(PORT)], stdout=subprocess.DEVNULL) as server:
        try:
            time.sleep(0.3)
            yield
        finally:
            server.terminate()


def main() -> None:
    options = arguments(__doc__ or "")
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        conclude("fidelity", f"cannot compare without {', '.join(missing)}; run make bench-setup", met=False)
    pairs, seconds = (5, 0.3) if options.quick else (21, 0.6)
    reap()
    label = Label.create("fidelity", pipeline.WORK_ROOT)
    outcomes: list[Outcome] = []
    try:
        with tempfile.TemporaryDirectory() as folder, iperf_server(), ExitStack() as stack:
            for item in Bench(label, Path(folder), seconds, stack).items(quick=options.quick):
                ratio = interleaved(item.ours, item.peer, pairs)
                reason = item.why() if ratio.median > HIGH else None
                outcomes.append(Outcome(item.name, ratio, reason))
                print(outcomes[-1], flush=True)
    finally:
        reaper.clean(label)
    off = [outcome.name for outcome in outcomes if not outcome.met]
    medians = [outcome.ratio.median for outcome in outcomes if outcome.reason is None]
    faster = len(outcomes) - len(medians)
    told = f", {faster} faster with the reason" if faster else ""
    missed = f"; off: {', '.join(off)}" if off else ""
    figure = f"{len(outcomes)} items, our speed over the peer's {min(medians):.3f} to {max(medians):.3f}{told}{missed}"
    conclude("fidelity", figure, met=not off)


if __name__ == "__main__":
    main()
