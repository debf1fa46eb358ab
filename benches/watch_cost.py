"""What `partywall-watch` costs: CPU time and memory with 200 groups, memory over a day, and a victim's rate beside it.

Cost: 200 cgroups, each with a process that wakes up twice a second, some of them busy enough to wait. Prometheus'
part is played: /metrics is read every 15 s. CPU time is the scheduler's, after the start; memory is the resident
size. Day: a day of readings of 200 groups whose names change, simulated, in one process; the growth after the first two
hours. Rate: a victim computes on one CPU, while the watch is stopped (SIGSTOP) and continued in random slots of a
second; the figure is how much its rate differs, with its interval.

Bars: at most 0.1 % of a core, 30 MB, a growth of 2 MB, and a rate that differs by at most 0.1 %.

--quick: 30 s, two simulated hours after the first one, and few slots, whose difference is not judged.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import stalled
from common import cpu_ns, program
from frame import NotMeasured, Options, Outcome, Plant, bench
from partywall.core.stats.interval import ratio_of_means

GROUPS = 200
SHARE_MAX, BYTES_MAX, GROWTH_MAX, RATE_MAX = 0.001, 30_000_000, 2_000_000, 0.001
SCRAPE_S, SLOT_S = 15.0, 1.0
SETTLE_S = 15.0
"""After its start, a watch may spend some credit at once."""
OFTEN = """
import partywall.watch.stalls.budget as budget, partywall.watch.stalls.reading as reading
read = reading.Reader.read
budget.Budget.is_due = lambda *_, **__: True
reading.Reader.read = lambda self, *rest: [read(self, *rest) for _ in range(20)][-1]
"""
LEAK = """
import partywall.watch.stalls.watching as watching
take, kept = watching.Watching.take, []
watching.Watching.take = lambda self, *rest: (kept.append(bytes(range(256)) * 20), take(self, *rest))[1]
"""
PLANTS = {
    "often": Plant("all groups are read twenty times every second", python=OFTEN),
    "leak": Plant("each reading keeps 5 kB", python=LEAK),
}
WAKING = """
import os, sys, time
folders = sys.argv[2:]
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        for folder in folders:
            open(f"{folder}/g{number}/cgroup.procs", "w").write(str(os.getpid()))
        time.sleep(0.5 * number / 200)
        while os.getppid() != 1:
            time.sleep(0.5)
            for _ in range(2000): pass
        os._exit(0)
print("ready", flush=True)
time.sleep(1e6)
"""
COMPUTES = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
seen = memoryview(mmap.mmap(file, 8)).cast("Q")
while True:
    for _ in range(1000): pass
    seen[0] += 1
"""
DAY = """
import random, sys, time
from partywall.watch.stalls.reading import ALL, CPU, Count, HostCount, Snapshot
from partywall.watch.stalls.watching import Watching
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
chance, hours = random.Random(1), int(sys.argv[1])
watching = Watching(lambda *_: None, lambda: 0, 0.1)
groups = {f"group-{n}": [0, 0] for n in range(200)}
made, first = 200, 0
for number in range(hours * 720):
    if number == hours * 720 // 3:
        first = resident()
    if number % 12 == 0:
        groups.pop(next(iter(groups)))
        groups[f"group-{made}"] = [0, 0]
        made += 1
    for each in groups.values():
        each[0] += chance.randrange(10**9) if chance.random() < 0.3 else 0
        each[1] += chance.randrange(10**8)
    counts = {CPU: {name: Count(each[0], 0, 0, {ALL: each[1]}) for name, each in groups.items()}}
    watching.take(Snapshot(number * 5 * 10**9, counts, HostCount(busy_ns=number * 10**10)), frozenset(groups))
print(resident() - first)
"""


@contextlib.contextmanager
def busy_groups() -> Iterator[None]:
    """200 groups with a process each."""
    names = [f"g{number}" for number in range(GROUPS)]
    with stalled.groups(names) as made:
        tops = [str(top / made.parent) for top in made.tops]
        argv = [sys.executable, "-c", WAKING, str(GROUPS), *tops]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0) as waking:
            try:
                assert waking.stdout is not None
                if waking.stdout.readline().strip() != "ready":
                    raise NotMeasured("the groups' processes did not start")
                yield
            finally:
                os.killpg(waking.pid, signal.SIGKILL)


def cost(length_s: float) -> tuple[float, int]:
    """(share of a core, resident bytes) of a watch that is scraped."""
    with busy_groups(), stalled.watch(time.monotonic) as running:
        pid = running.process.pid
        time.sleep(SETTLE_S)
        before, began = cpu_ns(pid), time.monotonic()
        while (left_s := length_s - (time.monotonic() - began)) > 0:
            time.sleep(min(SCRAPE_S, left_s))
            text = running.get("/metrics")
        spent_ns, took_s = cpu_ns(pid) - before, time.monotonic() - began
        if _groups(text) < GROUPS:
            raise NotMeasured(f"the watch saw {_groups(text)} groups only")
        period = next(line for line in text.splitlines() if line.startswith("partywall_watch_period"))
        print(f"{_groups(text)} groups, {period}")
        return spent_ns / 1e9 / took_s, _resident(pid)


def _groups(text: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("partywall_watch_groups{"))


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def day(hours: int) -> int:
    """Bytes by which memory grew after the first third of the hours."""
    done = subprocess.run([sys.executable, "-c", DAY, str(hours)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def rate(slots: int) -> tuple[float, float, float]:
    """The difference of a victim's rate with the watch on, and its interval; as shares."""
    chance, rates = random.Random(1), {True: list[float](), False: list[float]()}
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(8)
        seen = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
        argv = ["taskset", "-c", "0", sys.executable, "-c", COMPUTES, file.name]
        with program(*argv), busy_groups(), stalled.watch(time.monotonic) as running:
            for _ in range(slots // 2):
                order = [True, False]
                chance.shuffle(order)
                for is_on in order:
                    running.process.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)
                    count, began = seen[0], time.monotonic()
                    time.sleep(SLOT_S)
                    rates[is_on].append((seen[0] - count) / (time.monotonic() - began))
            running.process.send_signal(signal.SIGCONT)
        seen.release()
    found = ratio_of_means(np.array(rates[True]), np.array(rates[False]))
    return found.value - 1, found.low - 1, found.high - 1


@bench(plants=PLANTS, lacking=stalled.lacking, needs=["taskset"], unjudged="the victim's rate")
def main(given: Options) -> Outcome:
    share, resident = cost(30 if given.quick else 600)
    grown = day(3 if given.quick else 24)
    difference, low, high = rate(10 if given.quick else 1200)
    figure = (
        f"{share:.3%} of a core (at most {SHARE_MAX:.1%}), {resident / 1e6:.1f} MB (at most 30), {GROUPS} groups; "
        f"{grown / 1e6:+.1f} MB over a simulated {'3 h' if given.quick else 'day'}; "
        f"a victim's rate {difference:+.2%} ({low:+.2%} to {high:+.2%})"
    )
    is_same = given.quick or max(-low, high) <= RATE_MAX
    met = share <= SHARE_MAX and resident <= BYTES_MAX and grown <= GROWTH_MAX and is_same
    return Outcome(figure, met)


if __name__ == "__main__":
    main()
