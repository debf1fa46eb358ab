"""What watching the disks of a host costs: CPU time of `partywall watch` at periods of a second, beside busy tenants.

A loop device has an ext4 file system. Twenty cgroups read from it, each 20 times a second. The watch finds these, and
all that this host has already. Its CPU time comes from the kernel's scheduler (nanoseconds), after its start: once with
its output in a file, and once on a terminal, where it draws tables. Its memory is read at the begin and the end.

Bar: at most 0.5 % of a core, drawing included; its memory grows by less than 15 MB. The memory that Python's allocator
keeps varied by 7 MB in 30 s; a leak of 1 MB a period is 30 MB.

--quick: 30 s each instead of five minutes.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import counted
from common import PARTYWALL, program
from frame import NotMeasured, Options, Outcome, Plant, bench
from partywall.power.activity import Process

SHARE_MAX = 0.005
GROWTH_MAX = 15_000_000
TENANTS = 20
SETTLE_S = 10.0
PERIOD_S = 1.0
READING = "import partywall.watch.measure.reading as reading\nread, kept = reading.Reader.read, []\n"
OFTEN = "reading.Reader.read = lambda self, now_ns: [read(self, now_ns) for _ in range(20)][-1]"
LEAK = "reading.Reader.read = lambda self, now_ns: (kept.append(b'x' * 1_000_000), read(self, now_ns))[1]"
PLANTS = {
    "often": Plant("each period reads all counters twenty times", python=READING + OFTEN),
    "leak": Plant("each period keeps a megabyte", python=READING + LEAK),
}
# Each reads a block past the page cache, and waits.
READER = """
import mmap, os, sys, time
buffer, file = mmap.mmap(-1, 4096), os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
while True:
    os.preadv(file, [buffer], 4096 * (time.monotonic_ns() // 1000 % 1000))
    time.sleep(0.05)
"""


@contextlib.contextmanager
def tenants(folder: Path) -> Iterator[None]:
    """Cgroups with a reader each, of one file on a disk in `folder`."""
    names = [f"t{number}" for number in range(TENANTS)]
    with counted.disk(folder, 64 << 20) as disk, counted.groups(disk, f"bench-watch-{os.getpid()}", names) as parent:
        file = disk.folder / "file"
        file.write_bytes(os.urandom(4 << 20))
        with contextlib.ExitStack() as stack:
            for name in names:
                reader = stack.enter_context(program(sys.executable, "-c", READER, str(file)))
                (parent / name / "cgroup.procs").write_text(str(reader.pid))
            yield


def measured(out: Path, length_s: float, *, terminal: bool) -> tuple[float, int]:
    """(share of a core, bytes by which its memory grew) of a watch."""
    command = [*PARTYWALL, "watch", "--every", f"{PERIOD_S:g}s", "--out", str(out)]
    ours, theirs = pty.openpty() if terminal else (-1, -1)
    with contextlib.ExitStack() as stack:
        output = stack.enter_context((out.parent / f"{out.name}.log").open("wb"))
        watch = subprocess.Popen(
            command, stdin=theirs if terminal else subprocess.DEVNULL, stdout=theirs if terminal else output
        )
        stack.callback(watch.wait)
        stack.callback(watch.terminate)
        if terminal:
            os.close(theirs)
            threading.Thread(target=_drain, args=(ours,), daemon=True).start()
        deadline = time.monotonic() + 60
        while not (out / "events.jsonl").exists() or b'"span"' not in (out / "events.jsonl").read_bytes():
            if time.monotonic() > deadline or watch.poll() is not None:
                raise NotMeasured(f"the watch did not begin; see {output.name}")
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        cpu, memory, first = Process(Path(f"/proc/{watch.pid}")), _memory(watch.pid), _periods(out)
        before = cpu()
        time.sleep(length_s)
        # By periods instead of by time, so that a pause of the whole machine is no saving.
        periods, spent_s, grown = _periods(out) - first, cpu() - before, _memory(watch.pid) - memory
        if periods < length_s / 2:
            raise NotMeasured(f"the watch saw tenants in {periods} periods of {length_s:g} only; see {out}")
    return spent_s / (PERIOD_S * periods), grown


def _periods(out: Path) -> int:
    """The periods in which the watch saw tenants of this benchmark."""
    return sum(
        f"/bench-watch-{os.getpid()}/" in line and '"span"' in line
        for line in (out / "events.jsonl").read_text().splitlines()
    )


def _drain(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 65536):
            pass


def _memory(pid: int) -> int:
    """Bytes of memory that a process uses alone."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))


@bench(plants=PLANTS, lacking=counted.lacking)
def main(given: Options) -> Outcome:
    length_s = 30.0 if given.quick else 300.0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, tenants(Path(folder)):
        results = {
            where: measured(Path(folder) / where, length_s, terminal=where == "terminal")
            for where in ("file", "terminal")
        }
    for where, (share, grown) in results.items():
        print(f"output to a {where}: {share:.3%} of a core, memory {grown / 1e6:+.1f} MB")
    share, grown = (max(result[place] for result in results.values()) for place in (0, 1))
    figure = f"{share:.2%} of a core (at most {SHARE_MAX:.1%}), memory {grown / 1e6:+.1f} MB, {TENANTS} tenants"
    return Outcome(figure, share <= SHARE_MAX and grown <= GROWTH_MAX)


if __name__ == "__main__":
    main()
