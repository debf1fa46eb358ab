"""A fleet as a report: outliers first, then cells, then hosts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from partywall import units
from partywall.core.report.compared import MISSING
from partywall.core.report.value import Chart, Column, On, Report, Row, Table, shown
from partywall.core.report.wording import interval
from partywall.core.stats.estimate import Estimate, Outcome
from partywall.fleet.findings.findings import Admission, FleetCell, FleetFindings, HostCell
from partywall.fleet.findings.judging import MIN_HOSTS, Gated, joined
from partywall.fleet.findings.sharing import Shared
from partywall.fleet.record import Standing

TERMS = {
    "Cell": "A victim beside a neighbour: the share of its rate that it keeps, 1 if all. Or a victim alone: its rate. "
    "Of a study: a point of a table or figure.",
    "Fleet": "The mean of all hosts with a 95 % interval (random effects, Paule-Mandel, Hartung-Knapp).",
    "Spread": "The standard deviation between hosts, as a share. Noise of each measurement is taken off.",
    "Unseen host": "The interval that holds the true figure of 95 of 100 hosts that nobody measured. Hosts that differ "
    "are left out.",
    "Drawn to the fleet": "The best guess of the host's own figure: a noisy one is drawn towards the fleet.",
    "Differs": "At most 5 % of the hosts that are named differ by chance alone.",
    "Shared": "What hosts that isolate worse have in common more often than chance explains. It is no cause: measure "
    "again with this one thing changed.",
}
BAR = 10


def _between(key: str, row: Row) -> str:
    if row.get(key) is None:
        return MISSING
    return interval(*(row[f"{key}{end}"] for end in ("", "_low", "_high")))


def _range(row: Row) -> str:
    ends = (row.get("unseen_low"), row.get("unseen_high"))
    return MISSING if None in ends else " to ".join(shown(end, "") for end in ends)


OUTLIERS = (
    Column("host", "host", is_key=True),
    Column("cell", "cell", is_key=True),
    Column("is", "isolates"),
    Column("value", "measured", "", text=partial(_between, "value")),
    Column("fleet", "other hosts", ""),
    Column("p", "chance", "", on=On.PAGE, text=lambda row: f"{row['p']:.2g}"),
)
CELLS = (
    Column("cell", "cell", is_key=True),
    Column("factor", "fleet", "", text=partial(_between, "factor")),
    Column(
        "spread", "spread", "%", text=lambda row: MISSING if row["spread"] is None else f"{100 * row['spread']:.1f} %"
    ),
    Column("unseen_low", "unseen host", "", text=_range),
    Column("hosts", "hosts", ""),
)
HOSTS = (
    Column("host", "host", is_key=True),
    Column("cell", "cell", is_key=True),
    Column("value", "measured", "", text=partial(_between, "value")),
    Column("shrunk", "drawn to the fleet", "", text=partial(_between, "shrunk")),
)
SHARED = (
    Column("fact", "fact", is_key=True),
    Column("value", "value", is_key=True),
    Column("among", "worse hosts"),
    Column("others", "other hosts"),
    Column("chance", "chance", "", text=lambda row: f"{row['chance']:.2g}"),
)
FAILED = (Column("host", "host", is_key=True), Column("why", "why"))
LIVE = (
    Column("host", "host", is_key=True),
    Column("state", "state"),
    Column("bar", "time"),
    Column("attempt", "attempt", "", text=lambda row: str(row["attempt"] or MISSING)),
    Column("why", "what it says"),
)


def report(findings: FleetFindings, about: Mapping[str, Any], pages: Mapping[str, str] | None = None) -> Report:
    """Everything that is known of a fleet.

    about: name, started_at and host of the record. pages: those of the hosts' own reports, by host.
    """
    pages = pages or {}
    outliers = [_outlier(cell, host) for cell, host in findings.outliers]
    lead = "Each host is compared with the others. The first ones are worse than the fleet."
    failed = [{"host": host, "why": why} for host, why in findings.failed.items()]
    differ = Table("outliers", "Hosts that differ", OUTLIERS, outliers, lead=lead, brief=20, pages=pages)
    return Report(
        headline(findings),
        findings.outcome,
        goals=1,
        sections=(
            *([differ] if outliers else []),
            *_shared(findings.shared),
            Table("cells", "Cells", CELLS, [_cell(cell) for cell in findings.cells], in_rows=False, brief=20),
            *([Table("failed", "Hosts without figures", FAILED, failed, in_rows=False)] if failed else []),
            Table("hosts", "Hosts", HOSTS, list(_hosts(findings)), brief=0, most=1000, pages=pages),
            *_charts(findings),
        ),
        notes=tuple(_notes(findings)),
        terms=TERMS,
        values={
            "outcome": findings.outcome,
            "worse": findings.worse,
            "other": findings.other,
            "cells": [_cell(cell) for cell in findings.cells],
            "shared": [vars(each) for each in findings.shared],
            "failed": dict(findings.failed),
        },
        **about,
    )


def headline(findings: FleetFindings) -> str:
    """What matters most, in a sentence."""
    count, named = len(findings.measured), findings.named
    if named:
        cell, host = findings.outliers[0]
        who = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
        s = "s" if len(named) == 1 else ""
        how = f"isolate{s} worse than the other hosts" if findings.worse else f"differ{s} from the other hosts"
        return f"{who} {how}: {_loss(cell, host)}"
    if findings.outcome is Outcome.INCONCLUSIVE:
        return f"{count} of at least {MIN_HOSTS} hosts were measured, too few to compare"
    if not all(cell.is_directed for cell in findings.cells):
        return f"none of {count} hosts differs from the others"
    return f"none of {count} hosts isolates worse than the others"


def _loss(cell: FleetCell, host: HostCell) -> str:
    if host.is_other:
        here, there = (shown(_round(value), "") for value in (host.value.value, host.fleet))
        return f"{cell.name} is {here} on {host.host}, {there} on others"
    if cell.is_rate:
        return f"{cell.name} reaches {host.value.value / host.fleet:.0%} of the others' rate on {host.host}"
    return f"{cell.name} keeps {host.value.value:.0%} of its rate on {host.host}, {host.fleet:.0%} on others"


def _outlier(cell: FleetCell, host: HostCell) -> dict[str, Any]:
    verdict = "otherwise" if host.is_other else "worse" if host.is_worse else "better"
    figures = {"fleet": _round(host.fleet), "p": _round(host.chance)}
    return {"host": host.host, "cell": cell.name, "is": verdict, **_ends("value", host.value), **figures}


def _cell(cell: FleetCell) -> dict[str, Any]:
    low, high = cell.unseen or (None, None)
    return {
        "cell": cell.name,
        **_ends("factor", cell.factor),
        "spread": _round(cell.spread),
        "unseen_low": _round(low),
        "unseen_high": _round(high),
        "hosts": len(cell.hosts),
    }


def _hosts(findings: FleetFindings) -> Iterator[dict[str, Any]]:
    for cell in findings.cells:
        for host in cell.hosts:
            ends = _ends("value", host.value) | _ends("shrunk", host.shrunk)
            yield {"host": host.host, "cell": cell.name, **ends, "p": _round(host.chance)}


def _shared(shared: Sequence[Shared]) -> Iterator[Table]:
    if not shared:
        return
    rows = [
        {
            "fact": each.fact, "value": each.value, "among": f"{each.among} of {each.outliers}",
            "others": f"{each.others} of {each.rest}", "chance": _round(each.chance),
        }
        for each in shared
    ]  # fmt: skip
    yield Table("shared", "What worse hosts share", SHARED, rows, lead="This shows no cause.", in_rows=False, brief=5)


def _notes(findings: FleetFindings) -> Iterator[str]:
    if without := findings.failed.keys() - findings.measured.keys():
        yield f"{len(without)} of {len(without) + len(findings.measured)} hosts have no figures"
    if short := sum(host.share < 1 for host in findings.measured.values()):
        yield f"{short} of {len(findings.measured)} hosts were measured for a part of their time, which decided"
    if findings.named:
        yield f"a host's own report: partywall report RECORD/hosts/{findings.named[0]}/record-1"
    if findings.other:
        yield "a study does not say which way is worse, so hosts that differ are named"


def _charts(findings: FleetFindings) -> Iterator[Chart]:
    def drawn() -> Any:
        from partywall.fleet import charts  # noqa: PLC0415 - Altair is slow to import

        return charts.multiples(findings)

    caption = "One point a host, with its 95 % interval. Shaded: the range for a host that nobody measured."
    yield Chart("multiples", "Hosts and cells", caption, drawn)


def admission(admitted: Admission, fleet: str, about: Mapping[str, Any]) -> Report:
    """Whether a new host is admitted. fleet: the name of its record."""
    host, outcome = admitted.host.host, admitted.outcome
    columns = (
        Column("cell", "cell", is_key=True),
        Column("value", "measured", ""),
        Column("least", "at least", ""),
        Column("shows", "loss that shows", "%", text=lambda row: f"{100 * row['shows']:.1f} %"),
        Column("outcome", "verdict"),
    )
    values = {cell.name: cell.value for cell in admitted.host.cells}
    rows: list[dict[str, Any]] = [
        {"cell": name, "value": _round(values[name]), "least": _round(_exp(each.least)), "shows": _round(each.shows),
         "p": _round(each.chance), "outcome": str(each.outcome)}
        for name, each in admitted.cells.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: row["p"])
    lead = (
        "The fleet predicts a sound host to be above the least value. The loss that shows is found in nine of ten "
        "hosts that have it."
    )
    table = Table("cells", "Cells", columns, rows, lead=lead)
    facts = {"outcome": outcome, "shows": _round(admitted.shows), "needed_s": _seconds(admitted.needed_s)}
    return Report(_admitted(host, admitted, fleet), outcome, goals=1, sections=(table,), values=facts, **about)


def _admitted(host: str, admitted: Admission, fleet: str) -> str:
    """The headline."""
    if admitted.outcome is Outcome.VIOLATED:
        return f"{host} is refused: it is worse than the hosts of {fleet}"
    shows = f"a loss of {100 * admitted.shows:.3g} % in any cell would show"
    if admitted.outcome is Outcome.HOLDS:
        return f"{host} is as good as the hosts of {fleet}; {shows}"
    margin = f"for {100 * admitted.margin:g} %"
    if math.isinf(admitted.needed_s):
        return f"Not known whether {host} is as good: {shows}; {margin} the hosts of {fleet} differ too much"
    unknown, time = f"Not known whether {host} is as good", units.format_duration(math.ceil(admitted.needed_s) * 10**9)
    return f"{unknown} as the hosts of {fleet}: {shows}; {margin} it takes some {time} (--budget)"


def _seconds(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None


def gate(judged: Mapping[str, Gated], margin: float, who: str) -> Report:
    """Whether canaries, or a later date, are no worse by more than a margin."""
    outcome = joined([each.outcome for each in judged.values()])
    said = {
        Outcome.HOLDS: f"{who} are no worse: at most {100 * margin:g} % in every cell",
        Outcome.VIOLATED: f"{who} are worse by more than {100 * margin:g} %",
        Outcome.INCONCLUSIVE: f"not known whether {who} are worse by {100 * margin:g} %; measure more hosts or longer",
    }[outcome]
    columns = (
        Column("cell", "cell", is_key=True),
        Column("change", "change", "%", text=partial(_change, "change")),
        Column("outcome", "verdict"),
    )
    rows: list[dict[str, Any]] = [
        {"cell": name, **_ends("change", each.change.mapped(lambda log: _exp(log) - 1)), "outcome": str(each.outcome)}
        for name, each in judged.items()
    ]
    rows.sort(key=lambda row: row["change_low"])
    table = Table("cells", "Cells", columns, rows, lead="Intervals of 90 %, of which the lower end is judged.")
    return Report(said, outcome, goals=1, sections=(table,), values={"outcome": outcome, "cells": rows})


def _change(key: str, row: Row) -> str:
    value, low, high = (100 * row[f"{key}{end}"] for end in ("", "_low", "_high"))
    return interval(value, low, high, "%", sign=True)


def live(rows: Sequence[Standing]) -> Report:
    """The table of hosts while they are measured."""
    done = sum(row.state == "measured" for row in rows)
    ordered = sorted(rows, key=lambda row: (row.state in ("measured", "waits"), row.state == "waits"))
    table = [
        {"host": row.host, "state": row.state, "bar": _bar(row.share), "attempt": row.attempt, "why": row.why}
        for row in ordered
    ]
    return Report(f"{done} of {len(rows)} hosts", sections=(Table("hosts", "Hosts", LIVE, table, brief=16),))


def _bar(share: float | None) -> str:
    if share is None:
        return ""
    full = round(share * BAR)
    return "█" * full + "░" * (BAR - full)


def _ends(key: str, estimate: Estimate | None) -> dict[str, float | None]:
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {key + end: None if estimate is None else _round(getattr(estimate, name)) for end, name in ends.items()}


def _round(value: float | None) -> float | None:
    """Six digits: further ones depend on the processor."""
    return None if value is None else float(f"{value:.6g}")


def _exp(value: float) -> float:
    return float(math.exp(value))
