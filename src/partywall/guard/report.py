"""A guard as a report: what a terminal, a page, a notebook and a spreadsheet show of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from partywall import units
from partywall.core.report.value import Chart, Column, Lines, On, Report, Row, Table
from partywall.guard.document import on_link
from partywall.guard.findings import GuardRun, Means, SoFar

VIFS_MAX = 12
"""Vifs drawn in one page. The Parquet file contains all."""
ROWS_BRIEF = 40
"""Vifs listed on a terminal."""
MEANS = (
    *("offered_bps", "granted_bps", "passed_bps", "guarantee_bps"),
    *("offered_pps", "granted_pps", "passed_pps", "delay_ns", "jitter_ns"),
)
LEAD = (
    "Means over the whole time. What waits in a queue is sampled once a period, at the vif's own queue and at that of "
    "its link."
)


def _waits(key: str, row: Row) -> str:
    return "no queue" if row[key] is None else units.format_duration(row[key])


def _granted(row: Row) -> str:
    return "no limit" if row["granted_pps"] is None else units.format_packet_rate(row["granted_pps"])


VIF, LINK = Column("vif", "vif", is_key=True), Column("link", "link")
RATES = (
    Column("offered_bps", "offered", "bit/s"),
    Column("passed_bps", "passed", "bit/s"),
    Column("granted_bps", "granted", "bit/s"),
)
MORE = (
    Column("guarantee_bps", "guaranteed", "bit/s", on=On.COMPARISON),
    Column("offered_pps", "offered", "p/s", name="packets offered"),
    Column("passed_pps", "passed", "p/s", name="packets passed"),
    Column("dropped_packets", "dropped", "", name="packets dropped"),
    Column("delay_ns", "waits", "ns", text=partial(_waits, "delay_ns"), name="mean wait"),
    Column("jitter_ns", "jitter", "ns", text=partial(_waits, "jitter_ns")),
)

LIVE = (
    *RATES,
    Column("offered_pps", "offered", "p/s"),
    Column("passed_pps", "passed", "p/s"),
    Column("granted_pps", "granted", "p/s", text=_granted),
    Column("dropped_packets", "dropped", "", text=lambda row: units.format_number(row["dropped_packets"])),
    Column("marked_packets", "marked", "", text=lambda row: units.format_number(row["marked_packets"])),
    Column("delay_ns", "waits", "ns", text=partial(_waits, "delay_ns")),
)


def live(seen: SoFar) -> Report:
    """The last report of a guard; at its end, means of all, and what each vif got."""
    length = units.format_duration(seen.means.length_ns)
    title = f"{seen.policy.name}: {f'means over {length}' if seen.is_over else 'now'}"
    figures = seen.means.rows() if seen.is_over else seen.last.rows
    rows = [{"vif": vif, **row} for vif, row in figures.items()]
    table = Table("vifs", title, (VIF, *([LINK] if seen.policy.links else []), *LIVE), rows)
    said = Lines("got", "What each vif got", list(got(seen.means)) if seen.is_over else [])
    notes = () if seen.is_over else tuple(_divided(seen))
    return Report(_kept(length, seen.wrong, seen.unread_ns), seen.outcome, sections=(table, said), notes=notes)


def _divided(seen: SoFar) -> Iterator[str]:
    """A sentence for each link whose capacity is not fully divided."""
    for name, link in seen.policy.by_link.items():
        divided = seen.last.pools[on_link("send", name)]["divided_bps"]
        if divided < link.capacity:
            said = f"{units.format_bit_rate(divided)} of {units.format_bit_rate(link.capacity)} are divided"
            yield f"{on_link(said, name)}, to meet a delay goal"


def report(run: GuardRun) -> Report:
    """Everything that a guard found: totals of every vif, findings, and rates over time."""
    values = figures_of(run)
    vifs = [{"vif": vif, **figures} for vif, figures in values["vifs"].items()]
    found = [f"{at_ns / 1e9:.1f} s, {hook}: {kind}: {text}" for at_ns, hook, kind, text in run.notes]
    sent = [vif for vif in run.vifs if any(report["rows"][vif]["offered_bps"] for report in run.reports)]
    left_out = len(run.vifs) - len(sent[:VIFS_MAX])
    lead = f"{LEAD} {units.counted(left_out, 'more vif')}, idle or beyond what one page shows, without a chart."
    columns = (VIF, *([LINK] if run.links else []), *RATES, *MORE)
    return Report(
        headline(run),
        run.outcome,
        goals=len(run.vifs),
        sections=(
            Table("vifs", "Every vif", columns, vifs, lead=lead if left_out else LEAD, brief=ROWS_BRIEF),
            Lines("findings", "What the independent check found", found),
            *_policies(run),
            Lines("got", "What each vif got", list(got(run.means))),
            *(chart for vif in sent[:VIFS_MAX] for chart in _charts(run, vif)),
        ),
        values=values,
        name=run.run,
        about="offered, granted and passed",
        host=run.host,
    )


def headline(run: GuardRun) -> str:
    """The result in one line."""
    if not run.reports:
        return "The guard ended before its first report"
    return _kept(units.format_duration(run.length_ns), run.wrong, run.unread_ns)


def _kept(length: str, wrong: int, unread_ns: int) -> str:
    problems = f"{units.counted(wrong, 'finding')}, see below" if wrong else "no problem was found"
    unread = f"; reports of {units.format_duration(unread_ns)} were lost" if unread_ns else ""
    return f"Kept for {length}: {problems}{unread}"


def got(means: Means) -> Iterator[str]:
    """A sentence for each vif that sent: what it got while it did, beside its promise. At most VIFS_MAX."""
    rows = means.rows()
    for vif in [vif for vif in rows if means.sent_ns[vif]][:VIFS_MAX]:
        passed, offered = (means.while_sending(vif, key) for key in ("passed_bps", "offered_bps"))
        guarantee, ceiling = rows[vif].get("guarantee_bps"), rows[vif].get("ceiling_bps")
        said = (
            f"{vif} got {units.format_bit_rate(passed)} while it sent, for {units.format_duration(means.sent_ns[vif])}"
        )
        if guarantee:
            said += f"; guaranteed: {units.format_bit_rate(guarantee)}"
        elif ceiling:
            said += f"; at most: {units.format_bit_rate(ceiling)}"
        yield said + (f"; it offered {units.format_bit_rate(offered)}" if guarantee and offered < guarantee else "")


def figures_of(run: GuardRun) -> dict[str, Any]:
    """The figures as a JSON value: the duration, every vif's means and dropped packets, and the findings.

    A vif also has its link if the policy's links have names.
    """
    return {
        "reports": len(run.reports),
        "length_ns": run.length_ns,
        "unread_ns": run.unread_ns,
        "vifs": {vif: _link(run, vif) | _means(run, vif) for vif in run.vifs},
        "notes": [{"at_ns": at_ns, "hook": hook, "kind": kind, "text": text} for at_ns, hook, kind, text in run.notes],
        "policies": [
            {"from_ns": at_ns, "changes": list(changed), "vifs": {vif: _means(part, vif) for vif in part.vifs}}
            for at_ns, changed, part in run.parts
        ],
    }


def _link(run: GuardRun, vif: str) -> dict[str, Any]:
    return {"link": run.links[vif]} if vif in run.links else {}


def _means(run: GuardRun, vif: str) -> dict[str, float | None]:
    """Means over all reports, weighted by their duration, and the number of dropped packets."""
    return {key: run.mean(vif, key) for key in MEANS} | {"dropped_packets": run.dropped(vif)}


def _policies(run: GuardRun) -> Iterator[Lines | Table]:
    """The changes of the policy, and what each vif got while each policy held. Nothing if it never changed."""
    if not run.adjustments:
        return
    changes = [(at_ns / 1e9, ", ".join(changed)) for at_ns, changed, _ in run.parts[1:]]
    said = [f"{at_s:.1f} s, the policy was changed: {changed}" for at_s, changed in changes]
    yield Lines("policies", "Changes of the policy", said)
    for number, (at_ns, _, part) in enumerate(run.parts):
        title = f"From {at_ns / 1e9:.1f} s" if number else "From the start"
        rows = [{"vif": vif, **_means(part, vif)} for vif in part.vifs]
        columns = (Column("vif", "vif"), *RATES)
        yield Table(f"policy-{number}", title, columns, rows, brief=0, in_rows=False)


def _charts(run: GuardRun, vif: str) -> Iterator[Chart]:
    """Rates, packets and waiting of a vif over time, as far as there is something to draw."""
    from partywall.guard import charts  # noqa: PLC0415 - Altair is slow to import

    named = f"{vif} on {run.links[vif]}" if run.links else vif
    for kind, title in charts.TITLES.items():
        if rows := charts.rows(run.reports, vif, kind):
            yield Chart(f"{vif}-{kind}", f"{named}: {title}", "", partial(charts.over_time, rows, kind))
