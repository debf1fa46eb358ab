"""The report as files for other programs.

Findings as JSON, one row for each cell as CSV, observations as Parquet, and every chart as SVG and PNG. Numbers keep
all digits. An unknown figure is an empty cell or null, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from partywall.core.report import latency
from partywall.core.report.files import Files, parquet
from partywall.core.stats.histogram import bucket_bounds
from partywall.run.report import charts, html, terminal
from partywall.run.report.rows import row_of
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Findings
from partywall.run.values.observation import Latencies, Observations, Values

Run = tuple[Findings, Evidence]


def rows(run: Run) -> list[dict[str, Any]]:
    """One row for each cell. Estimates become NAME, NAME_low and NAME_high."""
    return [row_of(cell, run[0]) for cell in run[0].cells]


def observation_table(evidence: Evidence) -> pa.Table:
    """One row for each observation, with its place in the plan. Counters and achieved rates have a column each."""
    victims = {trial.id: trial.victim_name for trial in evidence.plan.trials}
    seen = Observations.joined(list(evidence.observations.values()))
    counters = {name: seen.counters.column(name) for name in seen.counters.names}
    columns: dict[str, Any] = {
        "run": [evidence.run] * len(seen),
        "victim": [victims[trial] for trial in seen.trial],
        **{name: getattr(seen, name) for name in _PLAIN},
        "disturbed": seen.disturbed,
        **_latency_columns(seen.latency, len(seen)),
        **_known("achieved", seen.achieved),
        **_known("counter", counters),
    }
    types = {name: _TYPES.get(name, pa.float64()) for name in columns}
    return pa.table({name: pa.array(values, types[name], from_pandas=True) for name, values in columns.items()})


_PLAIN = (
    "trial",
    "block",
    "position",
    "treatment",
    "start_ns",
    "end_ns",
    "rate",
    "early_rate",
    "late_rate",
    "cpu_share",
)
_TYPES = {
    **dict.fromkeys(("run", "victim", "trial", "treatment"), pa.string()),
    **dict.fromkeys(("block", "position"), pa.int32()),
    **dict.fromkeys(("start_ns", "end_ns", "latency_count"), pa.int64()),
    "disturbed": pa.list_(pa.string()),
    "latency_buckets": pa.list_(pa.struct([(name, pa.int64()) for name in ("low_ns", "high_ns", "count")])),
}


def _latency_columns(latencies: Latencies, slots: int) -> dict[str, list[Any]]:
    histograms = [latencies[at] for at in range(slots)]
    quantiles: list[Any] = [latency.quantiles(histogram, (0.5, 0.99)) or (None, None) for histogram in histograms]
    return {
        "latency_count": [sum(h.counts.values()) for h in histograms],
        "latency_ns_p50": [pair[0] for pair in quantiles],
        "latency_ns_p99": [pair[1] for pair in quantiles],
        "latency_buckets": [[_bucket(index, count) for index, count in sorted(h.counts.items())] for h in histograms],
    }


def _known(what: str, columns: Mapping[str, Values]) -> dict[str, Values]:
    """The columns in which any number is known."""
    return {f"{what}_{name}": values for name, values in sorted(columns.items()) if np.isfinite(values).any()}


def _bucket(index: int, count: int) -> dict[str, int]:
    low_ns, high_ns = bucket_bounds(index)
    return {"low_ns": low_ns, "high_ns": high_ns, "count": count}


FILES: Files[Run] = Files(
    of="a run",
    show=lambda run, console: terminal.show(*run, console),
    documents={
        "html": ("report.html", lambda run: html.render(*run)),
        "json": ("findings.json", lambda run: run[0].model_dump_json(indent=2, by_alias=True) + "\n"),
        "parquet": ("observations.parquet", lambda run: parquet(observation_table(run[1]))),
    },
    rows=rows,
    table="cells.csv",
    charts=lambda run: charts.all_charts(*run),
    headline=lambda run: run[0].headline,
    goals=lambda run: run[0].goals,
)
"""The formats. A new one needs one function and one entry."""
