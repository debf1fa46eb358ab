"""A power record as text for a terminal, as one page, and as files for other programs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from partywall import units
from partywall.core.report import page
from partywall.core.report.charts import titled
from partywall.core.report.compared import figures_of
from partywall.core.report.files import Files
from partywall.core.report.terminal import listed
from partywall.core.stats.estimate import Estimate
from partywall.model.power import Attribution, Fit, MeterFinding, NodeModel, PowerFindings, PowerReport, Timing
from partywall.report import power_charts

METERS = ("meter", "watts", "energy", "refresh", "lag", "readings", "answer", "faults")
SHARES = ("consumer", "CPU time", "activity", "with idle by CPU time", "with idle evenly", "common rule")
WHICH = (
    "activity: what the host saves without the consumer. To divide a bill, take one column with idle, always the same: "
    "each adds up to the total."
)
RUNGS = ("level", "busy cores", "measured", "predicted without it", "error")
MARKS = {"measured": "", "modelled": "modelled", "simulated": "simulated meter"}


def show(findings: PowerFindings, console: Console) -> None:
    """Everything, at the end."""
    console.print(Text(findings.headline, style="bold"), soft_wrap=True)
    if findings.meters:
        console.print(listed(METERS, [meter_texts(meter) for meter in findings.meters]))
    if findings.fit is not None:
        console.print(listed(RUNGS, [list(row) for row in rung_texts(findings.fit)]))
    if findings.attribution is not None:
        console.print(listed(SHARES, share_texts(findings.attribution)))
        console.print(Text(sum_text(findings.attribution)), soft_wrap=True)
        console.print(Text(WHICH, style="dim"), soft_wrap=True)
    if findings.core_time is not None:
        states = ", ".join(f"{core_state(name)} {seconds:.1f} s" for name, seconds in findings.core_time.states.items())
        console.print(Text(f"time with busy cores: {states}"), soft_wrap=True)
    for meter in findings.meters:
        for text in meter_notes(meter):
            console.print(Text(f"note: {text}"), soft_wrap=True)
    for note in findings.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def core_state(name: str) -> str:
    """'no busy core', '1 busy core', '2 busy cores'."""
    return "no busy core" if name == "0" else units.counted(int(name), "busy core")


def watts_text(estimate: Estimate | None, unit: str = "W", decimals: int | None = None) -> str:
    """A figure with its interval."""
    if estimate is None:
        return "–"
    half = estimate.half_width
    places = decimals if decimals is not None else max(0, 1 - units.magnitude(half)) if half else 1
    return f"{estimate.value:.{places}f} ± {half:.{places}f} {unit}"


def energy_text(estimate: Estimate) -> str:
    """Joules with their interval, which is not symmetric."""
    return f"{estimate.value:.1f} J ({estimate.low:.1f} to {estimate.high:.1f})"


def meter_texts(meter: MeterFinding) -> list[str]:
    """A meter's row under METERS."""
    timing = meter.timing
    return [
        _marked(meter.facts.meter, meter.facts.origin),
        watts_text(meter.watts),
        "–" if meter.joules is None else f"{units.format_number(meter.joules)} J",
        watts_text(timing.refresh_ms, "ms", 0),
        watts_text(timing.lag_ms, "ms", 0),
        str(meter.readings),
        "–" if meter.took_ms is None else f"{meter.took_ms:.1f} ms",
        str(len(meter.faults)),
    ]


def _marked(name: str, origin: str) -> str:
    return f"{name} ({MARKS[origin]})" if MARKS[origin] else name


def meter_notes(meter: MeterFinding) -> list[str]:
    """Why figures of a meter are missing, and its first faults."""
    name = meter.facts.meter
    texts = [f"{name}: {meter.timing.why}"] if meter.timing.why else []
    texts += [f"{name}: {fault.fault}: {fault.text}" for fault in meter.faults[:3]]
    return texts


def rung_texts(fit: Fit) -> list[tuple[str, ...]]:
    """The rows of the ladder."""
    return [
        (
            rung.level,
            f"{rung.busy:.2f}",
            watts_text(rung.watts) if rung.watts else f"{rung.mean_watts:.1f} W",
            "–" if rung.predicted is None else f"{rung.predicted:.1f} W",
            "–" if rung.error is None else f"{rung.error:+.1%}",
        )
        for rung in fit.rungs
    ]


def share_texts(attribution: Attribution) -> list[list[str]]:
    """The rows of consumers."""
    return [
        [
            share.name,
            f"{share.cpu_s:.2f} s",
            watts_text(share.active),
            watts_text(share.by_use),
            watts_text(share.evenly),
            f"{share.common:.2f} W",
        ]
        for share in attribution.shares
    ]


def sum_text(attribution: Attribution) -> str:
    """How the shares add up."""
    active = sum(share.active.value for share in attribution.shares)
    text = f"total {watts_text(attribution.total)} = idle {attribution.idle:.1f} W + activity {active:.1f} W"
    where = "from the meter" if attribution.measured else "from the model"
    error = "" if attribution.model_error is None else f"; the model alone gives {attribution.model_error:+.1%}"
    return f"{text}; the total is {where}{error}"


def rows(findings: PowerFindings) -> list[dict[str, Any]]:
    """A consumer, a level, or a meter each, as flat values."""
    if findings.attribution is not None:
        return [
            {
                "consumer": share.name,
                "cpu_s": share.cpu_s,
                "watts": share.active.value,
                "watts_low": share.active.low,
                "watts_high": share.active.high,
                "watts_by_use": share.by_use.value,
                "watts_evenly": share.evenly.value,
                "watts_common": share.common,
                "origin": findings.origin,
            }
            for share in findings.attribution.shares
        ]
    if findings.fit is not None:
        return [{**rung.model_dump(exclude={"watts"}), "origin": findings.origin} for rung in findings.fit.rungs]
    return [
        {
            "meter": meter.facts.meter,
            "origin": meter.facts.origin,
            "watts": meter.watts.value if meter.watts else None,
            "watts_low": meter.watts.low if meter.watts else None,
            "watts_high": meter.watts.high if meter.watts else None,
            "joules": meter.joules,
            "missing_s": meter.missing_s,
            "refresh_ms": meter.timing.refresh_ms.value if meter.timing.refresh_ms else None,
            "lag_ms": meter.timing.lag_ms.value if meter.timing.lag_ms else None,
            "readings": meter.readings,
            "faults": len(meter.faults),
        }
        for meter in findings.meters
    ]


def render(report: PowerReport) -> str:
    """The whole page."""
    findings = report.findings
    drawn = power_charts.all_charts(findings)
    return page.framed(
        "power.html.j2",
        {identity: page.fluid(chart) for identity, (_, _, chart) in drawn.items()},
        findings=findings,
        badge=page.badge(findings.outcome, 0),
        about=report.about,
        mark=MARKS[findings.origin],
        meter_columns=METERS,
        meters=[meter_texts(meter) for meter in findings.meters],
        meter_facts=[(meter.facts, timing_text(meter.timing)) for meter in findings.meters],
        faults=[fault for meter in findings.meters for fault in meter.faults][:50],
        begin_ns=min((fault.time_ns for meter in findings.meters for fault in meter.faults), default=0),
        rung_columns=RUNGS,
        rungs=rung_texts(findings.fit) if findings.fit else [],
        model=_model_rows(_model_of(findings)),
        share_columns=SHARES,
        shares=share_texts(findings.attribution) if findings.attribution else [],
        sums=sum_text(findings.attribution) if findings.attribution else "",
        states=[(core_state(name), s) for name, s in (findings.core_time.states if findings.core_time else {}).items()],
        figures=[(identity, title, caption) for identity, (title, caption, _) in drawn.items()],
        host=page.facts(report.host),
        json=findings.model_dump_json(indent=2, exclude=RAW),
    )


def timing_text(timing: Timing) -> str:
    """Refresh and lag in one phrase."""
    known = [
        f"{name} {watts_text(estimate, 'ms', 0)}"
        for name, estimate in (("refresh", timing.refresh_ms), ("lag", timing.lag_ms))
        if estimate
    ]
    return "; ".join([*known, *([timing.why] if timing.why else [])])


def _model_of(findings: PowerFindings) -> NodeModel | None:
    return findings.fit.model if findings.fit else findings.attribution.model if findings.attribution else None


def _model_rows(model: NodeModel | None) -> list[tuple[str, str]]:
    if model is None:
        return []
    points = ", ".join(f"{watts:.1f} W with {cores:g}" for cores, watts in model.points)
    rows = [
        ("name", model.name),
        ("from", f"{model.source} ({model.origin})"),
        ("watts by busy cores", points),
        ("error band", f"± {model.band:.1%}"),
    ]
    if model.break_even_s is not None:
        rows.append(("break-even of switching off", f"{model.break_even_s:.0f} s"))
    return rows


def _charts(report: PowerReport) -> dict[str, dict[str, Any]]:
    mark = MARKS[report.findings.origin]
    drawn = power_charts.all_charts(report.findings)
    return {name: titled(chart, title, mark) for name, (title, _, chart) in drawn.items()}


def _model_file(report: PowerReport) -> str | None:
    fit = report.findings.fit
    return fit.model.model_dump_json(indent=1) + "\n" if fit else None


DRAWS: Any = {"model": {"draws"}}
RAW: Any = {"timeline": True, "busy": True, "fit": DRAWS, "attribution": DRAWS}
"""What is left out of findings: the record and model.json have it."""

COMPARED = {
    "watts": ("power", "W"),
    "watts_by_use": ("power with idle by use", "W"),
    "watts_evenly": ("power with idle evenly", "W"),
    "watts_common": ("common power", "W"),
    "cpu_s": ("CPU time", "s"),
    "busy": ("busy", "cores"),
    "mean_watts": ("power", "W"),
    "predicted": ("predicted power", "W"),
    "joules": ("energy", "J"),
    "missing_s": ("time without readings", "s"),
    "refresh_ms": ("time between refreshes", "ms"),
    "lag_ms": ("lag", "ms"),
    "readings": ("readings", ""),
    "faults": ("faults", ""),
}

FILES: Files[PowerReport] = Files(
    of="a power record",
    show=lambda report, console: show(report.findings, console),
    documents={
        "html": ("report.html", render),
        "json": ("findings.json", lambda report: report.findings.model_dump_json(indent=2, exclude=RAW) + "\n"),
        "model": ("model.json", _model_file),
    },
    rows=lambda report: rows(report.findings),
    table="rows.csv",
    charts=_charts,
    headline=lambda report: report.findings.headline,
    usual=("html", "json", "model"),
    compared=lambda report: figures_of(rows(report.findings), ("consumer", "level", "meter"), COMPARED),
)
"""Formats; adding one is one function and one entry."""
