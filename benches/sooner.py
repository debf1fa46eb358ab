"""Are effects known sooner than by the version before, and do intervals still cover the truth?

Simulated neighbours with known effects are measured by this version and by the one before, on hosts that drift alike;
the block loop, storage and statistics are those of a run. The bar: where an effect is real, the time until its interval
reaches ±3 % is at most half in the median of four scenarios (the demo, the example of the README, a shortened `full`,
and one with guests), and no scenario takes longer. Three further scenarios, whose intervals were narrow before, count
for the second part only. 95 % intervals, of null effects and real ones, must hold the truth in 93 % or more, within the
simulation's own chance. The time follows from the widest half width of real effects at the end, which falls with the
root of time, and from the time that was measured. Both versions get the same budget. The widest cell of each version is
named, with its number of blocks. Half widths of single runs vary by a third, so the ratio of a case is the geometric
mean of its pairs. The short form has one or two pairs of three cases, so there "longer" means longer by a third.

With --folder, each call simulates cases until --minutes are over.

`--host` measures scenarios on this host instead, in turn with the version before, and judges the time alone. `--before`
names a folder with the version before; else git gives it.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Parser, conclude, in_parts

BEFORE = "4e56d39"
PRECISION = 0.03
FASTER, NEVER_LONGER, COVERED = 0.5, 1.0, 0.93
QUICK_LONGER = 4 / 3
FACTS = {"cpus_allowed": [0, 1], "memory": {"usable_bytes": 1 << 40}, "missing": []}
SAME = {"cpus": "same"}
BOX = {"backend": "container"}
# On cloud hosts the rate of a victim varies most between windows 40 to 200 ms apart (docs/internals/measuring.md).
DRIFTS = [(0.02, 5_000_000), (0.06, 60_000_000), (0.03, 1_000_000_000)]


@dataclass(frozen=True)
class Case:
    """A scenario, and what is true on its simulated host, of each victim: what it keeps beside an aggressor."""

    victims: Mapping[str, Any]
    aggressors: Mapping[str, Any]
    keeps: Mapping[str, float]
    budget_s: float
    precision: float = 0.001
    cpu_limit: float = 1.0


DEMO = {
    "same-core": {"stressor": "integer", "sandbox": SAME},
    "cache": {"stressor": "cache"},
    "memory": {"stressor": "memory-copy"},
    "disk": {"stressor": "syscall", "settle": "100ms"},
    "processes": {"stressor": "process-creation"},
}
SWEEP = [0.25, 0.5, 0.75, 1]
GUEST = {"backend": "qemu", "memory": "128MiB"}
CASES = {
    "demo": Case({"v": {"probe": "memory-copy"}}, DEMO, {"same-core": 0.5, "memory": 0.8, "disk": 0.9}, 15),
    "quick neighbours": Case(
        {"v": {"probe": "cache"}}, {name: DEMO[name] for name in ("cache", "memory", "processes")}, {"cache": 0.85}, 12
    ),
    # The example of the README, docs/examples/checkout.yaml.
    "example": Case(
        {"api": {"probe": "memory-latency", "sandbox": BOX | {"cpu_limit": 0.5}}},
        {
            "batch": {"stressor": "memory-triad", "intensity": [0.25, 0.5, 1], "sandbox": BOX},
            "backup": {"command": ["fio"]},
        },
        {"batch": 0.7},
        60,
        cpu_limit=0.5,
    ),
    "one core": Case(
        {"v": {"probe": "integer"}},
        {name: DEMO[name] for name in ("same-core", "memory")},
        {"same-core": 0.5},
        15,
    ),
    # `full` with two of its victims, three of its neighbours and without its switched limit.
    "full": Case(
        {"matrix": {"probe": "matrix-vector", "sandbox": BOX}, "wake-up": {"probe": "wake-up", "sandbox": BOX}},
        {
            name: DEMO[name] | {"intensity": SWEEP, "sandbox": BOX | DEMO[name].get("sandbox", {})}
            for name in ("same-core", "memory", "disk")
        },
        {"same-core": 0.5, "memory": 0.8},
        60,
    ),
    "guests": Case(
        {"v": {"probe": "memory-copy", "sandbox": GUEST}},
        {
            name: {"stressor": stressor, "sandbox": GUEST}
            for name, stressor in (("memory", "memory-copy"), ("cpu", "integer"))
        },
        {"memory": 0.8},
        30,
    ),
    "early end": Case({"v": {"probe": "integer"}}, {"memory": DEMO["memory"]}, {"memory": 0.9}, 40, precision=0.02),
}
HALVED = ("demo", "example", "full", "guests")
"""The cases of which the median is judged."""
REPEATS = 12
QUICK = {"demo": 2, "example": 1, "one core": 2}


def simulated(name: str, seed: int) -> dict[str, Any]:
    """One run of a case by the version that is imported: cells, and how long it measured."""
    from partywall.agent.catalogue import shipped  # noqa: PLC0415
    from partywall.events import silent  # noqa: PLC0415
    from partywall.host.label import Label  # noqa: PLC0415
    from partywall.model.scenario import Scenario  # noqa: PLC0415
    from partywall.plan import Topology, make  # noqa: PLC0415
    from partywall.run import execute, stages  # noqa: PLC0415 - of one version or the other
    from partywall.store import RunDirectory  # noqa: PLC0415

    case = CASES[name]
    content = {
        "partywall": 1,
        "name": "sooner",
        "victims": case.victims,
        "aggressors": case.aggressors,
        "precision": case.precision,
        "budget": f"{case.budget_s}s",
        "min_blocks": 8,
    }
    plan = make(Scenario.model_validate(content), Topology((0, 1), ()), shipped(), seed)
    host = _host()(
        dict(case.keeps),
        noise=0.02,
        wander=0,
        drifts=DRIFTS,
        effect_drift=(0.05, 300_000_000),
        cpu_limit=case.cpu_limit,
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run", "", plan, FACTS)
        label = Label("sooner", run.path / "state", run.path / "work")
        began_ns = host.clock.now_ns()
        execute(run, label, stages.decisions(plan), silent, clock=host.clock, sessions=host.session)
        spent_s = (host.clock.now_ns() - began_ns) / 1e9
        cells = stages.analyse(run)[1].cells
    return {"spent_s": spent_s, "cells": {f"{cell.victim}, {cell.treatment}": _cell(cell) for cell in cells}}


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


def measured(scenario: str) -> dict[str, Any]:
    """One run of a scenario on this host by the version that is imported."""
    from partywall import api  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        findings = api.run(scenario, out=Path(folder) / "run").findings
        cells = {f"{cell.victim}, {cell.label}": _cell(cell) for cell in findings.cells}
    return {"spent_s": 1.0, "cells": cells}


def _cell(cell: Any) -> dict[str, float]:
    factor = cell.isolation
    seen = cell.effect == "effect"
    return {"value": factor.value, "low": factor.low, "high": factor.high, "n": factor.n, "seen": seen}


@dataclass(frozen=True)
class Version:
    """Where a version's sources are."""

    source: Path

    def runs(self, *what: str) -> list[dict[str, Any]]:
        """Runs in a process of its own: of a case by seed, or of a scenario on this host (`host`, its name)."""
        here = Path(__file__)
        paths = os.pathsep.join(map(str, (self.source, here.parents[1])))
        command = [sys.executable, str(here), "--once", *what]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(what)} failed: {done.stderr[-2000:]}")
        return list(json.loads(done.stdout.splitlines()[-1]))


def time_to(run: Mapping[str, Any], names: set[str]) -> float:
    """Seconds until the widest of these cells is known to ±3 %: a half width falls with the root of time."""
    return float(run["spent_s"]) * (half_width(run["cells"][widest(run, names)]) / PRECISION) ** 2


def widest(run: Mapping[str, Any], names: set[str]) -> str:
    return max(names, key=lambda name: half_width(run["cells"][name]))


def half_width(cell: Mapping[str, float]) -> float:
    return (cell["high"] - cell["low"]) / 2


def shown(run: Mapping[str, Any], names: set[str]) -> str:
    """How far a run came: its widest cell, and how long it measured."""
    name = widest(run, names)
    cell = run["cells"][name]
    return f"{name} ±{half_width(cell):.1%} from {cell['n']:.0f} blocks in {run['spent_s']:.0f} s"


def aggressor_of(cell: str) -> tuple[str, float]:
    """The aggressor of a cell and its intensity; 1 for the null aggressor."""
    name, _, level = cell.partition(", ")[2].partition("@")
    return name, float(level) if level else 1.0


def covered(case: Case, run: Mapping[str, Any]) -> Iterator[bool]:
    """Of each cell, whether its interval holds the truth."""
    for name, cell in run["cells"].items():
        aggressor, intensity = aggressor_of(name)
        yield cell["low"] <= 1 - (1 - case.keeps.get(aggressor, 1.0)) * intensity <= cell["high"]


def from_git(folder: Path) -> Path:
    """The sources of the version before, unpacked."""
    root = Path(__file__).parents[1]
    packed = subprocess.run(["git", "archive", BEFORE, "src"], cwd=root, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    built = root / "src/partywall/_bin"
    if built.exists():
        (folder / "src/partywall/_bin").symlink_to(built)
    return folder / "src"


def alarmed(run: Mapping[str, Any]) -> Iterator[bool]:
    """Of each null neighbour, whether its interval excludes no effect."""
    return (
        not cell["low"] <= 1 <= cell["high"] for name, cell in run["cells"].items() if aggressor_of(name)[0] == "null"
    )


def simulated_pairs(case: str, count: int, versions: Mapping[str, Version]) -> list[dict[str, dict[str, Any]]]:
    """Runs of a case by each version, by seed. They run at the same time: simulations do not disturb each other."""
    seeds = [str(seed) for seed in range(1, count + 1)]
    with ThreadPoolExecutor(len(versions)) as pool:
        runs = list(pool.map(lambda version: version.runs(case, *seeds), versions.values()))
    return [dict(zip(versions, pair, strict=True)) for pair in zip(*runs, strict=True)]


def judge(measured: Mapping[str, list[dict[str, dict[str, Any]]]], longest: float) -> None:
    """Prints what each case gave; whether the bar is met is the last line."""
    ratios: dict[str, float] = {}
    for name, pairs in measured.items():
        real = {key for key, kept in CASES[name].keeps.items() if kept < 1}
        known = {key for key in pairs[0]["now"]["cells"] if aggressor_of(key)[0] in real}
        ratios[name] = statistics.geometric_mean(
            time_to(pair["now"], known) / time_to(pair["before"], known) for pair in pairs
        )
        print(f"{name}: time until ±3 % {ratios[name]:.2f} of the version before ({len(pairs)} pairs)", flush=True)
        for which, run in pairs[-1].items():
            print(f"  {which}, in the last pair: {shown(run, known)}", flush=True)
    runs = {
        which: [(CASES[name], pair[which]) for name, pairs in measured.items() for pair in pairs]
        for which in ("now", "before")
    }
    hits = {which: [hit for case, run in own for hit in covered(case, run)] for which, own in runs.items()}
    alarms = {which: [alarm for _, run in own for alarm in alarmed(run)] for which, own in runs.items()}
    shares = {which: sum(hit) / len(hit) for which, hit in hits.items()}
    checks = {which: f"{sum(alarm)} of {len(alarm)}" for which, alarm in alarms.items()}
    chance = 2 * math.sqrt(COVERED * (1 - COVERED) / len(hits["now"]))
    middle = statistics.median(ratio for name, ratio in ratios.items() if name in HALVED)
    worst, of_all = max(ratios.values()), statistics.median(ratios.values())
    figure = (
        f"time until ±3 % {middle:.2f} of the version before in the median, {worst:.2f} at worst ({of_all:.2f} in the "
        f"median of all {len(ratios)} cases); intervals hold the truth in {shares['now']:.1%} of {len(hits['now'])} "
        f"(before: {shares['before']:.1%}); A/A checks fail in {checks['now']} (before: {checks['before']})"
    )
    conclude("sooner", figure, met=middle <= FASTER and worst <= longest and shares["now"] >= COVERED - chance)


def on_this_host(now: Version, before: Version, scenarios: list[str], count: int) -> None:
    ratios = []
    for scenario in scenarios:
        for number in range(count):
            order = [now, before] if number % 2 else [before, now]
            runs = {version: version.runs("host", scenario)[0] for version in order}
            seen = {name for name, cell in runs[before]["cells"].items() if cell["seen"]} & set(runs[now]["cells"])
            if not seen:
                print(f"{scenario}: no effect was seen", flush=True)
                continue
            ratios.append(time_to(runs[now], seen) / time_to(runs[before], seen))
            print(f"{scenario}: time until ±3 % {ratios[-1]:.2f} of the version before", flush=True)
    if not ratios:
        conclude("sooner", "no effect was seen on this host", met=False)
    middle, worst = statistics.median(ratios), max(ratios)
    figure = f"on this host: time until ±3 % {middle:.2f} of the version before in the median, {worst:.2f} at worst"
    conclude("sooner", figure, met=middle <= FASTER and worst <= NEVER_LONGER)


def main() -> None:
    parser = Parser(__doc__ or "", plants={"before": "the version before in place of this one"}, folder=True)
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"pairs of each case; default: {REPEATS}")
    parser.add_argument("--before", type=Path, help="sources of the version before")
    parser.add_argument("--host", nargs="+", metavar="SCENARIO", help="measure these on this host")
    parser.add_argument("--once", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        first, *others = options.once
        print(json.dumps([measured(each) if first == "host" else simulated(first, int(each)) for each in others]))
        return
    with tempfile.TemporaryDirectory() as folder:
        now = Version(Path(__file__).parents[1] / "src")
        before = Version(options.before or from_git(Path(folder)))
        now = before if options.plant else now
        if options.host:
            on_this_host(now, before, options.host, options.repeats)
        versions = {"now": now, "before": before}
        counts = QUICK if options.quick else dict.fromkeys(CASES, options.repeats)
        parts = {name: functools.partial(simulated_pairs, name, count, versions) for name, count in counts.items()}
        judge(in_parts(parts, options), QUICK_LONGER if options.quick else NEVER_LONGER)


if __name__ == "__main__":
    main()
