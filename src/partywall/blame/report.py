"""An experiment as a report: what a terminal, a page, a notebook and a spreadsheet show of it. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import partial
from typing import Any

from partywall import units
from partywall.blame.decide import State
from partywall.blame.findings import BlameFindings, Help, Suspect, Verdict, best_help, duration, options, rule_of
from partywall.blame.record import Applied, Standings, TakenBack
from partywall.core.report.figures import bare_percent
from partywall.core.report.value import Chart, Column, On, Report, Row, Table
from partywall.core.report.wording import interval
from partywall.core.stats.estimate import Estimate, Outcome

OUTCOMES = {Verdict.NEIGHBOUR: Outcome.VIOLATED, Verdict.UNKNOWN: Outcome.INCONCLUSIVE}
"""A neighbour that harms the victim is what other commands call violated. All other verdicts hold."""
BADGES = {
    Verdict.NEIGHBOUR: "✗ a neighbour is guilty",
    Verdict.OWN: "✓ no neighbour: its own limit",
    Verdict.HOST: "✓ no neighbour: the hypervisor",
    Verdict.NOBODY: "✓ nobody in the list",
    Verdict.UNKNOWN: "? not known yet",
}
ENDS = {
    "precision": "all suspects were judged",
    "budget": "its time was over",
    "harm": "suspects may have lost as much as --harm allows",
    "": "it was interrupted",
}


def _between(key: str, row: Row) -> str:
    if row.get(key) is None:
        return "–"
    value, low, high = (100 * row[f"{key}{end}"] for end in ("", "_low", "_high"))
    return interval(value, low, high, "%", sign=True)


def _around(share: float, half: float) -> str:
    return interval(100 * share, 100 * (share - half), 100 * (share + half), "%", sign=True)


def _late(row: Row) -> str:
    return units.format_duration(row["delay_ns"]) if row["state"] == State.GUILTY else "–"


def _lost(row: Row) -> str:
    return "–" if row["lost"] is None else f"{row['lost_s']:.1f} s ({bare_percent(row['lost'], 0)})"


SUSPECTS = (
    Column("suspect", "suspect", is_key=True),
    Column("state", "verdict"),
    Column("taken", "takes", "%", text=partial(_between, "taken")),
    Column("gain", "gain in a pulse", "%", text=partial(_between, "gain")),
    Column("lost", "lost", "%", text=_lost),
    Column("held", "held", "%"),
    Column("delay_ns", "late", "ns", on=On.PAGE, text=_late),
    Column("correlation", "correlation", ""),
)
HELPS = (
    Column("suspect", "hold", is_key=True),
    Column("less", "lower by", "%", is_key=True),
    Column("gain", "victim gains", "%", text=partial(_between, "gain")),
    Column("check", "in held-out slots", "%", text=partial(_between, "check")),
    Column("text", "command"),
)
DOSES = (
    Column("suspect", "suspect", is_key=True),
    Column("depth", "pulses", "%", is_key=True),
    Column("gain", "gain in these pulses", "%", text=partial(_between, "gain")),
)
WAITS = (
    Column("suspect", "suspect", is_key=True),
    Column("resource", "victim waits for", is_key=True),
    Column("less", "less by", "%", text=partial(_between, "less")),
)
LIVE = (
    Column("suspect", "suspect", is_key=True),
    Column("state", "verdict"),
    Column("taken", "takes", "%", text=lambda row: _around(row["taken"], row["half"])),
)
TERMS = {
    "Guilty": "The victim gains while this suspect is pulsed, more than chance explains. An innocent suspect is named "
    "in at most 5 % of experiments.",
    "Cleared": "The suspect takes less than --least.",
    "Open": "Neither is known yet. More time narrows the interval.",
    "Unheld": "The lever did not slow the suspect down, so its pulses say nothing.",
    "Takes": "The share of what the victim would do without the suspect, if the effect is proportional to what the "
    "suspect does.",
    "Lost, held": "What the suspect lost of its work during the experiment, in seconds and as a share, and the part of "
    "a pulse's depth that reached it. --harm bounds the seconds.",
    "Correlation": "Of the suspect's use with the victim's rate outside of its pulses: what a detector that only "
    "watches would see.",
    "A/A check": "A dummy suspect has a code like the others, but nobody touches it. If the victim follows its code, "
    "no verdict is given.",
}


def report(findings: BlameFindings) -> Report:
    """Everything that an experiment found."""
    helps = [_help(each) for each in findings.helps]
    lead = "Predicted from the first two thirds of the pulses; beside it the same from the last third."
    return Report(
        findings.headline,
        OUTCOMES.get(findings.verdict, Outcome.HOLDS),
        goals=1,
        badge=BADGES[findings.verdict],
        sections=(
            Table("suspects", "Suspects", SUSPECTS, [_suspect(each, findings.seconds) for each in findings.suspects]),
            *([Table("helps", "What helps", HELPS, helps, lead=lead, in_rows=False)] if helps else []),
            *_through(findings),
            *_charts(findings),
        ),
        notes=tuple(_notes(findings)),
        terms=TERMS,
        values={
            "verdict": findings.verdict,
            "seconds": findings.seconds,
            "needed_s": _round(findings.needed_s),
            "own": _round(findings.own),
            "steal": _round(findings.steal),
            "ended": findings.ended,
            **_ends("aa", findings.aa),
            "aa_fails": findings.aa_fails,
            "helps": helps,
            "job": findings.job,
        },
        name=findings.name,
        started_at=findings.started_at,
        host=findings.host,
    )


def live(seen: Any) -> Report | None:
    """What is known while the experiment goes on."""
    if not isinstance(seen, Standings):
        return None
    rows = [{"suspect": name, "state": state, "taken": taken, "half": half} for name, state, taken, half in seen.rows]
    name, state, taken, half = seen.rows[0]
    said = f"{name} {state} {_around(taken, half)}"
    return Report(f"after {seen.seconds:.0f} s: {said}", sections=(Table("suspects", "Suspects", LIVE, rows, brief=8),))


def _ends(key: str, estimate: Estimate | None) -> dict[str, float | None]:
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {key + end: None if estimate is None else _round(getattr(estimate, name)) for end, name in ends.items()}


def _round(value: float | None) -> float | None:
    """Six digits: further ones depend on the processor."""
    return None if value is None else float(f"{value:.6g}")


def _suspect(each: Suspect, seconds: float) -> dict[str, Any]:
    return {
        "suspect": each.name,
        "state": str(each.state),
        **_ends("taken", each.taken),
        **_ends("gain", each.gain),
        "p": _round(each.p),
        "held": _round(each.held),
        "delay_ns": each.delay_ns,
        "lost": _round(each.lost),
        "lost_s": None if each.lost is None else _round(each.lost * seconds),
        "use": _round(each.use),
        "correlation": _round(each.correlation),
    }


def _help(each: Help) -> dict[str, Any]:
    ends = _ends("gain", each.gain) | _ends("check", each.check)
    return {
        "suspect": each.suspect,
        "less": each.less,
        "use": _round(each.use),
        **ends,
        "text": each.text,
        "undo": each.undo,
    }


def _through(findings: BlameFindings) -> Iterator[Table]:
    """Through what guilty suspects harm the victim."""
    doses = [
        {"suspect": each.name, "depth": dose.depth, **_ends("gain", dose.gain)}
        for each in findings.suspects
        for dose in each.doses
    ]
    waits = [
        {"suspect": each.name, "resource": wait.resource, **_ends("less", wait.less)}
        for each in findings.suspects
        for wait in each.waits or ()
    ]
    if doses:
        lead = "The victim's gain while the suspect is pulsed, by depth."
        yield Table("doses", "Dose curve", DOSES, doses, lead=lead, in_rows=False)
    if waits:
        lead = "Shares of the time, at full depth: what the victim, or some task of the host, waits for less."
        yield Table("waits", "Through what", WAITS, waits, lead=lead, in_rows=False)


def _notes(findings: BlameFindings) -> Iterator[str]:
    """What a reader must know about the figures."""
    if (best := best_help(findings)) and best.text:
        yield from _advice(best, findings)
    aa = _between("aa", _ends("aa", findings.aa))
    yield f"A/A check {'fails' if findings.aa_fails else 'passes'}: the dummy suspect has an effect of {aa}"
    yield f"it ended after {findings.seconds:.0f} s, because {ENDS[findings.ended]}"
    if findings.needed_s:
        yield _again(findings, findings.needed_s)
    if findings.is_weak:
        yield "the victim's rate only says how long it waited for a CPU: harm through memory or disks is not seen"
    if findings.own:
        yield f"the victim's own limit stopped it for {bare_percent(findings.own)} of the time"
    if findings.steal >= 0.01:
        yield f"the hypervisor took {bare_percent(findings.steal)} of the host's time"
    yield from (_kept(each) for each in findings.kept)
    yield from (f"not touched: {text}" for text in findings.left_out)


def _advice(best: Help, findings: BlameFindings) -> Iterator[str]:
    """What to do now, what it costs, and how to take it back."""
    gain = _between("gain", _ends("gain", best.gain))
    costs, stays = bare_percent(best.less, 0), bare_percent(1 - best.less, 0)
    loses = "moves to other CPUs, where others may lose" if findings.job.moves else f"loses {costs} of its work"
    said = f"the victim gains {gain}; {best.suspect} {loses}, and {stays} of the harm stays"
    yield f"to do now: {best.text} ({said})"
    if best.undo:
        yield f"to undo that: {best.undo}"
    if not findings.kept:
        yield "or let the same command do it, and take it back after 2 hours: add --apply --until 2h"


def _again(findings: BlameFindings, needed_s: float) -> str:
    """What to do to have those judged who are not."""
    more = options(findings.job, *rule_of(findings.job, len(findings.names)).options_for(needed_s))
    names = [each.name for each in findings.suspects if each.state is State.OPEN]
    said = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} open; for a verdict, give the same command"
    return f"{said}{f' with {more}' if more else ''}: about {duration(round(needed_s))} in all"


def _kept(line: Applied | TakenBack) -> str:
    if isinstance(line, TakenBack):
        return f"{_when(line.at_ns)}: the limit of {line.suspect} was taken back"
    until = f" until {_when(line.until_ns)}" if line.until_ns else ""
    at = f"at {line.limit:.4g}" if line.limit else "on other CPUs"
    return f"{_when(line.at_ns)}: {line.suspect} is kept {at}{until}: {line.writes}"


def _when(at_ns: int) -> str:
    return datetime.datetime.fromtimestamp(at_ns // 10**9, datetime.UTC).isoformat(sep=" ").replace("+00:00", " UTC")


def _charts(findings: BlameFindings) -> Iterator[Chart]:
    def drawn(name: str) -> Any:
        from partywall.blame import charts  # noqa: PLC0415 - Altair is slow to import

        return getattr(charts, name)(findings)

    yield Chart("ranking", "Who takes what", "With 95 % intervals.", partial(drawn, "ranking"))
    yield Chart("pulses", "Pulses", "The first slots. Darker: deeper.", partial(drawn, "pulses"))
    yield Chart("rate", "The victim", "Its rate in the same slots.", partial(drawn, "rate"))
