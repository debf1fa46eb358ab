"""Whether our measurements agree with a paper's: a verdict for each table and figure. Pure.

Papers and this host differ in everything but the question, so values are not compared directly. Two places (a series at
an x) are compared with each other: is the same one larger here as in the paper? If a figure's numbers cannot be read,
the text's claims are used instead. Two kinds of statement are about sizes: a claim with a stated difference, and a
bound in a unit that does not depend on the host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from partywall.study.paper import Beside, Best, Bound, Measured, Number, PaperTable, Place
from partywall.units import counted

STEADY = 0.05
"""Published values that differ by less than this share are alike."""

ALIKE = 0.1
"""Measured values are alike if the whole interval of their ratio is within this share of 1."""

FEWEST_RANKED, SMALLEST = 2, 0.01

SIZE = 2.0
"""A difference has the stated size if its whole interval is within this factor of it, up or down."""


class Agreement(StrEnum):
    """Whether a statement or a relation of the paper's numbers is confirmed here."""

    AGREES = "as in the paper"
    SIZE_UNTOLD = "same direction, size not distinguished"
    OTHER_SIZE = "same direction, another size"
    CONTRADICTS = "not as in the paper"
    UNTOLD = "not distinguished"

    @property
    def same_direction(self) -> bool:
        return self in (Agreement.AGREES, Agreement.SIZE_UNTOLD, Agreement.OTHER_SIZE)


class Pair(NamedTuple):
    """Two places.

    published: the ratio left/right; None if only a statement is known. measured: our ratio with its interval. main: a
    claim, the trend of a whole series, or a comparison of two series at their end; not an intermediate step. by: the
    difference that a claim states.
    """

    left: Place
    right: Place
    direction: int
    published: Number | None
    measured: tuple[float, float, float]
    main: bool
    by: float | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        return self.left, self.right

    @property
    def agreement(self) -> Agreement:
        value, low, high = self.measured
        if self.direction == 0:
            if low >= 1 - ALIKE and high <= 1 + ALIKE:
                return Agreement.AGREES
            apart = max(low - 1, 1 - high) > 0 and abs(value - 1) > ALIKE
            return Agreement.CONTRADICTS if apart else Agreement.UNTOLD
        if low <= 1 <= high:
            return Agreement.UNTOLD
        if (low > 1) != (self.direction > 0):
            return Agreement.CONTRADICTS
        return Agreement.AGREES if self.by is None else self._size(self.by)

    def _size(self, by: float) -> Agreement:
        """How the difference here compares with the stated one. The direction agrees."""
        _, low, high = self.measured
        least, most = sorted((self.direction * (low - 1), self.direction * (high - 1)))
        if most < by / SIZE or least > by * SIZE:
            return Agreement.OTHER_SIZE
        return Agreement.AGREES if least >= by / SIZE and most <= by * SIZE else Agreement.SIZE_UNTOLD


class Bounded(NamedTuple):
    """A place and the bound that the paper states for it."""

    bound: Bound
    measured: Measured
    main: bool = True

    @property
    def places(self) -> tuple[Place, ...]:
        return (self.measured.place,)

    @property
    def agreement(self) -> Agreement:
        low, high = self.measured.low, self.measured.high
        if low >= self.bound.low and high <= self.bound.high:
            return Agreement.AGREES
        outside = low > self.bound.high or high < self.bound.low
        return Agreement.CONTRADICTS if outside else Agreement.UNTOLD


Comparison = Pair | Bounded


class Likeness(StrEnum):
    """How similar our measurement of a table or figure is to the published one."""

    SAME_ORDER = "same order"
    SAME_DIRECTION = "same direction"
    DIFFERS = "differs"
    UNTOLD = "not distinguished"
    MISSING = "not measured"
    UNSTATED = "nothing to compare"
    MODELLED = "only modelled"


class Verdict(NamedTuple):
    """pairs: all comparisons. scale: (smallest, largest) ratio of our values to the paper's; None without numbers."""

    likeness: Likeness
    reason: str
    pairs: tuple[Comparison, ...]
    scale: tuple[float, float] | None


def judge(beside: Beside) -> Verdict:
    """Compares our points with the paper's.

    same order: all comparisons agree, stated sizes and bounds included. same direction: all main ones agree in
    direction: claims, bounds, trends over a whole series, and series against each other at their end. differs: a main
    one contradicts the paper. not distinguished: our intervals are too wide. nothing to compare: no number
    or statement of the paper is known. only modelled: the meter is simulated, so that it confirms and contradicts
    nothing.
    """
    if beside.measured and not beside.table.has_statements:
        return Verdict(Likeness.UNSTATED, "no number or statement of the paper to compare with", (), None)
    pairs: tuple[Comparison, ...] = (*_claims(beside), *_bounds(beside), *_numbers(beside))
    count = {agreement: [p for p in pairs if p.agreement is agreement] for agreement in Agreement}
    simulated = any(point.simulated for point in beside.measured)
    likeness = Likeness.MODELLED if pairs and simulated else _likeness(pairs, count)
    return Verdict(likeness, _reason(pairs, count), pairs, _scale(beside))


def _likeness(pairs: Sequence[Comparison], count: Mapping[Agreement, Sequence[Comparison]]) -> Likeness:
    if not pairs:
        return Likeness.MISSING
    if len(count[Agreement.AGREES]) == len(pairs):
        return Likeness.SAME_ORDER
    main = [pair for pair in pairs if pair.main]
    if main and all(pair.agreement.same_direction for pair in main):
        return Likeness.SAME_DIRECTION
    if any(pair.agreement is Agreement.CONTRADICTS for pair in main):
        return Likeness.DIFFERS
    return Likeness.UNTOLD


def _reason(pairs: Sequence[Comparison], count: Mapping[Agreement, Sequence[Comparison]]) -> str:
    if not pairs:
        return "no two places that the paper compares were measured"
    text = f"{len(count[Agreement.AGREES])} of {counted(len(pairs), 'comparison')} as in the paper"
    for agreement in (Agreement.SIZE_UNTOLD, Agreement.OTHER_SIZE):
        text += f", {len(count[agreement])} in the {agreement}" if count[agreement] else ""
    if untold := count[Agreement.UNTOLD]:
        text += f", {len(untold)} not distinguished here"
    if against := sorted(count[Agreement.CONTRADICTS], key=lambda pair: not pair.main):
        text += f", {len(against)} different: {sentence(against[0])}"
        text += "; …" if len(against) > 1 else ""
    return text


def reasons(beside: Beside, verdict: Verdict) -> tuple[str, ...]:
    """Why the paper's effects do not show, for the places where they do not."""
    amiss = [pair for pair in verdict.pairs if pair.main and not pair.agreement.same_direction]
    places = dict.fromkeys(place for pair in amiss for place in pair.places)
    return tuple(dict.fromkeys(beside.why[place] for place in places if place in beside.why))


def best(beside: Beside, wanted: Best) -> tuple[Place, ...]:
    """The measured place with the best value, then all that are not distinguished from it; empty with fewer than two.

    Two are distinguished if the interval of their ratio excludes 1.
    """
    sign = 1 if wanted.is_ == "smallest" else -1
    points = sorted(filter(None, map(beside.points.get, wanted.places)), key=lambda point: sign * point.value)
    if len(points) < FEWEST_RANKED:
        return ()
    first, *others = (point.place for point in points)
    ratios = {place: ratio(beside, place, first) for place in others}
    worse = {place for place, over in ratios.items() if over and (over[1] > 1 if sign > 0 else over[2] < 1)}
    return (first, *(place for place in others if place not in worse))


def best_text(beside: Beside) -> str:
    """The answer to a figure's question: 'isolates best: bfq (of mq-deadline, bfq)'; empty if there is none."""
    wanted = beside.table.best
    if wanted is None or not (places := best(beside, wanted)):
        return ""
    names = ", ".join(place.series for place in places)
    measured = [place.series for place in wanted.places if place in beside.points]
    if len(places) == 1:
        return f"{wanted.what}: {names} (of {', '.join(measured)})"
    among = "" if len(places) == len(measured) else f" (of {', '.join(measured)})"
    return f"{wanted.what}: not distinguished: {names}{among}"


def sentence(comparison: Comparison) -> str:
    """'VM at 150 over VM at 25: 4.7 in the paper, 1.2 (1.1 to 1.3) here'."""
    if isinstance(comparison, Bounded):
        point = comparison.measured
        here = f"{point.value:.3g} ({point.low:.3g} to {point.high:.3g}) here"
        return f"{point.place}: {comparison.bound} in the paper, {here}"
    relation = {1: "larger", -1: "smaller", 0: "alike"}[comparison.direction]
    published = relation if comparison.published is None else _ratio_text(comparison.published)
    value, low, high = comparison.measured
    here = f"{value:.3g} ({low:.3g} to {high:.3g}) here"
    return f"{comparison.left} over {comparison.right}: {published} in the paper, {here}"


def _ratio_text(ratio: Number) -> str:
    if ratio.value is None:
        return str(ratio)
    # A difference of less than half a percent is one all the same.
    return f"{ratio.value:.{3 if abs(ratio.value - 1) > SMALLEST else 5}g}"


def _claims(beside: Beside) -> Iterator[Pair]:
    for claim in beside.table.claims:
        if (ours := ratio(beside, claim.left, claim.than)) is not None:
            published = None if claim.by is None else Number(value=1 + claim.direction * claim.by)
            yield Pair(claim.left, claim.than, claim.direction, published, ours, main=True, by=claim.by)


def _bounds(beside: Beside) -> Iterator[Bounded]:
    for bound in beside.table.bounds:
        yield from (Bounded(bound, point) for point in beside.measured if bound.covers(point.place))


def _numbers(beside: Beside) -> Iterator[Pair]:
    """The paper's numbers that we measured, along x and between series."""
    values = beside.table.values
    # A statement about two places takes precedence over their numbers, which may hardly differ.
    said = {frozenset((claim.left, claim.than)) for claim in beside.table.claims}
    for left, right, main in _places(beside.table):
        ours, published = ratio(beside, left, right), _over(values[left], values[right])
        direction = None if published is None else _direction(published)
        if ours is not None and direction is not None and frozenset((left, right)) not in said:
            yield Pair(left, right, direction, published, ours, main)


def _places(paper_table: PaperTable) -> Iterator[tuple[Place, Place, bool]]:
    """(later, earlier, main) along each series, and (other, first, main) at each x."""
    for name, points in paper_table.published.items():
        xs = list(points)
        for (i, early), (j, late) in itertools.combinations(enumerate(xs), 2):
            yield Place(name, late), Place(name, early), (i, j) == (0, len(xs) - 1)
    for first, second in itertools.combinations(paper_table.published.items(), 2):
        both = [x for x in first[1] if x in second[1]]
        for x in both:
            yield Place(second[0], x), Place(first[0], x), x == both[-1]


def _over(left: Number, right: Number) -> Number | None:
    """The ratio of two published numbers; None if it has no bound at all."""
    if left.value is not None and right.value is not None:
        return Number(value=left.value / right.value) if right.value > 0 else None
    low = max(left.low, 0.0) / right.high if right.high > 0 else math.inf
    high = left.high / right.low if right.low > 0 else math.inf
    at_least, at_most = low if low > 0 else None, high if math.isfinite(high) else None
    return None if at_least is None and at_most is None else Number(at_least=at_least, at_most=at_most)


def _direction(ratio: Number) -> int | None:
    """Which of two published numbers is larger; None if their bounds leave it open."""
    if max(abs(ratio.low - 1), abs(ratio.high - 1)) <= STEADY:
        return 0
    if ratio.low > 1 or ratio.high < 1:
        return 1 if ratio.low > 1 else -1
    return None


def ratio(beside: Beside, left: Place, right: Place) -> tuple[float, float, float] | None:
    """left/right: as paired, or else the widest interval that both points' intervals allow.

    Of nothing by nothing, any ratio is possible.
    """
    for paired in beside.paired:
        if (paired.left, paired.right) == (left, right):
            return paired.value, paired.low, paired.high
        if (paired.left, paired.right) == (right, left):
            return _by(1, paired.value), _by(1, paired.high), _by(1, paired.low)
    ours = beside.points
    over, under = ours.get(left), ours.get(right)
    if over is None or under is None:
        return None
    if over.value <= 0 and under.value <= 0:
        return 1.0, 0.0, math.inf
    high = over.high / under.low if under.low > 0 else math.inf
    return _by(over.value, under.value), _by(max(over.low, 0.0), under.high), high


def _by(over: float, under: float) -> float:
    """A ratio whose divisor may be 0."""
    return over / under if under > 0 else math.inf if over > 0 else 0.0


def _scale(beside: Beside) -> tuple[float, float] | None:
    """Bounds and ranges have no single value to divide by."""
    values = {place: number.value for place, number in beside.table.values.items()}
    ratios = [point.value / value for place, point in beside.points.items() if (value := values.get(place))]
    return (min(ratios), max(ratios)) if ratios else None
