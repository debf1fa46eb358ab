"""What a study of bandwidth promises found: points with intervals over blocks, beside the paper's exhibits. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import scipy

from partywall.model.guard_study import Cell, Study, TenantCell
from partywall.model.paper import Beside, Exhibit, Measured, Paper

NO_COUNTERS = "memory traffic is not measured: no counter of it is read here"
DIFFERS = (
    "tenants are network namespaces, not virtual machines: there is no copy from a guest to save",
    "senders, bridges and sinks share this host's CPUs; the paper's sink was another machine",
    "the guard makes senders of datagrams wait before it drops; the paper's allocator drops",
)


def besides(study: Study, cells: Sequence[Cell], paper: Paper) -> tuple[Beside, ...]:
    """Every exhibit of the paper's with what was measured of it."""
    return tuple(
        Beside(
            paper=paper, exhibit=exhibit, measured=tuple(_measured(study, cells, exhibit)), differs=_differs(exhibit)
        )
        for exhibit in paper.exhibits
    )


def _differs(exhibit: Exhibit) -> tuple[str, ...]:
    return (*DIFFERS, NO_COUNTERS) if exhibit.id in ("fig 4", "fig 8") else DIFFERS


Value = Callable[[TenantCell], float | None]

VALUES: Mapping[str, tuple[str, Value]] = {
    "fig 2 (scenario 1)": ("1", lambda cell: cell.bps / 1e6),
    "fig 2 (scenario 2)": ("2", lambda cell: cell.bps / 1e6),
    "fig 3": ("2", lambda cell: cell.pps / 1e3),
    "fig 5a (scenario 1)": ("1", lambda cell: cell.bps / 1e6),
    "fig 5a (scenario 2)": ("2", lambda cell: cell.bps / 1e6),
    "fig 5b": ("2", lambda cell: cell.pps / 1e3),
    "fig 6 (delay)": ("2", lambda cell: _ms(cell.delay_ns)),
    "fig 6 (jitter)": ("2", lambda cell: _ms(cell.jitter_ns)),
    "fig 6 (loss)": ("2", lambda cell: None if cell.lost is None else 100 * cell.lost),
}
"""By exhibit: of which scenario, and what of a tenant's slot."""


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _measured(study: Study, cells: Sequence[Cell], exhibit: Exhibit) -> Iterator[Measured]:
    if exhibit.id == "fig 7":
        yield from _by_period(study, cells)
    if exhibit.id not in VALUES:
        return
    scenario, value = VALUES[exhibit.id]
    for way in study.ways:
        of_way = [cell for cell in cells if (cell.scenario, cell.way, cell.period_ns) == (scenario, way, None)]
        for tenant in study.tenants:
            found = [value(cell.tenants[tenant]) for cell in of_way]
            yield from _point(way, tenant, [one for one in found if one is not None])


def _by_period(study: Study, cells: Sequence[Cell]) -> Iterator[Measured]:
    """Native has no period: what it cost in the same blocks stands at each."""
    compared = [cell for cell in cells if cell.period_ns is not None]
    native = [cell.cpu_ns / 1e3 for cell in compared if cell.way == "native"]
    for period_ns in study.periods.every:
        yield from _point("guard", period_ns / 1e9, [c.cpu_ns / 1e3 for c in compared if c.period_ns == period_ns])
        yield from _point("native", period_ns / 1e9, native)


def _point(series: str, x: float | str, found: Sequence[float]) -> Iterator[Measured]:
    """The mean with Student's interval; nothing of fewer than two slots, which have none.

    Slots of one way are seconds apart, with all others between them in random order.
    """
    if len(found) >= 2:
        mean, error = statistics.fmean(found), statistics.stdev(found) / len(found) ** 0.5
        half = float(scipy.stats.t.ppf(0.975, len(found) - 1)) * error
        yield Measured(series=series, x=x, value=mean, low=max(0.0, mean - half), high=mean + half)
