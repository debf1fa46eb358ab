"""Warnings from agents' facts beside measurements: conditions that kernels found, lost output, calibration, emulation.

Only facts that affect the reading of a figure become warnings. Missing counters are listed with the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from partywall.agent.catalogue import FactWarning, Warn, shipped
from partywall.run.document.scenario import Workload
from partywall.run.values.evidence import VICTIM, AgentFacts, Readings
from partywall.run.values.finding import Cell, Curve, Dose
from partywall.run.values.plan import Trial

DOSE_ERROR = 0.03
"""Difference of requested and real activity, as a share of the time, that gives a warning."""
UNREAD_SHARE = 0.1
"""Share of a metric's readings that may be unusable without a warning."""


def warned(trial: Trial, cells: Sequence[Cell], agent_facts: AgentFacts | None) -> tuple[Cell, ...]:
    """The cells of a trial with warnings derived from its agents' facts."""
    if agent_facts is None:
        return tuple(cells)
    return tuple(
        cell.model_copy(update={"warnings": cell.warnings + tuple(_warnings(trial, cell, agent_facts))})
        for cell in cells
    )


def dosed(curves: Sequence[Curve], agent_facts: AgentFacts | None) -> tuple[Curve, ...]:
    """The curves of a trial with what their aggressors really did."""
    known = agent_facts.facts if agent_facts else {}
    return tuple(curve.model_copy(update={"dose": _dose(known.get(curve.aggressor, ()))}) for curve in curves)


def _dose(threads: Sequence[Mapping[str, Any]]) -> Dose | None:
    """The mean over threads and turns, weighted by the time at partial intensities."""
    doses = [facts["dose"] for facts in threads if facts.get("dose")]
    held_ns = sum(dose["held_ns"] for dose in doses)
    if not held_ns:
        return None
    requested, pressed, cpu = (
        sum(dose[key] * dose["held_ns"] for dose in doses) / held_ns
        for key in ("asked_share", "pressed_share", "cpu_share")
    )
    return Dose(requested=requested, pressed=pressed, cpu=cpu)


def said(trial: Trial, agent_facts: AgentFacts) -> Iterator[str]:
    """Warnings about the aggressors and commands of a trial as a whole."""
    for name in trial.aggressors:
        dose = _dose(agent_facts.facts.get(name, ()))
        if dose and abs(dose.pressed - dose.requested) > DOSE_ERROR:
            partial = sorted({share for t in trial.treatments if 0 < (share := t.intensities.get(name, 0.0)) < 1})
            asked = ", ".join(f"{100 * share:g} %" for share in partial)
            yield (
                f"trial {trial.id}: {name} was at work in {dose.pressed:.1%} of its time at partial intensities, and "
                f"{dose.requested:.1%} was requested on average ({asked}); "
                "it had too little CPU time, or its steps are long"
            )
    for name, lines in agent_facts.dropped.items():
        yield (
            f"trial {trial.id}: {lines} lines of {_called(trial, name)}'s output arrived faster than they could be "
            "stored, or were longer than 4 MiB, and were dropped; its metric uses the others; let it print less"
        )
    for name, readings in agent_facts.readings.items():
        if text := _unread(readings):
            yield f"trial {trial.id}, metric of {_called(trial, name)}: {text}"


def _warnings(trial: Trial, cell: Cell, agent_facts: AgentFacts) -> Iterator[Warn]:
    pressing = next((treatment.pressing for treatment in trial.treatments if treatment.id == cell.treatment), ())
    concerned = [VICTIM, *pressing]
    if agent_facts.emulation(pressing):
        yield Warn.EMULATED
    if not set(pressing).isdisjoint(agent_facts.disturbed):
        yield Warn.CALIBRATION_DISTURBED
    warnings = (_by_facts(_workload(trial, name), agent_facts.facts.get(name, ())) for name in concerned)
    yield from dict.fromkeys(itertools.chain.from_iterable(warnings))


def _workload(trial: Trial, name: str) -> Workload | None:
    return trial.victim if name == VICTIM else trial.aggressors.get(name)


def _called(trial: Trial, name: str) -> str:
    return trial.victim_name if name == VICTIM else name


def _by_facts(workload: Workload | None, facts: Sequence[Mapping[str, object]]) -> Iterator[Warn]:
    """Warnings that the kernel's catalogue entry derives from its facts after any turn."""
    kernel = getattr(workload, "probe", None) or getattr(workload, "stressor", None)
    info = shipped().kernel(kernel or "")
    known = info.warnings if info else ()
    return (fact.warning for fact in known if any(_beyond(fact, said) for said in facts))


def _beyond(warning: FactWarning, facts: Mapping[str, object]) -> bool:
    value, of = facts.get(warning.fact), facts.get(warning.of)
    return isinstance(value, int) and isinstance(of, int) and 100 * value > warning.above_percent * of


def _unread(readings: Readings) -> str:
    total = readings.used + readings.unusable + readings.bunched
    parts = {
        "could not be parsed; check its pattern": readings.unusable,
        "arrived together with the previous one, so their time is not known; let the command flush each line": (
            readings.bunched
        ),
    }
    return "; ".join(
        f"{count} of {total} readings {what}" for what, count in parts.items() if count > UNREAD_SHARE * total
    )
