"""Whether a generator knows when it is starved, and stays silent when it is not.

Healthy: 500 requests a second at random times against nginx on another core. Starved by neighbours: the same with three
busy programs on the generator's core. Starved by a limit: as many users as one core carries, who ask without pause, in
a cgroup that gives half of a core (needs root; cgroups of version 1 or 2).

What makes a second doubtful was decided before these runs, from what it would do to percentiles (docs/load.md).

Bar: every full second of both starved runs is doubtful, and at least 99 % of the healthy run's are good.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from common import arguments, conclude
from generators import GENERATOR_CPU, Found, load, nginx
from partywall.load.health import Doubt
from partywall.load.quick import Quick, program
from partywall.load.session import Session
from partywall.sandbox import cgroups, reap

SECOND = 1_000_000_000


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Three programs that want all of the generator's core."""
    loops = [
        subprocess.Popen(["taskset", "-c", str(GENERATOR_CPU), "sh", "-c", "while :; do :; done"]) for _ in range(3)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


PERIOD_US = 100_000


@contextlib.contextmanager
def limited(session: Session) -> Iterator[None]:
    """Half of a core for the session's generator, in a cgroup that goes with the session, or with its reaper."""
    pid = session.generator_pid
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    run = next(line.partition("=")[2] for line in environment if line.startswith("PARTYWALL_RUN="))
    found = cgroups.read()
    root = found.v1.get("cpu") or found.unified
    assert root is not None, "there is no cgroup to limit CPU time with"
    folder = root / "partywall" / run
    folder.mkdir(parents=True)
    if "cpu" in found.v1:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(PERIOD_US // 2))
    else:
        for above in (root, root / "partywall"):
            (above / "cgroup.subtree_control").write_text("+cpu")
        (folder / "cpu.max").write_text(f"{PERIOD_US // 2} {PERIOD_US}")
    (folder / "cgroup.procs").write_text(str(pid))
    yield


def full(found: Found) -> list[bool]:
    """Whether each whole second of the stages is good."""
    end_ns = found.begin_ns + found.summary.length_s * 1e9
    pairs = zip(found.seconds, found.healths, strict=True)
    return [health.good for second, health in pairs if second.start_ns > found.begin_ns and second.end_ns <= end_ns]


def show(name: str, found: Found) -> list[bool]:
    good = full(found)
    reasons = ", ".join(f"{Doubt(doubt)} {count}" for doubt, count in found.summary.doubtful.items()) or "none"
    print(f"{name}: {sum(good)} of {len(good)} seconds good; doubts: {reasons}", flush=True)
    return good


def main() -> None:
    options = arguments(__doc__ or "")
    healthy_s, starved_s = (32, 7) if options.quick else (420, 30)
    reap()
    with nginx() as url:

        def rate(seconds: int) -> Quick:
            return Quick(url=url, for_ns=seconds * SECOND, rate=500, poisson=True, users=100)

        healthy = show("healthy", load(program(rate(healthy_s))))
        with busy():
            starved = show("busy neighbours", load(program(rate(starved_s))))
        full_speed = Quick(url=url, for_ns=starved_s * SECOND, users=50)
        starved += show("CPU limit", load(program(full_speed), around=limited))
    silent, told = sum(healthy), sum(not good for good in starved)
    figure = (
        f"{told} of {len(starved)} starved seconds are told, {silent} of {len(healthy)} healthy seconds are silent "
        f"({silent / len(healthy):.1%})"
    )
    conclude("load-health", figure, met=told == len(starved) and silent >= 0.99 * len(healthy))


if __name__ == "__main__":
    main()
