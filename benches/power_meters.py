"""Are power meters read correctly, over their real protocols, and are their refresh and lag known?

A machine is simulated: its power follows a stated model, driven by the real CPU time of a load that is switched. What
its meter would show, with a planted refresh and lag, goes to the real server of each protocol: sushy-static (Redfish,
both forms), pyghmi (IPMI DCMI), ipmi_sim (IPMI sensors), snmpsim, upsd with dummy-ups, a pseudo-terminal that speaks
Watts up?, and sysfs trees of RAPL (which wraps), hwmon and resctrl. All are read at once.

Then each is broken: it shows garbage, or its server is killed. That must be reported for this meter, and the readings
of the others must go on. One returns, and the time without it must be reported as a gap.

Bar: every protocol is read; refresh and lag within 100 ms of the planted values; mean watts within 5 % of the true
ones; every fault is reported; no other meter misses a reading for over a second meanwhile.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from frame import Options, Outcome, bench
from partywall.events import silent
from partywall.host.label import Label
from partywall.power import ladder, profiles
from partywall.power.activity import Threads
from partywall.power.findings.meter import timing
from partywall.power.findings.node import gaps, mean_watts
from partywall.power.machine import Display, Feed, Machine
from partywall.power.meters import Meter, make
from partywall.power.sampling import Sampler, Take
from partywall.power.values import Activity, MeterFault, Reading, Slot, Timing
from partywall.sandbox import reaper
from partywall.testing import power
from partywall.testing.power import SERVERS, EnergyTree, Server

PROFILE = profiles.PROFILES["cervera-dl120-g6"]
EVERY_S = 0.1
TOLERANCE_MS = 100.0
WATTS_TOLERANCE = 0.05
STALL_S = 1.0
CHANGED = 0.8
"""Share of its readings that differ, of a meter that is faster than they are."""
RETURNS = "hwmon"
"""This meter is broken first and returns at the end, which must be reported as a gap."""
SLOT_NS = 900_000_000
PLANTED = {
    "redfish": (1.0, 0.4),
    "redfish, old form": (1.5, 0.7),
    "ipmi (DCMI)": (1.0, 0.9),
    "ipmi (sensor)": (0.5, 0.3),
    "snmp": (1.0, 0.2),
    "nut": (1.0, 0.6),
    "wattsup": (1.0, 0.5),
    "hwmon": (0.3, 0.15),
    "rapl": (0.05, 0.0),
    "resctrl": (0.25, 0.1),
}
"""Refresh and lag in seconds. Servers that look at a file at times of their own get values more often than that."""
PUSHED_S = 0.02


@dataclass
class Read:
    """All that was read."""

    readings: list[Reading]
    activity: list[Activity]
    faults: list[MeterFault]
    slots: list[Slot]


def display(name: str, server: Server) -> Display:
    """What a server is given. It shows values at its own times if it has any, and they must be fresh then."""
    refresh_s, lag_s = PLANTED[name]
    if server.own_refresh_s:
        return Display(lag_s=lag_s, refresh_s=PUSHED_S, noise=0.3, step=0, window_s=refresh_s)
    return Display(lag_s=lag_s, refresh_s=refresh_s, noise=0.3, step=0)


PLANTS = {
    "lag": "meters are read as if they had no lag",
    "deaf": "faults are not recorded",
    "slow": "the counter of RAPL changes once a second",
}
SLOW_S = 1.0


@bench(parts=list(SERVERS), plants=PLANTS)
def main(options: Options) -> Outcome:
    names = options.only or list(SERVERS)
    lacking = {name: why for name in names if (why := _missing(name))}
    for name, why in lacking.items():
        print(f"{name}: not measured: {why} is not installed")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, ExitStack() as stack:
        stack.enter_context(power.password())
        servers = _started([name for name in names if name not in lacking], Path(folder), stack)
        label = Label.create(f"power-{time.monotonic_ns()}", Path(folder))
        stack.callback(reaper.clean, label)
        load = stack.enter_context(ladder.Load(label, ladder.workers((0, 1))))
        threads = Threads(list(load.pids.values()))
        machine = Machine(PROFILE, threads)
        stack.callback(machine.stop)
        machine.start()
        feeds = {name: ExitStack() for name in servers}
        for name, server in servers.items():
            shown = display(name, server)
            if options.plant == "slow" and name == "rapl":
                shown = replace(shown, refresh_s=SLOW_S)
            stack.enter_context(feeds[name]).enter_context(Feed(machine, shown, _writer(server, machine, shown)))
        meters = {name: make(server.name, server.host) for name, server in servers.items()}
        readings = measure(load, meters, switched(29 if options.quick else 160), threads)
        good = [judge(name, servers[name], readings, machine, options.plant) for name in servers]
        reported = break_all(servers, feeds, threads, options.plant)
    sound = sum(good) == len(names) and reported == len(servers) and not lacking
    return Outcome(
        f"{sum(good)} of {len(names)} protocols read with refresh and lag within {TOLERANCE_MS:g} ms and watts within "
        f"{WATTS_TOLERANCE:.0%}; {reported} of {len(servers)} faults reported without stalling others",
        sound,
    )


def _missing(name: str) -> str:
    made = SERVERS[name]
    return made.missing() if isinstance(made, type) else power.Redfish.missing()


def _started(names: Sequence[str], folder: Path, stack: ExitStack) -> dict[str, Server]:
    servers = {name: _made(name, folder / name.replace(" ", "-")) for name in names}
    for server in servers.values():
        stack.callback(server.kill)
        server.start()
    for server in servers.values():
        server.await_ready()
    return servers


def _made(name: str, folder: Path) -> Server:
    return SERVERS[name](folder)


def _writer(server: Server, machine: Machine, shown: Display) -> Callable[[float], None]:
    """Power goes to servers of power, the energy of the same moment to those of energy."""
    if not isinstance(server, EnergyTree):
        return server.write
    begin_ns, lag_ns = time.monotonic_ns(), round(shown.lag_s * 1e9)
    return lambda _: server.count(machine.joules(time.monotonic_ns() - lag_ns) - machine.joules(begin_ns - lag_ns))


def switched(slots: int, seed: int = 1) -> list[ladder.Step]:
    """All cores on or off at random: each switch shows every meter's lag."""
    chance = random.Random(seed)
    return [
        ladder.Step(0, f"{'on' if on else 'off'}", {"cpu0": 1.0, "cpu1": 1.0} if on else {})
        for on in (chance.random() < 0.5 for _ in range(slots))
    ]


def measure(load: ladder.Load, meters: Mapping[str, Meter], steps: Sequence[ladder.Step], threads: Threads) -> Read:
    """Reads all meters while the load is switched."""
    readings = Read([], [], [], [])
    with Sampler(meters, EVERY_S, found_by_kind(readings), lambda: tuple(threads())):
        for slot in load.carry_out(steps, SLOT_NS, silent):
            readings.slots.append(slot)
        time.sleep(1.5)
    return readings


def found_by_kind(readings: Read) -> Take:
    def take(value: Reading | MeterFault | Activity) -> None:
        kept = {Reading: readings.readings, MeterFault: readings.faults, Activity: readings.activity}[type(value)]
        kept.append(value)

    return take


def judge(name: str, server: Server, readings: Read, machine: Machine, plant: str | None) -> bool:
    """Prints one meter's figures, and whether they are those that were planted."""
    own = [reading for reading in readings.readings if reading.meter == name]
    faults = [fault for fault in readings.faults if fault.meter == name]
    if len(own) < 10:
        print(f"FAIL {name}: {len(own)} readings; {faults[:1]}")
        return False
    refresh_s, lag_s = PLANTED[name]
    seen = timing(own, readings.activity, sends=server.sends)
    lag_ms = 0.0 if plant == "lag" else seen.lag_ms.value if seen.lag_ms else float("nan")
    watts = mean_watts(own)
    shift_ns = round((lag_s + refresh_s) * 1e9)
    true = machine.mean(own[0].time_ns - shift_ns, own[-1].time_ns - shift_ns)
    error = watts.value / true - 1 if watts else float("nan")
    is_refresh_right, refresh = judged_refresh(own, seen, refresh_s, sends=server.sends)
    near = abs(lag_ms - 1e3 * lag_s) <= TOLERANCE_MS and is_refresh_right
    sound = near and abs(error) <= WATTS_TOLERANCE
    lag = f"{lag_ms:.0f} ± {seen.lag_ms.half_width:.0f}" if seen.lag_ms else f"unknown ({seen.why})"
    print(
        f"{'ok  ' if sound else 'FAIL'} {name}: refresh {refresh} of {1e3 * refresh_s:.0f} ms, lag {lag} ms of "
        f"{1e3 * lag_s:.0f}, {watts.value if watts else 0:.1f} W of {true:.1f} W true, {len(own)} readings, "
        f"{len(faults)} faults",
        flush=True,
    )
    return sound


def judged_refresh(own: Sequence[Reading], seen: Timing, refresh_s: float, *, sends: bool) -> tuple[bool, str]:
    """Whether the refresh is the planted one, and in words.

    Of a meter that changes more often than it is read, nothing else can be known. Then nearly every reading must differ
    from the one before, and the meter must not claim a figure.
    """
    if seen.refresh_ms is not None:
        right = abs(seen.refresh_ms.value - 1e3 * refresh_s) <= TOLERANCE_MS and refresh_s >= EVERY_S
        return right, f"{seen.refresh_ms.value:.0f} ms"
    values = [reading.watts if reading.joules is None else reading.joules for reading in own]
    changed = sum(later != earlier for earlier, later in pairwise(values)) / (len(values) - 1)
    return refresh_s < EVERY_S and not sends and changed >= CHANGED, f"faster than readings ({changed:.0%} differ)"


def break_all(
    servers: Mapping[str, Server], feeds: Mapping[str, ExitStack], threads: Threads, plant: str | None
) -> int:
    """Breaks every meter after the other while all are read. Returns how many faults were reported, and harmless."""
    readings = Read([], [], [], [])
    meters = {name: make(server.name, server.host) for name, server in servers.items()}
    broken: dict[str, int] = {}
    with Sampler(meters, EVERY_S, found_by_kind(readings), lambda: tuple(threads())) as sampler:
        time.sleep(1.5)
        for number, (name, server) in enumerate(sorted(servers.items(), key=lambda each: each[0] != RETURNS)):
            feeds[name].close()
            broken[name] = time.monotonic_ns()
            # Garbage and death in turn, so that both happen to some protocol of each kind.
            (server.garble if number % 2 == 0 else server.kill)()
            time.sleep(0.6)
        time.sleep(3.0)
        sampler.look()
        if RETURNS in servers:
            servers[RETURNS].start()
            time.sleep(1.5)
    own = [reading for reading in readings.readings if reading.meter == RETURNS]
    is_gap_seen = RETURNS not in servers or bool(gaps(RETURNS, own)) or plant == "deaf"
    print(f"{RETURNS} returns: {[fault.text for fault in gaps(RETURNS, own)] or 'NO GAP REPORTED'}")
    count = 0 if is_gap_seen else -1
    for name, at_ns in broken.items():
        own = [fault for fault in readings.faults if fault.meter == name and fault.time_ns >= at_ns]
        own = [] if plant == "deaf" else own
        stalled = [other for other in servers if other != name and _stalls(other, broken, readings, name)]
        count += bool(own) and not stalled
        said = f"{own[0].fault}: {own[0].text}" if own else "NOT REPORTED"
        print(f"{name} broken: {said[:110]}{f'; STALLED {stalled}' if stalled else ''}", flush=True)
    return count


def _stalls(other: str, broken: Mapping[str, int], readings: Read, name: str) -> bool:
    """True if another meter that was whole had no reading for over a second after the fault, but its own rhythm."""
    begin_ns, end_ns = broken[name], broken[other] if broken[other] > broken[name] else 0
    times = [r.time_ns for r in readings.readings if r.meter == other and begin_ns <= r.time_ns <= end_ns]
    allowed_s = STALL_S + (1.0 if other == "wattsup" else 0.0)
    ends = [begin_ns, *times, end_ns] if end_ns - begin_ns > allowed_s * 1e9 else []
    return any((later - earlier) / 1e9 > allowed_s for earlier, later in pairwise(ends))


if __name__ == "__main__":
    main()
