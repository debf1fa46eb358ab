"""Whether a generator knows when it is starved, and stays silent when it is not.

Healthy: 500 requests a second at random times against nginx on another core. Starved by neighbours: the same with three
busy programs on the generator's core. Starved by a limit: as many users as one core carries, who ask without pause, in
a cgroup that gives half of a core (needs root; cgroups of version 1 or 2).

What makes a second doubtful was decided before these runs, from what it would do to percentiles (docs/load.md).

A host that others use does not leave the generator alone for minutes. So the run without our neighbours is watched
from outside: a second is healthy if, by the kernel's accounts of all tasks, others than the generator ran on its core
for under 0.5 % of it, none of it was stolen, and no task was started, for one that ended within it is in no account.
The verdict on the other seconds is also printed.

Bar: every full second of both starved runs is doubtful, and at least 99 % of the healthy ones are good. If more than
half of the seconds left alone are not healthy, the host was too busy to tell, and the bar is not met.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from unittest import mock

from common import busy_cpu, stolen_s
from frame import Options, Outcome, Plant, bench
from generators import GENERATOR_CPU, Loaded, load, nginx
from partywall.load.health import Health, Reason
from partywall.load.measure import PreparedLoad
from partywall.load.quick import Quick, program
from partywall.load.second import FULL_S, Second
from partywall.sandbox import cgroups

SECOND = 1_000_000_000


PERIOD_US = 100_000
FOREIGN_SHARE = 0.005


class Core(threading.Thread):
    """Watches the generator's core: `disturbed` are the seconds in which others had it, by their number."""

    def __init__(self, session: PreparedLoad) -> None:
        super().__init__(daemon=True)
        self._generator = str(session.generator_pid)
        self._over = threading.Event()
        self.disturbed: set[int] = set()
        self.watched: set[int] = set()

    def run(self) -> None:
        before, stolen, started = self._tasks(), stolen_s(GENERATOR_CPU), _started()
        number = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // SECOND + 1
        while not self._over.wait(number - time.clock_gettime(time.CLOCK_MONOTONIC)):
            after, stolen_after, started_after = self._tasks(), stolen_s(GENERATOR_CPU), _started()
            here = {task: ns for task, (ns, cpu) in after.items() if cpu == GENERATOR_CPU}
            ran_ns = sum(ns - before.get(task, (0, 0))[0] for task, ns in here.items())
            self.watched.add(number - 1)
            if ran_ns > FOREIGN_SHARE * SECOND or stolen_after > stolen or started_after > started:
                self.disturbed.add(number - 1)
            before, stolen, started = after, stolen_after, started_after
            number += 1

    def _tasks(self) -> dict[str, tuple[int, int]]:
        """CPU time in ns of each task but the generator's, and where it ran last."""
        tasks = {}
        for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
            if task.parts[2] == self._generator:
                continue
            with contextlib.suppress(OSError, IndexError):
                cpu = int((task / "stat").read_text().rpartition(")")[2].split()[36])
                tasks[task.name] = int((task / "schedstat").read_text().split()[0]), cpu
        return tasks

    def stop(self) -> None:
        self._over.set()
        self.join()


def _started() -> int:
    """Tasks that this host has started since it booted."""
    lines = Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


@contextlib.contextmanager
def limited(session: PreparedLoad) -> Iterator[None]:
    """Half of a core for the session's generator, in a cgroup that goes with the session, or with its reaper."""
    pid = session.generator_pid
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    run = next(line.partition("=")[2] for line in environment if line.startswith("PARTYWALL_RUN="))
    mounted = cgroups.read()
    root = mounted.v1.get("cpu") or mounted.unified
    assert root is not None, "there is no cgroup to limit CPU time with"
    folder = root / "partywall" / run
    folder.mkdir(parents=True)
    if "cpu" in mounted.v1:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(PERIOD_US // 2))
    else:
        for above in (root, root / "partywall"):
            (above / "cgroup.subtree_control").write_text("+cpu")
        (folder / "cpu.max").write_text(f"{PERIOD_US // 2} {PERIOD_US}")
    (folder / "cgroup.procs").write_text(str(pid))
    yield


@contextlib.contextmanager
def watched(session: PreparedLoad) -> Iterator[None]:
    """Watches the generator's core meanwhile; `cores` has who watched."""
    cores.append(Core(session))
    cores[-1].start()
    try:
        yield
    finally:
        cores[-1].stop()


cores: list[Core] = []


def undisturbed(load_found: Loaded, core: Core) -> list[bool]:
    """Whether each whole second is good, of those in which nobody else had the generator's core."""
    whole = dict(zip(numbers(load_found), full(load_found), strict=True))
    others = [good for number, good in whole.items() if number in core.disturbed]
    print(
        f"others had its core in {len(others)} seconds, {len(others) - sum(others)} of which are doubtful", flush=True
    )
    return [good for number, good in whole.items() if number in core.watched - core.disturbed]


def numbers(loaded: Loaded) -> list[int]:
    """The whole seconds of the stages, as the clock counts them."""
    return [second.start_ns // SECOND for second in loaded.seconds if _whole(second, loaded)]


def _whole(second: Second, loaded: Loaded) -> bool:
    end_ns = loaded.begin_ns + loaded.summary.length_s * 1e9
    return second.start_ns > loaded.begin_ns and second.end_ns <= end_ns and second.length_s > FULL_S


def full(loaded: Loaded) -> list[bool]:
    """Whether each whole second of the stages is good."""
    pairs = zip(loaded.seconds, loaded.healths, strict=True)
    return [health.good for second, health in pairs if _whole(second, loaded)]


def show(name: str, loaded: Loaded) -> list[bool]:
    good = full(loaded)
    reasons = ", ".join(f"{Reason(reason)} {count}" for reason, count in loaded.summary.doubtful.items()) or "none"
    print(f"{name}: {sum(good)} of {len(good)} seconds good; warnings: {reasons}", flush=True)
    return good


def deaf() -> AbstractContextManager[object]:
    return mock.patch.object(PreparedLoad, "judge", return_value=Health({}))


@bench(plants={"deaf": Plant("lateness and throttling of the generator go unnoticed", around=deaf)}, needs=("nginx",))
def main(options: Options) -> Outcome:
    healthy_s, starved_s = (32, 7) if options.quick else (300, 30)
    with nginx() as url:

        def rate(seconds: int) -> Quick:
            return Quick(url=url, for_ns=seconds * SECOND, rate=500, poisson=True, users=100)

        alone = load(program(rate(healthy_s)), around=watched)
        left = show("left alone", alone)
        healthy = undisturbed(alone, cores[0])
        with busy_cpu(GENERATOR_CPU, 3):
            starved = show("busy neighbours", load(program(rate(starved_s))))
        full_speed = Quick(url=url, for_ns=starved_s * SECOND, users=50)
        starved += show("CPU limit", load(program(full_speed), around=limited))
    silent, warned = sum(healthy), sum(not good for good in starved)
    enough = bool(starved) and 2 * len(healthy) >= len(left) > 0
    met = enough and warned == len(starved) and silent >= 0.99 * len(healthy)
    figure = (
        f"{warned} of {len(starved)} starved seconds have a warning, "
        f"{silent} of {len(healthy)} healthy seconds have none "
        f"({len(healthy)} of {len(left)} seconds were healthy)"
    )
    return Outcome(figure, met)


if __name__ == "__main__":
    main()
