"""Do reports stay fast and small for a run of 100,000 blocks?

Writes a run as `partywall run` does, event by event and message by message: five victims, each beside the null
neighbour and four others, two of which have two intensities (35 cells, ten slopes), four sessions each, 20,000 blocks a
victim, some of them long ones with counters.
Then, as a user does and each in a process of its own: `report`, `sql`, `compare` with itself, and `run --resume`, whose
time is until it starts sandboxes. A headless Chromium opens the page; interactive: it has drawn, and its scripts
answer, where the browser counts time from the beginning of the page's load.

Bar: `report` in at most 20 s and 1 GiB (the largest resident set of any of its processes), a page of at most 5 MB that
is interactive within 1 s, and a resumed run begins within 3 s. `sql` and `compare` must keep to 1 GiB; their times are
shown. --quick: 5,000 blocks; beyond the times and the memory of a run of 200 blocks, a tenth of each bar is allowed.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common import PARTYWALL
from frame import Options, Outcome, bench
from partywall.core import here
from partywall.run import stages
from partywall.run.document.scenario import Scenario
from partywall.run.measure.execute import readings
from partywall.run.plan import lay_out, order
from partywall.run.plan.pace import rhythm
from partywall.run.record import RunDirectory
from partywall.run.values.plan import Plan, Slot, Trial

BLOCKS, QUICK_BLOCKS, TINY_BLOCKS = 100_000, 5_000, 200
REPORT_S, REPORT_BYTES, PAGE_BYTES, PAGE_S, RESUME_S = 20.0, 1 << 30, 5_000_000, 1.0, 3.0
QUICK_SHARE = 0.1
NEIGHBOURS = {"cache": (0.5, 1.0), "memory-copy": (0.5, 1.0), "syscall": (1.0,), "pipe": (1.0,)}
"""Intensities of each."""
VICTIMS = ("integer", "float", "matrix-vector", "pipe", "unix-socket")
SCENARIO = {
    "partywall": 1,
    "name": "large",
    "victims": {name: {"probe": name} for name in VICTIMS},
    "aggressors": {name: {"stressor": name, "intensity": doses} for name, doses in NEIGHBOURS.items()},
    "precision": 0.0001,
    "budget": "4h",
}
RATE = 1e6
SLICE_NS = 2_000_000
BUCKETS = 16
COUNTERS = [f"cpu{cpu}.counter_{number}" for cpu in range(2) for number in range(60)]
PLANTS = {"points": "the page draws every block"}
PLANTED = {
    "points": "from partywall.run.report import series; series.MAX_POINTS = 10**9\n"
    "from partywall.cli import main; main()",
}


@dataclass(frozen=True)
class Took:
    """What a command needed."""

    seconds: float
    peak_bytes: int
    output: str


def write(run: RunDirectory, blocks: int) -> None:
    """The record of a finished run."""
    random, clock = np.random.default_rng(1), 10**10
    rounds, plan = run.plan.rounds, run.plan
    run.append("run_started", wall_time="2026-01-01T00:00:00+0000", pid=1)
    for round_ in range(rounds):
        for trial in plan.trials:
            clock = _session(run, plan, trial, str(round_), blocks // len(plan.trials) // rounds, clock, random)
    run.append("run_ended")


def without_last_session(run: RunDirectory, path: Path) -> RunDirectory:
    """A copy of a record as if the run had been interrupted before its last session."""
    shutil.copytree(run.path, path)
    trial, session = run.plan.trials[-1].id, str(run.plan.rounds - 1)
    gone = f'"trial": "{trial}", "visit": "{session}"'.encode()
    lines = (run.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if gone not in line[:200] and b"run_ended" not in line[:40]]
    (path / "events.jsonl").write_bytes(b"".join(kept))
    for file in path.glob(f"*/{trial}~{session}.parquet"):
        file.unlink()
    return RunDirectory(path)


def _session(
    run: RunDirectory, plan: Plan, trial: Trial, session: str, blocks: int, clock: int, random: np.random.Generator
) -> int:
    names = ["null", *trial.aggressors]
    counters = [{"name": name, "unit": "count", "kind": "total", "resource": "cpu"} for name in COUNTERS]
    rate_max = dict.fromkeys(names, RATE)
    run.append("visit", trial=trial.id, visit=session, rate_max=rate_max, facts={}, counters=counters, missing=[])
    pending = run.pending(trial.id, session)
    beat = rhythm(trial.treatments, plan.timing)
    before, read, total = None, [], np.zeros(len(COUNTERS))
    latencies = [_latency(random) for _ in range(256)]
    for number in range(int(session) * blocks, int(session) * blocks + blocks):
        ids = [id_ for id_ in order(plan.seed, trial, number) if beat.holds(number, id_)]
        treatments = [trial.treatment(id_) for id_ in ids]
        least_ns = beat.slot_ns_min(number)
        slots = lay_out(treatments, clock, before, grid_ns=SLICE_NS, at_least_ns=least_ns)
        for name, slices in _slices(trial, slots, clock, latencies, random):
            pending.write({"workload": name, "slices": slices})
        for at_ns in readings(slots) if least_ns else []:
            total = total + random.random(len(COUNTERS)) * 1000
            pending.write({"at_ns": at_ns, "until_ns": at_ns + 1000, "values": total.round(1).tolist()})
        rows = [slot.model_dump() for slot in slots]
        long = beat.is_long(number)
        run.append("block_done", trial=trial.id, visit=session, block=number, stretch=1, long=long, slots=rows)
        clock, before = slots[-1].end_ns, treatments[-1]
        read.append(number)
    pending.close()
    run.append("visit_left", trial=trial.id, visit=session, facts={}, dropped={})
    run.append("visit_ended", trial=trial.id, visit=session)
    run.compact()
    return clock + 10**9


def _latency(random: np.random.Generator) -> list[list[int]]:
    """Buckets of a slice's operations, and how many are in each."""
    buckets = np.unique(1840 + np.abs(random.normal(0, 20, 3 * BUCKETS)).astype(int))[:BUCKETS]
    return [
        [int(bucket), int(count)] for bucket, count in zip(buckets, random.integers(1, 50, len(buckets)), strict=True)
    ]


def _slices(
    trial: Trial, slots: Sequence[Slot], start_ns: int, latencies: list[Any], random: np.random.Generator
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """What the victim and each neighbour report of a block."""
    victim = []
    at_ns = start_ns
    for slot in slots:
        treatment = trial.treatment(slot.treatment)
        kept = 1 - 0.1 * treatment.intensities.get("memory-copy", 0.0)
        ends = range(at_ns + SLICE_NS, slot.end_ns + 1, SLICE_NS)
        work = RATE * SLICE_NS / 1e9 * kept * (1 + 0.03 * random.standard_normal(len(ends)))
        chosen = random.integers(0, len(latencies), len(ends))
        own = [
            _slice(end_ns, speed, 1.0, latencies[at])
            for end_ns, speed, at in zip(ends, work.tolist(), chosen, strict=True)
        ]
        victim += own
        for name, intensity in treatment.intensities.items():
            yield name, [row | {"work": RATE * SLICE_NS / 1e9, "intensity": intensity} for row in own]
        at_ns = slot.end_ns
    yield "victim", victim


def _slice(end_ns: int, work: float, intensity: float, latency: Any) -> dict[str, Any]:
    own = {"thread": 0, "start_ns": end_ns - SLICE_NS, "end_ns": end_ns, "work": round(work), "cpu_ns": SLICE_NS}
    return own | {"intensity": intensity, "latency": latency}


def timed(*words: str, plant: str | None = None) -> Took:
    """A command in a process of its own: how long it took, and its largest resident set."""
    command = [sys.executable, "-c", PLANTED[plant], *words] if plant else [*PARTYWALL, *words]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took_s = time.perf_counter() - began
        output.seek(0)
        said = output.read()
    if process.returncode not in (0, 1, 3):
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}: {said[-1500:]}")
    return Took(took_s, usage.ru_maxrss * 1024, said)


def resumed(path: Path) -> float:
    """Seconds until a resumed run starts its sandboxes; then it is interrupted."""
    began = time.perf_counter()
    command = [*PARTYWALL, "run", "--resume", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if "starting" in line:
                return time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    raise SystemExit(f"a resumed run did not begin: {''.join(said)[-1500:]}")


def interactive(page: Path) -> float | None:
    """Seconds from the beginning of a page's load until it is interactive: median of three; None without a browser."""
    if shutil.which("chromedriver") is None:
        return None
    from web_site import browser  # noqa: PLC0415 - only where a browser is
    from web_speed import READY  # noqa: PLC0415

    took = []
    with browser() as driver:
        driver.set_script_timeout(120)
        for _ in range(3):
            driver.get(page.resolve().as_uri())
            took.append(driver.execute_async_script(READY)[2] / 1000)
    return statistics.median(took)


@dataclass(frozen=True)
class Figures:
    report: Took
    page_bytes: int
    page_s: float | None
    sql: Took
    compare: Took
    resume_s: float

    @property
    def peak_bytes(self) -> int:
        return max(self.report.peak_bytes, self.sql.peak_bytes, self.compare.peak_bytes)


def measured(folder: Path, blocks: int, plant: str | None) -> Figures:
    host = here.this_host()
    plan = stages.plan(Scenario.model_validate(SCENARIO), host, 1)
    began = time.monotonic()
    whole = RunDirectory.create(folder / f"whole-{blocks}", "", plan, host.facts)
    write(whole, blocks)
    part = without_last_session(whole, folder / f"part-{blocks}")
    print(f"a run of {blocks} blocks was written in {time.monotonic() - began:.0f} s", flush=True)
    report = timed("report", str(whole.path), plant=plant)
    page = whole.path / "report.html"
    query = "select workload, count(*), sum(work) from slices group by 1"
    return Figures(
        report=report,
        page_bytes=page.stat().st_size,
        page_s=interactive(page),
        sql=timed("sql", str(whole.path), query),
        compare=timed("compare", str(whole.path), str(whole.path)),
        resume_s=resumed(part.path),
    )


@bench(plants=PLANTS, more={"--blocks": {"type": int, "default": BLOCKS, "help": "how many"}})
def main(options: Options) -> Outcome:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        blocks = QUICK_BLOCKS if options.quick else options.blocks
        tiny = measured(Path(folder), TINY_BLOCKS, options.plant) if options.quick else None
        figures = measured(Path(folder), blocks, options.plant)
    return judge(figures, tiny, blocks)


def judge(figures: Figures, tiny: Figures | None, blocks: int) -> Outcome:
    share = QUICK_SHARE if tiny else 1.0
    base = (tiny.report.seconds, tiny.peak_bytes, tiny.resume_s) if tiny else (0.0, 0, 0.0)
    allowed = [first + share * bar for first, bar in zip(base, (REPORT_S, REPORT_BYTES, RESUME_S), strict=True)]
    reached = (figures.report.seconds, figures.peak_bytes, figures.resume_s)
    page = "no browser" if figures.page_s is None else f"interactive in {figures.page_s:.2f} s"
    for name in ("report", "sql", "compare"):
        took = getattr(figures, name)
        print(f"{name}: {took.seconds:.1f} s, {took.peak_bytes / 2**20:.0f} MiB", flush=True)
    figure = (
        f"{blocks} blocks: report {figures.report.seconds:.1f} s (allowed {allowed[0]:.1f}), largest memory "
        f"{figures.peak_bytes / 2**20:.0f} MiB (allowed {allowed[1] / 2**20:.0f}), "
        f"page {figures.page_bytes / 1e6:.1f} MB, "
        f"{page}; resume begins in {figures.resume_s:.1f} s (allowed {allowed[2]:.1f})"
    )
    met = all(value <= bar for value, bar in zip(reached, allowed, strict=True))
    return Outcome(
        figure, met and figures.page_bytes <= PAGE_BYTES and (figures.page_s is None or figures.page_s <= PAGE_S)
    )


if __name__ == "__main__":
    main()
