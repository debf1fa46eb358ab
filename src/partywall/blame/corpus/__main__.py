"""`python -m partywall.blame.corpus`: lists, shows and runs labs whose truth is known."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from partywall.blame.corpus.detectors import answers
from partywall.blame.corpus.lab import Lab, drawn
from partywall.blame.corpus.score import Score, scores

LABS = 240


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of: list, show LAB, run LAB..., score. A LAB is a number of the corpus, or a file that `show` wrote."""
    parser = argparse.ArgumentParser(prog="python -m partywall.blame.corpus", description=__doc__)
    parser.add_argument("what", choices=("list", "show", "run", "score"))
    parser.add_argument("lab", nargs="*", help="a number from 0 on, or a file; default: all")
    parser.add_argument("--labs", type=int, default=LABS, help=f"the size of the corpus (default: {LABS})")
    given = parser.parse_args(argv)
    labs = [_lab(text) for text in given.lab] or [drawn(number) for number in range(given.labs)]
    out = sys.stdout
    if given.what == "list":
        for lab in labs:
            guilty = ", ".join(
                f"{each.name} {each.resource} {each.effect:.1%}" for each in lab.neighbours if each.effect
            )
            out.write(f"{lab.name}: {len(lab.neighbours)} neighbours; guilty: {guilty or 'nobody'}\n")
    elif given.what == "show":
        out.writelines(lab.model_dump_json(indent=1) + "\n" for lab in labs)
    elif given.what == "run":
        for lab in labs:
            said = {
                name: {"first": each.first, "blamed": sorted(each.blamed or ())} for name, each in answers(lab).items()
            }
            out.write(json.dumps({"lab": lab.name, "guilty": sorted(lab.guilty), "answers": said}, indent=1) + "\n")
    else:
        found = scores(labs, [answers(lab) for lab in labs])
        out.write(json.dumps({name: dataclasses.asdict(each) for name, each in found.items()}, indent=1) + "\n")
    return 0


def _lab(text: str) -> Lab:
    return drawn(int(text)) if text.isdigit() else Lab.model_validate_json(Path(text).read_text(encoding="utf-8"))


def table(found: dict[str, Score]) -> str:
    """The scores of all detectors as text."""
    rows = [f"{'simulated':30} {'first':>7} {'percentile':>10} {'false blame':>11} {'innocent':>8}"]
    rows += [
        f"{name:30} {_share(each.first):>7} {each.percentile or 0:>10.1f} {_share(each.false_blame):>11} "
        f"{_share(each.innocent_blame):>8}"
        for name, each in found.items()
    ]
    return "\n".join(rows)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


if __name__ == "__main__":
    sys.exit(main())
