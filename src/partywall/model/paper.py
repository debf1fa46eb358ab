"""A published study's numbers beside ours: the paper's tables and figures, our measurements, and whether they agree.

Papers and this host differ in everything but the question, so values are not compared directly. Two places (a series at
an x) are compared with each other: is the same one larger here as in the paper? If a figure's numbers cannot be read,
the text's claims are used instead. Verdicts follow from the points alone.

Data files are read in `partywall.scenario.papers` and drawn in `partywall.report.paper`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from partywall.model.evidence import Emulated
from partywall.model.scenario import Frozen
from partywall.units import counted

STEADY = 0.05
"""Published values that differ by less than this share are alike."""

ALIKE = 0.1
"""Measured values are alike if the whole interval of their ratio is within this share of 1."""


def _as_x(value: object) -> object:
    """Keys of a mapping are texts, even if they are numbers."""
    try:
        return float(value) if isinstance(value, str | int) else value
    except ValueError:
        return value


X = Annotated[float | str, BeforeValidator(_as_x)]


class Place(NamedTuple):
    """The place of one point: its series and its x."""

    series: str
    x: X

    def __str__(self) -> str:
        return f"{self.series} at {self.x:g}" if isinstance(self.x, float) else f"{self.series}, {self.x}"


class Axis(Frozen):
    title: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title


class Claim(Frozen):
    """A statement in the text about two places. by: the stated difference relative to `than`, if any."""

    left: Place
    is_: Literal["larger", "smaller", "alike"] = Field(alias="is")
    than: Place
    by: float | None = Field(None, gt=0)

    @property
    def direction(self) -> int:
        return {"larger": 1, "smaller": -1, "alike": 0}[self.is_]


class Exhibit(Frozen):
    """A table or figure. published: numbers in the paper, by series and x; claims: statements in the text."""

    id: str = Field(description="its name in the paper, e.g. fig 8")
    title: str
    where: str = Field(description="the section about it")
    x: Axis
    y: Axis
    published: dict[str, dict[X, float]] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    says: str = Field("", description="the paper's conclusion, in our words")

    @property
    def values(self) -> Mapping[Place, float]:
        return {Place(name, x): value for name, points in self.published.items() for x, value in points.items()}


class Paper(Frozen):
    """A cited paper, with the tables and figures that are measured again."""

    paper: Literal[1] = Field(1, description="version of this format")
    authors: str
    title: str
    venue: str
    year: int
    testbed: str = Field("", description="what it was measured on")
    exhibits: tuple[Exhibit, ...] = Field(min_length=1)

    @property
    def cite(self) -> str:
        return f"{self.authors}: {self.title}. {self.venue}, {self.year}"

    def exhibit(self, id_: str) -> Exhibit:
        return next(exhibit for exhibit in self.exhibits if exhibit.id == id_)


class Measured(Frozen):
    """A point measured here, with its interval. emulated: what was emulated."""

    series: str
    x: X
    value: float
    low: float
    high: float
    emulated: Emulated | None = None

    @property
    def place(self) -> Place:
        return Place(self.series, self.x)


class Paired(Frozen):
    """left / right as measured in the same rounds. More precise than two intervals that share their noise."""

    left: Place
    right: Place
    value: float
    low: float
    high: float


class Beside(Frozen):
    """A table or figure with our points. differs: differences from the paper's set-up, for people.

    paired: ratios of places measured in the same rounds; without them, the points' own intervals decide. why:
    measurements that explain why the paper's effect does not show at a place.
    """

    paper: Paper
    exhibit: Exhibit
    measured: tuple[Measured, ...] = ()
    differs: tuple[str, ...] = ()
    paired: tuple[Paired, ...] = ()
    why: Mapping[Place, str] = Field(default_factory=dict)

    @property
    def points(self) -> Mapping[Place, Measured]:
        return {point.place: point for point in self.measured}


class Agreement(StrEnum):
    """Whether the relation of two places is the same here as in the paper."""

    AGREES = "as in the paper"
    CONTRADICTS = "not as in the paper"
    UNTOLD = "not told apart"


class Pair(NamedTuple):
    """Two places.

    published: the ratio left/right; None if only a statement is known. measured: our ratio with its interval.

    main: a claim, the trend of a whole series, or a comparison of two series at their end; not an intermediate step.
    """

    left: Place
    right: Place
    direction: int
    published: float | None
    measured: tuple[float, float, float]
    main: bool

    @property
    def agreement(self) -> Agreement:
        value, low, high = self.measured
        if self.direction == 0:
            if low >= 1 - ALIKE and high <= 1 + ALIKE:
                return Agreement.AGREES
            apart = max(low - 1, 1 - high) > 0 and abs(value - 1) > ALIKE
            return Agreement.CONTRADICTS if apart else Agreement.UNTOLD
        if low > 1 or high < 1:
            return Agreement.AGREES if (low > 1) == (self.direction > 0) else Agreement.CONTRADICTS
        return Agreement.UNTOLD


class Likeness(StrEnum):
    """How similar our measurement of a table or figure is to the published one."""

    SAME_ORDER = "same order"
    SAME_DIRECTION = "same direction"
    DIFFERS = "differs"
    UNTOLD = "not told apart"
    MISSING = "not measured"


class Verdict(NamedTuple):
    """pairs: all comparisons. scale: (smallest, largest) ratio of ours to the paper's; None if it prints no numbers."""

    likeness: Likeness
    reason: str
    pairs: tuple[Pair, ...]
    scale: tuple[float, float] | None


def judge(beside: Beside) -> Verdict:
    """Compares our points with the paper's.

    same order: all comparable pairs agree. same direction: all main pairs agree: claims, trends over a whole series,
    and series against each other at their end. differs: a main pair contradicts the paper. not told apart: our
    intervals are too wide.
    """
    pairs = tuple(_pairs(beside))
    count = {agreement: [p for p in pairs if p.agreement is agreement] for agreement in Agreement}
    likeness = _likeness(pairs, count)
    return Verdict(likeness, _reason(pairs, count), pairs, _scale(beside))


def _likeness(pairs: Sequence[Pair], count: Mapping[Agreement, Sequence[Pair]]) -> Likeness:
    if not pairs:
        return Likeness.MISSING
    if len(count[Agreement.AGREES]) == len(pairs):
        return Likeness.SAME_ORDER
    main = [pair for pair in pairs if pair.main]
    if main and all(pair.agreement is Agreement.AGREES for pair in main):
        return Likeness.SAME_DIRECTION
    if any(pair.agreement is Agreement.CONTRADICTS for pair in main):
        return Likeness.DIFFERS
    return Likeness.UNTOLD


def _reason(pairs: Sequence[Pair], count: Mapping[Agreement, Sequence[Pair]]) -> str:
    if not pairs:
        return "no two places that the paper compares were measured"
    text = f"{len(count[Agreement.AGREES])} of {counted(len(pairs), 'comparison')} as in the paper"
    if untold := count[Agreement.UNTOLD]:
        text += f", {len(untold)} not told apart here"
    if against := sorted(count[Agreement.CONTRADICTS], key=lambda pair: not pair.main):
        text += f", {len(against)} different: {sentence(against[0])}"
        text += "; …" if len(against) > 1 else ""
    return text


def reasons(beside: Beside, verdict: Verdict) -> tuple[str, ...]:
    """Why the paper's effects do not show, for the places where they do not."""
    amiss = [pair for pair in verdict.pairs if pair.main and pair.agreement is not Agreement.AGREES]
    places = dict.fromkeys(place for pair in amiss for place in (pair.left, pair.right))
    return tuple(dict.fromkeys(beside.why[place] for place in places if place in beside.why))


def sentence(pair: Pair) -> str:
    """'VM at 150 over VM at 25: 4.7 in the paper, 1.2 (1.1 to 1.3) here'."""
    relation = {1: "larger", -1: "smaller", 0: "alike"}[pair.direction]
    published = relation if pair.published is None else f"{pair.published:.3g}"
    value, low, high = pair.measured
    return f"{pair.left} over {pair.right}: {published} in the paper, {value:.3g} ({low:.3g} to {high:.3g}) here"


def _pairs(beside: Beside) -> Iterator[Pair]:
    """The paper's comparisons that we measured: its claims, and its numbers along x and between series."""
    for claim in beside.exhibit.claims:
        if (ratio := _ratio(beside, claim.left, claim.than)) is not None:
            published = None if claim.by is None else 1 + claim.direction * claim.by
            yield Pair(claim.left, claim.than, claim.direction, published, ratio, main=True)
    values = beside.exhibit.values
    # A statement about two places takes precedence over their numbers, which may hardly differ.
    said = {frozenset((claim.left, claim.than)) for claim in beside.exhibit.claims}
    for left, right, main in _places(beside.exhibit):
        ratio = _ratio(beside, left, right)
        if ratio is not None and values[right] > 0 and frozenset((left, right)) not in said:
            published = values[left] / values[right]
            yield Pair(left, right, _direction(published), published, ratio, main)


def _places(exhibit: Exhibit) -> Iterator[tuple[Place, Place, bool]]:
    """(later, earlier, main) along each series, and (other, first, main) at each x."""
    for name, points in exhibit.published.items():
        xs = list(points)
        for (i, early), (j, late) in itertools.combinations(enumerate(xs), 2):
            yield Place(name, late), Place(name, early), (i, j) == (0, len(xs) - 1)
    for first, second in itertools.combinations(exhibit.published.items(), 2):
        both = [x for x in first[1] if x in second[1]]
        for x in both:
            yield Place(second[0], x), Place(first[0], x), x == both[-1]


def _direction(ratio: float) -> int:
    return 0 if abs(ratio - 1) <= STEADY else int(math.copysign(1, ratio - 1))


def _ratio(beside: Beside, left: Place, right: Place) -> tuple[float, float, float] | None:
    """left/right: as paired, or else the widest interval that both points' intervals allow."""
    for paired in beside.paired:
        if (paired.left, paired.right) == (left, right):
            return paired.value, paired.low, paired.high
        if (paired.left, paired.right) == (right, left):
            return 1 / paired.value, 1 / paired.high, 1 / paired.low if paired.low > 0 else math.inf
    ours = beside.points
    over, under = ours.get(left), ours.get(right)
    if over is None or under is None or under.value <= 0:
        return None
    high = over.high / under.low if under.low > 0 else math.inf
    return over.value / under.value, max(over.low, 0.0) / under.high, high


def _scale(beside: Beside) -> tuple[float, float] | None:
    values = beside.exhibit.values
    found = [point.value / values[place] for place, point in beside.points.items() if values.get(place)]
    return (min(found), max(found)) if found else None
