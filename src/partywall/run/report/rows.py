"""A cell as one row of plain values, for other programs: all digits, and None for unknown values."""

from __future__ import annotations

from typing import Any

from partywall.core.stats.estimate import Estimate
from partywall.run.report.matrix import emulated
from partywall.run.values.finding import Cell, Findings


def row_of(cell: Cell, findings: Findings) -> dict[str, Any]:
    """The findings of a cell, by column."""
    verdicts = [v.outcome.value for v in findings.verdicts if (v.trial, v.treatment) == (cell.trial, cell.treatment)]
    cause = cell.causes[0] if cell.causes else None
    return {
        "run": findings.run,
        "trial": cell.trial,
        "victim": cell.victim,
        "treatment": cell.treatment,
        "role": cell.role,
        "aggressor": cell.aggressor,
        "intensity": cell.intensity,
        **{f"level {path}": level for path, level in cell.levels.items()},
        **_flat("isolation_factor", cell.isolation),
        **_flat("baseline_rate", cell.baseline_rate),
        **_flat("rate", cell.rate),
        **{k: v for name, impact in cell.latency.items() for k, v in _flat(f"latency_impact_{name}", impact).items()},
        **{k: v for name, own in cell.latency_ns.items() for k, v in _flat(f"latency_{name}_ns", own).items()},
        **(_flat("efficiency", cell.efficiency) if cell.efficiency else {}),
        "promised": cell.promised,
        **(_flat("cpu_time", cell.cpu_time.got) if cell.cpu_time else {}),
        "achieved": cell.achieved,
        "variation": cell.variation,
        "blocks": cell.isolation.n,
        "effect": cell.effect.value,
        "why_not_known": cell.why,
        "effect_bound": cell.effect_bound,
        "emulated": emulated(cell),
        "likely_resource": cause.resource if cause else None,
        "likely_counter": cause.counter if cause else None,
        "verdicts": " ".join(verdicts),
        "warnings": " ".join(cell.warnings),
    }


def _flat(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
