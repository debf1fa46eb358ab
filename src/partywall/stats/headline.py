"""The headline: the cost of neighbours in at most two lines of a terminal, most surprising first.

That a neighbour on the victim's own core takes half of it is expected; a loss to a neighbour on another core is not.
So losses are ordered by what nobody would have guessed: the whole loss beside a neighbour elsewhere, and the loss
beyond an equal share beside one on the same core. The rest is counted. Everything is in the table.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from partywall import units
from partywall.agent.catalogue import shipped
from partywall.model.finding import Band, Cell, Effect, Estimate, Warn
from partywall.model.plan import Plan, Treatment, Trial
from partywall.model.scenario import Aggressor
from partywall.model.wording import LINES, WIDTH, fits, impact, loss
from partywall.model.wording import percent as written_percent
from partywall.stats.latency import JUDGED, is_effect
from partywall.stats.reliability import understated
from partywall.stats.series import compared
from partywall.stats.states import reach_of

EQUAL_SHARE = 0.5
"""The isolation factor that everybody expects beside one neighbour on the same core."""

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
        return _nothing(plan, incomplete)
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
    harms = _by_surprise(_first_of_each(harmful, _pair), trials)
    later = _first_of_each(slower, _pair)
    failed = _failed_checks(trials, bands)
    left = _left_open(planned, shown, unseen)

    def text(room: Counter[str]) -> str:
        """room: the number of parts of each kind; what must be said is there with none."""
        said = [
            _costs(harms, room["costs"], trials, kernels, mark),
            _slower(later, trials, mark) if room["slower"] else _slower_count(later),
            _rest(unseen, bands, mark, nothing_seen=not shown) if room["rest"] or not shown else "",
            f"{len(helped)} made the victim faster{mark.among(helped)}" if helped and room["helped"] else "",
            "" if neighbours else _limits(cells),
        ]
        said = [part for part in said if part]
        said += _unjudged(left, alone=not (said or helped))
        label = "emulated: " if neighbours and all(map(_emulated, neighbours)) else ""
        return _sentences([*failed, label + "; ".join(said) if said else ""])

    surprising = sum(_surprise(cell, trials) > 0 for cell in harms)
    room = Counter({"costs": 0 if failed else 1, "helped": not (harms or later)})
    for part in ["costs"] * (surprising - 1) + ["slower", "rest"] + ["costs"] * len(harms) + ["helped"]:
        if fits(text(room + Counter([part]))):
            room[part] += 1
    return text(room)


def _nothing(plan: Plan, incomplete: Sequence[str]) -> str:
    first = incomplete[0].splitlines()[0].rstrip(".")
    first = next((first.removeprefix(f"{t.id}: ") for t in plan.trials if first.startswith(f"{t.id}: ")), first)
    more = len(incomplete) - 1
    beside = f" (and {more} more, among the warnings)" if more else ""
    room = WIDTH * LINES - len(f"nothing was measured: {beside}.") - WIDTH // 4
    return _sentences([f"nothing was measured: {textwrap.shorten(first, room, placeholder=' …')}{beside}"])


def _surprise(cell: Cell, trials: Mapping[str, Trial]) -> float:
    """The loss that nobody would expect: all of it, or what exceeds an equal share of a core used by both."""
    if trials[cell.trial].shares_cpu(cell.aggressor or ""):
        return max(0.0, 1 - cell.isolation.high / EQUAL_SHARE)
    return 1 - cell.isolation.value


def _by_surprise(harms: Sequence[Cell], trials: Mapping[str, Trial]) -> list[Cell]:
    """Surprising harms first, beginning with the worst of each victim; then expected ones. harms: worst first."""
    ordered = sorted(harms, key=lambda cell: -_surprise(cell, trials))
    surprising = [cell for cell in ordered if _surprise(cell, trials) > 0]
    firsts = _first_of_each(surprising, lambda cell: cell.victim)
    return [*firsts, *(cell for cell in ordered if cell not in firsts)]


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
        """' (1 emulated)', or nothing."""
        counts = {
            "perhaps more": sum(bool(understated(cell)) for cell in cells),
            "on few blocks": sum(Warn.FEW_BLOCKS in cell.warnings for cell in cells),
            "emulated": sum(map(_emulated, cells)) if self.emulated else 0,
        }
        marks = [f"{count} {what}" for what, count in counts.items() if count]
        return f" ({', '.join(marks)})" if marks else ""


def percent(estimate: Estimate) -> str:
    """The loss of an isolation factor, formatted as in the tables: '18 % ± 1'."""
    return written_percent(loss(estimate))


def _sentences(parts: Sequence[str]) -> str:
    said = [part for part in parts if part] or [
        "nothing conclusive: no neighbour was measured in enough blocks; give the run more budget"
    ]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in said)


def _failed_checks(trials: Mapping[str, Trial], bands: Sequence[Band]) -> list[str]:
    """If an aggressor that loads nothing seems to have an effect, effects up to that size are not reliable."""
    rates = [(band.trial, band.null, -1.0) for band in bands if band.null.low > 1 or band.null.high < 1]
    late = [(band.trial, band.null_latency[JUDGED], 0.0) for band in bands if is_effect(band.null_latency.get(JUDGED))]
    failed = [_failed(trials, some, what) for some, what in ((rates, "rate"), (late, f"{JUDGED} latency")) if some]
    return [f"not reliable: a neighbour that does nothing seemed to change {_listed(failed)}"] if failed else []


def _failed(trials: Mapping[str, Trial], failed: Sequence[tuple[str, Estimate, float]], what: str) -> str:
    """'the rate of copy by −2.0 % ± 0.5'. failed: (trial, effect of its null aggressor, size of that change)."""
    victims = list(dict.fromkeys(trials[trial].victim_name for trial, _, _ in failed))
    _, worst, shift = max(failed, key=lambda each: max(abs(each[1].low + each[2]), abs(each[1].high + each[2])))
    ends = {name: getattr(worst, name) + shift for name in ("value", "low", "high")}
    whose, up_to = (victims[0], "") if len(victims) == 1 else (f"{len(victims)} victims", "up to ")
    return f"the {what} of {whose} by {up_to}{written_percent(worst.model_copy(update=ends))}"


def _first_of_each(cells: Sequence[Cell], key: Callable[[Cell], Hashable]) -> list[Cell]:
    first: dict[Hashable, Cell] = {}
    for cell in cells:
        first.setdefault(key(cell), cell)
    return list(first.values())


def _costs(
    harms: Sequence[Cell],
    count: int,
    trials: Mapping[str, Trial],
    kernels: Mapping[str, Mapping[str, Any]],
    mark: _Marks,
) -> str:
    """harms: the worst of each victim and aggressor, most surprising first. count: how many to spell out."""
    shown, more = harms[:count], harms[count:]
    lost = {cell.victim: _lost(trials[cell.trial], kernels) for cell in shown}
    same_words = len(set(lost.values())) < len(lost)
    by_neighbour: dict[str, list[Cell]] = {}
    for cell in shown:
        by_neighbour.setdefault(_who(trials[cell.trial], cell, "a neighbour"), []).append(cell)
    first = _where(trials[shown[0].trial], shown[0].aggressor or "") if shown else ""
    clauses: list[str] = []
    for who, cells in by_neighbour.items():
        costs = [
            f"{percent(cell.isolation)} of {lost[cell.victim]}"
            f"{mark.beside(cell, *([cell.victim] if same_words else []))}"
            for cell in cells
        ]
        name = _who(trials[cells[0].trial], cells[0], "one").removesuffix(first) if clauses else f"{who} costs"
        clauses.append(f"{name} {_listed(costs)}")
    if more:
        clauses.append(_more(more, trials, alone=not shown) + mark.among(more))
    return "; ".join(clauses)


def _more(harms: Sequence[Cell], trials: Mapping[str, Trial], *, alone: bool) -> str:
    """'3 more on the same core cost 18 to 23 %': the number of other losses and their range. alone: of all losses."""
    values = sorted(1 - cell.isolation.value for cell in harms)
    (least, most), several = (f"{100 * end:.2g}" for end in (values[0], values[-1])), len(harms) > 1
    where = " on the same core" if all(trials[c.trial].shares_cpu(c.aggressor or "") for c in harms) else ""
    who = f"{units.counted(len(harms), 'neighbour') if alone else f'{len(harms)} more'}{where}"
    if least == most:
        return f"{who} cost{'' if several else 's'} about {most} %{' each' if several else ''}"
    return f"{who} cost {least} to {most} %"


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


def _slower_count(slower: Sequence[Cell]) -> str:
    count = units.counted(len(slower), "neighbour")
    return f"{count} lengthen{'s' if len(slower) == 1 else ''} latency, see the table" if slower else ""


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
    if aggressor.migration is not None:
        return "guest-sending" if aggressor.migration.role == "source" else "guest-receiving"
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
    first = f"no neighbour shows an effect {above}" if nothing_seen else f"no other effect {above}"
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
            "nothing conclusive: no neighbour shows an effect, "
            f"but only one above {_coarsely(reach)} would have shown; give the run more budget"
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
