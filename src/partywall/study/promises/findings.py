"""The findings of a study of bandwidth guarantees: points with intervals over blocks, beside the paper's. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from partywall.core.stats.estimate import Emulated
from partywall.study import pairing
from partywall.study.paper import Beside, Paper, PaperTable, Place
from partywall.study.promises.model import Cell, Study, TenantCell

NO_COUNTERS = "memory traffic is not measured: this host's processor or its hypervisor provides no counter for it"
MOST = "the most that memory can carry is what copies on all CPUs cause; the paper does not say how it got its own"
NO_PROBES = "delay and jitter of guests are not measured: the study's probes are not sent from within guests"
NAMESPACES = (
    "tenants are network namespaces, not virtual machines: there is no copying from a guest to save",
    "a sender of datagrams waits at a queue of its own interface, where tbf and the guard hold excess; with guard-drop "
    "the guard drops excess at once, as the paper's allocator does",
)
UNFILLED = (
    "natively and with htb, datagrams are lost at the link's queue only, so none is where this host's CPUs, which also "
    "send, offer no more than the link carries; section V.B (loss by load) of papers/dba-vm-shares has a fuller link"
)
BUSY = (
    "every tenant offers the same in every way; near 100 % all CPUs are busy, and a way that saves CPU time shows more "
    "packets in place of less time"
)
VIRTUAL = ("losses count from a guest's tap on; drops in its own kernel are not visible from outside",)
DIFFERS = ("senders, bridges and sinks share this host's CPUs; the paper's sink was another machine",)


def comparisons(study: Study, cells: Sequence[Cell], paper: Paper, *, virtual: bool = False) -> tuple[Beside, ...]:
    """Every table and figure of the paper with its measurements. The slots of one block are a round.

    study: with the rates it was carried out with; virtual: True if tenants are guests.
    """
    emulated: Emulated | None = "victim" if any(cell.emulated for cell in cells) else None
    return tuple(
        pairing.marked(
            pairing.beside(
                paper,
                # Bounds in absolute rates are those of the paper's link.
                paper_table.model_copy(update={"bounds": ()}) if emulated else paper_table,
                _measured(study, cells, paper_table),
                _differs(paper_table, virtual=virtual, counted=any(cell.memory is not None for cell in cells)),
                _why(study, cells, paper_table),
            ),
            emulated,
        )
        for paper_table in paper.exhibits
    )


ALL = "all"
"""The sum of all tenants, in figure 3."""

ENOUGH = 1.1
"""Share of the link. Less offered traffic leaves its queue no choice."""


def _why(study: Study, cells: Sequence[Cell], paper_table: PaperTable) -> dict[Place, str]:
    """Ways in which the tenants hardly filled the link, so that it did not need to be shared."""
    if paper_table.id not in VALUES:
        return {}
    scenario, _ = VALUES[paper_table.id]
    reasons: dict[Place, str] = {}
    for way in study.ways:
        of_way = [cell for cell in cells if (cell.scenario, cell.way, cell.period_ns) == (scenario, way, None)]
        handed = [sum(map(_handed_bps, cell.tenants.values())) for cell in of_way]
        if handed and statistics.fmean(handed) < ENOUGH * study.link:
            share = statistics.fmean(handed) / study.link
            text = f"{way}: the tenants offered {share:.0%} of the link's capacity, so its queue had almost no choice"
            reasons |= {Place(way, tenant): text for tenant in study.tenants}
    return reasons


def _handed_bps(got: TenantCell) -> float:
    return got.bps / (1 - got.lost) if got.lost is not None and got.lost < 1 else got.bps


def _differs(paper_table: PaperTable, *, virtual: bool, counted: bool) -> tuple[str, ...]:
    differences = (*(VIRTUAL if virtual else NAMESPACES), *DIFFERS)
    if virtual and paper_table.id in ("fig 6 (delay)", "fig 6 (jitter)"):
        differences += (NO_PROBES,)
    if paper_table.id == "fig 6 (loss)" and not virtual:
        differences += (UNFILLED,)
    if paper_table.id == WHERE:
        differences += (BUSY,)
    if paper_table.id == "fig 4":
        differences += (MOST,)
    return (*differences, NO_COUNTERS) if paper_table.id in ("fig 4", "fig 8") and not counted else differences


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
"""The scenario of each figure, and the value of a tenant's slot."""


USED: Mapping[str, Callable[[Cell], float | None]] = {
    "CPU": lambda cell: cell.cpu_share,
    "memory": lambda cell: cell.memory_share,
}
"""Figure 4: how much of a resource is used, natively at the highest packet rate, which is scenario 2."""

WHERE = "section III.C (drops)"
"""The places where excess packets stop."""

FALLS = "section V.A (from scenario 1 to 2)"
"""A tenant's throughput in each scenario."""


def places(study: Study, paper_table: str, ways: Sequence[str]) -> frozenset[Place]:
    """The places of a figure that are measured in these ways, if the host has the counters for them."""
    if paper_table == WHERE:
        return frozenset(Place(way, f"scenario {name}") for way in ways for name in study.scenarios)
    if paper_table == FALLS:
        every = [(tenant, name) for tenant in study.tenants for name in study.scenarios]
        return frozenset(Place(way, _in_scenario(*each)) for way in ways for each in every)
    if paper_table == "fig 4":
        return frozenset(Place("native", resource) for resource in USED)
    if paper_table in ("fig 7", "fig 8"):
        return frozenset(
            Place(way, ns / 1e9) for ns in study.periods.every for way in (*study.ways_by_period, "native")
        )
    if paper_table not in VALUES:
        return frozenset()
    names = [*study.tenants, *([ALL] if paper_table == "fig 3" else [])]
    return frozenset(Place(way, name) for way in ways for name in names)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def _measured(study: Study, cells: Sequence[Cell], paper_table: PaperTable) -> dict[Place, dict[int, float]]:
    if paper_table.id in COSTS:
        return COSTS[paper_table.id](study, cells)
    if paper_table.id not in VALUES:
        return {}
    scenario, value = VALUES[paper_table.id]
    by_place: dict[Place, dict[int, float]] = {Place(way, tenant): {} for way in study.ways for tenant in study.tenants}
    for cell in cells:
        if cell.scenario == scenario and cell.period_ns is None:
            for tenant, got in cell.tenants.items():
                if (amount := value(got)) is not None:
                    by_place[Place(cell.way, tenant)][cell.block] = amount
            if paper_table.id == "fig 3":
                total = sum(got.pps for got in cell.tenants.values()) / 1e3
                by_place.setdefault(Place(cell.way, ALL), {})[cell.block] = total
    return by_place


def _used(_study: Study, cells: Sequence[Cell]) -> dict[Place, dict[int, float]]:
    """Shares in %, by resource."""
    native = [cell for cell in cells if (cell.scenario, cell.way, cell.period_ns) == ("2", "native", None)]
    return {
        Place("native", resource): {cell.block: 100 * share for cell in native if (share := of(cell)) is not None}
        for resource, of in USED.items()
    }


def _by_scenario(_study: Study, cells: Sequence[Cell]) -> dict[Place, dict[int, float]]:
    """CPU time in % of all CPUs, by way and scenario. Packets that stop in a guest are counted nowhere."""
    shares: dict[Place, dict[int, float]] = {}
    for cell in cells:
        if cell.period_ns is None and cell.cpu_share is not None:
            shares.setdefault(Place(cell.way, f"scenario {cell.scenario}"), {})[cell.block] = 100 * cell.cpu_share
    return shares


def _in_scenario(tenant: str, scenario: str) -> str:
    return f"{tenant}, scenario {scenario}"


def _throughputs(_study: Study, cells: Sequence[Cell]) -> dict[Place, dict[int, float]]:
    """Mb/s, by way, tenant and scenario."""
    by_place: dict[Place, dict[int, float]] = {}
    for cell in cells:
        for tenant, got in cell.tenants.items() if cell.period_ns is None else ():
            place = Place(cell.way, _in_scenario(tenant, cell.scenario))
            by_place.setdefault(place, {})[cell.block] = got.bps / 1e6
    return by_place


def _per_offered(cell: Cell, per_delivered: float | None) -> float | None:
    """An amount per delivered packet as one per offered packet, because a way that drops more delivers fewer.

    None if it was not counted, or if a tenant lost all, so that its offer is unknown.
    """
    tenants = cell.tenants.values()
    if per_delivered is None or any(got.lost == 1 for got in tenants):
        return None
    offered = sum(got.pps / (1 - (got.lost or 0)) for got in tenants)
    return per_delivered * sum(got.pps for got in tenants) / offered if offered else None


def _by_period(
    study: Study, cells: Sequence[Cell], value: Callable[[Cell], float | None]
) -> dict[Place, dict[int, float]]:
    """Native has no period: its cost in the same blocks is shown at each."""
    costs = {
        (cell.way, cell.period_ns, cell.block): cost
        for cell in cells
        if cell.period_ns is not None and (cost := value(cell)) is not None
    }
    return {
        Place(way, period_ns / 1e9): {
            block: cost for (kind, of, block), cost in costs.items() if kind == way and of in (period_ns, 0)
        }
        for period_ns in study.periods.every
        for way in (*study.ways_by_period, "native")
    }


COSTS: Mapping[str, Callable[[Study, Sequence[Cell]], dict[Place, dict[int, float]]]] = {
    "fig 4": _used,
    WHERE: _by_scenario,
    FALLS: _throughputs,
    "fig 7": lambda study, cells: _by_period(study, cells, lambda cell: _per_offered(cell, cell.cpu_ns / 1e3)),
    "fig 8": lambda study, cells: _by_period(study, cells, lambda cell: _per_offered(cell, cell.memory)),
}
"""Figures about the host; all others are about its tenants."""
