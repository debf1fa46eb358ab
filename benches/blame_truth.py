"""Does the experiment name the guilty neighbour, and nobody else? On simulated labs whose truth is known.

240 labs of a seeded corpus (`partywall.blame.corpus`), 30 with --quick: 2 to 15 neighbours, 0 to 3 of them guilty, with
effects of 2 to 50 % through CPU, memory bandwidth, disk, network or kernel locks. Neighbours are steady, bursty, driven
by common clocks or by the victim's own users. Some victims are stopped by their own limit; some hosts lose time to a
hypervisor. Five detectors that only watch see 300 s of each lab, the experiment the same time at most.
"""

from __future__ import annotations

import dataclasses

from frame import Options, Outcome, bench
from partywall.blame.corpus.__main__ import LABS, table
from partywall.blame.corpus.detectors import OURS, Answer, answers, experiment, rule_of
from partywall.blame.corpus.lab import Lab, drawn
from partywall.blame.corpus.score import scores

QUICK = 30
PLANTS = {"untouched": "pulses do not reach the suspects", "loose": "60 times the allowed error"}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    labs = [drawn(number) for number in range(QUICK if options.quick else LABS)]
    found = scores(labs, [_answers(lab, options.plant) for lab in labs])
    print(table(found))
    ours = found[OURS]
    first, percentile, false = ours.first or 0.0, ours.percentile or 0.0, ours.false_blame or 0.0
    best = max((each.first or 0.0, name) for name, each in found.items() if name != OURS) if len(found) > 1 else None
    beside = "" if best is None else f"; best of the others first in {best[0]:.1%} ({best[1]})"
    figure = (
        f"simulated, {len(labs)} labs: guilty first in {first:.1%}, false blame {false:.1%}, "
        f"percentile {percentile:.1f}{beside}"
    )
    return Outcome(figure, first >= 0.98 and false <= 0.05 and percentile >= 99)


def _answers(lab: Lab, plant: str | None) -> dict[str, Answer]:
    if plant == "untouched":
        still = [each.model_copy(update={"grip": 0.0}) for each in lab.neighbours]
        return {OURS: experiment(lab.model_copy(update={"neighbours": tuple(still)}))}
    if plant == "loose":
        return {OURS: experiment(lab, dataclasses.replace(rule_of(lab), alpha=3.0))}
    return answers(lab)


if __name__ == "__main__":
    main()
