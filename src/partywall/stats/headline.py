"""The headline: the cost of neighbours in one line, worst first, and the effects that were not seen, with their bound.

It contains less than the table by design: the worst neighbour of each victim, for at most three victims, then counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from partywall.agent.catalogue import shipped
from partywall.model.finding import Band, Cell, Effect, Estimate, Warn
from partywall.model.plan import Plan, Treatment, Trial
from partywall.model.scenario import Aggressor
from partywall.model.wording import impact, loss
from partywall.model.wording import percent as written_percent
from partywall.stats.latency import JUDGED, is_effect
from partywall.stats.reliability import understated
from partywall.stats.series import compared
from partywall.stats.states import reach_of

SHOWN = 3

_LOST = {
    "cpu": "CPU speed",
    "cache": "cache speed",
    "memory_bandwidth": "memory bandwidth",
    "memory_capacity": "memory allocation speed",
    "local_communication": "local communication",
    "disk": "disk throughput",
    "network": "network throughput",
    "kernel": "system-call speed",
}
"""By resource. A kernel that measures another property names it in the catalogue."""


def headline(
    plan: Plan,
    kernels: Mapping[str, Mapping[str, Any]],
    cells: Sequence[Cell],
    bands: Sequence[Band],
    incomplete: Sequence[str] = (),
) -> str:
    """The line. kernels: the agent's catalogue, for names of resources; incomplete: why trials failed."""
    if not cells and incomplete:
        more = len(incomplete) - 1
        first = incomplete[0].splitlines()[0].rstrip(".")
        first = next((first.removeprefix(f"{t.id}: ") for t in plan.trials if first.startswith(f"{t.id}: ")), first)
        beside = f" (and {more} more, among the warnings)" if more else ""
        return _sentences([f"nothing was measured: {first}{beside}"])
    trials = {trial.id: trial for trial in plan.trials}
    planned = {(trial.id, t.id): t.aggressor for trial in plan.trials for t in compared(trial) if _presses_alone(t)}
    neighbours = [cell for cell in cells if (cell.trial, cell.treatment) in planned]
    worst_first = sorted(neighbours, key=lambda cell: cell.isolation.value)
    harmful = [cell for cell in worst_first if cell.seen and cell.isolation.high < 1]
    helped = [cell for cell in neighbours if cell.seen and cell.isolation.low > 1]
    slowed = [cell for cell in neighbours if not cell.seen and JUDGED in cell.latency_seen]
    slower = sorted((c for c in slowed if _slowdown(c) > 0), key=_slowdown, reverse=True)
    shown = [*harmful, *helped, *slower]
    unseen = [cell for cell in neighbours if cell not in shown and not understated(cell)]
    mark = _Marks(emulated=not all(map(_emulated, neighbours)))
    parts = [
        _costs(_first_of_each(harmful, _pair), trials, kernels, mark),
        _slower(_first_of_each(slower, _pair), trials, mark),
        _helped(helped, mark),
        _rest(unseen, bands, mark, nothing_seen=not shown),
        "" if neighbours else _limits(cells),
    ]
    said = [part for part in parts if part]
    said += _unjudged(_left_open(planned, shown, unseen), alone=not said)
    label = "emulated: " if neighbours and all(map(_emulated, neighbours)) else ""
    return _sentences([*_failed_checks(trials, bands), label + "; ".join(said) if said else ""])


def _presses_alone(treatment: Treatment) -> bool:
    """True for a neighbour beside a victim without its own limits, the subject of the headline."""
    return treatment.aggressor is not None and treatment.victim_limits is None


def _pair(cell: Cell) -> tuple[str, str | None]:
    return cell.victim, cell.aggressor


def _emulated(cell: Cell) -> bool:
    return Warn.EMULATED in cell.warnings


@dataclass(frozen=True)
class _Marks:
    """Marks beside a figure. emulated: whether to mark emulated figures individually, because not all are."""

    emulated: bool

    def of(self, cell: Cell) -> list[str]:
        """The marks of one cell."""
        return [
            *(["or more"] if understated(cell) else []),
            *([f"on only {cell.isolation.n} blocks"] if Warn.FEW_BLOCKS in cell.warnings else []),
            *(["emulated"] if self.emulated and _emulated(cell) else []),
        ]

    def beside(self, cell: Cell, *first: str) -> str:
        """' (or more; emulated)', or nothing."""
        marks = [*first, *self.of(cell)]
        return f" ({'; '.join(marks)})" if marks else ""

    def among(self, cells: Sequence[Cell]) -> str:
        """' (1 of them emulated)', or nothing."""
        counts = {
            "perhaps more": sum(bool(understated(cell)) for cell in cells),
            "on too few blocks": sum(Warn.FEW_BLOCKS in cell.warnings for cell in cells),
            "emulated": sum(map(_emulated, cells)) if self.emulated else 0,
        }
        marks = [f"{count} of them {what}" for what, count in counts.items() if count]
        return f" ({'; '.join(marks)})" if marks else ""


def percent(estimate: Estimate) -> str:
    """The loss of an isolation factor, formatted as in the tables: '18 % ± 1'."""
    return written_percent(loss(estimate))


def _sentences(parts: Sequence[str]) -> str:
    said = [part for part in parts if part] or [
        "nothing conclusive: no neighbour was measured in enough blocks; give the run more budget"
    ]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in said)


def _failed_checks(trials: Mapping[str, Trial], bands: Sequence[Band]) -> list[str]:
    """If an aggressor that loads nothing seems to have an effect, effects up to that size are doubtful."""
    rates = [(band.trial, band.null, -1.0) for band in bands if band.null.low > 1 or band.null.high < 1]
    late = [(band.trial, band.null_latency[JUDGED], 0.0) for band in bands if is_effect(band.null_latency.get(JUDGED))]
    return [_failed(trials, failed, what) for failed, what in ((rates, "rate"), (late, f"{JUDGED} latency")) if failed]


def _failed(trials: Mapping[str, Trial], failed: Sequence[tuple[str, Estimate, float]], what: str) -> str:
    """failed: (trial, effect of its null aggressor, size of that change)."""
    victims = ", ".join(dict.fromkeys(trials[trial].victim_name for trial, _, _ in failed))
    _, worst, shift = max(
        failed, key=lambda verdict: max(abs(verdict[1].low + verdict[2]), abs(verdict[1].high + verdict[2]))
    )
    ends = {name: getattr(worst, name) + shift for name in ("value", "low", "high")}
    change = written_percent(worst.model_copy(update=ends))
    return (
        f"the A/A check failed for {victims}: a neighbour that does nothing seemed to change its {what} by {change}, "
        "so effects of that size are not reliable"
    )


def _first_of_each(cells: Sequence[Cell], key: Callable[[Cell], Hashable]) -> list[Cell]:
    first: dict[Hashable, Cell] = {}
    for cell in cells:
        first.setdefault(key(cell), cell)
    return list(first.values())


def _costs(
    harms: Sequence[Cell], trials: Mapping[str, Trial], kernels: Mapping[str, Mapping[str, Any]], mark: _Marks
) -> str:
    """harms: the worst of each victim and aggressor, worst first."""
    shown = _first_of_each(harms, lambda cell: cell.victim)[:SHOWN]
    more = [cell for cell in harms if cell not in shown]
    if len(more) == 1:
        # "1 more" is as long as the neighbour's own entry.
        shown, more = [*shown, *more], []
    lost = {cell.victim: _lost(trials[cell.trial], kernels) for cell in shown}
    same_words = len(set(lost.values())) < len(lost)
    by_neighbour: dict[str, list[Cell]] = {}
    for cell in shown:
        by_neighbour.setdefault(_who(trials[cell.trial], cell, "a neighbour"), []).append(cell)
    clauses: list[str] = []
    for who, cells in by_neighbour.items():
        costs = [
            f"{percent(cell.isolation)} of {lost[cell.victim]}"
            f"{mark.beside(cell, *([cell.victim] if same_words else []))}"
            for cell in cells
        ]
        name = _who(trials[cells[0].trial], cells[0], "one") if clauses else f"{who} costs you"
        clauses.append(f"{name} {_listed(costs)}")
    if more:
        clauses.append(_more(more) + mark.among(more))
    return "; ".join(clauses)


def _more(harms: Sequence[Cell]) -> str:
    """The number of other effects and their range. harms: at least two, worst first."""
    least, most = percent(harms[-1].isolation), percent(harms[0].isolation)
    same = most.partition(" %")[0]
    if least.partition(" %")[0] == same:
        return f"{len(harms)} more cost about {same} % each"
    return f"{len(harms)} more cost between {least} and {most}"


def _slowdown(cell: Cell) -> float:
    return cell.latency[JUDGED].value


def _slower(slower: Sequence[Cell], trials: Mapping[str, Trial], mark: _Marks) -> str:
    """Neighbours that increase latency without a visible loss of throughput. slower: worst first, one for each pair."""
    if not slower:
        return ""
    worst = slower[0]
    longer = _longer(worst.latency[JUDGED])
    who = _who(trials[worst.trial], worst, "a neighbour")
    first = f"{who} lengthens the {JUDGED} latency of {worst.victim} {longer}{_throughput_of(worst)}"
    more = len(slower) - 1
    others = f", and {more} more lengthen{'s' if more == 1 else ''} one by less" if more else ""
    return f"{first}{mark.beside(worst)}{others}"


def _longer(slowdown: Estimate) -> str:
    """'by 18 % ± 4', or 'to at least 10 times' the value without the neighbour."""
    written = impact(slowdown, sign=False)
    return f"to {written}" if "times" in written else f"by {written}"


def _throughput_of(cell: Cell) -> str:
    if cell.effect is Effect.NONE:
        return " without a loss of throughput seen"
    return "; whether it costs throughput is not known"


def _listed(things: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(things[:-1]), things[-1]) if part)


def _lost(trial: Trial, kernels: Mapping[str, Mapping[str, Any]]) -> str:
    info = shipped().kernel(trial.victim.probe or "")
    if info and info.loses:
        return info.loses
    resource = str(kernels.get(trial.victim.probe or "", {}).get("resource", ""))
    return _LOST.get(resource, f"the throughput of {trial.victim_name}")


def _who(trial: Trial, cell: Cell, noun: str) -> str:
    aggressor = trial.aggressors.get(cell.aggressor or "")
    doing = _doing(aggressor) if aggressor else None
    where = _where(trial, cell.aggressor or "")
    if doing is None:
        return f"{noun} running {_program(aggressor, cell)}{where}"
    article = "an" if doing[0] in "aeiou" else "a"
    return f"{article} {doing} {noun.removeprefix('a ')}{where}"


def _doing(aggressor: Aggressor) -> str | None:
    """'memory-copying' for 'memory-copy'; None for a command."""
    if aggressor.stressor is None:
        return None
    info = shipped().kernel(aggressor.stressor)
    return info.doing if info and info.doing else f"{aggressor.stressor}-running"


def _program(aggressor: Aggressor | None, cell: Cell) -> str:
    return PurePath(aggressor.command[0]).name if aggressor and aggressor.command else cell.aggressor or cell.label


def _where(trial: Trial, aggressor: str) -> str:
    theirs, ours = trial.aggressor_cpus.get(aggressor, ()), trial.victim_cpus
    if not theirs or not ours:
        return ""
    if trial.shares_cpu(aggressor):
        return " on the same core"
    if aggressor in trial.aggressors and trial.aggressors[aggressor].sandbox.machine != trial.victim.sandbox.machine:
        return " on another machine"
    # Adjacent CPU numbers may be in different packages. Only placement by topology knows the nearest.
    placed = trial.aggressors[aggressor].sandbox.cpus if aggressor in trial.aggressors else ""
    return " on the next core" if placed in ("auto", "next") else " on another core"


def _helped(helped: Sequence[Cell], mark: _Marks) -> str:
    return f"{len(helped)} made the victim faster, which the table shows{mark.among(helped)}" if helped else ""


def _left_open(
    planned: Mapping[tuple[str, str], str | None], shown: Sequence[Cell], unseen: Sequence[Cell]
) -> set[tuple[str, str | None]]:
    """Trials and aggressors without a conclusion: not measured, or possibly with more harm than was seen."""
    known = {(cell.trial, cell.treatment) for cell in unseen}
    open_ = {(trial, aggressor) for (trial, id_), aggressor in planned.items() if (trial, id_) not in known}
    return open_ - {(cell.trial, cell.aggressor) for cell in shown}


def _unjudged(left: Collection[object], *, alone: bool) -> list[str]:
    if not left:
        return []
    if alone:
        return ["nothing conclusive: no neighbour could be judged; see the warnings"]
    return [f"{len(left)} other{'' if len(left) == 1 else 's'} could not be judged; see the warnings"]


def _rest(unseen: Sequence[Cell], bands: Sequence[Band], mark: _Marks, *, nothing_seen: bool) -> str:
    """The bound for neighbours without an effect, or that nothing is known."""
    none = [cell for cell in unseen if cell.effect is Effect.NONE]
    unknown = [cell for cell in unseen if cell.effect is not Effect.NONE]
    some = " (partly emulated)" if mark.emulated and any(map(_emulated, unseen)) else ""
    if not none:
        return _unknown(unknown, bands, some, nothing_seen=nothing_seen) if unknown else ""
    # Rounded up, so that the statement is true.
    above = f"above ±{math.ceil(1000 * _reach(none, bands) - 1e-9) / 10:g} %{some}"
    first = f"no neighbour was seen to cost you anything {above}" if nothing_seen else f"nothing else was seen {above}"
    return first + (f", but {_more_unknown(unknown, unseen, bands)}" if unknown else "")


def _unknown(cells: Sequence[Cell], bands: Sequence[Band], some: str, *, nothing_seen: bool) -> str:
    """The statement if no neighbour without a visible effect can be excluded to have one."""
    reach = _reach(cells, bands)
    if reach > 1:
        # An interval that includes a doubling and a halving says nothing.
        return (
            "nothing conclusive: there are too few blocks to see any effect; give the run more budget"
            if nothing_seen
            else "too few blocks to judge the rest"
        )
    if nothing_seen:
        return (
            "nothing conclusive: no neighbour was seen to cost you anything, "
            f"but only effects above {_coarsely(reach)} could have been; give the run more budget"
        )
    return f"nothing else could be distinguished from noise (up to {_coarsely(reach)}){some}"


def _more_unknown(unknown: Sequence[Cell], unseen: Sequence[Cell], bands: Sequence[Band]) -> str:
    """'2 of 5 are not known (up to ±63 %)', by victim and neighbour."""
    counts = [len({(cell.trial, cell.aggressor) for cell in cells}) for cells in (unknown, unseen)]
    reach = _reach(unknown, bands)
    why = "too few blocks" if reach > 1 else f"up to {_coarsely(reach)}"
    return f"{counts[0]} of {counts[1]} {'is' if counts[0] == 1 else 'are'} not known ({why})"


def _reach(cells: Sequence[Cell], bands: Sequence[Band]) -> float:
    return max(reach_of(cell, next((band for band in bands if band.of(cell)), None)) for cell in cells)


def _coarsely(reach: float) -> str:
    """Whole percents, because tenths are not meaningful here."""
    return f"±{math.ceil(100 * reach - 1e-9)} %"


def _limits(cells: Sequence[Cell]) -> str:
    kept = [cell for cell in cells if cell.role == "limit" and cell.aggressor is None and cell.efficiency is not None]
    if not kept:
        return ""
    worst = max(kept, key=lambda cell: abs(1 - cell.efficiency.value) if cell.efficiency else 0.0)
    q = worst.efficiency
    return (
        f"limits gave their sandboxes {q.value:.2f} ± {q.half_width:.2f} of the promised share or nearer to it"
        f"{_Marks(emulated=True).beside(worst)}"
        if q
        else ""
    )
