"""The report as one self-contained HTML file: it needs no server and no network, and no script for its figures.

Every figure and sentence is written into the page here. The script only draws the charts and opens and closes the
details. A content security policy in the page blocks all requests of the browser, so that the page works offline.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from partywall import units
from partywall.agent.catalogue import Warn
from partywall.core.report import figures, host, page
from partywall.core.stats.estimate import Estimate
from partywall.run.report import charts, series
from partywall.run.report.advice import ADVICE, Advice
from partywall.run.report.figures import latency_of, reading
from partywall.run.report.host import own_files
from partywall.run.report.matrix import (
    LIMIT_COLUMNS,
    Matrix,
    band_title,
    cell_title,
    describe,
    emulated,
    latency_words,
    legend,
    limit_texts,
    matrix,
    sentence,
    severity,
    treatment_title,
    uncontrolled,
    victim_title,
)
from partywall.run.values.evidence import Counter, Evidence
from partywall.run.values.finding import Cause, Cell, Effect, Findings, Verdict
from partywall.run.values.observation import Observation
from partywall.run.values.plan import Trial

MAX_SLOTS = 20_000
"""Most slots that a page lists.

Beyond that, whole blocks are evenly left out, and the page says so. The Parquet export contains all.
"""


@dataclass(frozen=True)
class Panel:
    """The details of one cell, as texts and figures of the page."""

    id: str
    cell: Cell
    figures: tuple[tuple[str, str, str], ...]
    causes: tuple[tuple[Counter, Cause, str, str], ...]
    percentiles: tuple[tuple[str, str, str], ...]
    charts: dict[str, str]


def render(findings: Findings, evidence: Evidence) -> str:
    """The whole page. Cells without observations get their figures, but no charts."""
    ids = {(cell.trial, cell.treatment): f"cell-{number}" for number, cell in enumerate(findings.cells, start=1)}
    specs: dict[str, Any] = {}
    panels = [_panel(ids[cell.trial, cell.treatment], cell, findings, evidence, specs) for cell in findings.cells]
    trials = [trial for trial in evidence.plan.trials if any(cell.trial == trial.id for cell in findings.cells)]
    scenario = evidence.plan.scenario.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    sensitivities, efficiency = _sensitivities(findings, specs), _efficiency(findings, specs)
    return page.framed(
        "report.html.j2",
        specs | _timelines(evidence, trials),
        environment=environment(),
        data={"trials": _slots_of(evidence, trials)},
        findings=findings,
        evidence=evidence,
        badge=page.BADGES[findings.outcome] if findings.verdicts or findings.incomplete else None,
        ids=ids,
        panels=panels,
        first=_worst(findings, ids),
        grid=matrix(findings),
        limit_columns=LIMIT_COLUMNS,
        limited=[cell for cell in findings.cells if cell.role == "limit"],
        extent=_extent(findings, evidence),
        levels=legend(findings),
        any_emulated=any(map(emulated, findings.cells)),
        sensitivities=sensitivities,
        efficiency=efficiency,
        verdicts=[_verdict_row(verdict, findings) for verdict in findings.verdicts],
        bands=[(band_title(band, findings), band) for band in findings.bands],
        uncontrolled=uncontrolled(findings),
        warned=warned(findings),
        host=host.summary(evidence.host),
        own_files=tuple(own_files(evidence)),
        facts=page.facts(evidence.host),
        trials=trials,
        again=_again(findings, evidence),
        scenario_json=json.dumps(scenario, indent=2),
    )


def warned(findings: Findings) -> list[tuple[Warn, Advice, list[Cell]]]:
    """Each warning that occurs, its advice, and its cells."""
    beside = {warn: [cell for cell in findings.cells if warn in cell.warnings] for warn in Warn}
    return [(warn, ADVICE[warn], cells) for warn, cells in beside.items() if cells]


def unbroken(text: str) -> str:
    """Keeps a number, its ± and its unit on one line."""
    return re.sub(r"(?<=[\d±%]) (?=[%±\d])", "\u00a0", text)


def breakable(name: str) -> Markup:
    """Allows line breaks in a long name after each of its words."""
    return Markup("_<wbr>").join(name.split("_"))


def _durations(all_ns: Iterable[int]) -> str:
    """The range from shortest to longest."""
    ends = [units.format_duration(ns) for ns in sorted(set(all_ns))]
    return ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"


def _extent(findings: Findings, evidence: Evidence) -> str:
    """The amount of measurement in one line."""
    victims = len({cell.victim for cell in findings.cells})
    treatments = len({cell.treatment for cell in findings.cells})
    counts = sorted({cell.isolation.n for cell in findings.cells}) or [0]
    blocks = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    measured = units.format_duration(sum(seen.measured_ns for seen in evidence.observations.values()))
    plural = "" if victims == 1 else "s"
    polled = "; idle CPUs polled" if evidence.plan.scenario.idle == "poll" else ""
    return f"{victims} victim{plural}, {treatments} treatments, {blocks} blocks each, {measured} without guards{polled}"


def _panel(identity: str, cell: Cell, findings: Findings, evidence: Evidence, specs: dict[str, Any]) -> Panel:
    own: dict[str, str] = {}
    if len(series.pairs_of(evidence, cell)):
        drawn = {
            "effect": charts.effect_over_time(findings, evidence, cell),
            "rates": charts.rate_distribution(evidence, cell),
        }
        if series.latencies(evidence, cell):
            drawn["latency"] = charts.latency_distribution(evidence, cell)
        own = {kind: f"{identity}-{kind}" for kind in drawn}
        specs.update({own[kind]: page.fluid(chart) for kind, chart in drawn.items()})
    return Panel(
        id=identity,
        cell=cell,
        figures=tuple(_figures(cell, findings, evidence)),
        causes=tuple(_cause(cause, evidence) for cause in cell.causes),
        percentiles=tuple(
            (figures.bare_percent(share, 2), units.format_duration(base), units.format_duration(treated))
            for share, base, treated in series.percentiles(evidence, cell)
        ),
        charts=own,
    )


def _impact_means(impact: Estimate, operation: str) -> str:
    if figures.impact(impact) != figures.UNTOLD:
        return operation
    return f"{operation}; its interval, {figures.percent(impact, sign=True)}, contains no effect and large ones"


def _unexplained(cell: Cell) -> str:
    """Why a cell has no likely cause."""
    if cell.effect is Effect.NONE:
        return f"No cause to find: {describe(cell)}."
    if cell.effect is Effect.NOT_KNOWN:
        return "It is not known whether there is an effect, so there is no cause to find yet."
    if cell.role == "limit":
        return "This victim is limited by its own setting, not by a neighbour."
    return "No readable kernel counter changed together with the effect."


def _figures(cell: Cell, findings: Findings, evidence: Evidence) -> Iterator[tuple[str, str, str]]:
    """(name, figure, meaning), the most important first."""
    scale = series.scale_of(evidence, cell.trial)
    operation = latency_of(series.trial_of(evidence, cell.trial).victim, evidence.kernels)
    yield (
        "Isolation factor",
        figures.ratio(cell.isolation),
        "treated rate / baseline rate, without the host's own speed",
    )
    yield "Throughput lost", figures.percent(figures.loss(cell.isolation)), describe(cell)
    yield "Rate, baseline", figures.rate(cell.baseline_rate, scale), scale.direction
    yield "Rate, treated", figures.rate(cell.rate, scale), scale.direction
    for name, impact in cell.latency.items():
        yield f"Latency impact, {name}", figures.impact(impact), _impact_means(impact, operation)
    if cell.efficiency is not None:
        promised = (
            f"promised {figures.bare_percent(cell.promised)}"
            if cell.promised is not None
            else "share of its promised CPU time"
        )
        yield "Efficiency q", figures.ratio(cell.efficiency), promised
    band = next((b for b in findings.bands if b.of(cell)), None)
    if band is not None:
        yield "A/A band", figures.span(band.low, band.high), "the effect of a null neighbour, which loads nothing"
        for name, (low, high) in band.latency.items():
            yield f"A/A band, {name}", figures.change_span(low, high), f"this neighbour: {latency_words(cell, name)}"
        if cell.uncontrolled:
            yield (
                "Differs from the A/A check",
                "; ".join(cell.uncontrolled),
                "the band was measured with a null aggressor that differs in this",
            )
    if cell.achieved is not None:
        yield (
            "Aggressor achieved",
            figures.bare_percent(cell.achieved),
            "of its calibrated maximum, or of its link's rate",
        )
    if cell.used is not None:
        off = "" if cell.used_off is None else f", and {figures.bare_percent(cell.used_off)} while it was off"
        yield "Aggressor used", figures.bare_percent(cell.used), f"of a CPU while it was on{off}"
    if cell.variation is not None:
        meaning = "standard deviation between blocks, without sampling noise"
        yield "Variation of the effect over time", figures.bare_percent(cell.variation, 2), meaning
    worth = cell.isolation.n_effective
    yield (
        "Blocks",
        str(cell.isolation.n),
        f"worth {worth:.0f}, because neighbouring blocks are correlated" if worth else "",
    )
    yield "Interval", f"{figures.bare_percent(cell.isolation.level)}", cell.isolation.method


def _cause(cause: Cause, evidence: Evidence) -> tuple[Counter, Cause, str, str]:
    counter = evidence.counters.get(cause.counter, Counter(cause.counter, "", "total", cause.resource))
    return counter, cause, counter.change(cause.baseline, cause.treated), reading(cause.difference, counter)


def _worst(findings: Findings, ids: dict[tuple[str, str], str]) -> str:
    """The cell that is open at first: the one with the largest effect."""
    cells = sorted(
        findings.cells, key=lambda cell: (cell.role == "limit", cell.effect is not Effect.SEEN, cell.isolation.value)
    )
    return ids[cells[0].trial, cells[0].treatment] if cells else ""


def _sensitivities(findings: Findings, specs: dict[str, Any]) -> list[tuple[str, str, str, str, bool]]:
    """(title, chart, slopes as text, doses as text, emulated) for each trial with curves."""
    rows = []
    for number, row in enumerate(matrix(findings).rows, start=1):
        curves = [curve for curve in findings.curves if curve.trial == row.trial]
        if not curves:
            continue
        identity = f"sensitivity-{number}"
        specs[identity] = page.fluid(charts.sensitivity(findings, row.trial))
        slopes = "; ".join(f"{c.aggressor} {figures.percent(c.slope)}" for c in curves if c.slope is not None)
        doses = "; ".join(
            f"{c.aggressor} {c.dose.pressed:.1%} ({c.dose.requested:.1%}), {c.dose.cpu:.1%} of a CPU"
            for c in curves
            if c.dose is not None
        )
        is_emulated = any(emulated(cell) for cell in findings.cells if cell.trial == row.trial)
        rows.append((row.title, identity, slopes, doses, is_emulated))
    return rows


def _efficiency(findings: Findings, specs: dict[str, Any]) -> str | None:
    if not any(cell.efficiency for cell in findings.cells):
        return None
    specs["efficiency"] = page.fluid(charts.efficiency(findings))
    return "efficiency"


def _verdict_row(verdict: Verdict, findings: Findings) -> tuple[str, str, Cell | None, Verdict]:
    cell = next((c for c in findings.cells if (c.trial, c.treatment) == (verdict.trial, verdict.treatment)), None)
    return page.BADGES[verdict.outcome], goal_text(verdict), cell, verdict


def goal_text(verdict: Verdict) -> str:
    """A goal's condition as text."""
    goal = verdict.goal
    conditions = [
        f"isolation factor at least {goal.isolation_factor:g}" if goal.isolation_factor is not None else "",
        f"p99 latency at most {figures.bare_percent(goal.latency_impact_p99)} slower"
        if goal.latency_impact_p99 is not None
        else "",
        f"p99 latency at most {units.format_duration(goal.latency_p99)}" if goal.latency_p99 is not None else "",
        f"efficiency q from {goal.efficiency[0]:g} to {goal.efficiency[1]:g}" if goal.efficiency is not None else "",
    ]
    return " and ".join(part for part in conditions if part)


def _again(findings: Findings, evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Commands that repeat the measurement or report, with the purpose of each.

    The stored scenario is the original file, so changes from the command line are repeated as options.
    """
    scenario = evidence.plan.scenario
    directory = evidence.directory
    file = f"{directory}/scenario.yaml" if directory else f"{findings.scenario}.yaml"
    words = ["partywall", "run", file, "--seed", str(evidence.plan.seed)]
    words += ["--budget", f"{scenario.budget / 1e9:g}s", "--precision", f"{100 * scenario.precision:g}%"]
    if any(workload.command for workload in (*scenario.victims.values(), *scenario.aggressors.values())):
        words.append("--allow-commands")
    yield shlex.join(words), "measure again"
    if directory:
        yield shlex.join(["partywall", "report", directory]), "derive this report again"
    yield f"partywall compare NEW_RUN {shlex.quote(directory or findings.run)}", "compare both"


def _timelines(evidence: Evidence, trials: Sequence[Trial]) -> dict[str, Any]:
    return {
        f"timeline-{t.id}": page.fluid(charts.timeline(evidence, t.id)) for t in trials if evidence.timeline.get(t.id)
    }


def _slots_of(evidence: Evidence, trials: Sequence[Trial]) -> dict[str, Any]:
    share = MAX_SLOTS // max(len(trials), 1)
    return {t.id: _slots(evidence, t, share) for t in trials}


def _slots(evidence: Evidence, trial: Trial, limit: int) -> dict[str, Any]:
    """The slots of a trial for the block table, and the blocks whose slices are drawn."""
    scale = series.scale_of(evidence, trial.id)
    observations = evidence.of_trial(trial.id)
    blocks = np.unique(observations.block).tolist()
    every = -(-len(observations) // limit) if observations else 1
    kept = set(blocks[::every])
    return {
        "figure": f"{scale.label} ({scale.direction})",
        "labels": series.labels_of(evidence, trial.id),
        "blocks": sorted(kept),
        "of": len(blocks),
        "drawn": series.drawn_blocks(evidence.timeline.get(trial.id, ())),
        "notes": {b: text for b, text in _disturbed(evidence, trial).items() if b in kept},
        "slots": [_slot(o, scale) for o in observations.take(np.flatnonzero(np.isin(observations.block, list(kept))))],
    }


def _disturbed(evidence: Evidence, trial: Trial) -> dict[int, list[str]]:
    reasons: dict[int, list[str]] = {}
    for name, block, text in evidence.disturbances:
        if name == trial.id:
            reasons.setdefault(block, []).append(text)
    return reasons


def _slot(seen: Observation, scale: figures.Scale) -> list[Any]:
    achieved = ", ".join(f"{name} {figures.bare_percent(share)}" for name, share in seen.achieved.items())
    return [
        seen.block,
        seen.position + 1,
        seen.treatment,
        *(units.format_number(scale.show(rate)) for rate in (seen.rate, seen.early_rate, seen.late_rate)),
        f"{(seen.end_ns - seen.start_ns) / 1e6:.0f}",
        "unknown" if seen.cpu_share is None else figures.bare_percent(seen.cpu_share),
        achieved,
        ", ".join(seen.disturbed),
    ]


def _grid_span(grid: Matrix) -> list[tuple[str, int]]:
    """Groups of adjacent columns, for the upper row of headings."""
    spans: list[tuple[str, int]] = []
    for column in grid.columns:
        if spans and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans


@cache
def environment() -> jinja2.Environment:
    environment = page.environment()
    environment.filters |= {
        "ratio": figures.ratio,
        "percent": figures.percent,
        "loss": figures.loss,
        "severity": severity,
        "sentence": sentence,
        "cell_title": cell_title,
        "victim_title": victim_title,
        "limit_texts": limit_texts,
        "treatment_title": treatment_title,
        "emulated": emulated,
        "spans": _grid_span,
        "bare_percent": figures.bare_percent,
        "describe": describe,
        "unexplained": _unexplained,
        "unbroken": unbroken,
        "breakable": breakable,
    }
    environment.globals |= {
        "advice": ADVICE,
        "span": figures.span,
        "durations": _durations,
        "signed": lambda estimate: figures.percent(estimate, sign=True),
        "impact": figures.impact,
    }
    return environment
