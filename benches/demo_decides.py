"""What does the demo decide in its time: which neighbours have an effect, and which have none?

Runs `partywall run demo`, as a user does, on a quiet host and beside a tenant that comes and goes: a program that works
for some seconds and then rests for twice as long. The version before runs in turn with this one. A cell is decided if
the report says that there is an effect, or that there is none beyond ±5 %. Cells whose whole interval lies outside ±5 %
or within it are counted apart. A null neighbour has no effect, so a report that names one is wrong.

The bar: on a quiet host, at least 80 % of cells are decided within 2 min 30 s of measuring, set-up between turns
included; beside the tenant, at least 60 %; at most 5 % of null neighbours have an effect. Twenty demos of each version
in each state take some four hours; with --folder, finished demos stay there, and each call makes further ones until
--minutes are over. The figure states how many quiet demos were disturbed by other programs. They count; for a quiet
host, measure them again.

--quick judges short simulated demos instead, whose truth is known. A neighbour without an effect that has one in the
report counts as wrong too. `--before` names the commit of the version before.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Parser, conclude, in_parts
from disturbance import watched

BEFORE = "8d3e9ed1"
RUNS, QUICK_RUNS = 20, 3
BARS = {"quiet": 0.8, "tenant": 0.6}
WRONG_MOST, SPAN_MOST_S, BOUND = 0.05, 150.0, 0.05
WORKS_S, RESTS_S = (2.0, 6.0), (4.0, 12.0)
FACTS = {"cpus_allowed": [0, 1], "memory": {"usable_bytes": 1 << 40}, "missing": []}
KEEPS = {"same-core": 0.5, "memory": 0.8}
SIMULATED = {
    "victims": {"v": {"probe": "memory-copy"}},
    "aggressors": {
        "same-core": {"stressor": "integer", "sandbox": {"cpus": "same"}},
        "memory": {"stressor": "memory-copy"},
        "cache": {"stressor": "cache"},
        "system-calls": {"stressor": "syscall"},
    },
    "budget": "16s",
}
DRIFTS = [(0.02, 5_000_000), (0.06, 60_000_000), (0.03, 1_000_000_000)]
# The simulated tenant is on the victim's CPU; a real one is where the kernel puts it.
TENANTS = {"quiet": None, "tenant": (4_000_000_000, 4_000_000_000)}
PLANTS = {"before": "the version before in place of this one"}
VERSIONS = ("before", "now")
Demo = Mapping[str, Any]


@contextlib.contextmanager
def tenant(seed: int) -> Iterator[None]:
    """Another program that works and rests in turn, by the seed."""
    code = (
        "import random, time\n"
        f"chance = random.Random({seed})\n"
        "while True:\n"
        f"    time.sleep(chance.uniform(*{RESTS_S}))\n"
        f"    until = time.monotonic() + chance.uniform(*{WORKS_S})\n"
        "    while time.monotonic() < until: pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as program:
        try:
            yield
        finally:
            program.kill()


def unpacked(commit: str, folder: Path) -> Path:
    """The sources of a commit, with the agent of this one: they share the wire."""
    root = Path(__file__).parents[1]
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=root, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    built = root / "src/partywall/_bin"
    if built.exists():
        (folder / "src/partywall/_bin").symlink_to(built)
    return folder / "src"


def environment(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (source, Path(__file__).parents[1])))}


def measured(source: Path, state: str, seed: int) -> Demo:
    """A demo by the version in `source` on this host."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "run"
        command = [sys.executable, "-m", "partywall", "run", "demo", "--out", str(path), "--seed", str(seed)]
        if state == "tenant":
            stack.enter_context(tenant(seed))
        seen = stack.enter_context(watched())
        done = subprocess.run(command, env=environment(source), capture_output=True, text=True, check=False)
        stack.close()
        if not (path / "findings.json").exists():
            raise SystemExit(f"demo {seed} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
        cells = json.loads((path / "findings.json").read_text())["cells"]
        kept = [
            {name: cell[name] for name in ("victim", "label", "role", "effect")}
            | {name: cell["isolation"][name] for name in ("value", "low", "high", "n")}
            for cell in cells
        ]
        disturbed = str(seen) if state == "quiet" and seen.disturbed else ""
        return {"cells": kept, "span_s": _span_s(path), "disturbed": disturbed}


def _span_s(run: Path) -> float:
    """From the first slot to the last."""
    slots = [
        slot
        for line in (run / "events.jsonl").read_text().splitlines()
        if (event := json.loads(line))["kind"] in ("block_done", "block_void")
        for slot in event["slots"]
    ]
    return float(max(slot["end_ns"] for slot in slots) - min(slot["start_ns"] for slot in slots)) / 1e9


def simulated(state: str, seed: int) -> Demo:
    """A short demo by the version that is imported, on a host whose neighbours' effects are known."""
    from partywall.agent.catalogue import shipped  # noqa: PLC0415
    from partywall.events import silent  # noqa: PLC0415
    from partywall.host.label import Label  # noqa: PLC0415
    from partywall.model.scenario import Scenario  # noqa: PLC0415
    from partywall.plan import Topology, make  # noqa: PLC0415
    from partywall.run import execute, stages  # noqa: PLC0415 - of either version
    from partywall.store import RunDirectory  # noqa: PLC0415

    content = {"partywall": 1, "name": "demo"} | SIMULATED
    if "aim" in Scenario.model_fields:
        content |= {"aim": "decision", "budget_grows": 0.5}
    plan = make(Scenario.model_validate(content), Topology((0, 1), ()), shipped(), seed)
    host = _host()(KEEPS, wander=0, drifts=DRIFTS, tenant=TENANTS[state], seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "demo", "", plan, FACTS)
        label = Label("decides", run.path / "state", run.path / "work")
        execute(run, label, stages.decisions(plan), silent, clock=host.clock, sessions=host.session)
        cells = stages.analyse(run)[1].cells
        kept = [
            {"victim": cell.victim, "label": cell.label, "role": cell.role, "effect": str(cell.effect)}
            | {name: getattr(cell.isolation, name) for name in ("value", "low", "high", "n")}
            for cell in cells
        ]
        return {"cells": kept, "span_s": _span_s(run.path), "disturbed": ""}


def _host() -> Any:
    """The simulated host of this version, for both: it stands on the wire, which they share."""
    from importlib import util  # noqa: PLC0415

    file = Path(__file__).parents[1] / "src/partywall/testing/simulated.py"
    spec = util.spec_from_file_location("simulated_now", file)
    assert spec
    assert spec.loader
    module = util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.SimulatedHost


def simulated_by(source: Path, state: str, seeds: Sequence[int]) -> list[Demo]:
    """Simulated demos in a process of the version in `source`."""
    command = [sys.executable, __file__, "--once", state, *map(str, seeds)]
    done = subprocess.run(command, env=environment(source), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return list(json.loads(done.stdout.splitlines()[-1]))


@dataclass
class Tally:
    """Cells of the demos of one version in one state."""

    cells: int = 0
    decided: int = 0
    apart: int = 0
    nulls: int = 0
    wrong: int = 0
    span_s: float = 0.0
    disturbed: int = 0

    @staticmethod
    def of(demos: Sequence[Demo], *, is_true_known: bool) -> Tally:
        cells = [cell for demo in demos for cell in demo["cells"]]
        beside = [cell for cell in cells if cell["role"] == "aggressor"]
        without = [cell for cell in cells if cell["role"] == "null"]
        without += [cell for cell in beside if is_true_known and cell["label"] not in KEEPS]
        return Tally(
            len(beside),
            sum(cell["effect"] in ("effect", "none") for cell in beside),
            sum(_is_apart(cell["low"], cell["high"]) for cell in beside),
            len(without),
            sum(cell["effect"] == "effect" for cell in without),
            statistics.median(demo["span_s"] for demo in demos),
            sum(bool(demo["disturbed"]) for demo in demos),
        )

    @property
    def share(self) -> float:
        return self.decided / self.cells

    def __str__(self) -> str:
        others = f", {self.disturbed} demos disturbed by other programs" if self.disturbed else ""
        return (
            f"{self.share:.0%} of {self.cells} cells decided ({self.apart / self.cells:.0%} outside ±5 % or within) in "
            f"{self.span_s:.0f} s; {self.wrong} of {self.nulls} without an effect have one{others}"
        )


def _is_apart(low: float, high: float) -> bool:
    return high < 1 - BOUND or low > 1 + BOUND or (low >= 1 - BOUND and high <= 1 + BOUND)


def judge(tallies: Mapping[tuple[str, str], Tally], *, is_real: bool) -> None:
    """tallies: by state and version."""
    for (state, version), tally in tallies.items():
        print(f"{state}, {version}: {tally}", flush=True)
    now = {state: tally for (state, version), tally in tallies.items() if version == "now"}
    nulls, wrong = (sum(getattr(tally, name) for tally in now.values()) for name in ("nulls", "wrong"))
    shown = (
        f"{state}: {tally.share:.0%} decided (before: {tallies[state, 'before'].share:.0%}) in {tally.span_s:.0f} s"
        + (f" ({tally.disturbed} demos disturbed)" if tally.disturbed else "")
        for state, tally in now.items()
    )
    what = "demos" if is_real else "simulated demos"
    figure = f"{what}, {'; '.join(shown)}; {wrong} of {nulls} neighbours without an effect have one"
    in_time = not is_real or now["quiet"].span_s <= SPAN_MOST_S
    met = all(tally.share >= BARS[state] for state, tally in now.items()) and wrong <= WRONG_MOST * nulls
    conclude("demo_decides", figure, met=met and in_time)


def in_simulation(sources: Mapping[str, Path]) -> dict[tuple[str, str], Tally]:
    keys = [(state, version) for state in BARS for version in VERSIONS]
    seeds = range(1, QUICK_RUNS + 1)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        demos = list(pool.map(lambda key: simulated_by(sources[key[1]], key[0], seeds), keys))
    return {key: Tally.of(own, is_true_known=True) for key, own in zip(keys, demos, strict=True)}


def main() -> None:
    parser = Parser(__doc__ or "", plants=PLANTS, folder=True, unjudged="demos on this host")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"demos of each version in each state; default: {RUNS}")
    parser.add_argument("--before", metavar="COMMIT", default=BEFORE, help=f"the version before; default: {BEFORE}")
    parser.add_argument("--once", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        state, *seeds = options.once
        print(json.dumps([simulated(state, int(seed)) for seed in seeds]))
        return
    with tempfile.TemporaryDirectory() as folder:
        before = unpacked(options.before, Path(folder))
        sources = {"before": before, "now": before if options.plant else Path(__file__).parents[1] / "src"}
        if options.quick or options.plant:
            judge(in_simulation(sources), is_real=False)
        # One after the other of both, so that a host that changes does so for both.
        keys = [
            (state, version, seed)
            for seed in range(1, options.runs + 1)
            for state in BARS
            for version in (VERSIONS if seed % 2 else VERSIONS[::-1])
        ]
        parts = {
            f"{state}-{version}-{seed:02}": functools.partial(measured, sources[version], state, seed)
            for state, version, seed in keys
        }
        demos = in_parts(parts, options)
        tallies = {
            (state, version): Tally.of(
                [demos[f"{state}-{version}-{seed:02}"] for seed in range(1, options.runs + 1)], is_true_known=False
            )
            for state in BARS
            for version in VERSIONS
        }
        judge(tallies, is_real=True)


if __name__ == "__main__":
    main()
