"""Whether `partywall watch` counts each byte of a tenant once, and never more than the disks did.

Two tenants are named by a process, so that their bytes are known from /proc/PID/io only, which is so on every host. One
forks writers: children that live longer than the watch needs to find them, children with children of their own, short
ones, and one that wrote before the watch. When its parent waits for a child, the kernel adds all that the child ever
did to the parent. The other tenant writes steadily. All write past the page cache, and say how much.

Bar: no tenant is shown with more than it wrote and a megabyte (of the file system), nor with less than 95 % of it; the
tenants' sum is at most what the disks wrote.

Twenty watches of some fifteen seconds. --quick: two.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common import PARTYWALL, program
from frame import NotMeasured, Options, Outcome, Plant, bench
from partywall.watch.capability import Watches
from partywall.watch.record import WatchRecord, parts

ROUNDS, QUICK = 20, 2
LEAST = 0.95
SLACK = 1 << 20
READ_S = 5.0
"""Processes are read every two seconds, and what a child did may come one reading later."""
DEADLINE_S = 60.0
TWICE = """
import partywall.watch.measure.processes as processes
processes._Debt.pay = lambda self, jumps: None
"""
# Says "ready" when it has written what is not of the watch, begins with the next line, and says what it wrote since.
COMMON = """
import mmap, os, random, sys, time
path, random = sys.argv[1], random.Random(int(sys.argv[2]))
BLOCK = 256 << 10
buffer = mmap.mmap(-1, BLOCK)
def write(name, blocks, pause_s=0.0):
    file = os.open(f"{path}-{name}", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    for block in range(blocks):
        os.pwrite(file, buffer, BLOCK * block)
        time.sleep(pause_s)
    os.close(file)
def begin():
    print("ready", flush=True)
    sys.stdin.readline()
def end(blocks):
    print(BLOCK * blocks, flush=True)
    sys.stdin.readline()
def child(*works):
    pid = os.fork()
    if not pid:
        for work in works:
            work()
        os._exit(0)
    return pid
"""
FORKER = (
    COMMON
    + """
go, went = os.pipe()
old = child(lambda: os.close(went), lambda: write("old", 128), lambda: os.read(go, 1), lambda: write("old", 16))
os.close(go)
time.sleep(1)
begin()
os.close(went)
blocks = 16
sizes = [random.randint(60, 80) for _ in range(3)]
long = [child(lambda n=n, s=s: write(f"long{n}", s, 0.1)) for n, s in enumerate(sizes)]
inner = random.randint(50, 70)
nested = child(lambda: os.waitpid(child(lambda: write("inner", inner, 0.1)), 0), lambda: write("outer", 8))
blocks += sum(sizes) + inner + 8
for number in range(random.randint(2, 5)):
    short = random.randint(4, 40)
    os.waitpid(child(lambda: write("short", short)), 0)
    write("own", 4)
    blocks += short + 4
    time.sleep(random.random())
for pid in (*long, nested, old):
    os.waitpid(pid, 0)
end(blocks)
"""
)
STEADY = (
    COMMON
    + """
begin()
blocks = random.randint(60, 80)
write("steady", blocks, 0.1)
end(blocks)
"""
)


@dataclass
class Tenant:
    """A process that writes, and whose children do."""

    name: str
    process: subprocess.Popen[str]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def tenant(name: str, code: str, folder: Path, seed: int) -> Iterator[Tenant]:
    argv = [sys.executable, "-c", code, str(folder / name), str(seed)]
    # Its children end too when it is killed: they have nothing to wait for.
    with program(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Tenant(name, process)


@contextlib.contextmanager
def watching(out: Path, tenants: list[Tenant]) -> Iterator[None]:
    """A watch of the tenants, from its first period on until they have been read for the last time."""
    names = [f"{each.name}=pid:{each.process.pid}" for each in tenants]
    log, lines = out.with_suffix(".log"), out / "events.jsonl"
    with log.open("wb") as output:
        argv = [*PARTYWALL, "watch", *names, "--out", str(out)]
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as watch:
            try:
                deadline = time.monotonic() + DEADLINE_S
                while not lines.exists() or b'"span"' not in lines.read_bytes():
                    if time.monotonic() > deadline or watch.poll() is not None:
                        raise NotMeasured(f"the watch did not begin: {log.read_text()}")
                    time.sleep(0.1)
                yield
                time.sleep(READ_S)
            finally:
                watch.terminate()
                watch.wait(DEADLINE_S)


def measured(folder: Path, seed: int) -> tuple[dict[str, float], float]:
    """Of one watch: what each tenant is shown with, by what it wrote; and the tenants' sum by what the disks wrote."""
    out = folder / "watch"
    with tenant("forker", FORKER, folder, seed) as forker, tenant("steady", STEADY, folder, seed) as steady:
        tenants = [forker, steady]
        for each in tenants:
            if each.line() != "ready":
                raise NotMeasured(f"{each.name} cannot write past the page cache (O_DIRECT) to {folder}")
        with watching(out, tenants):
            for each in tenants:
                each.go_on()
            wrote = {each.name: int(each.line()) for each in tenants}
    whole = Watches().findings(WatchRecord.open(out)).whole
    every = parts(whole)
    most = {part.tenant: part.write_bytes_most for part in every}
    shown = {name: _beyond(most.get(name, 0), count) / count for name, count in wrote.items()}
    disks = sum(disk.write_bytes for disk in whole.disks)
    print(json.dumps({"wrote": wrote, "shown": most, "disks": disks}), flush=True)
    return shown, sum(part.write_bytes for part in every) / disks


def _beyond(shown: int, wrote: int) -> int:
    """What is shown, without what a file system may have written itself."""
    return max(min(shown, wrote), shown - SLACK)


@bench(plants={"twice": Plant("what a child did is counted again with its parent", python=TWICE)})
def main(options: Options) -> Outcome:
    shown: list[float] = []
    sums: list[float] = []
    for seed in range(QUICK if options.quick else ROUNDS):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            each, total = measured(Path(folder), seed)
        shown += each.values()
        sums.append(total)
    figure = (
        f"tenants are shown with {min(shown):.1%} to {max(shown):.1%} of what they wrote, "
        f"in all at most {max(sums):.1%} of the disks' bytes, {len(sums)} watches"
    )
    return Outcome(figure, min(shown) >= LEAST and max(shown) <= 1 and max(sums) <= 1)


if __name__ == "__main__":
    main()
