"""What a request costs the generator, beside wrk.

nginx with one worker on one core answers a few fixed bytes; the generator is on another, with 50 connections kept
alive. Both take turns, so that both meet the same host. CPU time is user and system time of the generator's whole
process; Partywall's includes recording every latency twice and sending its records away.

Bar: CPU time a request not more than wrk's, requests a second not fewer (medians of pairs; the rate is the server's
doing, so its bar allows what pairs vary by).
"""

from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Callable

from common import Ratio, arguments, conclude
from generators import GENERATOR_CPU, load, nginx
from partywall.load.quick import Quick, program
from partywall.sandbox import reap

CONNECTIONS = 50


def wrk(url: str, seconds: int) -> tuple[float, float]:
    """(requests a second, CPU µs a request)"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = ["taskset", "-c", str(GENERATOR_CPU), "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", url]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    requests, rate = re.search(r"(\d+) requests in", said), re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert requests is not None
    assert rate is not None
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(rate[1]), cpu_s * 1e6 / int(requests[1])


def ours(url: str, seconds: int) -> tuple[float, float]:
    found = load(program(Quick(url=url, for_ns=seconds * 1_000_000_000, users=CONNECTIONS)))
    assert not found.summary.errors, found.summary.errors
    counted = sum(timing.count for timing in found.summary.timings.values())
    assert counted == found.summary.responses, "a latency was not recorded"
    return found.summary.rate, found.cpu_us_per_request


def main() -> None:
    options = arguments(__doc__ or "")
    seconds, pairs = (2, 9) if options.quick else (3, 17)
    reap()
    rates, costs = [], []
    turns: list[Callable[[str, int], tuple[float, float]]] = [ours, wrk]
    with nginx() as url:
        for number in range(pairs):
            order = turns if number % 2 == 0 else turns[::-1]
            found = {which: which(url, seconds) for which in order}
            rates.append(found[ours][0] / found[wrk][0])
            costs.append(found[ours][1] / found[wrk][1])
            print(
                f"ours {found[ours][0]:8.0f}/s {found[ours][1]:5.2f} µs   "
                f"wrk {found[wrk][0]:8.0f}/s {found[wrk][1]:5.2f} µs",
                flush=True,
            )
    rate, cost = Ratio(rates), Ratio(costs)
    figure = f"CPU a request / wrk's {cost}; requests a second / wrk's {rate}"
    conclude("load-cost", figure, met=cost.median <= 1 and rate.interval()[1] >= 1)


if __name__ == "__main__":
    main()
