"""A paper's overview of resources, with the isolation that it expects beside a grade of the measured values. Pure.

A resource is graded by one ratio: the victim's rate beside a load of the same kind, divided by its rate alone under the
same setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from partywall.core.report import figures
from partywall.study.agreement import ratio
from partywall.study.document import Section
from partywall.study.isolation.model import Resource
from partywall.study.paper import Beside, Measured, Place, X

KEPT = "kept"
"""The series of the overview's figure."""

GRADES = (("High", 0.9), ("Medium", 0.7), ("Low", 0.0))
"""Each grade with the smallest share of its rate that a victim keeps. The paper gives no bounds; these are ours."""

METHOD = (
    "Expected: as the paper grades the resource, from theory. Measured: the tested sandbox's rate beside a load of the "
    "same kind over its rate alone, both under the same limit and reservation. The grade is High from 90 % on, Medium "
    "from 70 % on, and Low below; an interval across a bound has both grades. The bounds are Partywall's own. "
    "Type A is a size, which is fixed; type B is a bandwidth or time, which is shared."
)


def grade(low: float, high: float) -> str:
    """The grade of an interval; two if a bound lies within it, and none if it reaches from the first to the last."""
    first, last = (
        next(n for n, (_, least) in enumerate(GRADES) if end >= least) for end in (max(high, 0.0), max(low, 0.0))
    )
    if last - first == len(GRADES) - 1:
        return "not known"
    return " or ".join(name for name, _ in GRADES[first : last + 1])


def measured(resources: Sequence[Resource], comparisons: Mapping[str, Beside]) -> Iterator[Measured]:
    """The share that the victim keeps of each resource that was measured, in percent."""
    for resource in resources:
        graded = resource.graded
        beside = comparisons.get(graded.exhibit) if graded else None
        kept = None if graded is None or beside is None else ratio(beside, graded.left, graded.than)
        if graded is not None and beside is not None and kept is not None:
            value, low, high = (100 * end for end in kept)
            own = beside.points[graded.left]
            yield Measured(
                series=KEPT, x=resource.name, value=value, low=low, high=high, emulated=own.emulated, n=own.n
            )


def places(resources: Sequence[Resource]) -> frozenset[Place]:
    return frozenset(Place(KEPT, resource.name) for resource in resources if resource.graded is not None)


def section(resources: Sequence[Resource], points: Iterable[Measured]) -> Section:
    """The overview as a table. points: as from `measured`."""
    kept = {point.x: point for point in points if point.series == KEPT}
    return Section(
        id="resources",
        title="Resources: expected and measured isolation",
        lead=" ".join([METHOD, *_advice(resources, kept)]),
        columns=("resource", "type", "expected", "measured", "rate kept"),
        rows=tuple(_row(resource, kept.get(resource.name)) for resource in resources),
        short=True,
    )


def _advice(resources: Sequence[Resource], kept: Mapping[X, Measured]) -> Iterator[str]:
    for resource in resources:
        point = kept.get(resource.name)
        if resource.advice and point is not None and _grade_of(point) != GRADES[0][0]:
            yield resource.advice


def _row(resource: Resource, point: Measured | None) -> tuple[str, ...]:
    head = (resource.name, resource.type, resource.expected)
    if point is None:
        return (*head, "not graded", resource.lacks or "not measured in this form")
    rate = f"{figures.interval(point.value, point.low, point.high)} %{figures.mark(point.emulated)}"
    return (*head, _grade_of(point), rate)


def _grade_of(point: Measured) -> str:
    return grade(point.low / 100, point.high / 100)
