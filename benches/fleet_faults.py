"""Does a host measure each run once, whatever happens to the controller, the network and the host? By its own ledger.

Random schedules from a seed, in simulated time: a real follower, ledger and keeper, a network that loses, delays,
repeats and reorders calls, a second fleet that wants the same host, and up to eight faults: the controller, the keeper
or the host killed, links cut and healed, and orders to stop that come late. Then schedules on three real hosts behind
each engine: sshd, a real Slurm, pods of a double of Kubernetes' API, and a real Dask cluster. Controllers, keepers,
workers and Slurm's own controller are killed, pods are evicted, and what carries requests stops to answer. One schedule
each has 100 hosts behind sshd, and 20 nodes of Slurm. In twelve more behind sshd, leases last 10 s, a controller stays
away for longer, and what is measured takes 12 s to end when it is asked to. Dask alone, with its defaults, stands
beside them. --quick: fewer schedules, behind sshd alone.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from faulty_hosts import FEW, KINDS, SHORT_LEASES, USUAL, Pace, foil, judged
from frame import Options, Outcome, bench, in_parts
from partywall.fleet.job import RunJob
from partywall.fleet.ledger.granting import Ledger, Order
from partywall.fleet.ledger.keeper import Process
from partywall.fleet.ledger.lease import State
from partywall.testing.worlds import Judged, SimulatedKeeper, World

SCHEDULES, QUICK_SCHEDULES = 10_000, 300
REAL = 50
"""Schedules behind each engine."""
LARGE = {"ssh": 100, "slurm": 20}
"""The hosts of one more schedule."""
SHORT = 12
"""Schedules whose leases are lost."""
LATE_S, RESUMED_S = 1.0, 5.0
MEMORY = Path("/dev/shm")
PLANTS = {
    "eager": "as a task engine with its defaults: a new controller begins again what is going",
    "unfenced": "orders of an old controller are carried out",
    "deaf": "a keeper does not look at its lease",
}


class Eager(Ledger):
    """A ledger whose host is always free, and which takes a new controller for a reason to begin again."""

    def ensure(self, order: Order, token: int) -> State:
        lease = self.book.lease()
        if lease is None or lease.run != order.run or lease.token >= token:
            return super().ensure(order, token)
        self._lock = lambda: os.open(self.book.root, os.O_RDONLY)
        with self.book.locked():
            return self._granted(order, token)


class Unfenced(Ledger):
    """A ledger that knows no tokens."""

    def _is_newest(self, run: str, token: int) -> bool:
        super()._is_newest(run, token)
        return True


class Deaf(SimulatedKeeper):
    """A keeper that only waits for its command."""

    def _look(self, command: Process) -> None:
        pass


@bench(plants=PLANTS, folder=True, unjudged="Slurm, Kubernetes and Dask")
def main(options: Options) -> Outcome:
    count = QUICK_SCHEDULES if options.quick else SCHEDULES
    job = RunJob.parsed({"inventory": "localhost", "scenario": "demo", "every_ns": "2s", "lease_ns": "30s"})
    ledger = {"eager": Eager, "unfenced": Unfenced}.get(options.plant, Ledger)
    keeper = Deaf if options.plant == "deaf" else SimulatedKeeper
    every = Judged()
    for seed in range(count):
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            every.add(World(Path(folder), job, seed, ledger, keeper).follow())
    real, beside = Judged(), ""
    # The faults are planted in simulated hosts.
    if not options.plant:
        ways = {f"{kind}-{seed:02}": functools.partial(_behind, kind, seed) for seed in range(REAL) for kind in KINDS}
        ways |= {f"{kind}-of-{count}": functools.partial(_behind, kind, 0, count) for kind, count in LARGE.items()}
        ways |= {
            f"leases-{seed:02}": functools.partial(_behind, "ssh", seed, pace=SHORT_LEASES) for seed in range(SHORT)
        }
        ways = {"ssh-00": ways["ssh-00"]} if options.quick else ways
        for kept in in_parts(ways, options).values():
            real.add(Judged(**{name: Counter(v) if isinstance(v, dict) else v for name, v in kept.items()}))
        beside = "" if options.quick else f"; Dask alone measured {_foil()} of 6 cells again"
    for what, each in (("simulated", every), ("real", real)):
        print(f"{what}: faults {dict(each.faults)}, how attempts ended {dict(each.ends)}", flush=True)
    figure = (
        f"{count} simulated schedules: {_said(every)}, {every.fenced} orders of old controllers carried out; real "
        f"hosts: {_said(real)}{beside}"
    )
    is_right = not any(each.twice + each.silent + each.lost + each.fenced for each in (every, real))
    is_soon = all(each.late_s <= LATE_S and each.resumed_s <= RESUMED_S for each in (every, real))
    # If no lease was lost, nothing is known of how runs end then.
    is_shown = options.quick or bool(options.plant) or real.ends["lost"] > 0
    return Outcome(figure, is_right and is_soon and is_shown)


def _behind(kind: str, seed: int, count: int = 0, pace: Pace = USUAL) -> dict[str, Any]:
    names = tuple(f"h{number:03d}" for number in range(count)) or FEW
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        return dict(vars(judged(Path(folder), seed, kind, names, pace)))


def _foil() -> int:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        return foil(Path(folder))


def _said(each: Judged) -> str:
    lost = each.ends["lost"]
    ended = f"; {lost} lost leases, ended {each.late_s:.1f} s afterwards at most" if lost else ""
    resumed = f", resumed in {each.resumed_s:.1f} s at most" if each.resumed_s else ""
    return (
        f"{each.faults.total()} faults, {each.twice} runs beside another, {each.silent} silently again, "
        f"{each.lost} lost{ended}{resumed}"
    )


if __name__ == "__main__":
    main()
