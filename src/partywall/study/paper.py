"""A published study's numbers and claims, and our measurements beside them.

Whether both agree is decided in `study.agreement`. Data files are read in `partywall.study.papers` and drawn in
`partywall.study.exhibits`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from partywall.core.stats.estimate import Emulated
from partywall.values import Frozen


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


class Bounds(Frozen):
    """An end or both ends of a range. inferred: the reasoning, if the paper does not print it itself."""

    at_least: float | None = None
    at_most: float | None = None
    inferred: str = ""

    @property
    def low(self) -> float:
        return -math.inf if self.at_least is None else self.at_least

    @property
    def high(self) -> float:
        return math.inf if self.at_most is None else self.at_most

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"at_least {self.low:g} is more than at_most {self.high:g}; swap them")
        return self

    def _text(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:.4g} to {self.at_most:.4g}"
        return f"at most {self.at_most:.4g}" if self.at_least is None else f"at least {self.at_least:.4g}"

    def __str__(self) -> str:
        return f"{self._text()} (inferred)" if self.inferred else self._text()


class Number(Bounds):
    """A published number: one value, a bound, or a range. A plain number in a file is one value."""

    value: float | None = None

    @property
    def low(self) -> float:
        return super().low if self.value is None else self.value

    @property
    def high(self) -> float:
        return super().high if self.value is None else self.value

    @property
    def drawn(self) -> float:
        """Where a chart marks it: the value, the bound, or the middle of the range."""
        if self.value is not None:
            return self.value
        ends = [end for end in (self.at_least, self.at_most) if end is not None]
        return sum(ends) / len(ends)

    @model_validator(mode="after")
    def _given(self) -> Self:
        bounded = self.at_least is not None or self.at_most is not None
        if (self.value is not None) == bounded:
            raise ValueError("a published number has either value, or at_least, at_most or both")
        return self

    def _text(self) -> str:
        return super()._text() if self.value is None else f"{self.value:g}"


def _as_number(value: Any) -> Any:
    return {"value": value} if isinstance(value, int | float) else value


class Claim(Frozen):
    """A statement in the text about two places.

    by: the stated difference relative to `than`, if any. inferred: the reasoning, if the text does not state it itself.
    """

    left: Place
    is_: Literal["larger", "smaller", "alike"] = Field(alias="is")
    than: Place
    by: float | None = Field(None, gt=0)
    inferred: str = ""

    @property
    def direction(self) -> int:
        return {"larger": 1, "smaller": -1, "alike": 0}[self.is_]

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if self.by is not None and not self.direction:
            raise ValueError("by: values that are alike have no difference; leave it out")
        return self


class Bound(Bounds):
    """A statement in the text about the size of a series, in a unit that does not depend on the host, such as a share.

    at: one x, or the first and last x that it applies to; every x if None.
    """

    series: str
    at: tuple[float, float] | str | None = None

    def covers(self, place: Place) -> bool:
        if place.series != self.series:
            return False
        if isinstance(self.at, tuple):
            return isinstance(place.x, float) and self.at[0] <= place.x <= self.at[1]
        return self.at is None or place.x == self.at

    @model_validator(mode="after")
    def _given(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("give at_least, at_most or both")
        return self


class Best(Frozen):
    """A question about series that are measured apart: which is best at one x. what: the question, for people."""

    what: str
    is_: Literal["smallest", "largest"] = Field(alias="is")
    at: X
    among: tuple[str, ...] = Field(min_length=2)

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(Place(series, self.at) for series in self.among)


class PaperTable(Frozen):
    """A table or figure. published: numbers in the paper, by series and x; claims, bounds: statements in the text.

    Without any of these, our values are shown without a verdict. best: a question that our points answer, whatever the
    paper says.
    """

    id: str = Field(description="its name in the paper, e.g. fig 8")
    title: str
    where: str = Field(description="the section about it")
    x: Axis
    y: Axis
    published: dict[str, dict[X, Annotated[Number, BeforeValidator(_as_number)]]] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    bounds: tuple[Bound, ...] = ()
    best: Best | None = None
    says: str = Field("", description="the paper's conclusion, in our words")
    chart: bool = Field(True, description="false if its values have no common unit, so that no chart can show them")

    @property
    def has_statements(self) -> bool:
        return bool(self.published or self.claims or self.bounds)

    @property
    def values(self) -> Mapping[Place, Number]:
        return {Place(name, x): value for name, points in self.published.items() for x, value in points.items()}


class Paper(Frozen):
    """A cited paper, with the tables and figures that are measured again."""

    paper: Literal[1] = Field(1, description="version of this format")
    authors: str
    title: str
    venue: str
    year: int
    testbed: str = Field("", description="what it was measured on")
    exhibits: tuple[PaperTable, ...] = Field(min_length=1)

    @property
    def cite(self) -> str:
        return f"{self.authors}: {self.title}. {self.venue}, {self.year}"

    def table(self, id_: str) -> PaperTable:
        return next(paper_table for paper_table in self.exhibits if paper_table.id == id_)


class Measured(Frozen):
    """A point measured here, with its interval. emulated: what was emulated.

    deviation: the standard deviation of single values, where the paper's figure shows one. n: blocks or rounds behind
    it; None if unknown. simulated: True if its meter was simulated, so that it confirms nothing.
    """

    series: str
    x: X
    value: float
    low: float
    high: float
    emulated: Emulated | None = None
    deviation: float | None = None
    n: int | None = None
    simulated: bool = False

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
    measurements that explain why the paper's effect does not show at a place. other: the same table or figure in
    another record of the study, such as that of another host; name: the record's name, if two are shown.
    """

    paper: Paper
    table: PaperTable
    measured: tuple[Measured, ...] = ()
    differs: tuple[str, ...] = ()
    paired: tuple[Paired, ...] = ()
    why: Mapping[Place, str] = Field(default_factory=dict)
    name: str = ""
    other: Beside | None = None

    @property
    def points(self) -> Mapping[Place, Measured]:
        return {point.place: point for point in self.measured}
