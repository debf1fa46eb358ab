"""Inputs as the world's programs write them: whether Partywall does with each what is written beside it.

Each folder of tests/inputs is an input from a public report about a program like this one, with what must become of
it: the right result, or one message that says why not and what to do. Each command runs in a process of its own, two
cases at a time. The short form tries every third case of each kind.

Bar: at least 60 cases, each as written beside it, no traceback, none untried because the host lacks something.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import MUTE
from frame import Options, Outcome, Plant, bench
from tests.inputs import cases

CASES_LEAST = 60
LOST = """
import dataclasses
import partywall.load.recorder.plan as recorded
plan_of = recorded.plan_of
recorded.plan_of = lambda *given: dataclasses.replace(plan_of(*given), notes=())
"""
PLANTS = {
    "lost": Plant("what a recording's plan leaves out is not said", python=LOST),
    "mute": Plant("errors that do not say what is wrong", python=MUTE),
}


@bench(plants=PLANTS, unjudged="two thirds of the cases")
def main(options: Options) -> Outcome:
    names = third_of_each_kind(cases.names()) if options.quick else cases.names()
    untried = {name: lacks for name in names if (lacks := cases.case(name).missing)}
    answers = tried([name for name in names if name not in untried])
    wrong = {name: answer for name, answer in answers.items() if answer}
    for name, answer in wrong.items():
        print(f"{name}: {'; '.join(answer)}", flush=True)
    for name, lacks in untried.items():
        print(f"{name}: not tried, this host lacks {lacks}", flush=True)
    tracebacks = sum("Traceback" in text for answer in wrong.values() for text in answer)
    figure = (
        f"{len(answers) - len(wrong)} of {len(answers) + len(untried)} inputs did what is written beside them, "
        f"{tracebacks} tracebacks, {len(untried)} not tried"
    )
    return Outcome(figure, not wrong and not untried and len(cases.names()) >= CASES_LEAST)


def third_of_each_kind(names: list[str]) -> list[str]:
    """Every third name of those with one first word, from the first on."""
    kinds = itertools.groupby(sorted(names), key=lambda name: name.partition("-")[0])
    return [name for _, group in kinds for name in list(group)[::3]]


def tried(names: list[str]) -> dict[str, list[str]]:
    """What is wrong with the answer to each case."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(lambda name: cases.complaints(name, Path(folder) / name), names), strict=True))


if __name__ == "__main__":
    main()
