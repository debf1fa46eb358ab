"""What watching a move costs the move: its time and QEMU's downtime with and without clients, against an A/A band.

A guest at work moves by the same method three ways, in random order in rounds: watched by the usual client (1000
datagrams a second), watched again in the same way (A/A), and without a client. QEMU's own figures are compared, for
they exist without a client too.

Bar: the ratio of watched to unwatched differs from 1 by no more than the A/A ratio's interval allows, in time and in
downtime. --quick has few rounds: there, the nearest value of the ratio's own interval counts.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence

import moves
from frame import Options, Outcome, bench, in_parts
from partywall.clock import Monotonic
from partywall.core.stats import rounds
from partywall.core.stats.estimate import Estimate
from partywall.migrate.document import Activity, Method
from partywall.migrate.measure.move import Moved, Mover
from partywall.migrate.measure.network import GUEST
from partywall.migrate.measure.pings import Pings
from partywall.migrate.measure.series import PEER_PORT, Series

RATE = 1000.0
ROUNDS, FEWEST, MS = 5, 3, 1_000_000
TIMES = ("total_ns", "downtime_ns")
WAYS = ("watched", "again", "unwatched")
WRITER = Activity(kernel="memory-dirty", params={"working_set_bytes": 16 << 20, "rate_bytes_per_s": 8 << 20})
GIVE_UP_NS = 60_000_000_000
LEVEL = 0.95


@bench(plants={"slower": "watched moves get half of the bandwidth"}, folder=True, lacking=moves.lacking)
def main(options: Options) -> Outcome:
    watched = Method(bandwidth="200Mbit/s") if options.plant else Method()
    count = 1 if options.quick else 4
    parts = {f"part {number}": functools.partial(some_rounds, number, watched) for number in range(1, count + 1)}
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for part in in_parts(parts, options).values():
        for way in WAYS:
            taken[way] += part[way]
    whole = sum(all(row) for row in zip(*([each["total_ns"] for each in taken[way]] for way in WAYS), strict=True))
    if whole < FEWEST:
        return Outcome(f"{whole} rounds have only moves that ended, which are too few", False)
    ratios = {name: compared(taken, name) for name in TIMES}
    for name, (same, cost) in ratios.items():
        print(f"{name[:-3]:9} again/watched {text(same)}; watched/unwatched {text(cost)}", flush=True)
    met = all(
        away(cost, by_interval=options.quick) <= max(1 - same.low, same.high - 1, 0.0) for same, cost in ratios.values()
    )
    figures = "; ".join(f"{name[:-3]} {text(cost)}, A/A {text(same)}" for name, (same, cost) in ratios.items())
    return Outcome(f"watched by unwatched: {figures}", met)


def some_rounds(seed: int, watched: Method) -> dict[str, list[dict[str, float]]]:
    """Times of moves by way, of a guest of its own."""
    chance = random.Random(seed)
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    plan = moves.plan(guest={"memory": "160MiB"}, link={"rate": "400Mbit/s"}, calibration=0)
    with moves.series(plan) as series, series.working(WRITER):
        mover = Mover(series.guest, Monotonic())
        for _ in range(ROUNDS):
            for way in chance.sample(WAYS, len(WAYS)):
                move = moved(series, mover, way, watched)
                taken[way].append({name: float(getattr(move, name) or 0) for name in TIMES})
    return taken


def moved(series: Series, mover: Mover, way: str, watched: Method) -> Moved:
    """One move, with a client and the method `watched`, or without."""
    if way == "unwatched":
        return series.move(mover, Method(), GIVE_UP_NS)
    file = series.label.work / "pings.npy"
    pings = Pings(GUEST.partition("/")[0], PEER_PORT, RATE, file, series.network.enter("clients"))
    try:
        return series.move(mover, watched, GIVE_UP_NS)
    finally:
        pings.close()


def away(ratio: Estimate, *, by_interval: bool) -> float:
    """How far a ratio, or the nearest value of its interval, is from 1."""
    return max(ratio.low - 1, 1 - ratio.high, 0.0) if by_interval else abs(ratio.value - 1)


def compared(taken: Mapping[str, Sequence[Mapping[str, float]]], name: str) -> tuple[Estimate, Estimate]:
    """Ratios within rounds: the same way twice, and watched to unwatched."""
    # A round in which a move did not end says nothing about the cost of watching.
    rows = [row for row in zip(*(taken[way] for way in WAYS), strict=True) if all(each["total_ns"] for each in row)]
    # Times are of whole ms.
    watched, again, unwatched = ([max(each[name], MS / 2) for each in column] for column in zip(*rows, strict=True))
    return rounds.ratio(again, watched, LEVEL), rounds.ratio(watched, unwatched, LEVEL)


def text(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


if __name__ == "__main__":
    main()
