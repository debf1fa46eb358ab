"""Scores detectors on labs: who was named first, who was blamed wrongly, and the mean suspicion percentile. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partywall.blame.corpus.detectors import Answer
from partywall.blame.corpus.lab import Lab

MATTERS = 0.05
"""The effect from which on a guilty neighbour must be found."""


@dataclass(frozen=True)
class Score:
    """A detector's score. Shares are None if no lab tells.

    first: labs with an effect of MATTERS or more in which a guilty one is the first suspect. percentile: the mean share
    of innocent neighbours below a guilty one, in such labs, in %. false_blame: labs without a guilty one in which
    somebody is blamed. innocent_blame: of all that are blamed, the share of innocent ones. seconds: the mean time.
    """

    first: float | None
    percentile: float | None
    false_blame: float | None
    innocent_blame: float | None
    labs: int
    seconds: float


def score(labs: Sequence[Lab], answers: Sequence[Answer]) -> Score:
    """Scores one detector's answers, one for each lab."""
    pairs = list(zip(labs, answers, strict=True))
    told = [(lab, answer) for lab, answer in pairs if lab.effect >= MATTERS]
    empty = [answer for lab, answer in pairs if not lab.guilty and answer.blamed is not None]
    blamed = [(name in lab.guilty) for lab, answer in pairs for name in answer.blamed or ()]
    return Score(
        first=_mean([answer.first in lab.guilty for lab, answer in told]),
        percentile=_mean([value for lab, answer in told for value in _percentiles(lab, answer)]),
        false_blame=_mean([bool(answer.blamed) for answer in empty]),
        innocent_blame=_mean([not is_guilty for is_guilty in blamed]),
        labs=len(pairs),
        seconds=sum(answer.seconds for answer in answers) / max(1, len(answers)),
    )


def _percentiles(lab: Lab, answer: Answer) -> list[float]:
    innocent = [value for name, value in answer.suspicion.items() if name not in lab.guilty]
    matter = [each.name for each in lab.neighbours if each.effect >= MATTERS]
    return [_below(innocent, answer.suspicion[name]) for name in matter] if innocent else []


def _below(innocent: Sequence[float], suspicion: float) -> float:
    below = sum((value < suspicion) + 0.5 * (value == suspicion) for value in innocent)
    return 100 * below / len(innocent)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def scores(labs: Sequence[Lab], answers: Sequence[Mapping[str, Answer]]) -> dict[str, Score]:
    """The scores of all detectors. answers: by detector, one mapping for each lab."""
    return {name: score(labs, [each[name] for each in answers]) for name in answers[0]}
