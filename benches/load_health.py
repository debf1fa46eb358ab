"""Whether a generator knows when it is starved, and stays silent when it is not.

Healthy: 500 requests a second at random times against nginx on another core. Starved: the same with a busy program on
the generator's core. A generator under a CPU limit is not tried here: a container has a network of its own, in which
the server is not to be found.

Bar: every full second of the starved run is doubtful, and at least 99 % of the healthy run's are good.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

from common import arguments, conclude
from generators import GENERATOR_CPU, Found, load, nginx
from partywall.load.health import Doubt
from partywall.load.quick import Quick, program
from partywall.sandbox import reap

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
    healthy_s, starved_s = (25, 7) if options.quick else (120, 30)
    reap()
    with nginx() as url:

        def asked(seconds: int) -> Quick:
            return Quick(url=url, for_ns=seconds * SECOND, rate=500, poisson=True, users=100)

        healthy = show("healthy", load(program(asked(healthy_s))))
        with busy():
            starved = show("starved", load(program(asked(starved_s))))
    silent = sum(healthy) / len(healthy)
    told = sum(not good for good in starved) / len(starved)
    figure = f"{told:.1%} of starved seconds are told, {silent:.1%} of healthy seconds are silent"
    conclude("load-health", figure, met=told == 1 and silent >= 0.99)


if __name__ == "__main__":
    main()
