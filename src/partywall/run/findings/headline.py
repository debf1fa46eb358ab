"""The headline: what the goals asked, which neighbour costs whom how much, what to do, and what is not known yet.

It uses the names of the scenario, and the judgements of `states`. The result of the goals comes first. Losses are
ordered by what nobody would have guessed: the whole loss beside a neighbour elsewhere, and the loss beyond an equal
share beside one on the same core. What does not fit into a few lines is in the table.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partywall import units
from partywall.agent.catalogue import Warn, shipped
from partywall.core.report.wording import LINES, WIDTH, fits, impact, levels_text, loss
from partywall.core.report.wording import percent as written_percent
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.run.findings.latency import JUDGED
from partywall.run.findings.reliability import understated
from partywall.run.findings.series import compared
from partywall.run.findings.states import failed_checks, more_time
from partywall.run.values.finding import Band, Cell, Effect, Verdict, beside
from partywall.run.values.plan import Plan, Trial

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

_LEVERS = {
    "memory_capacity": "memory.high",
    "disk": "io.max",
    "network": "partywall guard",
}
"""What limits a neighbour, by the resource that it uses. All others are used by computing."""

_LONGEST_NS = 24 * 3600 * 10**9
"""More time than this is not a proposal."""


def headline(
    plan: Plan,
    kernels: Mapping[str, Mapping[str, Any]],
    cells: Sequence[Cell],
    bands: Sequence[Band],
    incomplete: Sequence[str] = (),
    verdicts: Sequence[Verdict] = (),
) -> str:
    """The headline. kernels: the agent's catalogue, for names of resources; incomplete: why trials failed.

    Each sentence has variants, from the shortest to the most complete. The first ones grow first, as long as a terminal
    shows all of them in a few lines.
    """
    if not cells and incomplete:
        return _nothing(plan, incomplete)
    broken = {(each.trial, each.treatment) for each in verdicts if each.outcome is Outcome.VIOLATED}
    run = _Run(plan, kernels, cells, bands, broken)
    sentences = [
        _goals(run, verdicts),
        _failed_checks(run),
        *([] if _is_about_limits(plan) else [_harms(run), _slower(run), _unknown(run)]),
        [] if verdicts else [f"{text}." for text in _limits(run)[:1]],
    ]
    sentences = [variants for variants in sentences if variants] or [[_NOTHING]]
    chosen = [variants[0] for variants in sentences]
    for place, variants in enumerate(sentences):
        for variant in variants[1:]:
            longer = [*chosen[:place], variant, *chosen[place + 1 :]]
            chosen = longer if fits(" ".join(longer)) else chosen
    return ("Emulated: " if run.all_emulated else "") + " ".join(chosen)


_NOTHING = "Nothing conclusive: no neighbour was measured in enough blocks; give the run more budget."


def _nothing(plan: Plan, incomplete: Sequence[str]) -> str:
    first = incomplete[0].splitlines()[0].rstrip(".")
    first = next((first.removeprefix(f"{t.id}: ") for t in plan.trials if first.startswith(f"{t.id}: ")), first)
    more = len(incomplete) - 1
    others = f" (and {more} more, among the warnings)" if more else ""
    room = WIDTH * LINES - len(f"Nothing was measured: {others}.") - WIDTH // 4
    return f"Nothing was measured: {textwrap.shorten(first, room, placeholder=' …')}{others}."


def _is_about_limits(plan: Plan) -> bool:
    """True if the goals ask only what limits give."""
    return bool(plan.scenario.goals) and not any(goal.is_about_neighbours for goal in plan.scenario.goals)


@dataclass(frozen=True)
class _Run:
    """What the sentences are about. broken: trials and treatments that violate a goal, which is said first."""

    plan: Plan
    kernels: Mapping[str, Mapping[str, Any]]
    cells: Sequence[Cell]
    bands: Sequence[Band]
    broken: Collection[tuple[str, str]]

    @cached_property
    def trials(self) -> dict[str, Trial]:
        return {trial.id: trial for trial in self.plan.trials}

    @cached_property
    def neighbours(self) -> list[Cell]:
        """The cells of neighbours beside victims without a limit of their own, worst first."""
        alone = {(t.id, each.id) for t in self.plan.trials for each in compared(t) if each.victim_limits is None}
        cells = [cell for cell in self.cells if cell.role == "aggressor" and (cell.trial, cell.treatment) in alone]
        return sorted(cells, key=lambda cell: cell.isolation.value)

    @property
    def all_emulated(self) -> bool:
        return bool(self.neighbours) and all(map(_emulated, self.neighbours))

    def title(self, cell: Cell) -> str:
        """'api beside batch at 50 % on the same core'."""
        several = len({trial.id for trial in self.plan.trials if trial.victim_name == cell.victim}) > 1
        detail = f" ({levels_text(cell.levels)})" if several and cell.levels else ""
        return f"{cell.victim}{detail} beside {beside(cell)}{_where(self.trials[cell.trial], cell.aggressor or '')}"

    def marks(self, cell: Cell, *more: str) -> str:
        """' (or more; emulated)', or nothing."""
        marks = [
            *(["or more"] if understated(cell) else []),
            *(["emulated"] if _emulated(cell) and not self.all_emulated else []),
            *more,
        ]
        return f" ({'; '.join(marks)})" if marks else ""


def _emulated(cell: Cell) -> bool:
    return Warn.EMULATED in cell.warnings


def percent(estimate: Estimate) -> str:
    """The loss of an isolation factor, formatted as in the tables: '18 % ± 1'."""
    return written_percent(loss(estimate))


# What the goals asked


def _goals(run: _Run, verdicts: Sequence[Verdict]) -> list[str]:
    """The worst outcome of the goals, with the cells behind it."""
    cells = {(cell.trial, cell.treatment): cell for cell in run.cells}
    for outcome, words in _RESULTS.items():
        own = [verdict for verdict in verdicts if verdict.outcome is outcome]
        if not own:
            continue
        judged = [(v, cell) for v in own if (cell := cells.get((v.trial, v.treatment)))]
        said = list(dict.fromkeys(_result(run, verdict, cell) for verdict, cell in judged)) or [own[0].reason]
        if outcome is Outcome.HOLDS and len(own) > 1 and not _is_about_limits(run.plan):
            return [f"The goals hold in all {len(own)} cells."]
        shortest = f"{words}: {_listed(said, 1)}."
        if judged and outcome is Outcome.VIOLATED and judged[0][1].aggressor:
            said[0] += f"; {_remedy(run, judged[0][1])}"
        return [shortest, *(f"{words}: {_listed(said, count)}." for count in range(1, len(said) + 1))]
    return []


_RESULTS = {Outcome.VIOLATED: "Violated", Outcome.INCONCLUSIVE: "Not decided", Outcome.HOLDS: "Holds"}


def _listed(texts: Sequence[str], count: int) -> str:
    """The first texts, and how many there are besides."""
    more = len(texts) - count
    return "; ".join(texts[:count]) + (f"; and {more} more" if more else "")


def _result(run: _Run, verdict: Verdict, cell: Cell) -> str:
    """A cell in the words of its goal."""
    goal, title = verdict.goal, run.title(cell) if cell.aggressor else ""
    bounds = (goal.isolation_factor, goal.latency_impact_p99, goal.latency_p99, goal.efficiency)
    if sum(bound is not None for bound in bounds) > 1 or "in all slots" in verdict.reason:
        # The reason names the figure that decides, which need not be the first that the goal sets.
        return f"{title or cell.victim}: {verdict.reason}"
    if goal.efficiency is not None and cell.promised is not None:
        return _limits(run, [cell])[0]
    if goal.isolation_factor is not None:
        kept, bound = written_percent(cell.isolation), f"goal: {100 * goal.isolation_factor:g} %"
        return f"{title} keeps {kept} of {_lost(run, cell)}{run.marks(cell, bound)}"
    if goal.latency_impact_p99 is not None and JUDGED in cell.latency:
        bound = f"goal: at most {100 * goal.latency_impact_p99:g} %"
        return f"{JUDGED} latency of {title} changes by {impact(cell.latency[JUDGED])}{run.marks(cell, bound)}"
    if goal.latency_p99 is not None and JUDGED in cell.latency_ns:
        own, bound = cell.latency_ns[JUDGED], f"goal: at most {units.format_duration(goal.latency_p99)}"
        return f"{JUDGED} latency of {title} is {units.format_duration(own.value)}{run.marks(cell, bound)}"
    return f"{title}: {verdict.reason}"


def _limits(run: _Run, cells: Sequence[Cell] | None = None) -> list[str]:
    """What limits gave alone, the furthest from its promise first, and what is left of it beside a neighbour."""
    kept = [c for c in (run.cells if cells is None else cells) if c.promised is not None and c.efficiency is not None]
    kept = [c for c in kept if c.aggressor is None or cells is not None]
    return [_limit(run, cell) for cell in sorted(kept, key=lambda cell: -abs(1 - _of_promise(cell)))]


def _of_promise(cell: Cell) -> float:
    given = cell.cpu_time
    return given.of_promise.value if given else cell.efficiency.value if cell.efficiency else 1.0


def _limit(run: _Run, cell: Cell) -> str:
    """What a limit gave, and the rate that is left beside the worst neighbour."""
    text = f"{cell.victim}{f' beside {beside(cell)}' if cell.aggressor else ''} gets {_given(run, cell)}"
    pressed = [c for c in run.cells if c.role == "aggressor" and (c.trial, c.baseline) == (cell.trial, cell.treatment)]
    worst = min(pressed, key=lambda c: c.isolation.value, default=None)
    if worst is None:
        return text
    return f"{text}; beside {worst.aggressor} its rate is {written_percent(worst.isolation)} of that{run.marks(worst)}"


def _given(run: _Run, cell: Cell) -> str:
    """'29.8 % ± 0.2 of a CPU, of 30 % promised'."""
    given, cpus = cell.cpu_time, len(run.trials[cell.trial].victim_cpus)
    if given is None:
        q = written_percent(cell.efficiency) if cell.efficiency else ""
        return f"{q} of what {cell.label} promises{run.marks(cell)}"
    whose = "a CPU" if cpus == 1 else f"its {cpus} CPUs"
    waited = given.held is None and given.held_share is not None and not cell.aggressor
    marks = run.marks(cell, *(["others used the CPU"] if waited else []))
    return f"{written_percent(given.judged)} of {whose}, of {100 * given.promised:g} % promised{marks}"


def _failed_checks(run: _Run) -> list[str]:
    """If an aggressor that loads nothing seems to have an effect, effects up to that size are not reliable."""
    rates, late = failed_checks(run.bands, run.plan.scenario.min_blocks)
    changes = [
        *_changed(run, [(band.trial, band.null, 1.0) for band in rates], "rate"),
        *_changed(run, [(band.trial, band.null_latency[JUDGED], 0.0) for band in late], f"{JUDGED} latency"),
    ]
    return [f"Not reliable: an idle neighbour seemed to change {' and '.join(changes)}."] if changes else []


def _changed(run: _Run, failed: Sequence[tuple[str, Estimate, float]], what: str) -> Iterator[str]:
    """'the rate of copy by −2.0 % ± 0.5'. failed: (trial, null aggressor's effect, value without one)."""
    if not failed:
        return
    victims = list(dict.fromkeys(run.trials[trial].victim_name for trial, _, _ in failed))
    _, worst, nothing = max(failed, key=lambda each: abs(each[1].value - each[2]))
    change = worst.mapped(lambda value: value - nothing)
    whose, up_to = (victims[0], "") if len(victims) == 1 else (f"{len(victims)} victims", "up to ")
    yield f"the {what} of {whose} by {up_to}{written_percent(change)}"


# Who costs whom how much


def _harms(run: _Run) -> list[str]:
    """The worst losses, what to do about the first, and the names of the others."""
    seen = [cell for cell in run.neighbours if cell.effect is Effect.SEEN]
    told = {(cell.victim, cell.aggressor) for cell in seen if (cell.trial, cell.treatment) in run.broken}
    harms = [cell for cell in seen if cell.isolation.value < 1 and (cell.victim, cell.aggressor) not in told]
    harms = _by_surprise(run, _first_of_each(harms))
    helped = [cell for cell in seen if cell.isolation.value > 1]
    if not harms:
        return [f"{run.title(cell)} is faster, by {_gain(cell)}." for cell in helped[-1:] if not told]
    said = [_loses(run, cell) for cell in harms]
    said_fully = [f"{said[0]}; {_remedy(run, harms[0])}", *said[1:]]
    return [
        f"{said[0]}{_others(harms[1:], named=False)}.",
        *(
            f"{'; '.join(said_fully[:count])}{_others(harms[count:], named=named)}."
            for named in (False, True)
            for count in range(1, len(harms) + 1)
        ),
    ]


def _gain(cell: Cell) -> str:
    return written_percent(cell.isolation.mapped(lambda factor: factor - 1))


def _loses(run: _Run, cell: Cell) -> str:
    return f"{run.title(cell)} loses {percent(cell.isolation)} of {_lost(run, cell)}{run.marks(cell)}"


def _others(rest: Sequence[Cell], *, named: bool) -> str:
    """'; a beside b and 2 more lose 5 to 18 %'. rest: losses that are not spelled out."""
    if not rest:
        return ""
    values = sorted(1 - cell.isolation.value for cell in rest)
    least, most = (f"{100 * end:.2g}" for end in (values[0], values[-1]))
    span = f"{least} %" if least == most else f"{least} to {most} %"
    doubtful = sum(bool(understated(cell)) for cell in rest)
    mark = f" ({doubtful} perhaps more)" if doubtful else ""
    names = ", ".join(f"{cell.victim} beside {cell.aggressor}" for cell in rest) if named else f"{len(rest)} more"
    return f"; {names} lose{'s' if len(rest) == 1 else ''} {span}{mark}"


def _remedy(run: _Run, cell: Cell) -> str:
    """What keeps the neighbour from doing so: a limit on what it uses, or another place."""
    trial, name = run.trials[cell.trial], cell.aggressor or ""
    stressor = trial.aggressors[name].stressor if name in trial.aggressors else None
    resource = _resource(run, stressor) or _resource(run, trial.victim.probe)
    lever = _LEVERS.get(resource, "cpu.max")
    elsewhere = "pin it to another core" if lever == "cpu.max" and trial.shares_cpu(name) else "move it"
    return f"limit {name} with {lever} or {elsewhere}"


def _resource(run: _Run, kernel: str | None) -> str:
    info = shipped().kernel(kernel or "")
    return str(run.kernels.get(kernel or "", {}).get("resource", "") or (info.resource if info else ""))


def _surprise(run: _Run, cell: Cell) -> float:
    """The loss that nobody would expect: all of it, or what exceeds an equal share of a core used by both."""
    if run.trials[cell.trial].shares_cpu(cell.aggressor or ""):
        return max(0.0, 1 - cell.isolation.high / EQUAL_SHARE)
    return 1 - cell.isolation.value


def _by_surprise(run: _Run, harms: Sequence[Cell]) -> list[Cell]:
    """Surprising harms first, beginning with the worst of each victim; then expected ones. harms: worst first."""
    ordered = sorted(harms, key=lambda cell: -_surprise(run, cell))
    surprising = [cell for cell in ordered if _surprise(run, cell) > 0]
    firsts = list({cell.victim: cell for cell in reversed(surprising)}.values())[::-1]
    return [*firsts, *(cell for cell in ordered if cell not in firsts)]


def _first_of_each(cells: Sequence[Cell]) -> list[Cell]:
    """The first cell of each victim and neighbour, of several intensities or levels."""
    first: dict[tuple[str, str | None], Cell] = {}
    for cell in cells:
        first.setdefault((cell.victim, cell.aggressor), cell)
    return list(first.values())


def _slower(run: _Run) -> list[str]:
    """Neighbours that lengthen the latency without a visible loss of throughput."""
    only = [c for c in run.neighbours if c.effect is not Effect.SEEN and c.latency_effect.get(JUDGED) is Effect.SEEN]
    slower = _first_of_each(sorted((c for c in only if _slowdown(c) > 0), key=_slowdown, reverse=True))
    if not slower:
        return []
    names = ", ".join(f"{cell.victim} beside {cell.aggressor}" for cell in slower[1:])
    worst = slower[0]
    first = f"The {JUDGED} latency of {run.title(worst)} grows {_longer(worst.latency[JUDGED])}{run.marks(worst)}"
    more = f"; {len(slower) - 1} more grow by less" if len(slower) > 1 else ""
    return [f"{first}{more}.", *([f"{first}; that of {names} by less."] if names else [])]


def _slowdown(cell: Cell) -> float:
    return cell.latency[JUDGED].value


def _longer(slowdown: Estimate) -> str:
    """'by 18 % ± 4', or 'to at least 10 times' the value without the neighbour."""
    written = impact(slowdown, sign=False)
    return f"to {written}" if "times" in written else f"by {written}"


def _lost(run: _Run, cell: Cell) -> str:
    trial = run.trials[cell.trial]
    info = shipped().kernel(trial.victim.probe or "")
    if info and info.loses:
        return info.loses
    return _LOST.get(_resource(run, trial.victim.probe), "its throughput")


def _where(trial: Trial, aggressor: str) -> str:
    theirs, ours = trial.aggressor_cpus.get(aggressor, ()), trial.victim_cpus
    # The CPUs of virtual users are not those of the service that they measure.
    if not theirs or not ours or trial.victim.load is not None:
        return ""
    if trial.shares_cpu(aggressor):
        return " (same core)"
    if aggressor in trial.aggressors and trial.aggressors[aggressor].sandbox.machine != trial.victim.sandbox.machine:
        return " (another machine)"
    # Adjacent CPU numbers may be in different packages. Only placement by topology knows the nearest.
    placed = trial.aggressors[aggressor].sandbox.cpus if aggressor in trial.aggressors else ""
    return " (next core)" if placed in ("auto", "next") else " (another core)"


# What is not known


def _unknown(run: _Run) -> list[str]:
    """How many cells are not known, how long it would take to know them, and their names."""
    planned = sum(
        each.role == "aggressor" and each.victim_limits is None for t in run.plan.trials for each in compared(t)
    )
    open_ = [cell for cell in run.neighbours if cell.effect is Effect.NOT_KNOWN]
    missing, total = planned - len(run.neighbours), max(planned, len(run.neighbours))
    bound = max((cell.effect_bound or 0.0 for cell in run.neighbours), default=0.0)
    nothing_seen = not any(cell.effect is Effect.SEEN for cell in run.neighbours)
    if not open_ and not missing:
        none = [cell for cell in run.neighbours if cell.effect is Effect.NONE]
        other = "No neighbour has an effect" if nothing_seen else "No other effect"
        on = " on throughput" if any(cell.latency_effect.get(JUDGED) is Effect.SEEN for cell in none) else ""
        return [f"{other}{on} above ±{100 * bound:.3g} %."] if none else []
    count = len(open_) + missing
    text = f"{count} of {units.counted(total, 'cell')} {'is' if count == 1 else 'are'} not known"
    text = f"Nothing conclusive: {text}" if count == total else text
    spare = _time_needed(run, open_)
    told = sum(more_time(cell, run.bands, run.plan.scenario.min_blocks) is not None for cell in open_)
    which = "" if told == count else f" {told} of them"
    waits = "" if spare is None else f"; {spare} would tell{which}"
    waits = waits or ("; see the warnings" if missing or open_ else "")
    names = ", ".join(f"{cell.victim} beside {cell.aggressor}" for cell in open_)
    more = f" and {missing} not measured" if missing and names else ""
    return [f"{text}{waits}.", *([f"{text} ({names}{more}){waits}."] if names else [])]


def _time_needed(run: _Run, cells: Sequence[Cell]) -> str | None:
    """'about 8 min more'. None if more time would not tell."""
    least = run.plan.scenario.min_blocks
    factors = {cell.trial: 1.0 for cell in cells}
    known = False
    for cell in cells:
        if (factor := more_time(cell, run.bands, least)) is not None:
            factors[cell.trial], known = max(factors[cell.trial], factor), True
    if not known:
        return None
    each_ns = run.plan.scenario.budget / len(run.plan.trials)
    more_ns = sum(factor - 1 for factor in factors.values()) * each_ns
    if more_ns > _LONGEST_NS:
        return "more than a day"
    minutes = max(1, math.ceil(more_ns / 60e9))
    return f"about {units.format_duration(minutes * 60e9)} more"
