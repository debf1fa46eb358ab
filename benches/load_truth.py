"""Whether a generator tells the truth: against a server whose behaviour is known and that keeps a log of its own.

Delays (50 ms; 50 ms and every tenth 250 ms; a body in five pieces 10 ms apart): p50, p90 and p99 against the server's
log. A freeze of two seconds, met by few users at a rate: it must show in the times from the intended start and not in
the raw ones. Resets, responses shorter and longer than they say, what is no HTTP, and a server that never answers:
errors counted by kind, as many as the server made.

The server's log counts from when a request was there to be read. A load in which the generator warns of one of its own
seconds is carried out again, up to four times, and that is said.

Bar: percentiles within 1 % of the log's, the freeze as said, every error counted under its kind, nothing hangs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from frame import Options, Outcome, bench
from generators import SERVER_CPU, Loaded, load
from partywall.core.report.latency import quantiles
from partywall.load.quick import Quick, program
from partywall.load.second import Timing, histogram

AGENT = Path(__file__).parents[1] / "agent"
SECOND = 1_000_000_000
SHARES = (0.5, 0.9, 0.99)
TRIES = 5
# Spread out: users that wait for the same delay and ask again go in step, and one pause of the host delays all of them.
USERS, RATE = 100, 400
# Beyond a load's length and a request's timeout: making its sandbox, and taking it down.
MARGIN_S = 5

Span = tuple[int, int]
Log = dict[str, list[tuple[int, int, str]]]


class Server:
    """The server as a process; its log once it has ended. within: a command that starts others in its place."""

    def __init__(self, program_: str, address: str = "127.0.0.1", within: Sequence[str] = ()) -> None:
        argv = [*within, "taskset", "-c", str(SERVER_CPU), program_, address]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.url = f"http://{address}:{int(self._process.stdout.readline())}"

    def log(self) -> Log:
        """When each request came, how long it took in ns, and what was done, by path."""
        said, _ = self._process.communicate(timeout=30)
        served: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for line in said.splitlines():
            path, read_ns, written_ns, what = line.split()
            served[path].append((int(read_ns), int(written_ns) - int(read_ns), what))
        return dict(served)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def server(address: str = "127.0.0.1", within: Sequence[str] = ()) -> Iterator[Server]:
    built = ["cargo", "build", "--quiet", "--release", "-p", "partywall-load", "--example", "truth_server"]
    said = subprocess.run([*built, "--message-format=json"], cwd=AGENT, capture_output=True, text=True, check=True)
    paths = [
        line.split('"executable":"')[1].split('"')[0] for line in said.stdout.splitlines() if '"executable":"' in line
    ]
    server = Server(next(path for path in paths if path.endswith("truth_server")), address, within)
    try:
        yield server
    finally:
        server.close()


def timing(loaded: Loaded) -> Timing:
    total = Timing()
    for part in loaded.summary.timings.values():
        total.merge(part)
    return total


def ask(url: str, seconds: float, users: int, rate: float | None = None, timeout_ns: int = 5 * SECOND) -> Loaded:
    """A load; `hung` has those that took longer than their requests' timeout allows."""
    quick = Quick(url=url, for_ns=int(seconds * SECOND), users=users, rate=rate, timeout_ns=timeout_ns)
    began_s = time.monotonic()
    loaded = load(program(quick))
    took_s, most_s = time.monotonic() - began_s, seconds + timeout_ns / SECOND + MARGIN_S
    if took_s > most_s:
        print(f"{url} took {took_s:.1f} s and may take {most_s:.1f} s  HANGS")
        hung.append(url)
    return loaded


hung: list[str] = []


def steady(what: str, load_it: Callable[[], Loaded], tries: int = TRIES) -> tuple[Loaded, Span]:
    """A load without doubtful seconds, if the host has one, and when it was: the log of other times does not count."""
    for _ in range(tries):
        begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        loaded = load_it()
        span = begin_ns, time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        doubtful, reasons = loaded.summary.seconds - loaded.summary.good, ", ".join(loaded.summary.doubtful)
        if not doubtful:
            break
        print(f"{what}: {doubtful} doubtful seconds of {loaded.summary.seconds} ({reasons})", flush=True)
    return loaded, span


def kinds(loaded: Loaded) -> Counter[str]:
    counted: Counter[str] = Counter()
    for error, count in loaded.summary.errors.items():
        counted[error.kind] += count
    return counted


def delays(loads: dict[str, tuple[Loaded, Span]], log: Log) -> float:
    """The largest difference of a percentile, as a share of the log's."""
    worst = 0.0
    for path, (loaded, (begin_ns, end_ns)) in loads.items():
        served = sorted(took for at_ns, took, _ in log[path] if begin_ns <= at_ns <= end_ns)
        worst = max(worst, compared(path, timing(loaded).raw, served))
    return worst


def compared(path: str, raw: dict[int, int], served: list[int]) -> float:
    """The largest difference of a percentile from the log's, as a share. served: the log's times, in order.

    Infinite if not every request is on both sides.
    """
    if len(served) != (counted := sum(raw.values())):
        print(f"{path:9} {len(served)} requests on the log, but {counted} were counted")
        return math.inf
    worst = 0.0
    for share, ours in zip(SHARES, quantiles(histogram(raw), SHARES), strict=True):
        low, high = around(served, share)
        off = ours / min(max(ours, low), high) - 1
        worst = max(worst, abs(off))
        logged = f"{low / 1e6:.3f} to {high / 1e6:.3f}"
        print(f"{path:9} p{share * 100:.0f}: {ours / 1e6:8.3f} ms, the log {logged} ms ({off:+.2%})")
    return worst


def around(served: list[int], share: float) -> tuple[int, int]:
    """Between which times a percentile may be said to lie: those ranked next to it, which differ at a step."""
    rank = share * (len(served) - 1)
    return served[max(0, math.floor(rank) - 1)], served[min(len(served) - 1, math.ceil(rank) + 1)]


def freeze(loaded: Loaded) -> bool:
    corrected, raw = (quantiles(histogram(counts), (0.5, 0.9, 0.999)) for counts in _both(timing(loaded)))
    for name, tops in (("intended start", corrected), ("raw", raw)):
        print(
            f"/freeze from {name}: p50 {tops[0] / 1e6:.2f} ms, p90 {tops[1] / 1e6:.1f} ms, p99.9 {tops[2] / 1e6:.1f} ms"
        )
    return corrected[1] > 0.5 * SECOND and corrected[2] > 1.5 * SECOND and raw[2] < 0.5 * SECOND


def _both(total: Timing) -> tuple[dict[int, int], dict[int, int]]:
    return total.corrected, total.raw


def errors(loads: dict[str, Loaded], log: Log) -> bool:
    """Whether errors are of the right kind, and as many as the server made."""
    right = True
    wanted = {"/reset": "reset", "/short": "truncated", "/long": "excess_bytes", "/garbage": "bad_response"}
    wanted["/silent"] = "timeout"
    for path, kind in wanted.items():
        made = sum(what == path.removeprefix("/") for _, _, what in log[path])
        counted = kinds(loads[path])
        fine = set(counted) == {kind} and counted[kind] == made
        print(f"{path:9} made {made}, counted {dict(counted)}{'' if fine else '  WRONG'}")
        right &= fine
    return right


@bench(plants={"log": "the server logs 5 % less than each request took"})
def main(options: Options) -> Outcome:
    scale = 1 if options.quick else 4
    loads: dict[str, Loaded] = {}
    with server() as there:
        # First, for the freeze is counted from the first request.
        loads["/freeze"] = ask(f"{there.url}/freeze", 8, users=5, rate=1000)
        waited = {
            path: steady(path, functools.partial(ask, there.url + path, 4 * scale, USERS, RATE))
            for path in ("/fixed", "/bimodal", "/slow")
        }
        for path in ("/reset", "/short", "/long", "/garbage"):
            loads[path] = ask(there.url + path, 2 * scale, users=2)
        loads["/silent"] = ask(f"{there.url}/silent", 1, users=5, timeout_ns=SECOND // 5)
        log = there.log()
    if options.plant:
        log = {path: [(at, round(took * 0.95), what) for at, took, what in rows] for path, rows in log.items()}
    worst, frozen, right = delays(waited, log), freeze(loads["/freeze"]), errors(loads, log)
    figure = (
        f"percentiles within {worst:.2%} of the server's log; the freeze {'shows' if frozen else 'FAILS'}; "
        f"errors counted {'by kind' if right else 'WRONGLY'}; {f'{len(hung)} loads HANG' if hung else 'nothing hangs'}"
    )
    return Outcome(figure, worst <= 0.01 and frozen and right and not hung)


if __name__ == "__main__":
    main()
