"""What watching costs: runs with and without three watchers, in random order within pairs.

Each watcher holds the page's stream of events, as a browser does. Browsers themselves are left out: they run on the
user's computer. Compared are the isolation factors and the width of the null aggressor's interval (the A/A check). CPU
time of the server comes from /proc, while a run is watched.

--quick: 3 pairs of 5 s.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from scipy import stats

from common import until
from frame import Options, Outcome, bench
from web_site import SCENARIO, Site, site

WATCHERS = 3
SHARE_MAX = 0.005


class Watcher(threading.Thread):
    """Reads the stream of a record's page until it is stopped."""

    def __init__(self, where: Site, record: str, *, plant: bool) -> None:
        super().__init__(daemon=True)
        self.where, self.record, self.plant, self.ended, self.bytes = where, record, plant, False, 0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.where.port, timeout=2)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", f"/records/{self.record}/live", headers={"cookie": self.where.cookie})
            answer = connection.getresponse()
            while not self.ended:
                if self.plant:
                    self.where.get(f"/records/{self.record}")
                else:
                    self.bytes += len(answer.readline())
        connection.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(where: Site, key: str, budget: str, *, watched: bool, plant: bool) -> tuple[dict[str, float], float]:
    """(log isolation factors and the A/A half-width, the server's share of a core) of a run."""
    where.api("POST", "/api/jobs", {"kind": "run", "document": SCENARIO.format(budget=budget)}, key)
    job = until(
        lambda: next((job for job in where.jobs() if job["id"] == key and job["state"] == "running"), None), 120
    )
    folder = where.root / job["record"]
    until(lambda: (folder / "journal.jsonl").is_file() and b"measuring" in (folder / "journal.jsonl").read_bytes(), 60)
    assert where.process is not None
    watchers = [Watcher(where, job["record"], plant=plant) for _ in range(WATCHERS if watched else 0)]
    for watcher in watchers:
        watcher.start()
    before, began = cpu_s(where.process.pid), time.monotonic()
    until(lambda: b'"run_ended"' in (folder / "events.jsonl").read_bytes(), 300, "the run did not end")
    share = (cpu_s(where.process.pid) - before) / (time.monotonic() - began)
    for watcher in watchers:
        watcher.ended = True
    until(lambda: next(job for job in where.jobs() if job["id"] == key)["state"] == "ended", 120)
    findings: dict[str, Any] = json.loads((folder / "findings.json").read_text())
    figures = {cell["label"]: math.log(cell["isolation"]["value"]) for cell in findings["cells"]}
    null = next(cell["isolation"] for cell in findings["cells"] if cell["role"] == "null")
    return figures | {"A/A half-width": (null["high"] - null["low"]) / 2}, share


@bench(plants={"whole": "watchers that ask for whole pages all the time"})
def main(given: Options) -> Outcome:
    pairs, budget, chance = (3, "5s", random.Random(1)) if given.quick else (12, "30s", random.Random(1))
    differences: dict[str, list[float]] = {}
    shares = []
    with site() as where:
        where.login()
        for pair in range(pairs):
            order = [True, False]
            chance.shuffle(order)
            costs = {}
            for watched in order:
                costs[watched], share = measured(
                    where, f"pair-{pair:03}-{watched}", budget, watched=watched, plant=bool(given.plant)
                )
                if watched:
                    shares.append(share / WATCHERS)
            for name, value in costs[True].items():
                differences.setdefault(name, []).append(value - costs[False][name])
    met = True
    for name, values in differences.items():
        half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        mean = statistics.fmean(values)
        print(f"{name}: watched − unwatched {mean:+.4f} ± {half:.4f}")
        met &= abs(mean) <= half
    share = statistics.fmean(shares)
    effects = f"effects and A/A over {pairs} pairs {'do not differ' if met else 'differ'}"
    figure = f"{share:.2%} of a core a watcher (at most {SHARE_MAX:.1%}); {effects}"
    return Outcome(figure, met and share <= SHARE_MAX)


if __name__ == "__main__":
    main()
