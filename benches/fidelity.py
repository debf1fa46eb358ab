"""Whether the kernels measure what established programmes measure: the same work beside each peer, in turn, pair by pair.

Peers: mbw (memory copy), a pointer chase in C that is compiled here, as Debian packages none (chase.c: cache and memory latency), fio (disk;
on the very same file), iperf3 (TCP and UDP on loopback; each end on the same CPU as ours). Memory is allocated anew for each
measurement on both sides, since where pages lie decides about caches.

Each item's figure is the median over pairs of our speed over the peer's, with its interval. Bar: within 0.97 to 1.03, or faster
for a reason that is printed and was checked on this host in the same minute.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agents import Kernel, Resident
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
    """One comparison. ours, peer: speed, more is better. why: checks and tells why ours is faster; None if it is not so."""

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
        """mbw -t2 with blocks of 512 KiB calls memcpy piece by piece, as memory-copy does."""
        mib = 64
        runs = max(20, round(self.seconds * 7000 / mib))

        def peer() -> float:
            text = output("mbw", "-q", "-n", str(runs), "-t2", "-b", str(512 << 10), str(mib), cpu=CPU)
            elapsed = [float(s) for s in re.findall(r"^\d+\s.*Elapsed: ([\d.]+)", text, re.MULTILINE)]
            # The same part is left out at the start as of ours.
            kept = elapsed[round(len(elapsed) * SETTLE_S / (SETTLE_S + self.seconds)) :]
            return mib * MIB * len(kept) / sum(kept)

        ours = Kernel("memory-copy", {"block_bytes": mib * MIB})
        return Item("memory copy, 2 x 64 MiB (mbw)", lambda: self.fresh(ours), peer)

    def chase(self, name: str, kernel: str, size: int, order: str, *, huge: bool) -> Item:
        program = self.folder / "chase"
        if not program.exists():
            output("gcc", "-O2", "-o", str(program), str(Path(__file__).with_name("chase.c")))

        def peer() -> float:
            timing = [str(SETTLE_S), str(self.seconds)]
            return 1e9 / float(output(str(program), str(size), order, str(int(huge)), str(self.number), *timing, cpu=CPU))

        ours = Kernel(kernel, {"bytes": size, "order": order, "huge_pages": huge})
        pages = "2 MiB" if huge else "4 KiB"
        return Item(f"{name} {order}, {size // 1024} KiB, {pages} pages (chase)", lambda: self.fresh(ours), peer)

    # Disk

    def disk(self, direction: str, request: int, order: str = "sequential", depth: int = 1) -> Item:
        """fio works on the file of our kernel, which has no name but can be reached through /proc."""
        params = {"request_bytes": request, "file_bytes": 64 * MIB, "order": order, "queue_depth": depth}
        resident = self.stack.enter_context(Resident(self.label, Kernel(f"disk-direct-{direction}", params), [CPU]))
        rw = ("rand" if order == "random" else "") + direction
        engine = "psync" if depth == 1 else "io_uring"
        assert resident.facts[0]["engine"] in ("pread", "pwrite", "io_uring"), resident.facts

        def peer() -> float:
            # Without scrambling fio writes the same bytes again, as our kernel does.
            argv = [
                "fio", "--name=peer", f"--filename={nameless(resident.pid)}", f"--rw={rw}", f"--bs={request}", "--direct=1",
                f"--ioengine={engine}", f"--iodepth={depth}", f"--size={64 * MIB}", "--time_based", f"--runtime={self.seconds:g}",
                f"--ramp_time={SETTLE_S:g}", "--scramble_buffers=0", f"--cpus_allowed={CPU}", "--allow_file_create=0", "--output-format=json", "--thread",
            ]  # fmt: skip
            job = json.loads(output(*argv))["jobs"][0][direction]
            return job["io_bytes"] * 1e3 / job["runtime"]

        name = f"direct {order} {direction}, {request // 1024} KiB, depth {depth} (fio {engine})"
        return Item(name, lambda: resident.stretch(self.seconds, settle_s=SETTLE_S), peer)

    # Network

    def tcp(self) -> Item:
        resident = self.stack.enter_context(Resident(self.label, Kernel("tcp-stream", {"message_bytes": 128 << 10}), [CPU, OTHER]))
        resident.pin("stream reader", OTHER)
        resident.pin("stress-0", CPU)

        def peer() -> float:
            sent = self.iperf("-l", "128K")["sum_sent"]
            return sent["bytes"] / sent["seconds"]

        return Item(
            "TCP stream on loopback, 128 KiB (iperf3)", lambda: resident.stretch(self.seconds, settle_s=SETTLE_S), peer
        )

    def udp(self, size: int) -> Item:
        params = {"datagram_bytes": size, "batch": 1}
        resident = self.stack.enter_context(Resident(self.label, Kernel("udp-send", params), [CPU, OTHER]))
        resident.pin("udp receiver", OTHER)
        resident.pin("stress-0", CPU)

        def peer() -> float:
            total = self.iperf("-u", "-b", "0", "-l", str(size))["sum"]
            return total["packets"] / total["seconds"]

        return Item(
            f"UDP datagrams on loopback, {size} B (iperf3)", lambda: resident.stretch(self.seconds, settle_s=SETTLE_S), peer
        )

    def iperf(self, *options: str) -> dict:
        argv = ["iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-t", str(max(1, round(self.seconds))), "-A", f"{CPU},{OTHER}", "-J"]
        for _ in range(20):
            answer = json.loads(subprocess.run([*argv, *options], capture_output=True, text=True, timeout=60, check=False).stdout)
            if "error" not in answer:
                return answer["end"]
            time.sleep(0.2)  # the server is still busy with the client before
        raise RuntimeError(f"iperf3: {answer['error']}")

    def items(self) -> Iterator[Item]:
        yield self.copy()
        yield self.chase("L1 latency", "cache", 24 << 10, "random", huge=False)
        yield self.chase("L2 latency", "cache", 512 << 10, "random", huge=True)
        yield self.chase("L2 exceeded", "cache", 1280 << 10, "sequential", huge=True)
        yield self.chase("L3 latency", "cache", 8 << 20, "random", huge=True)
        yield self.chase("memory latency", "memory-latency", 256 << 20, "random", huge=False)
        yield self.chase("memory latency", "memory-latency", 256 << 20, "random", huge=True)
        yield self.chase("memory latency", "memory-latency", 256 << 20, "sequential", huge=False)
        for direction in ("read", "write"):
            for request in (8 << 10, 128 << 10):
                yield self.disk(direction, request)
        yield self.disk("read", 8 << 10, "random", depth=16)
        yield self.tcp()
        yield self.udp(1024)
        yield self.udp(16384)


def nameless(pid: int) -> str:
    """The path to the one file without a name that the agent has open."""
    folder = Path(f"/proc/{pid}/fd")
    found = [fd for fd in folder.iterdir() if os.readlink(fd).endswith("(deleted)")]
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
    pairs, seconds = (5, 0.4) if options.quick else (25, 1.0)
    reap()
    label = Label.create("fidelity", pipeline.WORK_ROOT)
    outcomes: list[Outcome] = []
    try:
        with tempfile.TemporaryDirectory() as folder, iperf_server(), ExitStack() as stack:
            for item in Bench(label, Path(folder), seconds, stack).items():
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
