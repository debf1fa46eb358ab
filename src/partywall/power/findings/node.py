"""Findings of a power record: its meters, a fitted model, or each consumer's watts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partywall.core.stats.estimate import Estimate, Outcome
from partywall.core.stats.interval import FEWEST, mean_interval
from partywall.errors import TrialError
from partywall.power.findings import fitting, sharing, spans
from partywall.power.findings.meter import cpu_rows, gap_s, timing, updates
from partywall.power.findings.spans import Energy
from partywall.power.values import (
    Activity,
    Attribution,
    CoreTime,
    Fit,
    MeterFacts,
    MeterFault,
    MeterFinding,
    Origin,
    PowerEvidence,
    PowerFindings,
    PowerPoint,
    Reading,
    chances,
)
from partywall.units import counted

SHOWN = 1500
"""Points of a time line at most, for each meter."""
MISSING_S = 1.5
"""Less time than this at the ends of a record is not called missing: meters begin and end between two readings."""
REACHED = 0.9
"""Share of the cores that a ladder must have kept busy, or else a note says that the model is extrapolated."""
MOST_ERROR = 0.03
"""A model whose levels are predicted worse than this from the others is called inconclusive."""


def findings(evidence: PowerEvidence) -> PowerFindings:
    """Everything that a record shows. TrialError if it holds neither readings nor activity."""
    if not evidence.readings and len(evidence.activity) < 2 and not evidence.faults:
        raise TrialError(f"{evidence.name}: nothing was read yet; measure again")
    meters = tuple(meter_finding(facts, evidence) for facts in evidence.meters)
    fit = _fit(evidence, meters) if evidence.task == "calibrate" else None
    shares = _attribution(evidence, meters) if evidence.task == "attribute" else None
    usable = [meter for meter in meters if meter.readings]
    origin = origin_of(evidence, shares)
    return PowerFindings(
        name=evidence.name,
        task=evidence.task,
        headline=_headline(origin, meters, fit, shares),
        outcome=_outcome(evidence, usable, fit, shares),
        origin=origin,
        meters=meters,
        core_time=core_time(evidence.activity),
        fit=fit,
        attribution=shares,
        timeline=tuple(_timeline(evidence)),
        busy=tuple(_busy(evidence)),
        notes=(*_notes(evidence, origin, fit), *_covered(meters), *_warnings(shares, meters)),
    )


def origin_of(evidence: PowerEvidence, shares: Attribution | None = None) -> Origin:
    """The weakest source of any figure. shares: those of consumers, whose total may come from the model."""
    origins = [facts.origin for facts in evidence.meters]
    if evidence.model:
        is_metered = bool(evidence.meters) if shares is None else shares.measured
        origins.append(evidence.model.origin if is_metered else evidence.model.states)
    return "simulated" if "simulated" in origins else "modelled" if "modelled" in origins else "measured"


def meter_finding(facts: MeterFacts, evidence: PowerEvidence) -> MeterFinding:
    """One meter: mean watts, energy, timing, faults."""
    own = [reading for reading in evidence.readings if reading.meter == facts.meter]
    faults = [fault for fault in evidence.faults if fault.meter == facts.meter]
    lost = spans.lost_spans(own, faults)
    own_energy = _energy(own, _span_s(evidence), lost)
    return MeterFinding(
        facts=facts,
        readings=len(own),
        watts=mean_watts(own, lost),
        joules=own_energy.joules if own_energy else None,
        missing_s=_reported(own_energy, own) if own_energy else 0.0,
        timing=timing(own, evidence.activity, sends=facts.sends, lost=lost),
        faults=tuple(sorted([*faults, *gaps(facts.meter, own)], key=lambda fault: fault.time_ns)),
        took_ms=float(np.median([reading.took_ns for reading in own])) / 1e6 if own else None,
    )


def mean_watts(readings: Sequence[Reading], lost: Sequence[tuple[float, float]] = ()) -> Estimate | None:
    """The mean over the time of the readings; None with too few. lost: see `updates`."""
    if len(readings) < 2:
        return None
    if readings[0].joules is not None:
        new = updates(readings, lost=lost)
        values, seconds = new.watts, new.seen_s - new.since_s
        mean = float(values @ seconds / seconds.sum()) if len(values) else 0.0
    else:
        values = np.array([reading.watts for reading in readings], dtype=np.float64)
        mean = float(values.mean())
    if len(values) < FEWEST:
        return None
    interval = mean_interval(values)
    half = interval.half_width
    return interval.model_copy(update={"value": mean, "low": mean - half, "high": mean + half})


def _energy(
    readings: Sequence[Reading], span_s: tuple[float, float], lost: Sequence[tuple[float, float]]
) -> Energy | None:
    """The energy of the time that a meter covers. span_s: begin and end of the record."""
    if len(readings) < 2:
        return None
    if readings[0].joules is not None:
        new = updates(readings, lost=lost)
        each_s = new.seen_s - new.since_s
        covered_s = float(each_s.sum())
        return Energy(float(new.watts @ each_s), covered_s, max(0.0, span_s[1] - span_s[0] - covered_s))
    times = np.array([reading.time_ns for reading in readings]) / 1e9
    watts = np.array([reading.watts for reading in readings], dtype=np.float64)
    return spans.energy(times, watts, *span_s)


def _span_s(evidence: PowerEvidence) -> tuple[float, float]:
    """Begin and end of a record, in seconds."""
    times = [each.time_ns / 1e9 for each in evidence.readings] + [each.time_ns / 1e9 for each in evidence.activity]
    return min(times, default=0.0), max(times, default=0.0)


def _reported(counted: Energy, readings: Sequence[Reading]) -> float:
    """The missing seconds that are worth saying: a record never begins and ends exactly with a reading."""
    usual_s = float(np.median(np.diff([reading.time_ns for reading in readings]))) / 1e9
    return counted.missing_s if counted.missing_s > max(MISSING_S, 2 * usual_s) else 0.0


def gaps(meter: str, readings: Sequence[Reading]) -> list[MeterFault]:
    """Times without readings."""
    times = np.array([reading.time_ns for reading in readings], dtype=np.float64)
    if len(times) < 3:
        return []
    apart = np.diff(times) / 1e9
    usual = float(np.median(apart))
    return [
        MeterFault(meter=meter, time_ns=int(times[place]), fault="gap", text=f"no reading for {apart[place]:.1f} s")
        for place in np.flatnonzero(apart > gap_s(usual))
    ]


def core_time(activity: Sequence[Activity]) -> CoreTime | None:
    """Seconds with 0, 1, 2, … busy cores."""
    if len(activity) < 2:
        return None
    times = np.array([each.time_ns for each in activity]) / 1e9
    busy = cpu_rows(activity)
    cpus = busy.shape[1]
    sums = np.zeros(cpus + 1)
    for row, seconds in zip(np.diff(busy, axis=0), np.diff(times), strict=True):
        sums += seconds * chances([max(0.0, value / seconds) for value in row], cpus)
    return CoreTime(states={str(number): float(value) for number, value in enumerate(sums)})


def _first(evidence: PowerEvidence, meters: Sequence[MeterFinding]) -> tuple[MeterFinding, list[Reading]] | None:
    """The first meter with readings: the one that a model is fitted to, and that totals come from."""
    for meter in meters:
        if meter.readings > 1:
            return meter, [reading for reading in evidence.readings if reading.meter == meter.facts.meter]
    return None


def _fit(evidence: PowerEvidence, meters: Sequence[MeterFinding]) -> Fit | None:
    if (chosen := _first(evidence, meters)) is None:
        return None
    meter, readings = chosen
    observations = fitting.observations(
        evidence.slots, readings, evidence.activity, meter.timing, sends=meter.facts.sends
    )
    return fitting.fit(meter.facts, observations, evidence.name)


def _attribution(evidence: PowerEvidence, meters: Sequence[MeterFinding]) -> Attribution | None:
    model = evidence.model
    if model is None or len(evidence.activity) < 2:
        return None
    used = sharing.usage(evidence.activity)
    chosen = _first(evidence, [meter for meter in meters if model.fits(meter.facts)])
    if chosen is None:
        return sharing.attribution(model, used, None)
    meter, readings = chosen
    span = spans.shared(readings, evidence.activity)
    total = mean_watts(span.readings, spans.lost_spans(readings, meter.faults)) if span.keep.any() else None
    if total is None:
        return sharing.attribution(model, used, None)
    return sharing.attribution(model, used.during(span.keep), total, cut_s=span.cut_s)


def _headline(origin: Origin, meters: Sequence[MeterFinding], fit: Fit | None, shares: Attribution | None) -> str:
    mark = "" if origin == "measured" else f" ({origin})"
    if fit is not None:
        points = fit.model.points
        text = f"{points[0][1]:.1f} W idle, {points[-1][1]:.1f} W with {fit.model.cpus} busy cores"
        return f"{text}; levels that were left out are predicted within {fit.left_out_error:.1%}{mark}"
    if shares is not None:
        named = [share for share in shares.shares if share.name != sharing.REST] or shares.shares
        most = max(named, key=lambda share: share.active.value)
        active = f"{most.active.value:.1f} ± {most.active.half_width:.1f} W"
        adds = "adds" if len(named) == 1 else "adds the most of the consumers,"
        return f"{shares.total.value:.1f} W in total; {most.name} {adds} {active}{mark}"
    texts = [f"{meter.facts.meter}: {_mean_text(meter)}" for meter in meters]
    return ("; ".join(texts) or "no meter: core-seconds only") + mark


def _mean_text(meter: MeterFinding) -> str:
    return f"{meter.watts.value:.1f} ± {meter.watts.half_width:.1f} W" if meter.watts else "no figure"


def _outcome(
    evidence: PowerEvidence, usable: Sequence[MeterFinding], fit: Fit | None, shares: Attribution | None
) -> Outcome:
    if evidence.task == "calibrate":
        good = fit is not None and fit.left_out_error <= MOST_ERROR
        return Outcome.HOLDS if good else Outcome.INCONCLUSIVE
    if evidence.meters and len(usable) < len(evidence.meters):
        return Outcome.INCONCLUSIVE
    if shares is not None and (_is_below_idle(shares) or (evidence.meters and not shares.measured)):
        return Outcome.INCONCLUSIVE
    return Outcome.HOLDS


def _timeline(evidence: PowerEvidence) -> list[PowerPoint]:
    begin_ns = _begin_ns(evidence)
    points = []
    for facts in evidence.meters:
        own = [reading for reading in evidence.readings if reading.meter == facts.meter]
        if facts.quantity == "joules":
            new = updates(own) if len(own) > 2 else None
            pairs = list(zip(new.seen_s, new.watts, strict=True)) if new else []
        else:
            pairs = [(reading.time_ns / 1e9, reading.watts or 0.0) for reading in own]
        for s, watts in pairs[:: max(1, len(pairs) // SHOWN)]:
            points.append(PowerPoint(at_s=round(float(s) - begin_ns / 1e9, 3), meter=facts.meter, watts=float(watts)))
    return points


def _busy(evidence: PowerEvidence) -> list[tuple[float, float]]:
    begin_ns = _begin_ns(evidence)
    times = np.array([each.time_ns for each in evidence.activity])
    cores = cpu_rows(evidence.activity).sum(axis=1) if len(times) else np.zeros(0)
    thin = max(1, len(times) // SHOWN)
    times, cores = times[::thin], cores[::thin]
    rates = np.diff(cores) / np.maximum(np.diff(times) / 1e9, 1e-9)
    middles = ((times[1:] + times[:-1]) / 2 - begin_ns) / 1e9
    return [(round(float(s), 3), round(float(rate), 4)) for s, rate in zip(middles, rates, strict=True)]


def _begin_ns(evidence: PowerEvidence) -> int:
    first = [reading.time_ns for reading in evidence.readings[:1]] + [each.time_ns for each in evidence.activity[:1]]
    return min(first, default=0)


def _is_below_idle(shares: Attribution) -> bool:
    """True if a meter shows less than the model's host takes when idle: the model is not that of this machine."""
    return shares.measured and shares.total.high < shares.model.idle_watts * (1 - shares.model.band)


def _covered(meters: Sequence[MeterFinding]) -> list[str]:
    """Times that figures of meters do not cover."""
    return [
        f"{meter.facts.meter}: {meter.missing_s:.1f} s of the record are not covered by readings; their energy is "
        "not known, and not included."
        for meter in meters
        if meter.missing_s
    ]


def _warnings(shares: Attribution | None, meters: Sequence[MeterFinding]) -> list[str]:
    """Why watts of consumers may not be what they seem."""
    if shares is None:
        return []
    model, notes = shares.model, []
    if shares.cut_s:
        notes.append(f"{shares.cut_s:.1f} s were left out, in which CPU time was recorded but no meter was read.")
    notes += [
        f"{meter.facts.meter} covers {meter.facts.covers}, and {model.name} has the watts of {model.covers}: "
        "its total was not used."
        for meter in meters
        if not model.fits(meter.facts)
    ]
    if meters and not shares.measured:
        notes.append(f"No meter gave a total that can be used: the total is modelled from {model.name}.")
    if _is_below_idle(shares):
        notes.append(
            f"The meter shows {shares.total.value:.1f} W, less than the {model.idle_watts:.1f} W that {model.name} "
            "takes when idle: the model is not that of this machine."
        )
    if not model.is_whole:
        notes.append(f"The model has the watts of {model.covers}, not of the whole machine.")
    if shares.cpus > model.cpus:
        notes.append(
            f"The model knows {counted(model.cpus, 'core')}, and this host has {shares.cpus}: watts with more than "
            f"{model.cpus} busy cores are extrapolated."
        )
    return notes


def _notes(evidence: PowerEvidence, origin: Origin, fit: Fit | None) -> list[str]:
    notes = []
    counts = list(dict.fromkeys(len(each.cpus_s) for each in evidence.activity))
    if len(counts) > 1:
        notes.append(f"The number of CPUs changed from {counts[0]} to {counts[-1]} while they were read.")
    if fit is not None and (most := max(rung.busy for rung in fit.rungs)) < REACHED * fit.model.cpus:
        notes.append(
            f"The load kept at most {most:.1f} of {fit.model.cpus} cores busy, so watts beyond are extrapolated; "
            "calibrate again while the host does nothing else."
        )
    if origin == "simulated":
        notes.append("Simulated meter: the watts are those of a model in software. Only the CPU time is real.")
    if origin == "modelled" and evidence.model is not None and not evidence.meters:
        model = evidence.model
        notes.append(f"No meter: all watts are modelled from {model.name} ({model.source}), ± {model.band:.0%}.")
    # A resumed record has a calibration of each session.
    for worker, warning in {each.worker: each.warning for each in evidence.disturbed}.items():
        notes.append(f"Worker {worker}: {warning}.")
    if evidence.interrupted:
        notes.append("The measurement was interrupted.")
    return notes
