"""Tenants of one link that all send TCP at once: what each gets of its share, and how long its packets wait.

A crowd mixes places, promises, numbers of connections and congestion controls. A member's share is what max-min
fairness gives it if all want all they may have: its guarantee at least, its ceiling at most. Who receives also sends:
its acknowledgements pass the other direction of the link, which has so much less for the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guards
from common import read_meanwhile
from guards import PAYLOAD, has_fq
from partywall.guard.measure.run import Kept, keep
from partywall.sandbox.lab import Counted, Lab, lab
from partywall.study.promises.lab import policy

PLACES = ("host end", "own end", "received")
CONTROLS = Path("/proc/sys/net/ipv4")
BURST_S, LARGEST = 0.01, 73_984
READ_EVERY_S, WINDOW_NS, SETTLES_S = 0.05, 1_000_000_000, 3.0
# docs/guard.md: how long TCP may wait.
HOLD_S, PACKETS_AFAR, LONGEST_S, LONGEST_FQ_S = 0.02, 3, 1.0, 0.2


@dataclass(frozen=True)
class Member:
    """One tenant. Rates in bit/s. control: its congestion control; None for the default of its namespace."""

    place: str
    guarantee: float = 0.0
    ceiling: float | None = None
    control: str | None = None
    connections: int = 1


@dataclass(frozen=True)
class Crowd:
    """Members that share a link. default: the congestion control of every namespace, as set for a whole host."""

    text: str
    link: float
    members: tuple[Member, ...]
    default: str | None = None
    queue: str | None = None


@dataclass(frozen=True)
class Got:
    """share: of the member's fair share, payload only. most: of its ceiling in the fullest second, beside a burst.

    waits: the longest mean wait of a second, over what docs/guard.md states.
    """

    share: float
    most: float
    waits: float


def controls() -> list[str]:
    """Congestion controls that this kernel has, its modules included."""
    names = ("reno", "cubic", "bbr", "dctcp", "vegas", "westwood", "htcp", "illinois", "bic", "scalable")
    # What is built in needs no module.
    with contextlib.suppress(OSError):
        for name in names:
            subprocess.run(["modprobe", "-q", f"tcp_{name}"], check=False)
    return (CONTROLS / "tcp_available_congestion_control").read_text().split()


def share_of(crowd: Crowd, member: Member, acknowledged: float = 0.0) -> float:
    """The max-min fair share of a member if all want all they may have, in bit/s. Each direction of the link is one.

    acknowledged: bit/s of acknowledgements of those who receive.
    """
    link = crowd.link - (0.0 if member.place == "received" else acknowledged)
    rivals = [each for each in crowd.members if (each.place == "received") == (member.place == "received")]

    def at(level: float) -> list[float]:
        return [min(each.ceiling or link, max(each.guarantee, level)) for each in rivals]

    low, high = 0.0, link
    for _ in range(60):
        level = (low + high) / 2
        low, high = (level, high) if sum(at(level)) <= link else (low, level)
    return at(low)[rivals.index(member)]


def crowds(*, quick: bool) -> list[Crowd]:
    """A tenant below its ceiling beside a guaranteed one, and 2 to 16 tenants with all congestion controls mixed."""
    known = controls()
    default = "bbr" if "bbr" in known else known[0]
    pairs = [(Member(place, 20e6), Member(place, ceiling=5e6)) for place in ("host end", "received")]
    capped = Crowd(f"a ceiling beside a guarantee, {default} by default", 30e6, (*pairs[0], *pairs[1]), default)
    if quick:
        return [capped]
    fq = ["fq"] if has_fq() else []
    mixed = [_mixed(count, known, queue) for queue in ["tbf", *fq] for count in (2, 4, 8, 16)]
    return [
        *(dataclasses.replace(capped, queue=queue) for queue in ["tbf", *fq]),
        *(_alike(name, queue) for queue in ["tbf", *fq] for name in known),
        *mixed,
    ]


def _alike(control: str, queue: str) -> Crowd:
    """The newcomer's second case: four connections beside others that are promised less."""
    members = (
        Member("host end", 20e6, control=control, connections=4),
        Member("own end", 0.0, 5e6, control),
        Member("host end", 5e6, 8e6, control),
        Member("received", 5e6, 8e6, control),
    )
    return Crowd(f"{control} everywhere, {queue}", 30e6, members, None, queue)


def _mixed(count: int, known: Sequence[str], queue: str | None) -> Crowd:
    """Every second member is promised its part of half the link, and every third has a ceiling."""
    link = 10e6 * count
    part = link / count

    def member(at: int, place: str, control: str) -> Member:
        guarantee = part / 2 * (1 + at % 2) if at % 2 == 0 else 0.0
        ceiling = part * 0.6 if at % 3 == 1 else None
        return Member(place, guarantee, ceiling, control, 4 if at % 4 == 3 else 1)

    places, named = itertools.cycle(PLACES), itertools.cycle(known)
    members = tuple(member(at, next(places), next(named)) for at in range(count))
    return Crowd(f"{count} tenants, {', '.join(known)} mixed, {queue or 'default queue'}", link, members, None, queue)


def measured(crowd: Crowd, seconds: float, *, demand: str | None = None) -> list[Got]:
    """What each member got. demand: what the guard estimates demand from; None for its default."""
    names = [f"m{at}" for at in range(len(crowd.members))]
    with lab(names, None) as made:
        for name in names:
            if crowd.default:
                for space in (made.namespace(name), made.namespace(f"{name}-sink")):
                    _run(space, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={crowd.default}")
        with _guarded(made, crowd, names, demand) as seen, contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(guards.server(made.namespace(f"{name}-sink")))
            time.sleep(0.5)
            with read_meanwhile(made.read, READ_EVERY_S) as readings:
                got = _goodputs(made, names, crowd, seconds)
            longest, acknowledged = seen()
    queue = crowd.queue or ("fq" if has_fq() else "tbf")
    return [
        _judged(crowd, at, got[name], longest.get(name, 0.0), acknowledged, readings, seconds, queue)
        for at, name in enumerate(names)
    ]


def _judged(
    crowd: Crowd,
    at: int,
    goodput: float,
    wait_s: float,
    acknowledged: float,
    readings: Sequence[Counted],
    seconds: float,
    queue: str,
) -> Got:
    name, member = f"m{at}", crowd.members[at]
    share = share_of(crowd, member, acknowledged)
    # The last packet that enters adds its own time.
    packets = 1 + (1 if member.place == "own end" else PACKETS_AFAR)
    may_wait_s = max(HOLD_S, min(packets * LARGEST * 8 / share, LONGEST_FQ_S if queue == "fq" else LONGEST_S))
    ceiling = member.ceiling or crowd.link
    most = fullest(readings, name, ceiling)
    if member.place == "received":
        # Its port also counts what the hook behind it drops. What waited when the count began arrives in addition.
        most = (goodput * seconds / PAYLOAD - PACKETS_AFAR * LARGEST * 8) / (ceiling * seconds)
    got = Got(goodput / PAYLOAD / share, most, wait_s / may_wait_s)
    print(
        f"{crowd.text}: {name} ({member.place}, {member.control or crowd.default or 'default'}, "
        f"{member.connections}x) {goodput / PAYLOAD / 1e6:.2f} of {share / 1e6:.2f} Mb/s = {got.share:.1%}; "
        f"at most {got.most:.1%} of its ceiling; waited {wait_s * 1e3:.0f} of {may_wait_s * 1e3:.0f} ms",
        flush=True,
    )
    return got


def fullest(readings: Sequence[Counted], name: str, bps: float) -> float:
    """The most that was delivered in a window, over the ceiling, after one burst and one largest packet."""
    return guards.fullest(readings, name, WINDOW_NS, lambda bits, s: (bits - bps * BURST_S - LARGEST * 8) / (bps * s))


@contextlib.contextmanager
def _guarded(
    made: Lab, crowd: Crowd, names: Sequence[str], demand: str | None
) -> Iterator[Callable[[], tuple[dict[str, float], float]]]:
    """Gives a function that returns the longest mean wait of a second of each vif, in seconds, and acknowledgements.

    These are those of all who receive, in bit/s.
    """
    vifs = {name: _vif(made, name, member) for name, member in zip(names, crowd.members, strict=True)}
    more = {"queue": crowd.queue} if crowd.queue else {}
    flat = guards.flat(policy(made, vifs, f"{crowd.link:.0f}bit/s", **more))
    if demand:
        flat = dataclasses.replace(flat, start={**flat.start, "demand": demand})
    waits: dict[str, list[float]] = {name: [] for name in names}
    acknowledged: list[float] = []
    over = threading.Event()

    def read(kept: Kept) -> None:
        while not over.is_set():
            if report := kept.report(0.2):
                for name, member in zip(names, crowd.members, strict=True):
                    row = report.rows[f"{name} (receives)" if member.place == "received" else name]
                    waits[name].append((row["delay_ns"] or 0) / 1e9)
                receive = [name for name, each in zip(names, crowd.members, strict=True) if each.place == "received"]
                acknowledged.append(sum(report.rows[name]["passed_bps"] for name in receive))

    with keep(flat) as kept:
        reader = threading.Thread(target=read, args=(kept,))
        reader.start()
        # In the first seconds, senders are in slow start.
        try:
            yield lambda: (
                {name: max(rows[int(SETTLES_S) :], default=0.0) for name, rows in waits.items()},
                statistics.fmean(acknowledged[int(SETTLES_S) :] or [0.0]),
            )
        finally:
            over.set()
            reader.join()


def _vif(made: Lab, name: str, member: Member) -> dict[str, Any]:
    promise = {key: f"{rate:.0f}bit/s" for key in ("guarantee", "ceiling") if (rate := getattr(member, key))}
    match member.place:
        case "host end":
            place = {"interface": made.port(name), "namespace": made.namespace("switch"), "side": "outside"}
            return {**place, "send": promise}
        case "received":
            return {"interface": "eth0", "namespace": made.namespace(f"{name}-sink"), "receive": promise}
        case _:
            return {"send": promise}


def _goodputs(made: Lab, names: Sequence[str], crowd: Crowd, seconds: float) -> dict[str, float]:
    """Payload that arrived, in bit/s, without the first seconds."""
    running: dict[str, subprocess.Popen[str]] = {}
    for name, member in zip(names, crowd.members, strict=True):
        options = [
            "-O",
            f"{SETTLES_S:g}",
            "-P",
            str(member.connections),
            *(["-C", member.control] if member.control else []),
        ]
        running[name] = guards.client(made.namespace(name), made.address(name, counted=False), seconds, *options)
    return {name: guards.received(client, seconds + 60) for name, client in running.items()}


def _run(space: str, *command: str) -> None:
    subprocess.run(["ip", "netns", "exec", space, *command], check=True)
