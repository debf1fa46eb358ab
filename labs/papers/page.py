"""docs/papers.md, one screen for each paper, and docs/papers/NAME.md with its rows, figures and tables. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from labs.papers.outcome import OF_RESULTS, Outcome, Stated, pairs_text
from labs.papers.recorded import Recorded, Shown, paper_of, study_of
from labs.papers.rows import PaperRows, command
from partywall.core.report import figures
from partywall.study import isolation
from partywall.study.agreement import best_text, judge
from partywall.study.exhibits import SIMULATED, measured_text, x_text
from partywall.study.paper import Measured, Number, Paper, PaperTable, Place
from partywall.units import counted

WIDTH = 120
"""Characters in a line of prose."""
NOTHING = "–"


def wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in rows)


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


# The first page


def overview(stated: Mapping[str, tuple[PaperRows, Sequence[Stated]]]) -> str:
    """The generated part of docs/papers.md: what the papers found, paper by paper, and then all rows counted."""
    by_paper = [(_short(rows), each) for rows, each in stated.values()]
    results = [(title, [row for row in each if row.row.kind == "result"]) for title, each in by_paper]
    others = [(title, [row for row in each if row.row.kind != "result"]) for title, each in by_paper]
    return "\n\n".join(
        [
            "## Statements with a result",
            _counts("statements", results),
            *(part for rows, each in stated.values() for part in _screen(rows, each)),
            "## Methods, set-ups and what is beyond the papers",
            _counts("rows", others),
        ]
    )


def _counts(what: str, by_paper: Sequence[tuple[str, Sequence[Stated]]]) -> str:
    """How many rows of each paper have which outcome, without outcomes that none has."""
    every = [row for _, each in by_paper for row in each]
    there = [outcome for outcome in Outcome if any(row.outcome is outcome for row in every)]
    lines = [
        [title, len(each), *(sum(row.outcome is outcome for row in each) for outcome in there)]
        for title, each in (*by_paper, ("all", every))
    ]
    return table(["paper", what, *there], lines)


def _short(rows: PaperRows) -> str:
    return f"[{rows.title.partition(':')[0]}](papers/{rows.name}.md)"


def _screen(rows: PaperRows, stated: Sequence[Stated]) -> Iterator[str]:
    """What became of a paper's main findings, on one screen."""
    yield f"## {rows.title}"
    yield wrapped(_paragraph(stated))
    main = [each for each in stated if each.row.main]
    lines = [[each.row.id, _finding(each), f"**{each.outcome}**", _first(each.why)] for each in main]
    yield table(["row", "main finding of the paper", "outcome", "here"], lines)
    page = f"papers/{rows.name}.md"
    what = f"{counted(len(rows.deviations), 'thing')} that differ from the paper"
    differs = f"[{what}]({page}#what-differs-from-the-paper)"
    yield f"[All {len(stated)} rows, figures and tables]({page}){f', and {differs}' if rows.deviations else ''}"


def _paragraph(stated: Sequence[Stated]) -> str:
    """Which main findings hold, in words, and how many of the others turned out how."""
    main = [each for each in stated if each.row.main and each.row.kind == "result"]
    held = [f"{each.row.item} ({each.row.id})" for each in main if each.outcome is Outcome.REPRODUCED]
    others = ", ".join(
        f"{number} {outcome}"
        for outcome in OF_RESULTS
        if outcome is not Outcome.REPRODUCED and (number := sum(each.outcome is outcome for each in main))
    )
    said = f"{len(held)} of {counted(len(main), 'main finding')} reproduced{': ' if held else ''}{'; '.join(held)}."
    return f"{said} The others: {others}." if others else said


def _finding(each: Stated) -> str:
    """A main finding for those who know the paper and nothing else."""
    return f"{each.row.item}: {each.row.says}" if each.row.says else each.row.item


def _first(text: str, most: int = 400) -> str:
    """As much as fits a cell; the whole is on the paper's page."""
    return text if len(text) <= most else f"{text[:most].rsplit(' ', 1)[0]} …"


# A paper's page


def details(rows: PaperRows, stated: Sequence[Stated], recorded: Sequence[Recorded]) -> str:
    """docs/papers/NAME.md."""
    own = [each for each in recorded if each.beside in rows.studies]
    parts = [f"# {rows.title}", HEAD, *_deviations(rows), "## Rows", _rows(stated)]
    appendix: list[str] = []
    for name in rows.studies:
        paper = paper_of(name)
        results = [each for each in own if each.beside == name]
        parts += _study(paper, name, results)
        appendix += _without_statement(paper, results)
    if appendix:
        parts += ["## Metrics without a result in the paper", *appendix]
    return "\n\n".join(parts) + "\n"


HEAD = """\
[All papers, and what the outcomes mean](../papers.md). `make generate` writes this page from the recorded results. The
numbers under *differs* are those of the list below.
""".strip()


def _deviations(rows: PaperRows) -> Iterator[str]:
    if rows.deviations:
        yield "## What differs from the paper"
        yield "\n".join(
            textwrap.fill(f"{number}. {each.what}", WIDTH, subsequent_indent="   ", break_long_words=False)
            for number, each in enumerate(rows.deviations, start=1)
        )


def _statement(each: Stated) -> str:
    """What the paper says: the row's own words, or those of its figures' files."""
    if each.row.says or not each.evidence:
        return each.row.says or each.row.item
    said = (paper_of(one.recorded.beside).table(one.shown.exhibit).says for one in each.evidence)
    return "; ".join(dict.fromkeys(filter(None, said))) or each.row.item


def _rows(stated: Sequence[Stated]) -> str:
    head = ["row", "where", "item", "the paper says", "outcome", "here", "n", "sandboxes", "by", "differs"]
    return table(head, [_row(each) for each in stated])


def _row(each: Stated) -> list[object]:
    row = each.row
    shown = ", ".join(f"`{command(by)}`" for by in row.by)
    by = f"{shown} ({', '.join(row.exhibits)})" if row.exhibits else shown
    sandboxes = ", ".join(dict.fromkeys(one.recorded.sandboxes or "the study's own" for one in each.evidence))
    n = str(min((one.blocks for one in each.evidence), default=""))
    statement = _statement(each)
    said = statement if statement != row.item else ""
    differs = ", ".join(map(str, each.deviations))
    return [row.id, row.where, row.item, said, f"**{each.outcome}**", each.why, n, sandboxes, by, differs]


def _study(paper: Paper, name: str, recorded: Sequence[Recorded]) -> Iterator[str]:
    yield f"## `papers/{name}`"
    if not recorded:
        yield "No result is recorded yet. The tables have the published values."
    for each in recorded:
        yield wrapped(_about(each))
    points = [point for each in recorded for shown in each.exhibits for point in shown.measured]
    legend = [figures.EMULATED] if any(point.emulated for point in points) else []
    legend += [SIMULATED] if any(point.simulated for point in points) else []
    if legend:
        yield "\n".join(legend)
    for paper_table in paper.exhibits:
        if paper_table.has_statements:
            yield from _exhibit(paper, paper_table, recorded)
    for each in recorded:
        yield from _grades(each)


def _about(each: Recorded) -> str:
    text = f"{each.column[0].upper()}{each.column[1:]} on {each.when} in the {each.form} form, on {each.host}."
    scale = _scale(each)
    return f"{text} Rates are {scale:g} of the paper's." if scale else text


def _scale(each: Recorded) -> float | None:
    """The factor on all rates of emulated guests, of a study that has one."""
    if not any(point.emulated for shown in each.exhibits for point in shown.measured):
        return None
    study = study_of(each.beside)
    return getattr(study, "emulated_scale", None)


def _exhibit(paper: Paper, paper_table: PaperTable, recorded: Sequence[Recorded]) -> Iterator[str]:
    """A table or figure: the paper's statement, the verdicts, and a line for each place that they are about."""
    found = [(each, shown) for each in recorded if (shown := each.shown(paper_table.id)) and shown.measured]
    yield f"### {paper_table.id}: {paper_table.title}"
    if paper_table.says:
        yield wrapped(f"The paper ({paper_table.where}): {paper_table.says}.")
    for each, shown in found:
        yield wrapped(_verdict(paper, each, shown))
    if not found:
        yield "Not measured."
    lines = list(_places(paper_table, [shown for _, shown in found]))
    if lines:
        columns = ["place", f"published, {_unit(paper_table)}", *(each.column for each, _ in found)]
        yield table(columns, lines)
    yield from (part for each, shown in found for part in _comparisons(paper, each, shown))


def _unit(paper_table: PaperTable) -> str:
    return paper_table.y.unit or paper_table.y.title


def _verdict(paper: Paper, each: Recorded, shown: Shown) -> str:
    beside = shown.beside(paper)
    verdict = judge(beside)
    n = sorted({point.n or 0 for point in shown.measured})
    blocks = f"n = {n[0]}" if len(n) == 1 else f"n = {n[0]} to {n[-1]}"
    paired = "compared within rounds" if shown.paired else "by intervals, because paired ratios are not stored"
    note = f"; {shown.note}" if shown.note else ""
    text = "; ".join(filter(None, [verdict.reason if verdict.pairs else "", best_text(beside), *shown.why]))
    return (
        f"{each.column[0].upper()}{each.column[1:]} ({blocks}, {paired}{note}): **{verdict.likeness}**. {text}".rstrip()
    )


def _places(paper_table: PaperTable, shown: Sequence[Shown]) -> Iterator[list[object]]:
    points = [{point.place: point for point in each.measured} for each in shown]
    measured = dict.fromkeys(place for each in points for place in each)
    claimed = [place for claim in paper_table.claims for place in (claim.left, claim.than)]
    bounded = [place for place in measured if any(bound.covers(place) for bound in paper_table.bounds)]
    every = dict.fromkeys([*paper_table.values, *claimed, *bounded])
    for place in sorted(every, key=lambda place: list(dict.fromkeys(p.series for p in every)).index(place.series)):
        number = paper_table.values.get(place)
        here = [measured_text(each[place]) if place in each else NOTHING for each in points]
        yield [place, NOTHING if number is None else _number(number), *here]


def _number(number: Number) -> str:
    text = str(number.model_copy(update={"inferred": ""}))
    return f"{text} (inferred)" if number.inferred else text


def _comparisons(paper: Paper, each: Recorded, shown: Shown) -> Iterator[str]:
    """Every comparison of a figure, in a list that a reader opens."""
    pairs = judge(shown.beside(paper)).pairs
    if pairs:
        lines = "\n".join(textwrap.fill(f"- {pairs_text(pair)}", WIDTH, subsequent_indent="  ") for pair in pairs)
        yield f"<details><summary>{counted(len(pairs), 'comparison')}, {each.column}</summary>\n\n{lines}\n\n</details>"


def _grades(recorded: Recorded) -> Iterator[str]:
    """The overview of resources, of a study that grades them."""
    if recorded.by:
        return
    study = study_of(recorded.study)
    points = {shown.exhibit: shown.measured for shown in recorded.exhibits}
    if isinstance(study, isolation.Study) and (graded := isolation.overview(study, points)):
        title = f"{graded.title}, {recorded.column}" if recorded.backend else graded.title
        yield wrapped(f"{title}. {graded.lead}")
        yield table(graded.columns, graded.rows)


def _without_statement(paper: Paper, recorded: Sequence[Recorded]) -> Iterator[str]:
    """Metrics that the paper names and shows no result of, a line for each series."""
    lines: list[list[object]] = []
    for paper_table in paper.exhibits:
        if not paper_table.has_statements:
            shown = [each.shown(paper_table.id) for each in recorded]
            series = dict.fromkeys(point.series for each in shown if each for point in each.measured)
            for one in series:
                here = [_series(each.measured if each else (), one) for each in shown]
                lines.append([paper_table.id, one, _unit(paper_table), *here])
    if lines:
        yield table(["metric", "series", "unit", *(each.column for each in recorded)], lines)


def _series(points: Sequence[Measured], series: str) -> str:
    """'50: 41.2 ± 0.8; 150: 43 ± 2'."""
    own = sorted((point for point in points if point.series == series), key=lambda point: _order(point.place))
    grouped = [(text, [x_text(p.place) for p in same]) for text, same in groupby(own, key=measured_text)]
    return "; ".join(f"{', '.join(xs)}: {text}" for text, xs in grouped) or NOTHING


def _order(place: Place) -> tuple[bool, float, str]:
    return (isinstance(place.x, str), place.x if isinstance(place.x, float) else 0.0, str(place.x))
