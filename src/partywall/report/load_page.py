"""The report of a load: one page, and the same as files for other programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from partywall import units
from partywall.core.report import page
from partywall.core.report.charts import titled
from partywall.core.report.figures import bare_percent
from partywall.core.report.files import Files, parquet
from partywall.model.load_run import LoadRun
from partywall.report import load_charts, load_text
from partywall.report.load_rows import (
    GENERATOR_HEADS,
    compared,
    generator_rows,
    headline,
    other_rows,
    second_rows,
    time_rows,
)

CAPTIONS = {
    "percentiles": "From the intended start to the last byte; raw: from the actual start. Logarithmic.",
    "rate": "Responses with any status. Errors are requests without a complete response, and failed checks.",
    "users": "At the end of each second.",
    "distribution": "Dashed: the raw time. Where the lines diverge, requests waited in the generator or for the "
    "service.",
    "generator": "Time that its threads spent working, without waiting and spinning.",
}


def render(run: LoadRun, extra: Markup | None = None, specs: Mapping[str, Any] | None = None) -> str:
    """The whole page. extra: an additional section, whose charts are in `specs`."""
    drawn = load_charts.all_charts(run)
    every = {identity: page.fluid(chart) for identity, (_, chart) in drawn.items()} | dict(specs or {})
    figures = [(identity, title, CAPTIONS.get(identity, "")) for identity, (title, _) in drawn.items()]
    return page.framed(
        "load.html.j2",
        every,
        run=run,
        headline=headline(run),
        badge=page.badge(run.outcome, len(run.bounds)),
        figures=figures,
        times=[row for label in run.labels for row in time_rows(label)] + other_rows(run),
        generator_heads=GENERATOR_HEADS,
        generators=generator_rows(run),
        means=[(s.host, s.group, s.name, s.mean, s.unit) for s in run.monitors],
        number=units.format_number,
        available="" if run.available is None else bare_percent(run.available, 2),
        extra=extra or "",
    )


def _charts(run: LoadRun) -> dict[str, dict[str, Any]]:
    drawn = load_charts.all_charts(run)
    return {name: titled(chart, title, run.title) for name, (title, chart) in drawn.items()}


def _json(run: LoadRun) -> str:
    return json.dumps(dataclasses.asdict(run), indent=1, default=dict)


FILES: Files[LoadRun] = Files(
    of="a load",
    show=load_text.show,
    documents={
        "html": ("report.html", render),
        "json": (
            "findings.json",
            _json,
        ),
        # One flat table. The histograms and counters are in the load's own tables.
        "parquet": ("load.parquet", lambda run: parquet(pa.Table.from_pylist(second_rows(run)))),
    },
    rows=second_rows,
    table="seconds.csv",
    charts=_charts,
    compared=compared,
    headline=lambda run: f"{run.title}: {headline(run)}",
    goals=lambda run: len(run.bounds),
)
"""The formats. A new one needs one function and one entry."""
