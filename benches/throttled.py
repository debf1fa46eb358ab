"""A simulated host whose groups are stopped by their own limits: what a watch says of them, and what is true.

Each tick of a millisecond, tasks that want to run take turns on the CPUs. The counters are those of the kernel: PSI,
CPU time, and how long a limit stopped a group. Called as a program it prints how many self-throttled victims were
blamed on a neighbour.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field

from partywall.watch.stalls.reading import ALL, CPU, Count, Differences, HostCount, Snapshot
from partywall.watch.stalls.rule import NO_SUSPECT, OTHER, divided

TICK_NS = 1_000_000
PERIOD, SECONDS, CPUS = 100, 5, 2


@dataclass
class Group:
    """wants: the share of ticks in which a task wants to run. quota: ticks a period; None without a limit."""

    tasks: int
    wants: float
    quota: int | None = None
    ran: int = 0
    some: int = 0
    every: int = 0
    stopped: int = 0
    left: int = field(default=0, init=False)

    def count(self) -> Count:
        return Count(self.some * TICK_NS, self.every * TICK_NS, self.stopped * TICK_NS, {ALL: self.ran * TICK_NS})


def simulate(groups: dict[str, Group], chance: random.Random, ticks: int) -> int:
    """Runs the host. Returns the CPU time of all in ticks."""
    busy = 0
    for tick in range(ticks):
        if tick % PERIOD == 0:
            for group in groups.values():
                group.left = group.quota if group.quota is not None else CPUS * PERIOD
        # Bursts: who is in one wants all the time.
        want = {name: group.tasks for name, group in groups.items() if chance.random() < group.wants}
        queue = [name for name, tasks in want.items() for _ in range(tasks)]
        chance.shuffle(queue)
        running: dict[str, int] = {}
        for name in queue:
            if sum(running.values()) < CPUS and groups[name].left > 0:
                running[name] = running.get(name, 0) + 1
                groups[name].left -= 1
        for name, tasks in want.items():
            group, on = groups[name], running.get(name, 0)
            group.ran, busy = group.ran + on, busy + on
            group.some += on < tasks
            group.every += on == 0
            group.stopped += on < tasks and group.left <= 0
    return busy


def blamed(seed: int, *, neighbours_hurt: bool = False) -> bool:
    """True if the largest part of a victim's waiting is a neighbour's.

    The victim is stopped by its own limit for most of its time; neighbours_hurt: it has no limit, and they crowd it.
    """
    chance = random.Random(seed)
    quota = None if neighbours_hurt else chance.randint(5, 40)
    groups = {"victim": Group(chance.randint(1, 2), 1.0, quota)}
    for number in range(chance.randint(1, 6)):
        wants = 1.0 if neighbours_hurt else chance.uniform(0.05, 0.5)
        groups[f"n{number}"] = Group(2 if neighbours_hurt else 1, wants, chance.choice([None, 50]))
    differences, parts, busy = Differences(), dict[str, int](), 0
    for second in range(SECONDS + 1):
        counts = {CPU: {name: group.count() for name, group in groups.items()}}
        interval = differences.take(Snapshot(second * 10**9, counts, HostCount(busy_ns=busy * TICK_NS)))
        for pair in divided(interval.shares[CPU], interval.others[CPU]) if interval else ():
            if pair.victim == "victim":
                parts[pair.suspect] = parts.get(pair.suspect, 0) + pair.stalled_ns
        busy += simulate(groups, chance, 1000)
    neighbours = sum(part for name, part in parts.items() if name not in NO_SUSPECT or name == OTHER)
    return bool(parts) and neighbours > sum(parts.values()) / 2


if __name__ == "__main__":
    number = int(sys.argv[1])
    print(sum(blamed(seed) for seed in range(number)), sum(blamed(seed, neighbours_hurt=True) for seed in range(20)))
