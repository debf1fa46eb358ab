"""The report as files for other programs.

Findings as JSON, one row a cell as CSV, observations as Parquet, and every chart as SVG and PNG. Numbers keep all
their digits here; a figure that is not known is an empty cell or null, never 0.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import vl_convert

from partywall.errors import Problem, UsageError
from partywall.model.evidence import Evidence
from partywall.model.finding import Cell, Estimate, Findings
from partywall.model.observation import Observation, bucket_bounds
from partywall.report import charts, html, latency
from partywall.report.matrix import emulated

PNG_SCALE = 2.0

Writer = Callable[[Findings, Evidence, Path], list[Path]]
Step = Callable[[str, int, int], None]


def export_all(
    findings: Findings,
    evidence: Evidence,
    directory: Path,
    formats: Iterable[str] | None = None,
    step: Step = lambda _doing, _done, _of: None,
) -> tuple[Path, ...]:
    """Writes the report in each of `formats` (all by default) and returns the files written.

    step: told what is being done, how much of it is done, and of how much.
    Raises UsageError for a format that is not known, before anything is written.
    """
    wanted = list(dict.fromkeys(FORMATS if formats is None else formats))
    unknown = [name for name in wanted if name not in FORMATS]
    if unknown:
        raise UsageError(f"no format is called {', '.join(map(repr, unknown))}; there are {', '.join(FORMATS)}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return tuple(_write_all(findings, evidence, directory, wanted, step))
    except OSError as error:
        place = str(error.filename or directory)
        remedy = "check its permissions and the room on its disk, then repeat: partywall report"
        raise UsageError(Problem(f"cannot be written: {error.strerror or error}", remedy, place)) from None


def _write_all(
    findings: Findings, evidence: Evidence, directory: Path, wanted: Sequence[str], step: Step
) -> Iterator[Path]:
    documents = [name for name in wanted if name in DOCUMENTS]
    for number, name in enumerate(documents):
        step(f"writing {name}", number, len(documents))
        yield from DOCUMENTS[name](findings, evidence, directory)
    images = [name for name in wanted if name in IMAGES]
    yield from _images(findings, evidence, directory, images, step)


def csv_text(findings: Findings) -> str:
    """One row a cell. Estimates become NAME, NAME_low and NAME_high."""
    rows = [_csv_row(cell, findings) for cell in findings.cells]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def observation_table(evidence: Evidence) -> pa.Table:
    """One row an observation, with its place in the plan; counters and achieved rates get a column each."""
    victims = {trial.id: trial for trial in evidence.plan.trials}
    counters = sorted({name for o in evidence.observations for name in o.counters})
    aggressors = sorted({name for o in evidence.observations for name in o.achieved})
    columns: dict[str, Any] = {
        "run": [evidence.run] * len(evidence.observations),
        "victim": [victims[o.trial].victim_name for o in evidence.observations],
        **{name: [getattr(o, name) for o in evidence.observations] for name in _PLAIN},
        "disturbed": [list(o.disturbed) for o in evidence.observations],
        **_latency_columns(evidence.observations),
        **{f"achieved_{name}": [o.achieved.get(name) for o in evidence.observations] for name in aggressors},
        **{f"counter_{name}": [o.counters.get(name) for o in evidence.observations] for name in counters},
    }
    return pa.table({name: pa.array(values, type=_TYPES.get(name, pa.float64())) for name, values in columns.items()})


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


def _latency_columns(observations: Iterable[Observation]) -> dict[str, list[Any]]:
    histograms = [o.latency for o in observations]
    quantiles: list[Any] = [latency.quantiles(histogram, (0.5, 0.99)) or (None, None) for histogram in histograms]
    return {
        "latency_count": [sum(h.counts.values()) for h in histograms],
        "latency_ns_p50": [pair[0] for pair in quantiles],
        "latency_ns_p99": [pair[1] for pair in quantiles],
        "latency_buckets": [[_bucket(index, count) for index, count in sorted(h.counts.items())] for h in histograms],
    }


def _bucket(index: int, count: int) -> dict[str, int]:
    low_ns, high_ns = bucket_bounds(index)
    return {"low_ns": low_ns, "high_ns": high_ns, "count": count}


def _csv_row(cell: Cell, findings: Findings) -> dict[str, Any]:
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
        **(_flat("efficiency", cell.efficiency) if cell.efficiency else {}),
        "promised": cell.promised,
        "achieved": cell.achieved,
        "variation": cell.variation,
        "blocks": cell.isolation.n,
        "seen": cell.seen,
        "emulated": emulated(cell),
        "likely_resource": cause.resource if cause else None,
        "likely_counter": cause.counter if cause else None,
        "verdicts": " ".join(verdicts),
        "warnings": " ".join(cell.warnings),
    }


def _flat(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _json(findings: Findings, _: Evidence, directory: Path) -> list[Path]:
    return [_written(directory / "findings.json", findings.model_dump_json(indent=2, by_alias=True) + "\n")]


def _html(findings: Findings, evidence: Evidence, directory: Path) -> list[Path]:
    return [_written(directory / "report.html", html.render(findings, evidence))]


def _csv(findings: Findings, _: Evidence, directory: Path) -> list[Path]:
    return [_written(directory / "cells.csv", csv_text(findings))]


def _parquet(_: Findings, evidence: Evidence, directory: Path) -> list[Path]:
    path = directory / "observations.parquet"
    pq.write_table(observation_table(evidence), path, compression="zstd")
    return [path]


def _images(
    findings: Findings, evidence: Evidence, directory: Path, formats: Sequence[str], step: Step
) -> Iterator[Path]:
    """Every chart in each of `formats`. Drawing is done outside Python's lock, so threads share it."""
    if not formats:
        return
    step("preparing charts", 0, 1)
    specs = charts.all_charts(findings, evidence)
    (directory / "charts").mkdir(parents=True, exist_ok=True)
    jobs = [(spec, directory / "charts" / f"{name}.{kind}", kind) for kind in formats for name, spec in specs.items()]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for done, path in enumerate(pool.map(lambda job: _drawn(*job), jobs), start=1):
            step("drawing charts", done, len(jobs))
            yield path


def _drawn(spec: dict[str, Any], path: Path, kind: str) -> Path:
    path.write_bytes(IMAGES[kind](json.dumps(spec)))
    return path


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


DOCUMENTS: Mapping[str, Writer] = {
    "html": _html,
    "json": _json,
    "csv": _csv,
    "parquet": _parquet,
}
"""Documents; adding one is one function and one entry."""

IMAGES: Mapping[str, Callable[[str], bytes]] = {
    "png": lambda spec: vl_convert.vegalite_to_png(spec, scale=PNG_SCALE),
    "svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
}
"""How one chart is drawn as a file of its own."""

FORMATS = (*DOCUMENTS, *IMAGES)
"""Every format there is."""
