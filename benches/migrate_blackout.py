"""How well a guest's blackout is measured: stops of known length, and the three blackouts of real moves.

A guest is stopped and continued by QEMU's monitor, for 5 to 2000 ms. How long is known from QEMU's own events. The
guest's clock must have fallen back by as much, and clients must have waited as long, but for their own interval.

Then guests are moved. Each move must have all three blackouts. QEMU's events and the guest's clock must agree, and the
time from STOP to RESUME must lie within the time without answers that clients saw.

A guest's first answer after a stop takes longer than its others, most of all if it is emulated. How much longer is
measured by stops of no length, of the same guest with the same clients: QEMU must stop and continue at once.
They stand among the others in random order. Two other waits are kept out, for they are no errors either:

* What clients send during a stop would wait in the tap's queue, and a guest that continues would have to go through it
  first: some 10 ms after a second, emulated. So the queue holds one packet here.
* A CPU that slept through a stop takes some 2 ms to wake up, if it is virtual itself. So idle CPUs poll during the
  stops, where the kernel can make them.

Clients are judged by how much longer than the truth they waited at stops, beyond what they waited at stops of no length
(difference of medians, with a 90 % interval by resampling). What they waited without that correction is printed beside.
Stops of the guest's clock are judged by the largest error.

Bar: stops seen by the guest's clock within 2 ms; the median of clients within one interval of the truth, corrected as
above; in every move events and the guest's clock within 5 ms of each other, and STOP and RESUME at most 5 ms outside
the clients' wait.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import moves
from frame import Options, Outcome, bench, in_parts
from partywall.agent.clock import Alignment
from partywall.clock import Monotonic
from partywall.events import silent
from partywall.host import Host
from partywall.host.settings import idle
from partywall.migrate.document import MoveFinding
from partywall.migrate.findings.cost import move_finding
from partywall.migrate.measure import qmp
from partywall.migrate.measure.network import GUEST
from partywall.migrate.measure.pings import Pings
from partywall.migrate.measure.series import PEER_PORT, Series
from partywall.sandbox.lab import ip

STOPS_MS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000)
RATE = 500
PERIOD_MS = 1000 / RATE
GUEST_MS, EVENTS_MS = 2.0, 5.0


@dataclass(frozen=True)
class Stop:
    """One stop, in ms: requested, by QEMU's events, by the guest's clock, by clients, and their usual wait."""

    asked: float
    truth: float
    guest: float
    clients: float
    usual: float


def stop(series: Series, requested_ms: float, again_ms: float) -> Stop:
    """Stops the guest for a time, with clients before and after. again_ms: of a second stop before."""
    monitor = series.guest.current().monitor
    with tempfile.TemporaryDirectory() as folder:
        address, enter = GUEST.partition("/")[0], series.network.enter("clients")
        pings = Pings(address, PEER_PORT, RATE, Path(folder, "pings.npy"), enter)
        try:
            time.sleep(0.8)
            before = offset(series)
            list(qmp.announced(monitor))
            if again_ms:
                monitor.execute("stop")
                time.sleep(again_ms / 1e3)
                monitor.execute("cont")
            monitor.execute("stop")
            time.sleep(requested_ms / 1e3)
            monitor.execute("cont")
            after = offset(series)
            time.sleep(0.5)
            table = pings.stop()["pings"]
        finally:
            pings.close()
    # Events arrive during the next command.
    monitor.execute("query-status")
    events = {event.name: event.at_ns for event in qmp.announced(monitor)}
    answered = np.sort(table[table[:, 2] > 0, 2])
    waits = np.diff(answered)
    # The wait in which the guest continued.
    place = int(np.searchsorted(answered, events["resume"], "right"))
    return Stop(
        requested_ms,
        (events["resume"] - events["stop"]) / 1e6,
        (after - before) / 1e6,
        float(answered[place] - answered[place - 1]) / 1e6,
        float(np.quantile(np.delete(waits, place - 1), 0.99)) / 1e6,
    )


def corrected(stops: Sequence[Stop]) -> tuple[float, float, float]:
    """How much longer than the truth clients waited, beyond stops of no length: ms, and the ends of its interval."""
    chance = np.random.default_rng(1)
    over, none = (
        np.array([each.clients - each.truth for each in stops if bool(each.asked) == is_requested])
        for is_requested in (True, False)
    )
    value = float(np.median(over) - np.median(none))
    drawn = [np.median(chance.choice(over, len(over))) - np.median(chance.choice(none, len(none))) for _ in range(2000)]
    low, high = np.quantile(drawn, (0.05, 0.95))
    return value, float(low), float(high)


def offset(series: Series) -> int:
    """What to add to the guest's time now."""
    client = series.guest.client
    if client is None:
        raise RuntimeError("the guest has no agent")
    alignment = Alignment(client, Monotonic())
    alignment.ask(24)
    return alignment.best.offset_ns


def part(known_ms: Sequence[int], count: int, seed: int, again_ms: float) -> dict[str, list[dict[str, Any]]]:
    """Stops of known length, as many of no length, and moves, of one guest, as plain values."""
    requested_ms = [*known_ms, *[0] * (len(known_ms) + 1)]
    random.Random(seed).shuffle(requested_ms)
    plan = moves.plan(
        guest={"memory": "160MiB"}, link={"rate": "800Mbit/s"}, clients={"pings": RATE}, moves=count, calibration=0,
        before="1s", after="1s",
    )  # fmt: skip
    findings: list[MoveFinding] = []
    with moves.series(plan) as series:
        tap = series.network.port(series.guest.current().place)
        ip("-n", tap.namespace, "link", "set", "dev", tap.interface, "txqueuelen", "1")
        with contextlib.nullcontext() if idle.why_not(Host.here()) else idle.polled():
            stops = [stop(series, length_ms, again_ms=again_ms if length_ms else 0) for length_ms in requested_ms]
        for each in stops:
            print(
                f"stop of {each.truth:7.1f} ms: the guest's clock {each.guest - each.truth:+6.2f} ms, "
                f"clients {each.clients - each.truth:+6.2f} ms (usual wait, p99: {each.usual:.1f} ms)",
                flush=True,
            )
        series.carry_out(silent, lambda seen: findings.append(move_finding(seen.move, seen.tables)))
    left_out: Any = {"timeline": True, "users_timeline": True, "move": {"progress", "passes"}}
    return {
        "stops": [asdict(each) for each in stops],
        "moves": [each.model_dump(mode="json", exclude=left_out) for each in findings],
    }


def outside_ms(finding: MoveFinding) -> float:
    """How far STOP or RESUME lies outside the time without an answer that clients saw; 0 if both are inside."""
    gap, move = finding.clients_gap, finding.move
    if gap is None or move.paused_ns is None or move.resumed_ns is None:
        return math.inf
    return max(0, gap.begin_ns - move.paused_ns, move.resumed_ns - gap.end_ns) / 1e6


@bench(plants={"again": "a second stop, of 20 ms, that the first one hides"}, folder=True, lacking=moves.lacking)
def main(options: Options) -> Outcome:
    count = 2 if options.quick else 30
    known = STOPS_MS[::2] if options.quick else STOPS_MS
    shares = (count,) if options.quick else (count // 3,) * 3
    parts = {
        f"part {number}": functools.partial(part, known, share, number, again_ms=20 if options.plant else 0)
        for number, share in enumerate(shares, 1)
    }
    done = in_parts(parts, options).values()
    stops = [Stop(**each) for part in done for each in part["stops"]]
    findings = [MoveFinding.model_validate(each) for part in done for each in part["moves"]]
    off = [abs(each.guest - each.truth) for each in stops]
    raw = statistics.median(each.clients - each.truth for each in stops if each.asked)
    waited, low, high = corrected(stops)
    whole = [
        each for each in findings if each.parts and each.events_ns is not None and each.move.stopped_ns is not None
    ]
    apart = [abs((each.events_ns or 0) - (each.move.stopped_ns or 0)) / 1e6 for each in whole]
    outside = [outside_ms(each) for each in whole]
    for moved in whole:
        parts = " + ".join(f"{part.ns / 1e6:.0f}" for part in moved.parts)
        print(f"move: clients waited {(moved.clients_ns or 0) / 1e6:.0f} ms = {parts}", flush=True)
    polled = "not polled" if idle.why_not(Host.here()) else "polled"
    met = (
        max(off) <= GUEST_MS
        and abs(waited) <= PERIOD_MS
        and len(whole) == count
        and max(apart) <= EVENTS_MS
        and max(outside) <= EVENTS_MS
    )
    return Outcome(
        f"guest's clock within {max(off):.2f} ms of {len(stops)} stops, clients {waited:+.2f} ms ({low:+.2f} to "
        f"{high:+.2f}) beyond stops of no length, {raw:+.2f} ms without that, idle CPUs {polled}; {len(whole)} of "
        f"{count} moves whole, events and clock within {max(apart, default=0):.2f} ms, STOP and RESUME at most "
        f"{max(outside, default=0):.2f} ms outside what clients waited",
        met,
    )


if __name__ == "__main__":
    main()
