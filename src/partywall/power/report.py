"""A power record as a report: what a terminal, a page, a notebook and a spreadsheet show of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from partywall import units
from partywall.core.report.compared import MISSING
from partywall.core.report.value import Chart, Column, Lines, On, Report, Row, Section, Table
from partywall.core.stats.estimate import Estimate
from partywall.power.values import Attribution, Fit, MeterFinding, NodeModel, PowerFindings, PowerReport, Timing

WHICH = (
    "activity: what the host saves without the consumer. To divide a bill, take one column with idle, always the same: "
    "each adds up to the total."
)
MARKS = {"measured": "", "modelled": "modelled", "simulated": "simulated meter"}
TASKS = {"read": "meters", "calibrate": "calibration", "attribute": "attribution"}
FAULTS_MAX = 50
TERMS = {
    "Simulated meter, modelled": "Figures with these marks were not measured. A simulated meter shows a model that is "
    "driven by real CPU time. Modelled watts come from a named profile.",
    "Refresh and lag": "How often the meter shows a new value, and how old that value is. Both are estimated from the "
    "load that changed while it was read.",
}
TERMS_OF_SHARES = {
    "Activity": "What a consumer adds to the power, as a mean over all orders in which the consumers could be switched "
    "on (its Shapley value). These watts and the idle power add up to the total.",
    "Idle power": "By CPU time: divided in proportion to CPU time. Evenly: each consumer gets the same.",
    "Common rule": "Many tools take total × (1 − utilisation) as idle power, and divide the rest by CPU time. It "
    "counts idle power as activity.",
}
INTERVALS = "95 %. Those of a consumer contain the error of the model, and not that of the meter itself."
DRAWS: Any = {"model": {"draws"}}
RAW: Any = {"timeline": True, "busy": True, "fit": DRAWS, "attribution": DRAWS}
"""What is left out of findings: the record and model.json have it."""


def figure_text(value: float | None, half: float | None, unit: str = "W", decimals: int | None = None) -> str:
    """A figure with its interval."""
    if value is None:
        return MISSING
    if half is None:
        return f"{value:.1f} {unit}"
    places = decimals if decimals is not None else max(0, 1 - units.magnitude(half)) if half else 1
    return f"{value:.{places}f} ± {half:.{places}f} {unit}"


def watts_text(estimate: Estimate | None, unit: str = "W", decimals: int | None = None) -> str:
    """The same of an estimate."""
    return MISSING if estimate is None else figure_text(estimate.value, estimate.half_width, unit, decimals)


def _interval(key: str, title: str, name: str = "", unit: str = "W", decimals: int | None = None) -> Column:
    """A figure with the ends of its interval beside it in the row."""

    def text(row: Row) -> str:
        value, low, high = row.get(key), row.get(f"{key}_low"), row.get(f"{key}_high")
        half = None if value is None or low is None or high is None else max(high - value, value - low)
        return figure_text(value, half, unit, decimals)

    return Column(key, title, unit, text=text, name=name)


def _as(key: str, form: Callable[[float], str]) -> Callable[[Row], str]:
    return lambda row: MISSING if row[key] is None else form(row[key])


METERS = (
    Column("meter", "meter", is_key=True, text=lambda row: _marked(row["meter"], row["origin"])),
    _interval("watts", "watts", "power"),
    Column("joules", "energy", "J", text=_as("joules", lambda joules: f"{units.format_number(joules)} J")),
    _interval("refresh_ms", "refresh", "time between refreshes", "ms", 0),
    _interval("lag_ms", "lag", unit="ms", decimals=0),
    Column("missing_s", "time without readings", "s", on=On.COMPARISON),
    Column("readings", "readings", ""),
    Column("took_ms", "answer", "ms", text=_as("took_ms", lambda took: f"{took:.1f} ms")),
    Column("faults", "faults", ""),
    Column("reads", "what it reads", on=On.PAGE),
)
RUNGS = (
    Column("level", "level", is_key=True),
    Column("busy", "busy cores", "cores", text=lambda row: f"{row['busy']:.2f}", name="busy"),
    _interval("mean_watts", "measured", "power"),
    Column(
        "predicted", "predicted without it", "W", text=_as("predicted", lambda watts: f"{watts:.1f} W"),
        name="predicted power",
    ),
    Column("error", "error", text=_as("error", lambda share: f"{share:+.1%}")),
)  # fmt: skip
SHARES = (
    Column("consumer", "consumer", is_key=True),
    Column("cpu_s", "CPU time", "s", text=lambda row: f"{row['cpu_s']:.2f} s"),
    _interval("watts", "activity", "power"),
    _interval("watts_by_use", "with idle by CPU time", "power with idle by use"),
    _interval("watts_evenly", "with idle evenly", "power with idle evenly"),
    Column("watts_common", "common rule", "W", text=lambda row: f"{row['watts_common']:.2f} W", name="common power"),
)
MODEL = (Column("what", ""), Column("value", ""))
FAULTS = (
    Column("after_ns", "after the first", "ns"),
    Column("meter", "meter"),
    Column("fault", "kind"),
    Column("text", "what happened"),
)


def report(whole: PowerReport) -> Report:
    """Everything that a power record shows."""
    found = whole.findings
    mark, values = MARKS[found.origin], json.loads(found.model_dump_json(exclude=RAW))
    intervals = {"Intervals": INTERVALS}
    return Report(
        found.headline,
        found.outcome,
        sections=tuple(_sections(found)),
        notes=(*(text for meter in found.meters for text in _meter_notes(meter)), *found.notes),
        warnings=(mark,) if mark else (),
        terms=TERMS | (TERMS_OF_SHARES if found.attribution else {}) | intervals,
        values=values,
        name=found.name,
        about=TASKS[found.task],
        started_at=whole.about.get("started_at", ""),
        host=whole.host,
    )


def _sections(found: PowerFindings) -> Iterator[Section]:
    """The table of a task first, which programs get; then what it rests on."""
    is_rows = found.attribution is None and found.fit is None
    if found.attribution is not None:
        yield Table("consumers", "Watts of each consumer", SHARES, _share_rows(found.attribution, found.origin))
        yield Lines("sums", "How the watts add up", [_sum_text(found.attribution), WHICH])
    if found.fit is not None:
        lead = (
            "Each level is predicted by a model that was fitted without it. Mean error "
            f"{100 * found.fit.left_out_error:.1f} %, largest {100 * found.fit.worst_error:.1f} %."
        )
        rows = _rung_rows(found.fit, found.origin)
        in_rows = found.attribution is None
        yield Table("levels", "Levels of the load ladder", RUNGS, rows, lead=lead, in_rows=in_rows)
    yield Table("model", "The power model", MODEL, _model_rows(_model_of(found)), brief=0, in_rows=False)
    yield Table("meters", "Meters", METERS, [_meter_row(meter) for meter in found.meters], in_rows=is_rows)
    from partywall.power import charts  # noqa: PLC0415 - Altair is slow to import

    for id_, (title, caption, draw) in charts.all_charts(found).items():
        mark = MARKS[found.origin]
        yield Chart(id_, f"{title} ({mark})" if mark else title, caption, draw)
    if found.core_time is not None:
        states = ", ".join(f"{_core_state(name)} {seconds:.1f} s" for name, seconds in found.core_time.states.items())
        yield Lines("cores", "Core time", [f"time with busy cores: {states}"])
    yield Table("faults", "Faults of meters", FAULTS, _fault_rows(found), brief=0, in_rows=False)


def _core_state(name: str) -> str:
    """'no busy core', '1 busy core', '2 busy cores'."""
    return "no busy core" if name == "0" else units.counted(int(name), "busy core")


def _marked(name: str, origin: str) -> str:
    return f"{name} ({MARKS[origin]})" if MARKS[origin] else name


def _meter_notes(meter: MeterFinding) -> list[str]:
    """Why figures of a meter are missing, and its first faults."""
    name = meter.facts.meter
    texts = [f"{name}: {meter.timing.why}"] if meter.timing.why else []
    return texts + [f"{name}: {fault.fault}: {fault.text}" for fault in meter.faults[:3]]


def _ends(key: str, estimate: Estimate | None) -> dict[str, float | None]:
    """A figure and the ends of its interval, as three values of a row."""
    if estimate is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}


def _meter_row(meter: MeterFinding) -> Row:
    facts, timing = meter.facts, meter.timing
    step = "" if facts.step is None else f", in steps of {facts.step:g}"
    about = ". ".join(filter(None, (f"{facts.quantity} of {facts.covers}{step}", facts.about, _timing_text(timing))))
    return {
        "meter": facts.meter,
        "origin": facts.origin,
        **_ends("watts", meter.watts),
        "joules": meter.joules,
        "missing_s": meter.missing_s,
        **_ends("refresh_ms", timing.refresh_ms),
        **_ends("lag_ms", timing.lag_ms),
        "readings": meter.readings,
        "took_ms": meter.took_ms,
        "faults": len(meter.faults),
        "reads": about,
    }


def _timing_text(timing: Timing) -> str:
    """Refresh and lag in one phrase."""
    every = (("refresh", timing.refresh_ms), ("lag", timing.lag_ms))
    known = [f"{name} {watts_text(estimate, 'ms', 0)}" for name, estimate in every if estimate]
    return "; ".join([*known, *([timing.why] if timing.why else [])])


def _rung_rows(fit: Fit, origin: str) -> list[Row]:
    return [
        {
            **rung.model_dump(exclude={"watts"}),
            "mean_watts_low": rung.watts.low if rung.watts else None,
            "mean_watts_high": rung.watts.high if rung.watts else None,
            "error": rung.error,
            "origin": origin,
        }
        for rung in fit.rungs
    ]


def _share_rows(attribution: Attribution, origin: str) -> list[Row]:
    return [
        {
            "consumer": share.name,
            "cpu_s": share.cpu_s,
            **_ends("watts", share.active),
            **_ends("watts_by_use", share.by_use),
            **_ends("watts_evenly", share.evenly),
            "watts_common": share.common,
            "origin": origin,
        }
        for share in attribution.shares
    ]


def _sum_text(attribution: Attribution) -> str:
    """How the shares add up."""
    active = sum(share.active.value for share in attribution.shares)
    text = f"total {watts_text(attribution.total)} = idle {attribution.idle:.1f} W + activity {active:.1f} W"
    where = "from the meter" if attribution.measured else "from the model"
    error = "" if attribution.model_error is None else f"; the model alone gives {attribution.model_error:+.1%}"
    return f"{text}; the total is {where}{error}"


def _fault_rows(found: PowerFindings) -> list[Row]:
    faults = [fault for meter in found.meters for fault in meter.faults]
    begin_ns = min((fault.time_ns for fault in faults), default=0)
    return [
        {"after_ns": fault.time_ns - begin_ns, "meter": fault.meter, "fault": fault.fault, "text": fault.text}
        for fault in faults[:FAULTS_MAX]
    ]


def _model_of(found: PowerFindings) -> NodeModel | None:
    return found.fit.model if found.fit else found.attribution.model if found.attribution else None


def _model_rows(model: NodeModel | None) -> list[Row]:
    if model is None:
        return []
    rows = {
        "name": model.name,
        "from": f"{model.source} ({model.origin})",
        "watts by busy cores": ", ".join(f"{watts:.1f} W with {cores:g}" for cores, watts in model.points),
        "error band": f"± {model.band:.1%}",
    }
    if model.break_even_s is not None:
        rows["break-even of switching off"] = f"{model.break_even_s:.0f} s"
    return [{"what": what, "value": value} for what, value in rows.items()]


def model_file(whole: PowerReport) -> str | None:
    """The fitted model, as `--model` takes it; None if none was fitted."""
    fit = whole.findings.fit
    return fit.model.model_dump_json(indent=1) + "\n" if fit else None
