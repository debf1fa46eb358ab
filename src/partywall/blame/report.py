"""An experiment as text for a terminal, as one page, and as files for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import altair as alt
from rich.console import Console
from rich.text import Text

from partywall import units
from partywall.blame.decide import State
from partywall.blame.findings import BlameFindings, Suspect
from partywall.core.report import page
from partywall.core.report.charts import CATEGORIES, HEIGHT, MUTED, WIDTH, inlined, spec_of, titled
from partywall.core.report.compared import figures_of
from partywall.core.report.files import Files
from partywall.core.report.terminal import listed
from partywall.core.stats.estimate import Estimate

SUSPECTS = ("suspect", "verdict", "takes", "gain in a pulse", "lost", "held", "late", "correlation")
HELPS = ("suspect", "held to", "victim gains", "in held-out slots", "command")
SLOTS_DRAWN = 600
ENDS = {
    "precision": "all suspects were judged",
    "budget": "its time was over",
    "harm": "suspects may have lost as much as --harm allows",
    "": "it was interrupted",
}


def _share(estimate: Estimate | None) -> str:
    return "–" if estimate is None else f"{estimate.value:+.1%} ({estimate.low:+.1%} to {estimate.high:+.1%})"


def _cells(each: Suspect) -> tuple[str, ...]:
    return (
        each.name,
        each.state,
        _share(each.taken),
        _share(each.gain),
        "–" if each.lost is None else f"{each.lost:.1%}",
        f"{each.held:.0%}",
        units.format_duration(each.delay_ns) if each.state is State.GUILTY else "–",
        "–" if each.correlation is None else f"{each.correlation:+.2f}",
    )


def _help_cells(findings: BlameFindings) -> list[tuple[str, ...]]:
    unit = "CPUs" if findings.about.get("lever") != "disk" else "B/s"
    return [
        (each.suspect, f"−{each.less:.0%}: {each.use:.3g} {unit}", _share(each.gain), _share(each.check), each.text)
        for each in findings.helps
    ]


def notes(findings: BlameFindings) -> Iterator[str]:
    """What a reader must know about the figures."""
    aa = "fails" if findings.aa_fails else "passes"
    yield f"A/A check {aa}: the dummy suspect, which nobody touched, has an effect of {_share(findings.aa)}"
    yield f"it ended after {findings.seconds:.0f} s, because {ENDS.get(findings.ended, findings.ended)}"
    if findings.needed_s:
        needed = units.format_duration(round(findings.needed_s) * 10**9)
        yield f"to judge the suspects that are open, about {needed} would be needed at this noise"
    if findings.about.get("is_weak"):
        yield "the victim's rate only says how long it waited for a CPU: harm through memory or disks is not seen"
    if findings.own:
        yield f"the victim's own limit stopped it for {findings.own:.1%} of the time"
    if findings.steal >= 0.01:
        yield f"the hypervisor took {findings.steal:.1%} of the host's time"
    yield from (f"not touched: {text}" for text in findings.about.get("left_out", ()))


def show(findings: BlameFindings, console: Console) -> None:
    """Everything, at the end."""
    console.print(Text(findings.headline, style="bold"), soft_wrap=True)
    console.print(listed(SUSPECTS, [_cells(each) for each in findings.suspects]))
    for each in findings.helps:
        said = f"hold {each.suspect} {each.less:.0%} lower: the victim gains {_share(each.gain)}:  {each.text}"
        console.print(Text(said), soft_wrap=True)
    for note in notes(findings):
        console.print(Text(f"note: {note}"), soft_wrap=True)


def ranking(findings: BlameFindings) -> Any:
    """What each suspect takes, with its interval."""
    rows = [
        {
            "suspect": each.name,
            "value": each.taken.value,
            "low": each.taken.low,
            "high": each.taken.high,
            "is": each.state,
        }
        for each in findings.suspects
    ]
    order = [each.name for each in findings.suspects]
    states = [str(state) for state in State]
    base: Any = inlined(rows).encode(
        y=alt.Y("suspect:N", sort=order, title=None, axis=alt.Axis(labelLimit=320)),
        color=alt.Color(
            "is:N", title=None, scale=alt.Scale(domain=states, range=[CATEGORIES[1], CATEGORIES[2], MUTED, MUTED])
        ),
        tooltip=["suspect:N", "is:N", *(alt.Tooltip(f"{name}:Q", format=".1%") for name in ("value", "low", "high"))],
    )
    axis = alt.Axis(format="%")
    point = base.mark_point(filled=True, size=60).encode(
        x=alt.X("value:Q", title="share of the victim's work", axis=axis)
    )
    interval = base.mark_rule().encode(x=alt.X("low:Q"), x2="high:Q")
    zero = inlined([{"x": 0}]).mark_rule(strokeDash=[4, 4], color=MUTED).encode(x="x:Q")
    drawn: Any = alt.layer(zero, interval, point)
    return drawn.properties(width=WIDTH, height=max(60, 26 * len(rows)))


def timeline(findings: BlameFindings) -> Any:
    """The victim's rate in the first slots, and above them who is pulsed."""
    names, slots = findings.about["names"], findings.slots[:SLOTS_DRAWN]
    begin_ns = slots[0].start_ns
    rates: list[dict[str, Any]] = []
    pulses: list[dict[str, Any]] = []
    for slot in slots:
        at, end = ((slot.start_ns - begin_ns) / 1e9, (slot.start_ns - begin_ns + slot.length_ns) / 1e9)
        known = [value for value in slot.ticks if value is not None]
        rates.append({"s": (at + end) / 2, "rate": sum(known) / len(known) if known else None})
        pulses += [
            {"s": at, "end": end, "suspect": name, "depth": depth}
            for name, depth in zip(names, slot.depths, strict=True)
            if depth
        ]
    x = alt.X("s:Q", title="seconds")
    unit = str(findings.about.get("unit", ""))
    line = (
        inlined(rates).mark_line(strokeWidth=1).encode(x=x, y=alt.Y("rate:Q", title=unit, scale=alt.Scale(zero=False)))
    )
    bars = (
        inlined(pulses)
        .mark_rect()
        .encode(
            x=x,
            x2="end:Q",
            y=alt.Y("suspect:N", title=None, axis=alt.Axis(labelLimit=200)),
            opacity=alt.Opacity("depth:Q", legend=None),
        )
    )
    return alt.vconcat(
        bars.properties(width=WIDTH, height=max(40, 14 * len(names))), line.properties(width=WIDTH, height=HEIGHT)
    ).resolve_scale(x="shared")


def all_charts(findings: BlameFindings) -> dict[str, tuple[str, str, Any]]:
    """(title, caption, chart) by id."""
    drawn = {
        "ranking": ("Who takes what", "The share of the victim's work, with its 95 % interval.", ranking(findings))
    }
    if findings.slots:
        caption = f"The first {min(SLOTS_DRAWN, len(findings.slots))} slots: who was pulsed, and the victim's rate."
        drawn["timeline"] = ("Pulses and the victim", caption, timeline(findings))
    return drawn


def render(findings: BlameFindings) -> str:
    """The whole page."""
    drawn = all_charts(findings)
    specs = {identity: page.fluid(chart) for identity, (_, _, chart) in drawn.items() if identity != "timeline"}
    if "timeline" in drawn:
        specs["timeline"] = spec_of(drawn["timeline"][2])
    return page.framed(
        "blame.html.j2",
        specs,
        findings=findings,
        headline=findings.headline,
        notes=list(notes(findings)),
        suspect_columns=SUSPECTS,
        suspects=[_cells(each) for each in findings.suspects],
        help_columns=HELPS,
        helps=_help_cells(findings),
        figures=[(identity, title, caption) for identity, (title, caption, _) in drawn.items()],
        host=page.facts(findings.host),
        json=_json(findings),
    )


def rows(findings: BlameFindings) -> list[dict[str, Any]]:
    """One row for each suspect."""
    return [
        {
            "suspect": each.name,
            "state": str(each.state),
            "taken": each.taken.value,
            "taken_low": each.taken.low,
            "taken_high": each.taken.high,
            "gain": each.gain.value,
            "gain_low": each.gain.low,
            "gain_high": each.gain.high,
            "p": each.p,
            "held": each.held,
            "delay_ns": each.delay_ns,
            "lost": each.lost,
            "use": each.use,
            "correlation": each.correlation,
        }
        for each in findings.suspects
    ]


def _json(findings: BlameFindings) -> str:
    """The findings without the slots, which the record has."""
    return json.dumps(findings.model_dump(mode="json", exclude={"slots", "host"}), indent=2) + "\n"


COMPARED = {
    "taken": ("takes of the victim's work", "%"),
    "gain": ("gain in a pulse", "%"),
    "lost": ("lost of its work", "%"),
}

FILES: Files[BlameFindings] = Files(
    of="a blame",
    show=show,
    documents={"html": ("report.html", render), "json": ("findings.json", _json)},
    rows=rows,
    table="suspects.csv",
    compared=lambda findings: figures_of(rows(findings), ("suspect",), COMPARED),
    charts=lambda findings: {
        identity: titled(chart, title) for identity, (title, _, chart) in all_charts(findings).items()
    },
    headline=lambda findings: findings.headline,
)
"""Formats."""
