"""What an experiment found: who, by how much, what would help, and the verdict in a sentence. Pure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from partywall import units
from partywall.blame.code import Array, Code
from partywall.blame.decide import Look, Rule, Standing, State
from partywall.blame.effects import delayed, outside
from partywall.blame.job import WHOLE, BlameJob
from partywall.blame.paste import paste
from partywall.blame.record import OF_LATENCY, Applied, BlameRecord, Place, Slot, TakenBack
from partywall.blame.through import Dose, Waiting, doses, said, waiting
from partywall.core.report.figures import bare_percent
from partywall.core.report.wording import percent
from partywall.core.stats.estimate import Estimate
from partywall.errors import Problem, TrialError, UsageError
from partywall.values import Frozen

TICKS = 4
HELPS = (0.3, 0.6)
"""The reductions of a suspect for which the gain is predicted."""
MATTERS = 0.05
"""The share of the time from which on the victim's own limit, or the hypervisor, is named."""

UNKNOWN_MOST = 0.5
"""The share of the slots without a report of the victim from which on no verdict is given."""


class Verdict(StrEnum):
    """Who slows the victim down."""

    NEIGHBOUR = "neighbour"
    OWN = "own limit"
    HOST = "host"
    NOBODY = "nobody in the list"
    UNKNOWN = "not known yet"


class Suspect(Frozen):
    """What is known of one suspect. Shares are 0..1.

    gain: of the victim while the suspect is pulsed at the first depth. taken: of what the victim would do without it.
    lost: the share of its work that the suspect lost during the experiment, as measured; None if it did nothing. use:
    its mean use outside of pulses, in CPUs or bytes a second. correlation: of its use with the victim's rate, without
    the experiment's help. doses, waits: of a guilty one, the gain at each depth, and what its pulses let the victim
    wait for less; None if the record does not have it.
    """

    name: str
    state: State
    gain: Estimate
    taken: Estimate
    p: float
    held: float
    delay_ns: int
    lost: float | None
    use: float
    correlation: float | None
    doses: tuple[Dose, ...] = ()
    waits: tuple[Waiting, ...] | None = None


class Help(Frozen):
    """One thing to do: hold a suspect to `use`.

    gain: the victim's, predicted. check: the same from slots that the prediction does not know, None if there are too
    few. text: what to paste, and undo: what takes it back; empty in records of earlier versions.
    """

    suspect: str
    less: float
    use: float
    gain: Estimate
    check: Estimate | None
    text: str
    undo: str = ""


class BlameFindings(Frozen):
    """The findings. seconds: of the experiment. aa: the effect of the dummy suspect, which nobody touched.

    unit, is_weak, left_out, kept: as in the record. ended: why it came to its end; empty if it was interrupted.
    """

    name: str
    started_at: str
    job: BlameJob
    names: tuple[str, ...]
    unit: str
    is_weak: bool
    left_out: tuple[str, ...]
    host: dict[str, Any]
    verdict: Verdict
    headline: str
    suspects: tuple[Suspect, ...]
    helps: tuple[Help, ...]
    aa: Estimate
    aa_fails: bool
    own: float | None
    steal: float
    seconds: float
    needed_s: float | None
    ended: str
    kept: tuple[Applied | TakenBack, ...] = ()
    slots: tuple[Slot, ...] = ()


def rule_of(job: BlameJob, suspects: int) -> Rule:
    """The rule of an experiment on this many suspects."""
    depth, deepest = job.depths
    return Rule(
        Code(suspects + 1, job.seed),
        job.pulse_ns,
        job.budget_ns,
        TICKS,
        least=job.least,
        depth=depth,
        deepest=deepest,
        harm=job.harm,
        moves=job.moves,
    )


def expect_enough(rule: Rule, job: BlameJob) -> None:
    """UsageError if the budget, or what suspects may lose, is over before the first look."""
    if rule.blocks_most >= rule.blocks_least:
        return
    least_s, suspects, pulses = rule.blocks_least * rule.block_s, rule.code.columns - 1, duration(job.pulse_ns / 1e9)
    budget_s, harm = rule.options_for(least_s)
    need = f"{suspects} suspects need {duration(least_s)} with pulses of {pulses}"
    is_short = rule.blocks_in_budget < rule.blocks_least
    lost = f"{need}, in which each may lose {duration(rule.lost_s(rule.blocks_least))} of its work"
    said = f"{duration(rule.budget_s)} is too short: {need}" if is_short else f"{share(job.harm)} is too little: {lost}"
    remedy = f"give {options(job, budget_s, harm)}, fewer suspects or shorter pulses"
    raise UsageError(Problem(said, remedy, key="--budget" if is_short else "--harm"))


def expect_depth(job: BlameJob) -> None:
    """UsageError if a depth is given for a lever that has none."""
    usual = {name: BlameJob.model_fields[name].default for name in ("depth", "deepest")}
    if job.lever in WHOLE and (given := [name for name, value in usual.items() if getattr(job, name) != value]):
        said = f"--lever {job.lever} knows no depth"
        raise UsageError(*(Problem(said, f"leave out --{name}", key=f"--{name}") for name in given))


def share(value: float) -> str:
    """A share as an option has it, such as 2.5%."""
    return f"{100 * value:.3g}%"


def options(job: BlameJob, budget_s: float, harm: float) -> str:
    """What to change in a command, so that it has this budget and this harm; empty if it has them."""
    more = [f"--harm {math.ceil(1000 * harm - 1e-6) / 10:g}%"] if harm > job.harm else []
    more += [f"--budget {math.ceil(budget_s)}s"] if budget_s * 1e9 > job.budget_ns else []
    return " ".join(more)


def duration(seconds: float) -> str:
    """A time with a digit after the point at most."""
    return units.format_duration(round(seconds * 10) * 100_000_000)


def look_at(rule: Rule, names: Sequence[str], slots: Sequence[Slot], before: Collection[str] = ()) -> Look:
    """Judges all suspects from whole blocks of slots. ValueError if there are too few, or the victim did nothing.

    before: suspects that an earlier look has named.
    """
    return rule.look(names, rates_of(slots), _use(slots), _depths(rule, slots), before)


def last_look(rule: Rule, names: Sequence[str], slots: Sequence[Slot]) -> Look:
    """Looks as the experiment did, and after its last whole block. ValueError if that tells nothing."""
    blocks, named = len(slots) // rule.code.block_slots, set[str]()
    for at in (each for each in rule.looks if each < blocks):
        # What is known of the victim may be too little at first.
        with contextlib.suppress(ValueError):
            look = look_at(rule, names, slots[: at * rule.code.block_slots], named)
            named |= {each.suspect for each in look.guilty}
    return look_at(rule, names, slots, named)


def rates_of(slots: Sequence[Slot]) -> Array:
    """The victim's rate by tick; NaN where it is not known."""
    values = np.array([np.nan if value is None else value for slot in slots for value in slot.ticks])
    if not np.isfinite(values).any():
        raise ValueError("the victim's rate is not known in any slot")
    return values


def _unknown(slots: Sequence[Slot]) -> float:
    """The share of slots in which nothing is known of the victim."""
    return float(np.mean([all(value is None for value in slot.ticks) for slot in slots]))


def _use(slots: Sequence[Slot]) -> Array:
    return np.array([slot.use for slot in slots])


def _depths(rule: Rule, slots: Sequence[Slot]) -> Array:
    """Depths as they were. The dummy's pulses are as deep as those of the suspects in the same block."""
    depths, block = np.array([slot.depths for slot in slots]), rule.code.block_slots
    blocks = len(slots) // block
    deep = np.repeat(depths.reshape(blocks, -1).max(axis=1), block)
    return np.column_stack([depths, rule.code.blocks(blocks)[:, -1] * deep])


def findings_of(record: BlameRecord) -> BlameFindings:
    """Derives the findings from a record. TrialError if it has too few slots."""
    job, began = record.job, record.began
    names = began.names
    rule, every = rule_of(job, len(names)), tuple(record.slots())
    whole = every[: len(every) // rule.code.block_slots * rule.code.block_slots]
    try:
        look = last_look(rule, names, whole)
    except ValueError as error:
        raise TrialError(f"{record.path}: nothing can be said: {error}; give it more time") from None
    own = [slot.own for slot in whole if slot.own is not None]
    own_share, steal = (float(np.mean(own)) if own else None), float(np.mean([slot.steal for slot in whole]))
    unknown = _unknown(whole)
    verdict, places = _verdict(look, own_share, steal, unknown), dict(zip(names, began.places, strict=False))
    suspects = tuple(_suspect(each, names.index(each.suspect), whole, rule) for each in look.standings)
    return BlameFindings(
        name=record.name,
        started_at=str(record.about.get("started_at", "")),
        job=job,
        names=names,
        unit=began.unit,
        is_weak=began.is_weak,
        left_out=began.left_out,
        host=record.host,
        verdict=verdict,
        headline=_headline(verdict, look, own_share, steal, unknown, job, suspects, began.unit),
        suspects=suspects,
        helps=tuple(
            help_
            for each in suspects
            if each.state is State.GUILTY
            for help_ in _helps(each, rule, names, whole, job, places.get(each.name))
        ),
        aa=look.dummy,
        aa_fails=look.dummy_fails,
        own=own_share,
        steal=steal,
        seconds=sum(slot.length_ns for slot in every) / 1e9,
        needed_s=look.seconds_needed,
        ended=record.why(),
        kept=record.kept(),
        slots=every,
    )


def best_help(findings: BlameFindings) -> Help | None:
    """The help that surely gains most; None if none surely gains, or the method does not hold here."""
    helps = findings.helps if findings.verdict is Verdict.NEIGHBOUR else ()
    return max((each for each in helps if each.gain.low > 0), key=lambda each: each.gain.low, default=None)


def _verdict(look: Look, own: float | None, steal: float, unknown: float) -> Verdict:
    """A failed A/A check leaves everything open: something follows a code that touched nobody.

    So does a victim that reports nothing most of the time: why it does not may be a suspect's doing.
    """
    if look.dummy_fails or unknown > UNKNOWN_MOST:
        return Verdict.UNKNOWN
    if look.guilty:
        return Verdict.NEIGHBOUR
    if own is not None and own >= MATTERS and own >= steal:
        return Verdict.OWN
    if steal >= MATTERS:
        return Verdict.HOST
    return Verdict.NOBODY if all(each.state is State.CLEARED for each in look.standings) else Verdict.UNKNOWN


def _headline(
    verdict: Verdict,
    look: Look,
    own: float | None,
    steal: float,
    unknown: float,
    job: BlameJob,
    suspects: Sequence[Suspect],
    unit: str,
) -> str:
    match verdict:
        case Verdict.NEIGHBOUR:
            named = ", ".join(_harm(each, unit) for each in look.guilty)
            first = next(each for each in suspects if each.state is State.GUILTY)
            return named if first.waits is None else f"{named}, through {said(first.waits, job.lever)}"
        case Verdict.OWN:
            share = bare_percent(own or 0.0, 0)
            return f"The victim's own limit stops it for {share} of the time; no neighbour was found guilty"
        case Verdict.HOST:
            return f"The hypervisor takes {bare_percent(steal, 0)} of this host's time; no neighbour was found guilty"
        case Verdict.NOBODY:
            return f"Nobody in the list takes {bare_percent(job.least)} or more of the victim's work"
        case _:
            why = "the A/A check fails: the victim follows a code that touched nobody" if look.dummy_fails else ""
            if unknown > UNKNOWN_MOST:
                longer = duration(3 * job.pulse_ns / 1e9).replace(" ", "")
                why = why or f"the victim said nothing in {bare_percent(unknown, 0)} of the slots; try --pulse {longer}"
            unheld = [each.suspect for each in look.standings if each.state is State.UNHELD]
            why = why or (f"the lever does not hold {', '.join(unheld[:3])}" if unheld else "")
            needed = look.seconds_needed
            time = f"about {units.format_duration(round(needed) * 10**9)} would be needed" if needed else ""
            return f"Not known yet after {look.seconds:.0f} s; {why or time or 'give it more time'}"


def _harm(each: Standing, unit: str) -> str:
    """What a guilty suspect does to the victim, in the victim's terms: the rate of latencies is one by their mean."""
    if unit == OF_LATENCY:
        return f"without {each.suspect}, requests would take {percent(each.taken)} less time"
    return f"{each.suspect} takes {percent(each.taken)} of the victim's work"


def _suspect(standing: Standing, at: int, slots: Sequence[Slot], rule: Rule) -> Suspect:
    use, depth = (np.array([getattr(slot, name)[at] for slot in slots]) for name in ("use", "depths"))
    open_ = use[depth == 0]
    free = float(open_.mean()) if len(open_) else 0.0
    rate = np.array(
        [np.nan if None in slot.ticks else np.mean([v for v in slot.ticks if v is not None]) for slot in slots]
    )
    seen = np.isfinite(rate) & (depth == 0)
    block, delay = rule.code.block_slots, standing.delay_ns * rule.per_slot // rule.slot_ns
    is_guilty = standing.state is State.GUILTY
    varies = seen.sum() > 2 and use[seen].std() > 0 and rate[seen].std() > 0
    return Suspect(
        name=standing.suspect,
        state=standing.state,
        gain=standing.gain,
        taken=standing.taken,
        p=standing.p,
        held=standing.held,
        delay_ns=standing.delay_ns,
        lost=max(0.0, 1 - float(use.mean()) / free) if free > 0 else None,
        use=free,
        correlation=float(np.corrcoef(use[seen], rate[seen])[0, 1]) if varies else None,
        doses=doses(rates_of(slots), slots, at, block, delay) if is_guilty else (),
        waits=waiting(slots, at, block, delay, TICKS) if is_guilty and slots[0].waits else None,
    )


def _helps(
    suspect: Suspect, rule: Rule, names: Sequence[str], slots: Sequence[Slot], job: BlameJob, place: Place | None
) -> list[Help]:
    """Predictions from the first two thirds of the blocks, checked with the last third.

    Effects are shares of the mean rate, which pulses have raised; a gain is a share of the rate without them.
    """
    block = rule.code.block_slots
    at, cut = names.index(suspect.name), len(slots) // block * 2 // 3 * block
    known, held_out, whole = (_full(rule, part, at, suspect.delay_ns) for part in (slots[:cut], slots[cut:], slots))
    if whole is None:
        return []
    is_disk, depth = job.lever == "disk", float(np.mean([slot.depths[at] for slot in slots]))
    by = 1 / suspect.held / outside(whole.value, depth)
    return [
        Help(
            suspect=suspect.name,
            less=less,
            use=suspect.use * (1 - less),
            gain=(known or whole).scaled(less * by),
            check=None if known is None or held_out is None else held_out.scaled(less * by),
            text=""
            if place is None
            else paste(place, suspect.use * (1 - less), (place.device or job.device) if is_disk else ""),
            undo="" if place is None or job.lever == "freeze" else place.undo,
        )
        for less in ((1.0,) if job.moves else HELPS)
    ]


def _full(rule: Rule, slots: Sequence[Slot], at: int, delay_ns: int) -> Estimate | None:
    """The effect of one suspect at full depth and its delay, from some slots; None if they are too few."""
    depths = np.array([slot.depths for slot in slots])
    delay = delay_ns * rule.per_slot // rule.slot_ns
    try:
        return delayed(rates_of(slots), depths, rule.code.block_slots, delay, rule.per_slot).estimate(at)
    except ValueError:
        return None
