"""Do twenty demos of one host agree with each other, and with their own A/A checks?

Runs `partywall run demo` again and again, as a user does. With --folder, finished runs stay there, and each call makes
further ones until --minutes are over. Three things are judged.

* A/A bands: of those of all trials, how many fail because the null neighbour seems to have an effect; for throughput
  and the p99 latency apart.
* Agreement: for each cell and each pair of runs, whether the interval of the ratio excludes 1. A pair counts if
  `partywall compare` does not state that the victim itself drifted between the two runs; the others are shown apart.
* Heterogeneity: Cochran's Q of each cell over all runs, judged after Holm's correction. Cells of a victim whose drift
  is stated between some of the runs are shown, but not judged.

Bar: at most 5 % of the bands fail, for throughput and latency each; at most 5 % of the judged pairs disagree, within
the simulated chance of as many runs; no judged cell is heterogeneous. --quick judges twenty short simulated demos.
"""

from __future__ import annotations

import functools
import itertools
import math
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from common import PARTYWALL
from frame import Options, Outcome, bench, in_parts
from partywall.agent.catalogue import shipped
from partywall.errors import UsageError
from partywall.events import silent
from partywall.host.label import Label
from partywall.run import stages
from partywall.run.document.scenario import Scenario
from partywall.run.findings.compare import compare_runs
from partywall.run.findings.latency import JUDGED
from partywall.run.measure.execute import execute
from partywall.run.plan import Topology, make
from partywall.run.record import RunDirectory
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Cell, Findings
from partywall.testing import SimulatedHost

RUNS = 20
FAILED_MOST = 0.05
LEVEL = 0.95
SIMULATED = {
    "victims": {"memory": {"probe": "memory-copy"}, "integer": {"probe": "integer"}},
    "aggressors": {"memory": {"stressor": "memory-copy"}, "system-calls": {"stressor": "syscall"}},
    "budget": "6s",
}
KEEPS = {"memory": 0.8}
PLANTS = {
    "effect": "the null neighbour of simulated demos takes 3 %",
    "shift": "a neighbour of simulated demos takes 10 points more in every second run",
}
FACTS = {"cpus_allowed": [0, 1], "memory": {"usable_bytes": 1 << 40}, "missing": []}
Measured = tuple[Evidence, Findings]


@dataclass
class Count:
    """How many of something failed."""

    failed: int = 0
    total: int = 0

    def add(self, failed: bool) -> None:
        self.failed += failed
        self.total += 1

    @property
    def share(self) -> float:
        return self.failed / self.total if self.total else math.nan

    def __str__(self) -> str:
        return f"{self.failed} of {self.total} ({self.share:.1%})" if self.total else "none"


@dataclass
class Pairs:
    """Disagreements between runs: of the judged pairs, and of those whose victim drifted by the report's own word."""

    judged: Count = field(default_factory=Count)
    drifted: Count = field(default_factory=Count)


def demo(path: Path, seed: int, each: str | None, environment: Mapping[str, str] | None = None) -> str:
    """A finished run in a folder: its name."""
    shutil.rmtree(path, ignore_errors=True)
    command = [*PARTYWALL, "run", "demo", "--out", str(path), "--seed", str(seed)]
    command += ["--budget", each] if each else []
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not _finished(path):
        raise SystemExit(f"{path.name} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return path.name


def _finished(path: Path) -> bool:
    try:
        return RunDirectory.open(path).ended
    except UsageError:
        return False


def simulated_run(content: Mapping[str, Any], host: SimulatedHost, path: Path, seed: int) -> Measured:
    """A run of a scenario on a simulated host, recorded at a path."""
    scenario = Scenario.model_validate({"partywall": 1, "name": "demo"} | dict(content))
    plan = make(scenario, Topology((0, 1), ()), shipped(), seed)
    run = RunDirectory.create(path, "", plan, FACTS)
    label = Label("simulated", run.path / "state", run.path / "work")
    execute(run, label, stages.decisions(plan), silent, clock=host.clock, sessions=host.session)
    return stages.analyse(run)


def simulated(folder: Path, runs: int, plant: str) -> Iterator[Measured]:
    """Short demos of a host whose speed wanders between runs as within them, and whose neighbours do not change."""
    for seed in range(1, runs + 1):
        keeps = KEEPS | ({"null": 0.97} if plant == "effect" else {})
        if plant == "shift" and seed % 2:
            keeps["memory"] -= 0.1
        host = SimulatedHost(keeps, wander=0, drifts=[(0.02, 5_000_000), (0.03, 300_000_000)], seed=seed)
        yield simulated_run(SIMULATED, host, folder / f"demo-{seed:02}", seed)


def alarms(demos: Sequence[Findings]) -> tuple[Count, Count]:
    """A/A bands whose null neighbour seems to have an effect: on throughput, and on the p99 latency."""
    throughput, latency = Count(), Count()
    for band in (band for findings in demos for band in findings.bands):
        throughput.add(not band.null.low <= 1 <= band.null.high)
        if (impact := band.null_latency.get(JUDGED)) is not None:
            latency.add(not impact.low <= 0 <= impact.high)
    return throughput, latency


def agreement(runs: Sequence[Measured]) -> tuple[Pairs, set[str]]:
    """How often two runs' cells exclude each other; and the victims that drifted between some of the runs."""
    pairs, drifted = Pairs(), set[str]()
    for former, other in itertools.combinations(runs, 2):
        compared = compare_runs(former, other, latency_tolerance=None)
        drifted |= set(compared.drifted)
        for cell in compared.cells:
            count = pairs.drifted if cell.victim in compared.drifted else pairs.judged
            count.add(not cell.ratio.low <= 1 <= cell.ratio.high)
    return pairs, drifted


def heterogeneity(demos: Sequence[Findings]) -> dict[tuple[str, str], tuple[float, float]]:
    """By cell: Cochran's Q as a probability, and the standard deviation between runs beyond the intervals' own."""
    cells: defaultdict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in (cell for findings in demos for cell in findings.cells if cell.role != "null"):
        cells[cell.victim, cell.label].append(cell)
    return {name: _spread(own) for name, own in cells.items() if len(own) > 2}


def _spread(cells: Sequence[Cell]) -> tuple[float, float]:
    values = np.array([cell.isolation.value for cell in cells])
    errors = np.array([_error(cell) for cell in cells])
    weights = 1 / errors**2
    mean = float(weights @ values / weights.sum())
    q, free = float(weights @ (values - mean) ** 2), len(cells) - 1
    between = max(0.0, q - free) / float(weights.sum() - (weights @ weights) / weights.sum())
    return float(stats.chi2.sf(q, free)), math.sqrt(between)


def _error(cell: Cell) -> float:
    """The standard error behind an interval; its blocks' worth gives the freedom of Student's t."""
    factor = cell.isolation
    worth = max(2.0, factor.n_effective or factor.n)
    return max(factor.half_width / float(stats.t.ppf((1 + LEVEL) / 2, worth - 1)), 1e-9)


def holm(p_values: dict[tuple[str, str], float]) -> list[tuple[str, str]]:
    """Cells that are heterogeneous after testing all."""
    kept = []
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p > (1 - LEVEL) / (len(p_values) - place):
            break
        kept.append(name)
    return kept


def chance(runs: int, cells: int) -> float:
    """The share of disagreeing pairs that so many runs with honest intervals stay below in 95 of 100 cases.

    Pairs of the same runs are not independent of each other, so this is simulated.
    """
    random = np.random.default_rng(1)
    drawn = random.standard_normal((2000, cells, runs))
    apart = np.abs(drawn[..., :, None] - drawn[..., None, :]) / math.sqrt(2)
    differs = (apart > stats.norm.ppf((1 + LEVEL) / 2)).sum(axis=(1, 2, 3)) / (cells * runs * (runs - 1))
    return float(np.quantile(differs, LEVEL))


def judge(runs: Sequence[Measured]) -> Outcome:
    demos = [findings for _, findings in runs]
    throughput, latency = alarms(demos)
    pairs, drifted = agreement(runs)
    spreads = heterogeneity(demos)
    differ = holm({name: p for name, (p, _) in spreads.items()})
    for victim, label in differ:
        p, between = spreads[victim, label]
        said = "; the reports state that the victim drifted" if victim in drifted else ""
        print(f"{victim}, {label}: runs differ by {between:.1%} (sd) beyond their intervals, p = {p:.2g}{said}")
    print(f"victims that drifted between some runs, as the reports state: {', '.join(sorted(drifted)) or 'none'}")
    print(f"pairs of runs whose victim drifted: {pairs.drifted} disagree")
    judged = [name for name in differ if name[0] not in drifted]
    allowed = max(FAILED_MOST, chance(len(runs), max(1, len(spreads))))
    figure = (
        f"{len(runs)} demos: A/A bands fail for throughput in {throughput}, for p99 latency in {latency}; cells of two "
        f"runs disagree in {pairs.judged} (allowed {allowed:.1%}); {len(judged)} of {len(spreads)} cells differ "
        f"between runs without a stated drift, {len(differ) - len(judged)} with one"
    )
    met = throughput.share <= FAILED_MOST and not latency.share > FAILED_MOST and not judged
    return Outcome(figure, met and not pairs.judged.share > allowed)


def demos_in_parts(folder: Path, options: Options) -> list[Measured]:
    """Demos of this host, each a part that stays in the folder."""
    each = f"{options.each:g}s" if options.each else None
    names = [f"demo-{number:02}" for number in range(1, options.runs + 1)]
    parts = {name: functools.partial(demo, folder / name, seed, each) for seed, name in enumerate(names, 1)}
    return [stages.analyse(RunDirectory(folder / name)) for name in in_parts(parts, options)]


MORE: dict[str, dict[str, Any]] = {
    "--runs": {"type": int, "default": RUNS, "help": "demos"},
    "--each": {"metavar": "SECONDS", "type": float, "help": "budget of a demo; default: the demo's own"},
}


@bench(plants=PLANTS, folder=True, unjudged="demos on this host", more=MORE)
def main(options: Options) -> Outcome:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as passing:
        if options.quick or options.plant:
            return judge(list(simulated(Path(passing), RUNS, options.plant)))
        return judge(demos_in_parts(options.folder or Path(passing), options))


if __name__ == "__main__":
    main()
