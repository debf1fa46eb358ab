"""What became of a row, computed from recorded results and benchmarks. Nobody writes it down. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from benches.results import Claim, Result
from benches.results import of as latest
from labs.papers.recorded import Recorded, Shown, paper_of
from labs.papers.rows import PaperRows, Row
from partywall.core.report import figures
from partywall.study.agreement import ALIKE, SIZE, Agreement, Bounded, Comparison, Pair, judge, sentence
from partywall.study.paper import Measured, Place
from partywall.units import counted

MOST = 100.0
ALL = 0.995
OVER = " over "
ITSELF = " by itself"
FEWEST = 3
"""Blocks below which a result decides nothing."""
SMALL = SIZE * ALIKE
"""An effect that the paper states without a size is excluded if none above this share is possible."""


class Outcome(StrEnum):
    REPRODUCED = "reproduced"
    OTHER_SIZE = "another size"
    CONTRADICTED = "contradicted"
    MIXED = "differs by set-up"
    BOUNDED_ALIKE = "bounded: alike"
    BOUNDED_SMALLER = "bounded: smaller"
    UNTOLD = "not distinguished"
    MODELLED = "only modelled"
    GIVEN = "by construction"
    UNAVAILABLE = "cannot be had"
    UNRECORDED = "not recorded"
    BAR = "bar met"
    SHOWN = "in use"
    REPLACED = "replaced"
    MISSED = "bar missed"
    BEYOND = "beyond the paper"


OF_RESULTS = (
    Outcome.REPRODUCED,
    Outcome.OTHER_SIZE,
    Outcome.CONTRADICTED,
    Outcome.MIXED,
    Outcome.BOUNDED_ALIKE,
    Outcome.BOUNDED_SMALLER,
    Outcome.UNTOLD,
    Outcome.MODELLED,
    Outcome.GIVEN,
    Outcome.UNAVAILABLE,
    Outcome.UNRECORDED,
    Outcome.BAR,
    Outcome.MISSED,
)
"""What can become of a statement with a result."""


@dataclass(frozen=True)
class Benches:
    """What benchmarks found last. claims: their bars, by benchmark."""

    results: Sequence[Result]
    claims: Mapping[str, Sequence[Claim]]

    def last(self, by: str) -> tuple[Claim, Result] | None:
        """The decisive bar of `bench NAME` or `bench NAME: PART`: a missed one, if any; None without a result."""
        name, _, part = by.removeprefix("bench ").partition(": ")
        own = [claim for claim in self.claims.get(name, ()) if not part or claim.part == part]
        found = [(claim, result) for claim in own if (result := latest(self.results, claim))]
        return min(found, key=lambda each: bool(each[1].met), default=None)


@dataclass(frozen=True)
class Evidence:
    """Comparisons of one recorded table or figure that a row is about."""

    recorded: Recorded
    shown: Shown
    points: tuple[Measured, ...]
    pairs: tuple[Comparison, ...]

    @property
    def blocks(self) -> int:
        return min(point.n or 0 for point in self.points)


@dataclass(frozen=True)
class Stated:
    """A row with its outcome. why: what decided it, for people. evidence: what it was computed from."""

    row: Row
    outcome: Outcome
    why: str
    evidence: tuple[Evidence, ...] = ()
    deviations: tuple[int, ...] = ()


def state(rows: PaperRows, recorded: Sequence[Recorded], benches: Benches) -> tuple[Stated, ...]:
    """The rows of a paper with their outcomes."""
    return tuple(_stated(rows, row, recorded, benches) for row in rows.rows)


def _stated(rows: PaperRows, row: Row, recorded: Sequence[Recorded], benches: Benches) -> Stated:
    mine = [each for by in row.by for each in recorded if each.is_of(by)]
    if row.kind == "result" and row.exhibits:
        outcome, why, evidence = _of_result(row, mine)
    else:
        evidence = ()
        outcome, why = _of_use(row, mine, benches)
    if row.kind == "beyond":
        outcome, why = Outcome.BEYOND, f"{outcome}: {why}"
    shown = why if not row.lacks else f"{why}; not shown: {row.lacks}" if row.by else row.lacks
    return Stated(row, outcome, shown, evidence, tuple(_deviations(rows, row, mine)))


def _deviations(rows: PaperRows, row: Row, mine: Sequence[Recorded]) -> Iterator[int]:
    """Numbers of the deviations that apply to the recorded figures of a row. The rule is the same for all rows."""
    for number, deviation in enumerate(rows.deviations, start=1):
        names = {
            f"{each.beside}: {exhibit}" for each in mine for exhibit in row.exhibits if _is_in(deviation.backend, each)
        }
        if any(fnmatchcase(name, pattern) for name in names for pattern in deviation.of):
            yield number


def _is_in(backend: str | None, each: Recorded) -> bool:
    return backend is None or backend == each.backend


# Results


def _of_result(row: Row, mine: Sequence[Recorded]) -> tuple[Outcome, str, tuple[Evidence, ...]]:
    evidence, lacking = [], []
    for exhibit in row.exhibits:
        found, why = _evidence(row, exhibit, mine)
        evidence += [found] if found else []
        lacking += [why] if why else []
    there = [point.place for each in evidence for point in each.points]
    absent = [pattern for pattern in _single(row) if not any(_fits(place, pattern) for place in there)]
    lacking += [f"{', '.join(row.exhibits)}: recorded without {', '.join(absent)}"] if absent and not lacking else []
    if lacking:
        if row.tried:
            return Outcome.UNAVAILABLE, row.tried, tuple(evidence)
        return Outcome.UNRECORDED, "; ".join(dict.fromkeys(lacking)), tuple(evidence)
    if any(point.simulated for each in evidence for point in each.points):
        said = "the meter is simulated from the paper's own table, so it can confirm nothing"
        return Outcome.MODELLED, said, tuple(evidence)
    if row.given:
        return Outcome.GIVEN, row.given, tuple(evidence)
    return _of_sources(row, evidence, _others(row, mine, evidence))


def _of_sources(
    row: Row, evidence: Sequence[Evidence], others: Sequence[Sequence[Evidence]]
) -> tuple[Outcome, str, tuple[Evidence, ...]]:
    """The outcome of the first source, or if it cannot tell, of the next that can and compares as much.

    A set-up that is too noisy for a statement does not take back what another one, recorded too, says of it.
    """
    judged = [(evidence, *_judged(row, evidence))]
    decided = {_decided(judged[0][1])}
    # A cause was found in one set-up.
    elsewhere = row.model_copy(update={"cause": ""})
    for each in others:
        judged.append((each, *_judged(elsewhere, each)))
        exhibits = {one.shown.exhibit for one in each}
        same, _ = _judged(row, [one for one in evidence if one.shown.exhibit in exhibits])
        decided |= {_decided(judged[-1][1])} if _decided(judged[-1][1]) != _decided(same) else set()
    able = (at for at, (each, of, _) in enumerate(judged) if of is not Outcome.UNTOLD and _as_much(each, evidence))
    judged.insert(0, judged.pop(next(able, 0)))
    _, outcome, why = judged[0]
    if len(judged) > 1:
        rest = (f"{_where(each[0])}: {other}, {said}" for each, other, said in judged[1:])
        why = "; ".join([f"{_where(judged[0][0][0])}: {why}", *rest])
    mixed = {Outcome.REPRODUCED, Outcome.CONTRADICTED} <= decided
    every = tuple(one for each, _, _ in judged for one in each)
    return Outcome.MIXED if mixed else outcome, why, every


def _as_much(one: Sequence[Evidence], other: Sequence[Evidence]) -> bool:
    """Whether a source has every comparison that another one has."""
    own, wanted = ({(each.shown.exhibit, pair.places) for each in of for pair in each.pairs} for of in (one, other))
    return wanted <= own


def _decided(outcome: Outcome) -> Outcome:
    """The direction that an outcome has, if it has one."""
    return Outcome.REPRODUCED if outcome is Outcome.OTHER_SIZE else outcome


def _others(row: Row, mine: Sequence[Recorded], evidence: Sequence[Evidence]) -> list[list[Evidence]]:
    """What a row's other sources have of it, by source: one that decides is not shown alone if another is there."""
    used = {(each.shown.exhibit, id(each.recorded)) for each in evidence}
    found: dict[int, list[Evidence]] = {}
    for each in mine:
        for exhibit in row.exhibits:
            shown = each.shown(exhibit)
            if shown is None or not shown.measured or (exhibit, id(each)) in used:
                continue
            one, _ = _of_source(row, each, shown)
            if one and not any(point.simulated for point in one.points):
                found.setdefault(id(each), []).append(one)
    return list(found.values())


def _where(evidence: Evidence) -> str:
    """The set-up of a source, for people."""
    recorded = evidence.recorded
    own = f"in {recorded.backend}" if recorded.backend else "in the study's own sandboxes"
    return f"by `{recorded.sandboxes}`" if recorded.by else own


def _evidence(row: Row, exhibit: str, mine: Sequence[Recorded]) -> tuple[Evidence | None, str]:
    """The first of a row's sources that has its quantity with enough blocks; and what is lacking if none has."""
    lacking = f"no result of {exhibit} is recorded"
    for each in mine:
        shown = each.shown(exhibit)
        if shown is None or not shown.measured:
            continue
        found, lacking = _of_source(row, each, shown)
        if found:
            return found, ""
    return None, lacking


def _of_source(row: Row, each: Recorded, shown: Shown) -> tuple[Evidence | None, str]:
    beside = shown.beside(paper_of(each.beside))
    pairs = tuple(pair for pair in judge(beside).pairs if _is_about(row, pair))
    if not pairs:
        what = f"of {', '.join(row.places)} " if row.places else ""
        return None, f"{shown.exhibit}: no comparison {what}is recorded"
    points = tuple(beside.points[place] for place in dict.fromkeys(place for pair in pairs for place in pair.places))
    found = Evidence(each, shown, points, pairs)
    if found.blocks < FEWEST:
        return None, f"{shown.exhibit}: recorded with {counted(found.blocks, 'block')}, and {FEWEST} are needed"
    return found, ""


def _is_about(row: Row, pair: Comparison) -> bool:
    """Whether a row's statement is about a comparison: one that it names, or one with a place that it names."""
    near = [pattern for pattern in row.places if not _is_whole(pattern)]
    return (
        not row.places
        or _is_named(row, pair)
        or any(_fits(place, pattern) for pattern in near for place in pair.places)
    )


def _is_named(row: Row, pair: Comparison) -> bool:
    """Whether a row names a comparison: two places as 'A over B', or the bound of one as 'A by itself'."""
    text = OVER.join(map(str, pair.places)) if isinstance(pair, Pair) else f"{pair.places[0]}{ITSELF}"
    return any(fnmatchcase(text, pattern) for pattern in row.places if _is_whole(pattern))


def _is_whole(pattern: str) -> bool:
    return OVER in pattern or pattern.endswith(ITSELF)


def _single(row: Row) -> list[str]:
    """The patterns of a row's places, one for each place."""
    return [part for pattern in row.places for part in pattern.removesuffix(ITSELF).split(OVER)]


def _fits(place: Place, pattern: str) -> bool:
    return fnmatchcase(str(place), pattern)


def _judged(row: Row, evidence: Sequence[Evidence]) -> tuple[Outcome, str]:
    """The outcome of one source. Steps inside a series count only if the row names them, or if nothing else is stated.

    The tenants of a figure are no axis from first to last: a statement about the second is no step between the others.
    """
    pairs = [(each, pair) for each in evidence for pair in each.pairs]
    main = [(each, pair) for each, pair in pairs if pair.main or _is_named(row, pair)] or pairs
    agreements = [pair.agreement for _, pair in main]
    against = [(each, pair) for each, pair in main if pair.agreement is Agreement.CONTRADICTS]
    agree = f"{sum(each.same_direction for each in agreements)} of {counted(len(main), 'comparison')} as in the paper"
    if sum(each is Agreement.AGREES for each in agreements) < sum(each.same_direction for each in agreements):
        agree += ", some of another size"
    if against:
        whys = dict.fromkeys(why for each, _ in against for why in each.shown.why)
        cause = row.cause or "; ".join(whys)
        said = f"{agree}; {_said(*against[0])}"
        return Outcome.CONTRADICTED, f"{said}. {f'Cause: {cause}' if cause else 'The cause is not shown'}"
    untold = [(each, pair) for each, pair in main if pair.agreement is Agreement.UNTOLD]
    if not untold:
        sized = [(each, pair) for each, pair in main if pair.agreement is Agreement.OTHER_SIZE]
        return (Outcome.OTHER_SIZE, f"{agree}; {_said(*sized[0])}") if sized else (Outcome.REPRODUCED, agree)
    bounds = [bound_of(pair) for _, pair in untold]
    worst = max(range(len(untold)), key=lambda at: bounds[at][1])
    outcome = Outcome.UNTOLD
    if all(small for small, _ in bounds):
        effects = any(isinstance(pair, Pair) and pair.direction for _, pair in untold)
        outcome = Outcome.BOUNDED_SMALLER if effects else Outcome.BOUNDED_ALIKE
    return outcome, f"{agree}; {_said(*untold[worst])}: {excluded(untold[worst][1])}"


def _said(evidence: Evidence, pair: Comparison) -> str:
    """A comparison with the quantity that it is about: 'mean disk queue: sandbox at 150 over sandbox at 25: …'."""
    title = paper_of(evidence.recorded.beside).table(evidence.shown.exhibit).y.title
    return f"{title}: {sentence(pair)}"


def bound_of(pair: Comparison) -> tuple[bool, float]:
    """Whether an undecided comparison excludes the paper's effect, and the smallest effect that it excludes.

    An effect of the published size is excluded if at most half of it is possible, as a difference of less than half is
    one of another size. Without a size, and where the paper has no effect, at most a fifth may be possible.
    """
    if isinstance(pair, Bounded):
        beyond = max(_beyond(pair.measured.high, pair.bound.high), _beyond(pair.bound.low, pair.measured.low))
        return beyond <= ALIKE, beyond
    _, low, high = pair.measured
    possible = {1: high - 1, -1: 1 - low, 0: max(high - 1, 1 - low)}[pair.direction]
    published = pair.published.value if pair.published and pair.direction else None
    return possible <= (SMALL if published is None else abs(published - 1) / SIZE), possible


def _beyond(above: float, limit: float) -> float:
    """By which share of the lower one a number is above another; 0 if it is not, or if there is no limit."""
    if above <= limit or not (math.isfinite(above) and math.isfinite(limit)):
        return 0.0
    return (above - limit) / abs(limit) if limit else math.inf


def excluded(pair: Comparison) -> str:
    """'an increase above 8 % is excluded'."""
    _, possible = bound_of(pair)
    direction = None if isinstance(pair, Bounded) else pair.direction
    # More than all of it cannot be taken away, and what may have grown a hundredfold is not bounded.
    if possible >= MOST or (direction == -1 and possible >= ALL):
        return "no size of the effect is excluded"
    what = {1: "an increase", -1: "a decrease", 0: "a difference", None: "a breach"}[direction]
    return (
        f"{what} above {100 * possible:.2g} % is excluded"
        if possible < 1
        else f"{what} to more than {possible + 1:.3g} times is excluded"
    )


# Methods and set-ups


def _of_use(row: Row, mine: Sequence[Recorded], benches: Benches) -> tuple[Outcome, str]:
    """Of what the paper prints no result of: whether a recorded result or a benchmark that met its bar uses it."""
    last = {by: found for by in row.by if by.startswith("bench ") and (found := benches.last(by))}
    missed = [(by, found) for by, found in last.items() if not found[1].met]
    if missed:
        by, (claim, result) = missed[0]
        return Outcome.MISSED, f"{by.removeprefix('bench ')} needs {claim.bar}, and found {result.figure}"
    used = [name for each in mine if (name := _recorded_text(row, each))]
    used += [_bench_text(by, result) for by, (_, result) in last.items()]
    if used:
        # A bar of a benchmark is not a figure of the paper.
        outcome = Outcome.BAR if row.kind == "result" else Outcome.REPLACED if row.instead else Outcome.SHOWN
        return outcome, "; ".join(filter(None, [row.instead, ", ".join(used)]))
    if row.tried:
        return Outcome.UNAVAILABLE, row.tried
    if row.by and all(by.startswith("test ") for by in row.by):
        return Outcome.UNRECORDED, "only tests show it"
    return Outcome.UNRECORDED, "no result of it is recorded" if row.by else row.lacks


def _recorded_text(row: Row, each: Recorded) -> str:
    """A recorded result that has the row's figures, or any if it names none."""
    shown = [exhibit for exhibit in each.exhibits if exhibit.measured]
    names = {exhibit.exhibit for exhibit in shown}
    if not shown or not set(row.exhibits) <= names:
        return ""
    own = [exhibit for exhibit in shown if exhibit.exhibit in row.exhibits] or shown
    if any(
        not any(_fits(point.place, pattern) for exhibit in own for point in exhibit.measured)
        for pattern in _single(row)
    ):
        return ""
    return f"{each.study} ({each.sandboxes})" if each.sandboxes else each.study


def _bench_text(by: str, result: Result) -> str:
    short = ", short form" if result.form == "short" else ""
    return f"{by.removeprefix('bench ')} (bar met{short})"


def value_text(point: Measured) -> str:
    """'41.2 ± 0.8 E S'."""
    mark = " S" if point.simulated else ""
    return f"{figures.interval(point.value, point.low, point.high)}{figures.mark(point.emulated)}{mark}"


def pairs_text(pair: Comparison) -> str:
    """One comparison with its agreement."""
    bound = f"; {excluded(pair)}" if isinstance(pair, Pair) and pair.agreement is Agreement.UNTOLD else ""
    return f"{sentence(pair)}: {pair.agreement}{bound}"
