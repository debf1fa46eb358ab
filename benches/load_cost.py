"""What a request costs the generator, beside wrk.

nginx with one worker on one core answers a few fixed bytes; the generator is on another, with 50 connections kept
alive. Both take turns, so that both meet the same host. CPU time is user and system time of the generator's whole
process; Partywall's includes recording every latency twice and sending its records away.

Where the server's core never idles, requests a second are the server's doing and not the generator's: how much it idled
is printed beside each rate.
"""

from __future__ import annotations

import contextlib
import re
import resource
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from common import Ratio, busy_cpu, idle_s
from frame import Options, Outcome, bench
from generators import GENERATOR_CPU, SERVER_CPU, load, nginx
from partywall.load.quick import Quick, program

CONNECTIONS = 50


@dataclass(frozen=True)
class Turn:
    """rate: requests a second; cost: CPU µs a request; idle: share of the time in which the server's core idled."""

    rate: float
    cost: float
    idle: float = 0.0


def wrk(url: str, seconds: int) -> Turn:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = ["taskset", "-c", str(GENERATOR_CPU), "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", url]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    requests, rate = re.search(r"(\d+) requests in", said), re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert requests is not None
    assert rate is not None
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(float(rate[1]), cpu_s * 1e6 / int(requests[1]))


def ours(url: str, seconds: int) -> Turn:
    measured = load(program(Quick(url=url, for_ns=seconds * 1_000_000_000, users=CONNECTIONS)))
    assert not measured.summary.errors, measured.summary.errors
    counted = sum(timing.count for timing in measured.summary.timings.values())
    assert counted == measured.summary.responses, "a latency was not recorded"
    return Turn(measured.summary.rate, measured.cpu_us_per_request)


def watched(which: Callable[[str, int], Turn], url: str, seconds: int) -> Turn:
    """A turn, with the idling of the server's core in the middle of it."""
    turns: list[Turn] = []
    thread = threading.Thread(target=lambda: turns.append(which(url, seconds)))
    thread.start()
    time.sleep(seconds / 2)
    before, began = idle_s(SERVER_CPU), time.monotonic()
    time.sleep(seconds / 4)
    idle = (idle_s(SERVER_CPU) - before) / (time.monotonic() - began)
    thread.join()
    return Turn(turns[0].rate, turns[0].cost, idle)


@bench(plants={"shared": "another program on the core of our generator"}, needs=("nginx", "wrk"))
def main(options: Options) -> Outcome:
    seconds, pairs = (2, 9) if options.quick else (4, 17)
    turns: list[Callable[[str, int], Turn]] = [ours, wrk]
    turns_by: dict[str, list[Turn]] = {"ours": [], "wrk": []}
    with nginx() as url:
        for number in range(pairs):
            for which in turns if number % 2 == 0 else turns[::-1]:
                with busy_cpu(GENERATOR_CPU) if options.plant and which is ours else contextlib.nullcontext():
                    turns_by[which.__name__].append(watched(which, url, seconds))
            said = [
                f"{name} {t[-1].rate:8.0f}/s {t[-1].cost:5.2f} µs, core idle {t[-1].idle:5.1%}"
                for name, t in turns_by.items()
            ]
            print("   ".join(said), flush=True)
    pairs_ = list(zip(turns_by["ours"], turns_by["wrk"], strict=True))
    rate, cost = (
        Ratio([own.rate / peer.rate for own, peer in pairs_]),
        Ratio([own.cost / peer.cost for own, peer in pairs_]),
    )
    idle = {name: statistics.median(turn.idle for turn in turns_) for name, turns_ in turns_by.items()}
    print(f"the server's core idled {idle['ours']:.1%} of the time under our load, {idle['wrk']:.1%} under wrk's")
    figure = f"CPU a request / wrk's {cost}; requests a second / wrk's {rate}"
    return Outcome(figure, cost.median <= 1 <= rate.median)


if __name__ == "__main__":
    main()
