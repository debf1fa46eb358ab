"""How many hosts can one controller measure? Replayed hosts: their engine answers from memory, without a network.

Fleets of 10 to 1,000 hosts with 50 cells each, at most 100 at a time. For each size: the longest time from the last
answer of a host to the first request to the one that follows it, CPU time and memory of the controller, and the CPU
time of `partywall report`, which has one thread. --quick: up to 200 hosts, whose report may take 14 s.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from frame import Options, Outcome, bench
from partywall.errors import Exit
from partywall.events import silent
from partywall.fleet.inventory import Place
from partywall.fleet.job import Host, Inventory, RunJob
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import Phase, State
from partywall.fleet.ledger.look import Chunk, Look
from partywall.fleet.measure.controlling import Controller
from partywall.fleet.record import FleetRecord
from partywall.testing.fleets import drawn

SIZES, QUICK_SIZES = (10, 100, 300, 1000), (10, 50, 200)
CELLS, AT_ONCE, RUN_S = 50, 100, 1.0
NEXT_S, REPORT_S, REPORT_HOSTS = 1.0, 30.0, 1000
PLANTS = {"slow": "each first request to a host waits for all that were made before"}


class Replayed:
    """Hosts whose runs take a second and bring the same files. began, ended: seconds of this process, by host."""

    def __init__(self, places: Sequence[Place], results: Mapping[str, bytes], plant: str) -> None:
        self._places, self._results, self._plant = places, results, plant
        self._line = threading.Lock()
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def hosts(self) -> Sequence[Place]:
        return self._places

    def ensure(self, host: str, order: Order, _token: int) -> State:
        if host not in self.began and self._plant == "slow":
            with self._line:
                time.sleep(0.2)
        self.began.setdefault(host, time.monotonic())
        return self.state(host, order.run)

    def stop(self, host: str, run: str, _token: int) -> State:
        return self.state(host, run)

    def state(self, host: str, _run: str) -> State:
        left_s = self.began.get(host, np.inf) + RUN_S - time.monotonic()
        if left_s > RUN_S:
            return State(Phase.NONE)
        if left_s > 0:
            return State(Phase.RUNNING, 1, left_s=3600.0)
        return State(Phase.ENDED, 1, 0, files={"result.json": len(self._results[host])})

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        chunks = tuple(Chunk(name, offset, self._results[host][offset:]) for name, offset in since.items())
        self.ended[host] = time.monotonic()
        return Look(self.state(host, run), chunks)


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    sizes, curve, longest, late = QUICK_SIZES if options.quick else SIZES, [], 0.0, False
    for hosts in sizes:
        with tempfile.TemporaryDirectory() as folder:
            record, next_s, cpu_s, wall_s = _measured(Path(folder) / "fleet", hosts, options.plant)
            report_s = _reported(record)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        longest, late = max(longest, next_s), late or report_s > 10 + (REPORT_S - 10) * hosts / REPORT_HOSTS
        curve.append(f"{hosts}: {1000 * cpu_s / hosts:.0f} ms CPU each, {memory:.0f} MB, report {report_s:.1f} s")
        print(f"{curve[-1]}, next host {next_s:.2f} s, all {wall_s:.1f} s", flush=True)
    figure = f"replayed, next host after {longest:.2f} s at most; hosts: {'; '.join(curve)}"
    return Outcome(figure, longest <= NEXT_S and not late)


def _measured(path: Path, hosts: int, plant: str) -> tuple[FleetRecord, float, float, float]:
    """A record of so many hosts, the longest time until a next one begins, and the controller's CPU and wall time."""
    names = [f"h{number:04d}" for number in range(hosts)]
    inventory = Inventory(path="", hosts=tuple(Host(name=name) for name in names))
    given = {"inventory": inventory, "scenario": "demo", "every_ns": 1_000_000_000, "at_once_": AT_ONCE}
    record = FleetRecord.create(path, RunJob.parsed(given), {})
    engine = Replayed(record.job.places, dict(zip(names, _results(hosts), strict=True)), plant)
    cpu_s, began_s = time.process_time(), time.monotonic()
    Controller(record, engine, silent).run()
    record.end()
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - began_s
    # As many begin at once as may; each other one follows the one that has ended.
    free = [began_s] * AT_ONCE + sorted(engine.ended.values())
    gaps = [began - end for began, end in zip(sorted(engine.began.values()), free, strict=False)]
    return record, max(gaps), cpu_s, wall_s


def _results(hosts: int) -> list[bytes]:
    """What each host says of its cells. Two of 100 are bad."""
    chance = np.random.default_rng(hosts)
    cells: list[list[dict[str, object]]] = [[] for _ in range(hosts)]
    for number in range(CELLS):
        fleet = drawn(chance, hosts, 0.5, bad=hosts // 50, loss=0.05)
        for place, (value, error) in enumerate(zip(fleet.values, fleet.errors, strict=True)):
            low, middle, high = (float(np.exp(value + reach * error)) for reach in (-2.26, 0.0, 2.26))
            estimate = {"value": middle, "low": low, "high": high, "n": fleet.blocks}
            about = {"victim": f"v{number}", "label": "memory", "role": "aggressor", "levels": {}}
            cells[place].append({**about, "isolation": estimate, "baseline_rate": {**estimate, "n": 1}})
    return [json.dumps({"result": {"headline": "", "cells": each}, "problems": []}).encode() for each in cells]


def _reported(record: FleetRecord) -> float:
    began_s = _of_children_s()
    argv = [sys.executable, "-P", "-m", "partywall", "report", str(record.path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in (Exit.HOLDS, Exit.VIOLATED):
        raise RuntimeError(done.stdout + done.stderr)
    return _of_children_s() - began_s


def _of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
