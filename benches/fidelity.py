"""Whether the kernels measure what established programs measure: the same work beside each peer, in turn, by pairs.

Peers: mbw (memory copy), a pointer chase in C that is compiled here, as Debian packages none (chase.c: cache and
memory latency), fio (disk; on the very same file), iperf3 (TCP and UDP on loopback; each end on the same CPU as ours).
New memory is allocated for each measurement on both sides, since where pages lie decides about caches.

Disks and networks change their pace within a second, so there both sides stay resident for a while and take turns of a
tenth of a second, stopped and continued in random order; what each got done in its turns is read from the operating
system's own counters (a process's bytes of disk, the loopback interface's packets and bytes), not from either side.

Each item's figure is the median over pairs of our speed over the peer's, with its interval. Bar: within 0.97 to 1.03,
or faster for a reason that is printed and was checked on this host in the same minute. --quick: seven items with few
pairs each; an item misses the bar if its whole interval is outside of 0.97 to 1.03.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents import Kernel, Resident, now_ns, sleep_until
from common import Ratio, busy_cpu, interleaved, program, work
from disturbance import undisturbed
from frame import Options, Outcome, bench
from partywall.host.label import Label

LOW, HIGH = 0.97, 1.03
MIB = 1 << 20
CPU, OTHER = 0, max(os.sched_getaffinity(0))
PORT = 5219
NEEDED = ("mbw", "fio", "iperf3", "gcc", "taskset", "strace")
SETTLE_S = 0.1
COPY_ROUNDS = 15
# A turn, the parts left out at its start and end, and how long resident programs take to start.
TURN_NS, GUARD_NS, END_NS = 130_000_000, 25_000_000, 3_000_000
LEAD_NS = 100_000_000
WARM_UP_S = 0.7


Why = Callable[[Ratio], str | None]


def no_reason(_: Ratio) -> None:
    """Nothing is known that would make ours faster."""


@dataclass(frozen=True)
class Item:
    """One comparison. ratio: our speed over the peer's. why: checks and tells why ours is faster by it, or None."""

    name: str
    ratio: Callable[[], Ratio]
    why: Why = no_reason


@dataclass(frozen=True)
class Compared:
    """quick: too few pairs to know a median to 3 %, so that only an interval outside of the bar misses it."""

    name: str
    ratio: Ratio
    reason: str | None
    quick: bool = False

    @property
    def met(self) -> bool:
        low, high = self.ratio.interval() if self.quick else (self.ratio.median, self.ratio.median)
        return (low <= HIGH and high >= LOW) or (low > HIGH and self.reason is not None)

    def __str__(self) -> str:
        mark = "ok " if self.met else "OFF"
        return f"{mark} {self.name:<44} {self.ratio}" + (f"; faster because {self.reason}" if self.reason else "")


def output(*argv: str, cpu: int | None = None) -> str:
    pinned = ["taskset", "-c", str(cpu), *argv] if cpu is not None else argv
    done = subprocess.run(pinned, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} failed: {done.stderr or done.stdout}")
    return done.stdout


@dataclass(frozen=True)
class Effort:
    """How much is measured. pairs of seconds each; or starts of both sides, with turns in pairs for each start."""

    pairs: int
    seconds: float
    starts: int
    turns: int


QUICK = Effort(pairs=5, seconds=0.3, starts=2, turns=12)
LONG = Effort(pairs=21, seconds=0.4, starts=6, turns=20)


@dataclass(frozen=True)
class Sides:
    """Both resident; ours is switched by schedule, the peer is stopped and continued. done: work so far, for each."""

    ours: Resident
    peer: subprocess.Popen[bytes]
    done_by_ours: Callable[[], float]
    done_by_peer: Callable[[], float]

    def take_turns(self, pairs: int, seed: int) -> list[float]:
        """Our rate over the peer's, pair by pair."""
        chance = random.Random(seed)
        order = [mine for _ in range(pairs) for mine in chance.sample([True, False], 2)]
        first = now_ns() + LEAD_NS
        starts = [first + number * TURN_NS for number in range(len(order))]
        mine = [start for start, is_mine in zip(starts, order, strict=True) if is_mine]
        self.ours.schedule([switch for start in mine for switch in ((start, 1.0), (start + TURN_NS, 0.0))])
        rates = [self.turn(start, is_mine) for start, is_mine in zip(starts, order, strict=True)]
        self.ours.alive()
        self.ours.forget()
        by_pair = zip(rates[::2], rates[1::2], order[::2], strict=True)
        sides = [(a, b) if ours_first else (b, a) for a, b, ours_first in by_pair]
        return [ours / peer if peer else math.inf for ours, peer in sides]

    def turn(self, start: int, mine: bool) -> float:
        done = self.done_by_ours if mine else self.done_by_peer
        sleep_until(start)
        if not mine:
            self.peer.send_signal(signal.SIGCONT)
        sleep_until(start + GUARD_NS)
        began, before = now_ns(), done()
        sleep_until(start + TURN_NS - END_NS)
        ended, after = now_ns(), done()
        sleep_until(start + TURN_NS)
        if not mine:
            self.peer.send_signal(signal.SIGSTOP)
        return (after - before) * 1e9 / (ended - began)


@contextmanager
def running(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that has started, stopped."""
    with program(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(WARM_UP_S)
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(argv)} ended with {process.returncode}")
        process.send_signal(signal.SIGSTOP)
        yield process


class Trials:
    """Makes the items."""

    def __init__(self, label: Label, folder: Path, effort: Effort, *, shared: bool = False) -> None:
        """shared: a kernel that is started for a measurement shares its CPU with another program."""
        self.label, self.folder, self.effort, self.seconds = label, folder, effort, effort.seconds
        self.shared = shared
        self.number = 0

    def by_program(self, name: str, ours: Callable[[], float], peer: Callable[[], float], why: Why = no_reason) -> Item:
        """Each measurement runs a program from its start to its end."""
        return Item(name, lambda: interleaved(ours, peer, self.effort.pairs), why)

    def by_turns(self, name: str, start: Callable[[], AbstractContextManager[Sides]], why: Why = no_reason) -> Item:
        """Both sides stay resident, and take turns."""

        def ratio() -> Ratio:
            pairs: list[float] = []
            for _ in range(self.effort.starts):
                self.number += 1
                with start() as sides:
                    pairs += sides.take_turns(self.effort.turns, self.number)
            return Ratio(pairs)

        return Item(name, ratio, why)

    def fresh(self, kernel: Kernel) -> float:
        """The rate of a kernel that is started for this measurement, as the peers are."""
        self.number += 1
        others = busy_cpu(CPU) if self.shared else contextlib.nullcontext()
        with others, Resident(self.label, kernel, [CPU], seed=self.number) as resident:
            return resident.stretch(self.seconds, settle_s=SETTLE_S)

    # Memory

    def copy(self) -> Item:
        """A loop over the whole block. That is -t0 of mbw as packaged (1.2.2), whatever its label says.

        With -t1 it calls the C library's memcpy, which may use non-temporal stores or `rep movsb`. With -t2 it stays in
        its source, which then comes from the cache.
        """
        size = 64 * MIB
        runs = max(20, round(self.seconds * 7e9 / size))

        def peer() -> float:
            text = output("mbw", "-q", "-n", str(runs), "-t0", str(size // MIB), cpu=CPU)
            elapsed = [float(s) for s in re.findall(r"^\d+\s.*Elapsed: ([\d.]+)", text, re.MULTILINE)]
            # The same part is left out at the start as on our side.
            kept = elapsed[round(len(elapsed) * SETTLE_S / (SETTLE_S + self.seconds)) :]
            return size * len(kept) / sum(kept)

        ours = Kernel("memory-copy", {"block_bytes": size, "chunk_bytes": size})
        name = "memory copy, 64 MiB in a loop (mbw)"
        return self.by_program(name, lambda: self.fresh(ours), peer, lambda ratio: self.why_copy(size, ratio))

    def why_copy(self, size: int, ratio: Ratio) -> str | None:
        """Times the same loop with 16 bytes at a time, as ours has, and with 8, as mbw has: as much faster?"""

        def loop(copied: int) -> Callable[[], float]:
            program = self.folder / f"copy{copied}"
            source = str(Path(__file__).with_name("stream.c"))
            output("gcc", "-O2", f"-DCOPY_BYTES={copied}", "-o", str(program), source)
            words = (str(size // 8), str(COPY_ROUNDS), "mapped", "copy", "apart")
            return lambda: float(output(str(program), *words, cpu=CPU).split()[2])

        wider = interleaved(loop(16), loop(8), self.effort.pairs)
        low, high = wider.interval()
        if low <= 1 or ratio.interval()[0] > high:
            return None
        return f"mbw moves 8 bytes at a time, ours 16; the same loop in C is so {wider} times as fast"

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
        title = f"{name} {order}, {size // 1024} KiB, {pages} pages (chase)"
        return self.by_program(title, lambda: self.fresh(ours), peer)

    # Disk

    def disk(self, direction: str, request: int, order: str = "sequential", depth: int = 1) -> Item:
        """On one and the same file: that of our kernel has no name, but fio reaches it through /proc."""
        params = {"request_bytes": request, "file_bytes": 64 * MIB, "order": order, "queue_depth": depth}
        rw = ("rand" if order == "random" else "") + direction
        engine = "psync" if depth == 1 else "io_uring"
        # Without scrambling fio writes the same bytes again, as our kernel does.
        argv = ["fio", "--name=peer", "--allow_file_create=0", "--thread", f"--rw={rw}", f"--bs={request}"]
        argv += [f"--size={64 * MIB}", "--direct=1", "--scramble_buffers=0", f"--ioengine={engine}"]
        argv += [f"--iodepth={depth}", f"--cpus_allowed={CPU}", "--time_based", "--runtime=1h"]

        def moved(pid: int) -> float:
            return float(words(Path(f"/proc/{pid}/io"))[f"{direction}_bytes:"][0])

        @contextmanager
        def start() -> Iterator[Sides]:
            with Resident(self.label, Kernel(f"disk-direct-{direction}", params), [CPU], seed=self.number) as resident:
                assert resident.facts[0]["engine"] in ("pread", "pwrite", "io_uring"), resident.facts
                with running(*argv, f"--filename={nameless(resident.pid)}") as peer:
                    yield Sides(resident, peer, lambda: moved(resident.pid), lambda: moved(peer.pid))

        return self.by_turns(
            f"direct {order} {direction}, {request // 1024} KiB, depth {depth} (fio {engine})",
            start,
        )

    # Network

    @contextmanager
    def talking(self, kernel: Kernel, receiver: str) -> Iterator[Resident]:
        """A kernel that sends from one CPU to the other."""
        with Resident(self.label, kernel, [CPU, OTHER], seed=self.number) as resident:
            resident.pin(receiver, OTHER)
            resident.pin("stress-0", CPU)
            yield resident

    def sent(self, name: str, kernel: Kernel, receiver: str, options: Sequence[str], why: Why = no_reason) -> Item:
        """What arrives at the loopback interface: packets, which are as long for one side as for the other."""

        def arrived() -> float:
            # Columns of /proc/net/dev: bytes received, packets received.
            return float(words(Path("/proc/net/dev"))["lo:"][0 if kernel.name == "tcp-stream" else 1])

        @contextmanager
        def start() -> Iterator[Sides]:
            argv = ["iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-t", "3600", "-A", f"{CPU},{OTHER}", *options]
            with self.talking(kernel, receiver) as resident, iperf_server(), running(*argv) as peer:
                yield Sides(resident, peer, arrived, arrived)

        return self.by_turns(name, start, why)

    def tcp(self) -> Item:
        kernel = Kernel("tcp-stream", {"message_bytes": 128 << 10})
        return self.sent("TCP stream on loopback, 128 KiB (iperf3)", kernel, "stream reader", ["-l", "128K"])

    def udp(self, size: int) -> Item:
        kernel = Kernel("udp-send", {"datagram_bytes": size, "batch": 1})

        def why(_: Ratio) -> str | None:
            with self.talking(kernel, "udp receiver") as resident, iperf_server():
                return self.why_udp(resident, size)

        name = f"UDP datagrams on loopback, {size} B (iperf3)"
        return self.sent(name, kernel, "udp receiver", ["-u", "-b", "0", "-l", str(size)], why)

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
            thread = str(resident.thread("stress-0"))
            argv = ["timeout", "-s", "INT", "1.5", "strace", "-c", "-p", thread, "-o", report.name]
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
        """All comparisons, those of the short form first."""
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


def words(path: Path) -> dict[str, list[str]]:
    """Lines by their first word."""
    return {first: rest for first, *rest in (line.split() for line in path.read_text().splitlines() if line)}


def nameless(pid: int) -> str:
    """The path to the one file without a name that the agent has open."""
    folder = Path(f"/proc/{pid}/fd")
    deleted = [fd for fd in folder.iterdir() if str(fd.readlink()).endswith("(deleted)")]
    return str(deleted[0])


@contextmanager
def iperf_server() -> Iterator[None]:
    with program("iperf3", "-s", "-p", str(PORT), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        time.sleep(0.3)
        yield


def compared(item: Item, *, quick: bool) -> Compared:
    ratio = undisturbed(item.ratio, lambda result: Compared(item.name, result, None, quick=quick).met)
    return Compared(item.name, ratio, item.why(ratio) if ratio.median > HIGH else None, quick=quick)


@bench(plants={"shared": "another program on the CPU of our kernels"}, needs=NEEDED)
def main(options: Options) -> Outcome:
    outcomes: list[Compared] = []
    with work("fidelity") as label, tempfile.TemporaryDirectory() as folder:
        trials = Trials(label, Path(folder), QUICK if options.quick else LONG, shared=bool(options.plant))
        for item in trials.items(quick=options.quick):
            outcomes.append(compared(item, quick=options.quick))
            print(outcomes[-1], flush=True)
    off = [outcome.name for outcome in outcomes if not outcome.met]
    medians = [outcome.ratio.median for outcome in outcomes if outcome.reason is None]
    faster = len(outcomes) - len(medians)
    faster_said = f", {faster} faster with the reason" if faster else ""
    missed = f"; off: {', '.join(off)}" if off else ""
    figure = f"{len(outcomes)} items, our speed over the peer's {min(medians):.3f} to {max(medians):.3f}"
    figure += faster_said + missed
    return Outcome(figure, not off)


if __name__ == "__main__":
    main()
