"""Does `partywall compare` cry wolf, and does it find what got worse?

Forty pairs of demos of one host, on which nothing changes between them. Up to six of the other demos are the past
records that show how much runs of this host vary. With --folder, finished demos stay there, and each call makes further
ones until --minutes are over. With --demos, the runs in that folder are judged, and none is made. Three things are
judged.

* A/A: how many pairs end with a cell that is worse or better.
* Planted in all cells: in one run of each pair, every neighbour takes 10 % more. How many pairs are called worse?
* Planted in one cell: the same for the best known cell alone, in pairs whose comparison says that it would find it.

The plant scales the isolation factors of a finished run; what the run says of its cells' effects stays as it was.

Bar: at most 5 % of pairs worse or better; at least 90 % of both plants found. --quick and --plant judge simulated
records: 40 hosts, each with a pair and six past runs, which differ as those of twenty real demos did.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from frame import Options, Outcome, bench
from partywall.run import stages
from partywall.run.findings.between import Spread
from partywall.run.findings.compare import compare
from partywall.run.record import RunDirectory
from partywall.run.values.comparison import Change, ComparedCell, Comparison
from partywall.run.values.finding import Findings
from partywall.testing.varied import VariedHost
from twenty_demos import MORE, demos_in_parts

PAIRS, DEMOS, PAST = 40, 10, 6
WRONG_MOST, FOUND_LEAST = 0.05, 0.9
KEEPS = 0.9
PLANTS = {
    "old": "the rule of before: the interval of one run alone decides, and each cell for itself",
    "mute": "the variation between runs is never known",
}
Pair = tuple[Findings, Findings, Sequence[Findings]]


def simulated() -> Iterator[Pair]:
    """Pairs of independent hosts."""
    for seed in range(PAIRS):
        host = VariedHost(seed)
        yield host.run(), host.run(), [host.run() for _ in range(PAST)]


def recorded(demos: Sequence[Findings]) -> Iterator[Pair]:
    """Pairs of demos of one host in random order, each with the other demos as past ones."""
    order = random.Random(1)
    pairs = list(itertools.permutations(demos, 2))
    for run, reference in order.sample(pairs, min(PAIRS, len(pairs))):
        others = [each for each in demos if each is not run and each is not reference]
        yield run, reference, order.sample(others, min(PAST, len(others)))


def worse(findings: Findings, only: ComparedCell | None = None, keeps: float = KEEPS) -> Findings:
    """The run with a further loss, 10 % by default, in all of its cells or in this one."""
    cells = []
    for cell in findings.cells:
        factor = cell.isolation
        if only is None or (cell.victim, cell.label, cell.levels) == (only.victim, only.label, only.levels):
            scaled: dict[str, Any] = {end: keeps * getattr(factor, end) for end in ("value", "low", "high")}
            factor = factor.model_copy(update=scaled)
        cells.append(cell.model_copy(update={"isolation": factor}))
    return findings.model_copy(update={"cells": tuple(cells)})


def is_worse(comparison: Comparison) -> bool:
    return any(cell.change is Change.WORSE for cell in comparison.cells)


def best_known(comparison: Comparison) -> ComparedCell | None:
    """The cell in which the smallest loss is found, if 10 % are."""
    known = [cell for cell in comparison.cells if cell.found_from is not None and cell.found_from <= 1 - KEEPS]
    return min(known, key=lambda cell: cell.found_from or 0.0, default=None)


def judge(pairs: Iterator[Pair], what: str) -> Outcome:
    wrong, found, total = 0, 0, 0
    single: list[bool] = []
    known: list[bool] = []
    for run, reference, past in pairs:
        same = compare(run, reference, earlier=past)
        total += 1
        known += [cell.found_from is not None and cell.found_from <= 1 - KEEPS for cell in same.cells]
        wrong += any(cell.change in (Change.WORSE, Change.BETTER) for cell in same.cells)
        found += is_worse(compare(worse(run), reference, earlier=past))
        if (cell := best_known(same)) is not None:
            single.append(is_worse(compare(worse(run, cell), reference, earlier=past)))
    figure = (
        f"{total} pairs of {what}: worse or better in {wrong} ({wrong / total:.1%}); a planted 10 % is found in "
        f"{found} ({found / total:.1%}) if all cells have it, and in {sum(single)} of {len(single)} if the best known "
        f"cell has it; {sum(known) / max(1, len(known)):.0%} of cells are known so well"
    )
    met = wrong <= WRONG_MOST * total and found >= FOUND_LEAST * total
    return Outcome(figure, met and bool(single) and sum(single) >= FOUND_LEAST * len(single))


def plant(name: str) -> None:
    """Replaces a part of the rule."""
    # The package has a function of this name.
    module: Any = sys.modules["partywall.run.findings.compare"]

    def known(figures: Mapping[Any, Any], _independent: int) -> dict[Any, Spread]:
        return {key: Spread(0.0, 1e6, 1) for key in figures} if name == "old" else {}

    module.spreads = known
    module.holm = lambda p_values, _chance: [key for key, p in p_values.items() if p <= 0.05]


@bench(
    plants=PLANTS,
    folder=True,
    unjudged="demos on this host",
    more=MORE
    | {
        "--runs": MORE["--runs"] | {"default": DEMOS},
        "--demos": {"metavar": "FOLDER", "type": Path, "help": "judge these runs, for example of demo_decides"},
    },
)
def main(options: Options) -> Outcome:
    if options.plant:
        plant(options.plant)
    if options.quick or options.plant:
        return judge(simulated(), "simulated runs")
    if options.demos:
        runs = sorted(options.demos.iterdir())
        return judge(recorded([stages.analyse(RunDirectory.open(run))[1] for run in runs]), f"{len(runs)} demos")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as passing:
        demos = [findings for _, findings in demos_in_parts(options.folder or Path(passing), options)]
        return judge(recorded(demos), f"{len(demos)} demos")


if __name__ == "__main__":
    main()
