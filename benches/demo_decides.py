"""What does the demo decide in its time: which neighbours have an effect, and which have none?

Runs `partywall run demo`, as a user does, on a quiet host and beside a tenant that comes and goes: a program that
works for some seconds and then rests for twice as long. A cell is decided if the report says that there is an effect,
or that there is none beyond ±5 %. The version before, of the commit `--before`, runs in turn with this one. Cells
whose whole interval lies outside ±5 % or within it are counted apart. A null neighbour has no effect, so a report
that names one is wrong.

The bar: on a quiet host, at least 80 % of cells are decided within 2 min 30 s of measuring, set-up between turns
included; beside the tenant, at least 60 %; at most 5 % of null neighbours have an effect. Twenty demos in each state
take some two hours. The figure states how many quiet demos were disturbed by other programs. They count; for a quiet
host, measure them again. With `--before` both versions run, which takes twice as long, or less with `--before-runs`.

--quick judges short simulated demos instead, whose truth is known. A neighbour without an effect that has one in the
report counts as wrong too.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import program
from disturbance import Seen, watched
from frame import Options, Outcome, bench, in_parts
from partywall.testing import SimulatedHost
from twenty_demos import demo, simulated_run

SOURCE = Path(__file__).resolve().parents[1] / "src"
RUNS, QUICK_RUNS = 20, 3
BARS = {"quiet": 0.8, "tenant": 0.6}
WRONG_MOST, SPAN_MOST_S, BOUND = 0.05, 150.0, 0.05
WORKS_S, RESTS_S = (2.0, 6.0), (4.0, 12.0)
KEEPS = {"same-core": 0.5, "memory": 0.8}
SIMULATED = {
    "victims": {"v": {"probe": "memory-copy"}},
    "aggressors": {
        "same-core": {"stressor": "integer", "sandbox": {"cpus": "same"}},
        "memory": {"stressor": "memory-copy"},
        "cache": {"stressor": "cache"},
        "system-calls": {"stressor": "syscall"},
    },
    "aim": "decision",
    "budget_grows": 0.5,
}
PLANTS = {
    "effect": "the null neighbour of simulated demos takes 5 %",
    "short": "simulated demos have an eighth of their time",
}
DRIFTS = [(0.02, 5_000_000), (0.06, 60_000_000), (0.03, 1_000_000_000)]
# The simulated tenant is on the victim's CPU; a real one is where the kernel puts it.
TENANTS = {"quiet": None, "tenant": (4_000_000_000, 4_000_000_000)}
TENANT = """
import random, time
chance = random.Random({seed})
while True:
    time.sleep(chance.uniform(*{rests}))
    until = time.monotonic() + chance.uniform(*{works})
    while time.monotonic() < until: pass
"""
Demo = Mapping[str, Any]
States = Mapping[str, Sequence[Demo]]


def tenant(seed: int) -> contextlib.AbstractContextManager[object]:
    """Another program that works and rests in turn, by the seed."""
    return program(sys.executable, "-c", TENANT.format(seed=seed, rests=RESTS_S, works=WORKS_S))


def measured(state: str, source: Path, seed: int, keeps: Path | None) -> Demo:
    """A demo on this host, by the version in `source`, whose own verdicts count. keeps: where its run stays."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as passing:
        path = keeps or Path(passing) / "run"
        with tenant(seed) if state == "tenant" else contextlib.nullcontext(), watched() as seen:
            demo(path, seed, None, os.environ | {"PYTHONPATH": str(source)})
        cells = json.loads((path / "findings.json").read_text())["cells"]
        return kept(path, cells, seen if state == "quiet" else None)


def unpacked(commit: str, folder: Path) -> Path:
    """The sources of a commit, with the agent of this one, whose wire it shares."""
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=SOURCE.parent, check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    if (built := SOURCE / "partywall/_bin").exists():
        (folder / "src/partywall/_bin").symlink_to(built)
    return folder / "src"


def simulated(state: str, plant: str, seed: int) -> Demo:
    """A short demo on a host whose neighbours' effects are known."""
    keeps, budget = KEEPS | ({"null": 0.95} if plant == "effect" else {}), "2s" if plant == "short" else "16s"
    host = SimulatedHost(keeps, wander=0, drifts=DRIFTS, tenant=TENANTS[state], seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        _, findings = simulated_run(SIMULATED | {"budget": budget}, host, Path(folder) / "demo", seed)
        return kept(Path(folder) / "demo", findings.model_dump(mode="json", by_alias=True)["cells"])


def kept(path: Path, found: Sequence[Mapping[str, Any]], seen: Seen | None = None) -> Demo:
    """What is judged of a demo, as plain values. found: the cells of its findings."""
    cells = [
        {name: cell[name] for name in ("victim", "label", "role", "effect")}
        | {name: cell["isolation"][name] for name in ("value", "low", "high", "n")}
        for cell in found
    ]
    return {"cells": cells, "span_s": _span_s(path), "disturbed": str(seen) if seen and seen.disturbed else ""}


def _span_s(run: Path) -> float:
    """From the first slot to the last."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    slots = [slot for event in events if event["kind"] in ("block_done", "block_void") for slot in event["slots"]]
    return float(max(slot["end_ns"] for slot in slots) - min(slot["start_ns"] for slot in slots)) / 1e9


@dataclass
class Count:
    """Cells of the demos in one state. is_true_known: neighbours without an effect are known."""

    demos: Sequence[Demo]
    is_true_known: bool

    def __post_init__(self) -> None:
        cells = [cell for each in self.demos for cell in each["cells"]]
        self.beside = [cell for cell in cells if cell["role"] == "aggressor"]
        self.without = [cell for cell in cells if cell["role"] == "null"]
        self.without += [cell for cell in self.beside if self.is_true_known and cell["label"] not in KEEPS]
        self.wrong = sum(cell["effect"] == "effect" for cell in self.without)
        self.share = sum(cell["effect"] in ("effect", "none") for cell in self.beside) / len(self.beside)
        self.apart = sum(_is_apart(cell["low"], cell["high"]) for cell in self.beside) / len(self.beside)
        self.span_s = statistics.median(each["span_s"] for each in self.demos)
        self.disturbed = sum(bool(each["disturbed"]) for each in self.demos)

    def __str__(self) -> str:
        others = f" ({self.disturbed} demos disturbed)" if self.disturbed else ""
        return f"{self.share:.0%} decided in {self.span_s:.0f} s{others}"


def _is_apart(low: float, high: float) -> bool:
    return high < 1 - BOUND or low > 1 + BOUND or (low >= 1 - BOUND and high <= 1 + BOUND)


def judge(
    demos: Mapping[str, Sequence[Demo]], *, is_real: bool, before: Mapping[str, Sequence[Demo]] | None = None
) -> Outcome:
    """demos: by state. before: of the version before."""
    counts = {state: Count(own, not is_real) for state, own in demos.items()}
    for state, count in counts.items():
        print(f"{state}: {count} of {len(count.beside)} cells, {count.apart:.0%} outside ±5 % or within", flush=True)
    nulls, wrong = (sum(each) for each in zip(*((len(c.without), c.wrong) for c in counts.values()), strict=True))
    figure = f"{'' if is_real else 'simulated '}demos, {'; '.join(f'{state}: {c}' for state, c in counts.items())}"
    if before:
        figure += f"; the version before, {'; '.join(f'{state}: {Count(own, False)}' for state, own in before.items())}"
    in_time = not is_real or counts["quiet"].span_s <= SPAN_MOST_S
    met = all(count.share >= BARS[state] for state, count in counts.items()) and wrong <= WRONG_MOST * nulls
    return Outcome(f"{figure}; {wrong} of {nulls} neighbours without an effect have one", met and in_time)


def _kept_at(folder: Path | None, state: str, version: str, seed: int) -> Path | None:
    """Runs of quiet demos by this version stay, for `compare_demos --demos`."""
    return folder / "runs" / f"demo-{seed:02}" if folder and (state, version) == ("quiet", "now") else None


@bench(
    plants=PLANTS,
    folder=True,
    unjudged="demos on this host",
    more={
        "--runs": {"type": int, "default": RUNS, "help": f"demos in each state; default: {RUNS}"},
        "--before": {
            "metavar": "COMMIT",
            "default": "",
            "help": "the version whose demos run in turn with these",
        },
        "--before-runs": {
            "type": int,
            "default": None,
            "help": "demos of the version before in each state, in turn with the last ones; default: as many",
        },
    },
)
def main(options: Options) -> Outcome:
    if options.quick or options.plant:
        with ProcessPoolExecutor() as pool:
            made = {
                state: [pool.submit(simulated, state, options.plant, seed) for seed in range(1, QUICK_RUNS + 1)]
                for state in BARS
            }
            return judge({state: [each.result() for each in own] for state, own in made.items()}, is_real=False)
    with tempfile.TemporaryDirectory() as folder:
        sources = {"now": SOURCE} | ({"before": unpacked(options.before, Path(folder))} if options.before else {})
        # Versions and states in turn, so that a host that changes does so for all.
        first = {"now": 1, "before": 1 + options.runs - (options.before_runs or options.runs)}
        seeds = {v: range(first[v], options.runs + 1) for v in sources}
        keys = [key for key in itertools.product(seeds["now"], BARS, sources) if key[0] in seeds[key[2]]]
        demos = in_parts(
            {
                f"{v}-{state}-{seed:02}": functools.partial(
                    measured, state, sources[v], seed, _kept_at(options.folder, state, v, seed)
                )
                for seed, state, v in keys
            },
            options,
        )
        of = {v: {state: [demos[f"{v}-{state}-{seed:02}"] for seed in seeds[v]] for state in BARS} for v in sources}
        return judge(of["now"], is_real=True, before=of.get("before"))


if __name__ == "__main__":
    main()
