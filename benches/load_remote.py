"""Generators on other machines: whether what they measure together is what the service did.

Three network namespaces on a bridge stand for machines: one has the service, two have an sshd each, and clocks an hour
and two hours ahead of this host's. One controller places a generator on both by ssh, and their histograms are merged.
The service is the one of load_truth.py, with known delays and a log of its own.

- Percentiles of both generators together against the service's log, at a rate (open model) and with a number of users
  (closed model). Every request on the log is counted, and each generator sent its part.
- Second by second, the merged records agree with the log: responses that ended in a second, on one clock.
- Everything on one machine is killed during a load: the load ends with one error that names the generator and its
  machine.
- Nothing is left on any machine, once the killed one was connected to again.

The log counts until the last byte was written, the generators until they read it: on a loaded host these differ. Loads
with doubtful seconds are repeated, up to twice, and that is said.

Bar: percentiles within 1 % of the log's; no request missing; at a rate, parts of 49 to 51 %; seconds agree within 1 %
of the responses; the loss is reported; nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence

from frame import Options, Outcome, bench
from generators import Loaded, load
from load_truth import SECOND, Log, Server, Span, compared, server, steady, timing
from machines import NEEDS, Machines, machines
from partywall.errors import PartywallError
from partywall.load.document import Generator
from partywall.load.measure import PreparedLoad, Setup
from partywall.load.quick import Quick, program
from partywall.sandbox.ssh import survey

SERVICE = "service"
AHEAD_S = {"east": 3600, "west": 7200}
USERS_MOST, RATE = 60, 300
# Two generators and the service share this host's CPUs: with more users that read a body in pieces, they would wait for
# each other in every second.
USERS_CLOSED = 12
BAR = 0.01


def setup(made: Machines) -> Setup:
    there = {name: Generator(host=name) for name in AHEAD_S}
    return Setup(name="remote", cpus=(), work_root=made.work_root, generators=there)


def ask(made: Machines, url: str, seconds: float, rate: float | None) -> tuple[Loaded, Span]:
    """A load without doubtful seconds, if the host has one, and when it was."""
    users = USERS_CLOSED if rate is None else USERS_MOST
    quick = Quick(url=url, for_ns=int(seconds * SECOND), users=users, rate=rate, timeout_ns=5 * SECOND)
    return steady(url, lambda: load(program(quick), setup(made)), tries=3)


def of_span(log: Log, path: str, span: Span) -> list[tuple[int, int]]:
    """(when it ended, how long it took) of each request on the log."""
    return [(at_ns + took, took) for at_ns, took, _ in log[path] if span[0] <= at_ns <= span[1]]


def parts(loaded: Loaded) -> dict[str, int]:
    """Requests that each generator sent."""
    sent = dict.fromkeys(AHEAD_S, 0)
    for second in loaded.seconds:
        for name, part in second.parts.items():
            sent[name] += part.requests
    return sent


def strayed(loaded: Loaded, ended: Sequence[tuple[int, int]]) -> float:
    """Responses that were counted in another second than on the log, as a share of all."""
    apart, counted_all, logged_all = 0, 0, 0
    for second in loaded.seconds:
        counted_all += sum(second.statuses.values())
        logged_all += sum(second.start_ns <= at < second.end_ns for at, _ in ended)
        # A response that one clock reports late moves over a second's end: the sums up to there differ by as many.
        apart = max(apart, abs(counted_all - logged_all))
    return apart / max(1, counted_all)


def loss(made: Machines, there: Server) -> str:
    """The message of a load that loses the connection to a generator in its third second."""
    quick = Quick(url=f"{there.url}/fixed", for_ns=60 * SECOND, users=10)
    with PreparedLoad(program(quick), setup(made)) as session:
        killer = threading.Timer(3, _kill_ssh, (made, "west"))
        killer.start()
        try:
            for _ in session.run():
                pass
        except PartywallError as error:
            return str(error)
        finally:
            killer.join()
    return ""


def _kill_ssh(made: Machines, name: str) -> None:
    """Kills what is in a machine, as its crash would."""
    for pid in made.pids(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@bench(
    plants={
        "log": "the service logs 5 % less than each request took",
        "clock": "the service logs every request 0.2 s later than it was",
    },
    needs=NEEDS,
)
def main(options: Options) -> Outcome:
    seconds = 4 if options.quick else 16
    with machines((SERVICE,), AHEAD_S) as made, server(made.address(SERVICE), made.within(SERVICE)) as there:
        loads = {
            ("/fixed", "open"): ask(made, f"{there.url}/fixed", seconds, RATE),
            ("/bimodal", "open"): ask(made, f"{there.url}/bimodal", seconds, RATE),
            ("/slow", "closed"): ask(made, f"{there.url}/slow", seconds, None),
        }
        said = loss(made, there)
        print(f"a generator's machine dies: {said or 'NOTHING is said'}")
        survey("west", str(made.work_root), ())
        left = made.left()
        log = there.log()
    if options.plant == "log":
        log = {path: [(at, round(took * 0.95), what) for at, took, what in rows] for path, rows in log.items()}
    elif options.plant == "clock":
        log = {path: [(at + SECOND // 5, took, what) for at, took, what in rows] for path, rows in log.items()}
    worst, moved, lowest = 0.0, 0.0, 1.0
    for (path, model), (loaded, span) in loads.items():
        ended = of_span(log, path, span)
        worst = max(worst, compared(path, timing(loaded).raw, sorted(took for _, took in ended)))
        sent, stray = parts(loaded), strayed(loaded, ended)
        moved = max(moved, stray)
        if model == "open":
            lowest = min(lowest, min(sent.values()) / max(1, sum(sent.values())))
        print(f"{path:9} {model}: sent {sent}; {stray:.2%} of responses in another second than on the log", flush=True)
    reported = "west" in said and "ended" in said
    figure = (
        f"merged percentiles within {worst:.2%} of the log's, seconds within {moved:.2%}; "
        f"the smaller part {lowest:.1%}; "
        f"a lost generator {'is reported' if reported else 'is NOT reported'}; "
        f"{'nothing is' if not left else f'{left} IS'} left"
    )
    met = worst <= BAR and moved <= BAR and lowest >= 0.49 and reported and not left
    return Outcome(figure, met)


if __name__ == "__main__":
    main()
