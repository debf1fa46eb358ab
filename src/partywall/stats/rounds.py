"""Intervals from a few independent repetitions, for rounds of a study beside a paper's values."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

from partywall.core.stats.estimate import Emulated, Estimate
from partywall.model.paper import Beside, Measured, Paired, Paper, PaperTable, Place
from partywall.stats.quantile import student_reach


def ratio(left: Sequence[float], right: Sequence[float], level: float = 0.95) -> Estimate:
    """The ratio left / right over pairs of the same rounds: the geometric mean with its interval.

    ValueError if any value is not positive.
    """
    if min([*left, *right], default=0.0) <= 0:
        raise ValueError("a ratio needs values over 0")
    logs = student([math.log(over / under) for over, under in zip(left, right, strict=True)], level)
    ends = {name: math.exp(getattr(logs, name)) for name in ("value", "low", "high")}
    return logs.model_copy(update=ends | {"method": f"Student on logarithms, {logs.n} pairs"})


def student(values: Sequence[float], level: float = 0.95) -> Estimate:
    """The mean of at least two values with Student's interval. ValueError with fewer."""
    if len(values) < 2:
        raise ValueError("an interval needs two values at least")
    mean = statistics.fmean(values)
    reach = student_reach(level, len(values) - 1)
    half = reach * statistics.stdev(values) / math.sqrt(len(values))
    method = f"Student, {len(values)} rounds"
    return Estimate(value=mean, low=mean - half, high=mean + half, level=level, n=len(values), method=method)


Rounds = Mapping[int, float]
"""The value of each round."""


def beside(
    paper: Paper,
    paper_table: PaperTable,
    values: Mapping[Place, Rounds],
    differs: Sequence[str] = (),
    why: Mapping[Place, str] | None = None,
    deviations: Mapping[Place, float] | None = None,
) -> Beside:
    """A table or figure with the mean of each place that has at least two rounds; places are compared round by round.

    A host that is slow for some time is slow for both. deviations: standard deviations of single values, for charts.
    """
    known = {place: rounds for place, rounds in values.items() if len(rounds) >= 2}
    means = {place: student(list(rounds.values())) for place, rounds in known.items()}
    return Beside(
        paper=paper,
        table=paper_table,
        measured=tuple(
            Measured(
                series=place.series,
                x=place.x,
                value=mean.value,
                low=max(mean.low, 0.0),
                high=mean.high,
                deviation=(deviations or {}).get(place),
                n=mean.n,
            )
            for place, mean in means.items()
        ),
        differs=tuple(differs),
        paired=tuple(_paired(known)),
        why=why or {},
    )


def marked(beside: Beside, emulated: Emulated | None, at: Collection[Place] | None = None) -> Beside:
    """The same with the points at these places, or all, marked by what was emulated."""
    points = tuple(
        point.model_copy(update={"emulated": emulated}) if at is None or point.place in at else point
        for point in beside.measured
    )
    return beside.model_copy(update={"measured": points})


def _paired(values: Mapping[Place, Rounds]) -> Iterator[Paired]:
    for (left, over), (right, under) in itertools.combinations(values.items(), 2):
        both = sorted(set(over) & set(under))
        if len(both) >= 2 and min(*(over[n] for n in both), *(under[n] for n in both)) > 0:
            quotient = ratio([over[n] for n in both], [under[n] for n in both])
            yield Paired(left=left, right=right, value=quotient.value, low=quotient.low, high=quotient.high)
