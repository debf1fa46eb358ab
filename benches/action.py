"""Does the comparison of two versions in CI (docs/ci.md) cry wolf, and does it find what got worse?

100 comparisons of equal versions, each of as many runs in turn as the action makes, judged by the action's tolerance
and chance; then the same with a planted loss: beside each neighbour, one version keeps 3 % less. The loss is planted
into finished runs, by scaling their isolation factors.

The long form measures RUNS runs of a scenario on this host, one after another. A comparison is a window of
neighbouring runs, and chance decides which of each two is the new version, so comparisons share runs. With --folder,
finished runs stay there, and each call makes further ones until --minutes are over; all take some 40 minutes. --quick
judges simulated runs of 100 hosts, which vary between runs as those of recorded demos did and have intervals of ±0.5 %.
"""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from common import measure
from compare_demos import plant, worse
from frame import Options, Outcome, bench, in_parts
from partywall.run.findings.compare import Rule, compare
from partywall.run.values.comparison import Change, Comparison
from partywall.run.values.finding import Findings
from partywall.testing.varied import VariedHost

COMPARISONS, WRONG_MOST, FOUND_LEAST = 100, 1, 95
KEEPS = 0.97
WITHIN, DRIFT = 0.0025, 0.005
RUNS = 60
SCENARIO = {
    "name": "action",
    "victims": {"api": {"probe": "integer"}},
    "aggressors": {"batch": {"stressor": "memory-triad", "sandbox": {"cpus": "next"}}},
    "precision": "0.3%",
    "budget": "30s",
}
SCRIPT = (Path(__file__).parents[1] / "packaging/action/compare.sh").read_text()
Window = Sequence[Findings]
"""The runs of one comparison in the order of time: two for each turn."""


def default(pattern: str) -> float:
    """A number that the action's script has."""
    (number,) = re.findall(pattern, SCRIPT)
    return float(number)


TURNS = int(default(r"RUNS:-(\d+)"))
TOLERANCE, CHANCE = default(r"TOLERANCE:-(\d+)%") / 100, default(r"--chance (\d+)%") / 100


def simulated(drift: float) -> Iterator[Window]:
    """Windows of different hosts. drift: what each run takes more than the one before."""
    for seed in range(COMPARISONS):
        host = VariedHost(seed, victims=1, neighbours=2, within=WITHIN)
        yield [host.run(1 - drift * number) for number in range(2 * TURNS)]


def apart(window: Window) -> Window:
    """The runs in an order in which the first half and the second take turns, as if each version had one of them."""
    return [run for pair in zip(window[:TURNS], window[TURNS:], strict=True) for run in pair]


def measured(options: Options) -> Iterator[Window]:
    """Windows of runs that were measured one after another on this host."""
    parts = {f"run-{number}": partial(one_run, number) for number in range(RUNS)}
    runs = [Findings.model_validate(each) for each in in_parts(parts, options).values()]
    order = random.Random(1)
    for _ in range(COMPARISONS):
        first = order.randrange(len(runs) - 2 * TURNS + 1)
        yield runs[first : first + 2 * TURNS]


def one_run(seed: int) -> dict[str, Any]:
    return measure(SCENARIO, seed)[1].model_dump(mode="json")


def judged(window: Window, order: random.Random | None, keeps: float = 1.0) -> Comparison:
    """The comparison that the action makes. order: None if the second of each two runs is of the new version.

    keeps: what the new version keeps beside each neighbour, as a share of the other version's.
    """
    new: list[Findings] = []
    base: list[Findings] = []
    for pair in zip(window[::2], window[1::2], strict=True):
        older, newer = order.sample(pair, 2) if order else pair
        new.append(worse(newer, keeps=keeps))
        base.append(older)
    rule = Rule(CHANCE, in_turn=True)
    return compare(new[0], base[0], TOLERANCE, also=new[1:], also_reference=base[1:], rule=rule)


def is_worse(comparison: Comparison) -> bool:
    return any(cell.change is Change.WORSE for cell in comparison.cells)


def judge(windows: Iterator[Window], what: str, order: random.Random | None) -> Outcome:
    pairs = [(judged(window, order), is_worse(judged(window, order, KEEPS))) for window in windows]
    wrong, planted = sum(is_worse(same) for same, _ in pairs), sum(lost for _, lost in pairs)
    finds = [cell.found_from for same, _ in pairs for cell in same.cells if cell.found_from is not None]
    usual = f"{statistics.median(finds):.1%}" if finds else "nothing"
    figure = (
        f"{len(pairs)} comparisons of {what}, {2 * TURNS} runs each: {wrong} false alarms; a planted {1 - KEEPS:.0%} "
        f"is found in {planted}; they state that they find {usual}"
    )
    return Outcome(figure, wrong <= WRONG_MOST and planted >= FOUND_LEAST)


@bench(
    plants={
        "apart": f"the versions are not measured in turn, and the host drifts by {DRIFT:.1%} a run",
        "mute": "the variation between runs is never known",
    },
    folder=True,
    unjudged="runs on this host",
)
def main(options: Options) -> Outcome:
    if options.plant == "apart":
        return judge(map(apart, simulated(DRIFT)), "simulated runs", None)
    if options.plant:
        plant(options.plant)
    windows = simulated(0.0) if options.quick or options.plant else measured(options)
    what = "simulated runs" if options.quick or options.plant else f"{RUNS} runs on this host"
    return judge(windows, what, random.Random(2))


if __name__ == "__main__":
    main()
