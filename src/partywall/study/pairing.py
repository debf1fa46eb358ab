"""A paper's tables and figures beside what was measured here, with intervals over the rounds of a study."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from partywall.core.stats.estimate import Emulated
from partywall.core.stats.rounds import ratio, student
from partywall.study.paper import Beside, Measured, Paired, Paper, PaperTable, Place

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
