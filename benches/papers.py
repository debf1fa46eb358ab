"""Does every statement of the reproduced papers have an outcome that its data bear out, and every claim its verdict?

docs/papers/ lists the papers sentence by sentence, with the numbers as printed. The short form reads files only, and
checks for each study: the tables and figures of its file are those that the rows name; its published numbers are the
printed ones; some form of it, with guests or without, measures both places of each claim, and the comparison of such
measurements gives a verdict; recorded units are those of the study's file; points of a simulated meter say so; the
pages are up to date; and each outcome on them is borne out by the recorded files, which are read here once more,
without the code that computes outcomes. The long form carries out the shortest form of each study, with the parts that
rows name for tables that this form leaves out. It checks that each table and figure has a measured point, unless a row
says why it cannot, and a verdict for each claim about places that were measured. Other claims of it are listed and
counted. It takes over an hour; with --folder it is measured study by study, and the records of the studies are kept
there for `python -m labs.papers`.

Bars: no problem; of statements with a result at most 10 % not distinguished.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from partywall.core import here

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import arguments, conclude, in_parts
from labs import papers as table
from partywall.core.capability import Options
from partywall.events import silent
from partywall.host.label import WORK_ROOT
from partywall.kinds.study import Studies, StudyJob
from partywall.model.agreement import ALIKE, Bounded, Pair, judge
from partywall.model.paper import Beside, Claim, Measured, Paper, PaperTable, Place
from partywall.model.study import StudyRequest
from partywall.scenario import papers
from partywall.testing import fake_host

FEWEST_CPUS = 4
"""A host on which every cell of every study can differ from the others."""
LENGTHS = ("short", "long")
BACKENDS: tuple[tuple[str, ...], ...] = ((), ("qemu",))
"""Some places exist only if the tenants are guests."""
EVERY_PART = ("*",)
"""Some parts are measured only if they are requested."""
ROUNDS = 2
FEWEST = 3
"""Blocks below which a result decides nothing."""
MOST_UNTOLD = 0.1


def of_rows(rows: table.PaperRows) -> Iterator[str]:
    yield from table.problems(rows)
    yield from table.misprinted(rows)


def of_claims(name: str, paper: Paper) -> Iterator[str]:
    """Claims without a verdict, if each form of the study measures what its file says."""
    job, host = StudyJob.read(f"papers/{name}", StudyRequest()), fake_host(cpus=FEWEST_CPUS)
    requests = [
        StudyRequest(length=length, backends=backends, parts=EVERY_PART) for length in LENGTHS for backends in BACKENDS
    ]
    places = {request: job.kind.places(job.wanted, request, host) for request in requests}
    for paper_table in paper.exhibits:
        known = {request: names.get(paper_table.id, frozenset()) for request, names in places.items()}
        if not any(names for request, names in known.items() if request.length == LENGTHS[-1]):
            yield f"{name}, {paper_table.id}: no part of the {LENGTHS[-1]} form measures it"
        every = frozenset().union(*known.values())
        yield from (f"{name}: {problem}" for problem in _undecided(paper, paper_table, every))


def _undecided(paper: Paper, paper_table: PaperTable, known: frozenset[Place]) -> Iterator[str]:
    """Statements that get no verdict although all known places are measured. Values rise, so no two are alike."""
    points = tuple(
        Measured(series=place.series, x=place.x, value=1.0 + number, low=0.9 + number, high=1.1 + number)
        for number, place in enumerate(sorted(known, key=str))
    )
    yield from undecided(Beside(paper=paper, table=paper_table, measured=points))


def undecided(beside: Beside) -> Iterator[str]:
    """Claims and bounds of a table or figure without a verdict."""
    pairs = judge(beside).pairs
    judged = {(pair.left, pair.right, pair.direction) for pair in pairs if isinstance(pair, Pair)}
    bounds = {pair.bound for pair in pairs if isinstance(pair, Bounded)}
    for claim in beside.table.claims:
        if (claim.left, claim.than, claim.direction) not in judged:
            yield f"{beside.table.id}: no verdict on {claim.left} against {claim.than}"
    for bound in beside.table.bounds:
        if bound not in bounds:
            yield f"{beside.table.id}: no verdict on {bound.series}, {bound}"


def of_results(recorded: Sequence[table.Recorded]) -> Iterator[str]:
    """Recorded units that the studies' files no longer have, and simulated meters that do not say so."""
    yield from table.unlike(recorded)
    yield from table.circular(recorded)


def of_pages(pages: Mapping[Path, str], fresh: Mapping[Path, str]) -> Iterator[str]:
    """Pages that do not fit rows and results."""
    for file, text in fresh.items():
        if pages[file] != text:
            yield f"{file.relative_to(table.ROOT)} does not fit its rows; run make generate"


# Outcomes on the pages, borne out by the recorded files


DECISIVE = {"reproduced": True, "contradicted": False}
"""Outcomes that a comparison decides, and whether it is as in the paper."""


def outcomes(page: str) -> dict[str, str]:
    """The outcome of each row, as a paper's page has it."""
    rows = re.findall(r"^\| ([A-Z][0-9]{2}) \|.*?\| \*\*([a-z ]+)\*\* \|", page, re.MULTILINE)
    return dict(rows)


def of_outcomes(rows: table.PaperRows, page: str, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Outcomes that the recorded files do not bear out. files: the results as they are stored."""
    stated = outcomes(page)
    for row in rows.rows:
        outcome = stated.get(row.id)
        if outcome is None:
            yield f"{row.id}: its page does not have it"
        elif row.kind == "beyond" and outcome != "beyond the paper":
            yield f"{row.id}: {outcome}, although the paper does not have it"
        elif outcome in DECISIVE:
            yield from (f"{row.id}: {outcome}, but {why}" for why in _unborne(rows, row, files, DECISIVE[outcome]))


def _unborne(rows: table.PaperRows, row: table.Row, files: Sequence[Mapping[str, Any]], wanted: bool) -> Iterator[str]:
    """Why a row is not what its page says: no figure, a simulated one, too few blocks, or no ratio that says so."""
    ratios: list[tuple[int, float, float]] = []
    for exhibit in row.exhibits:
        shown = [
            (file, each)
            for file in files
            for each in file["exhibits"]
            if each["exhibit"] == exhibit and each["measured"]
        ]
        own = [each for file, each in shown if (file.get("paper") or file["study"]) in rows.studies]
        if not own:
            yield f"{exhibit} is not recorded"
        if any(point.get("simulated") for each in own for point in each["measured"]):
            yield f"the meter of {exhibit} is simulated"
        if own and all(min(point.get("n", 0) for point in each["measured"]) < FEWEST for each in own):
            yield f"{exhibit} has fewer than {FEWEST} blocks"
        claims = [c for name in rows.studies for t in papers.load(name).exhibits if t.id == exhibit for c in t.claims]
        ratios += [
            (claim.direction, *ratio)
            for each in own
            for claim in claims
            if (ratio := _ratio(each, claim.left, claim.than))
        ]
    if ratios and not any(_says(each, wanted) for each in ratios):
        yield "none of its stored ratios says so"


def _says(ratio: tuple[int, float, float], wanted: bool) -> bool:
    """Whether an interval decides a claim: for it if wanted, and otherwise against it."""
    direction, low, high = ratio
    if direction == 0:
        return 1 - ALIKE <= low <= high <= 1 + ALIKE if wanted else low > 1 or high < 1
    return low > 1 if (direction > 0) == wanted else high < 1


def _ratio(shown: Mapping[str, Any], left: Place, right: Place) -> tuple[float, float] | None:
    """The stored ratio of two places, or the widest that their intervals allow."""
    for each in shown.get("paired", ()):
        if (tuple(each["left"]), tuple(each["right"])) == (left, right):
            return each["low"], each["high"]
        if (tuple(each["left"]), tuple(each["right"])) == (right, left):
            return 1 / each["high"], 1 / each["low"]
    ends = {(point["series"], point["x"]): (point["low"], point["high"]) for point in shown["measured"]}
    if left not in ends or right not in ends or ends[right][0] <= 0:
        return None
    return ends[left][0] / ends[right][1], ends[left][1] / ends[right][0]


def share_untold(pages: Mapping[Path, str], rows: Sequence[table.PaperRows]) -> tuple[int, int, int]:
    """How many statements with a result there are, are not distinguished, and are not recorded."""
    stated = [
        outcomes(pages[table.ROWS / f"{paper.name}.md"]).get(row.id, "")
        for paper in rows
        for row in paper.rows
        if row.kind == "result"
    ]
    return len(stated), stated.count("not distinguished"), stated.count("not recorded")


# The long form


def needing_hardware(rows: table.PaperRows) -> frozenset[str]:
    """Tables and figures of rows that say why they cannot be measured."""
    return frozenset(id_ for row in rows.rows if row.tried for id_ in row.exhibits)


def shortest(name: str, rows: table.PaperRows, paper: Paper) -> StudyJob:
    """The shortest form of a study, with the parts that its rows name for tables that this form leaves out."""
    job = StudyJob.read(f"papers/{name}", StudyRequest())
    # An isolation study is controlled by its precision, all others by rounds.
    rounds = None if job.kind.key == "partywall_study" else ROUNDS

    def with_parts(*parts: str) -> StudyJob:
        return replace(job, request=job.request.model_copy(update={"rounds": rounds, "parts": parts}))

    def missing(chosen: StudyJob) -> set[str]:
        places = chosen.kind.places(chosen.wanted, chosen.request, here.this_host())
        return {paper_table.id for paper_table in paper.exhibits if not places.get(paper_table.id)}

    if not missing(with_parts()):
        return with_parts()
    left = missing(with_parts(*EVERY_PART))
    commands = [by for row in rows.rows if not left.isdisjoint(row.exhibits) for by in row.by if "--long" not in by]
    own = [command for command in commands if f"papers/{name} " in command]
    named = {part for command in own for part in re.findall(r"--only '?([^' ]+)", command)}
    return with_parts(*EVERY_PART, *sorted(named))


class Carried(NamedTuple):
    """What came of a study. left: claims and bounds about places that this host or the short form cannot measure."""

    problems: list[str]
    left: int


def measured(name: str, rows: table.PaperRows, paper: Paper, kept_in: Path | None) -> Carried:
    """Carries out the shortest form of a study."""
    folder = (kept_in or Path(tempfile.mkdtemp(prefix="partywall-papers-", dir="/var/tmp"))) / name
    options = Options(here.this_host(), folder, WORK_ROOT, allow_commands=False)
    needed = needing_hardware(rows)
    kept = Studies()
    print(f"{name}: measuring", flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # of a part that was cut off
    report = kept.findings(kept.measure(shortest(name, rows, paper), options, silent))
    for beside in report.comparisons:
        print(f"{name}, {beside.table.id}: {judge(beside).likeness}", flush=True)
        for left in left_out(beside):
            print(f"{name}, {beside.table.id}: not measured here: {left}")
    problems = [
        f"{name}: {problem}"
        for beside in report.comparisons
        for problem in (*unmeasured(beside, needed), *undecided_of(beside))
    ]
    return Carried(problems, sum(len(left_out(beside)) for beside in report.comparisons))


def unmeasured(beside: Beside, needed: frozenset[str]) -> Iterator[str]:
    """A table or figure without a point, although no row says why it cannot be measured."""
    if not beside.measured and beside.table.id not in needed:
        yield f"{beside.table.id}: nothing was measured, and no row says why it cannot be"


def undecided_of(beside: Beside) -> Iterator[str]:
    """Claims and bounds without a verdict, of a table or figure that was measured; of those places that were."""
    if beside.measured:
        yield from undecided(_of_measured(beside))


def left_out(beside: Beside) -> list[str]:
    """Claims and bounds about places that were not measured."""
    kept = _of_measured(beside).table
    claims = [f"{claim.left} against {claim.than}" for claim in beside.table.claims if claim not in kept.claims]
    return claims + [f"{bound.series}, {bound}" for bound in beside.table.bounds if bound not in kept.bounds]


def _of_measured(beside: Beside) -> Beside:
    """Without the claims about places that this host or the short form cannot measure."""
    known = beside.points
    claims = [claim for claim in beside.table.claims if claim.left in known and claim.than in known]
    bounds = [bound for bound in beside.table.bounds if any(bound.covers(place) for place in known)]
    paper_table = beside.table.model_copy(update={"claims": tuple(claims), "bounds": tuple(bounds)})
    return beside.model_copy(update={"table": paper_table})


# Planted faults

PLANTS = {
    "status": "a page says that a statement is reproduced, and its data say otherwise",
    "exhibit": "the figure of a reproduced statement is no longer recorded",
    "circular": "a simulated meter does not say so",
    "unit": "the unit of a recorded figure differs from its study's file",
    "number": "a published number differs from the printed one",
    "row": "no row has evidence",
    "claim": "a claim is about a place that no form measures",
    "unmeasured": "a study measures no point of a figure",
}


def of_fault(plant: str, rows: Sequence[table.PaperRows], pages: Mapping[Path, str]) -> list[str]:
    """What the checks report if a fault is in rows, files or pages."""
    first = rows[0]
    paper = papers.load(first.studies[0])
    checks: dict[str, Callable[[], Iterable[str]]] = {
        "status": lambda: _of_page_fault(plant, rows, pages),
        "exhibit": lambda: _of_page_fault(plant, rows, pages),
        "circular": lambda: of_results([_bare(each) for each in table.results()]),
        "unit": lambda: of_results([_swapped(each) for each in table.results()[:1]]),
        "number": lambda: of_rows(_misprinted(first)),
        "row": lambda: of_rows(_without_figures(first)),
        "claim": lambda: of_claims(first.studies[0], _with_claim(paper)),
        "unmeasured": lambda: unmeasured(Beside(paper=paper, table=paper.exhibits[0]), frozenset()),
    }
    return list(checks[plant]())


def _misprinted(rows: table.PaperRows) -> table.PaperRows:
    title, numbers = next(iter(rows.printed.items()))
    return rows.model_copy(update={"printed": {**rows.printed, title: (numbers[0] + 1, *numbers[1:])}})


def _without_figures(rows: table.PaperRows) -> table.PaperRows:
    return rows.model_copy(update={"rows": tuple(row.model_copy(update={"exhibits": ()}) for row in rows.rows)})


def _with_claim(paper: Paper) -> Paper:
    """The same with a claim about a place that nothing measures."""
    claim: Any = {"left": ("nobody", 1.0), "is": "larger", "than": ("nobody", 2.0)}
    last = paper.exhibits[-1].model_copy(update={"claims": (Claim.model_validate(claim),)})
    return paper.model_copy(update={"exhibits": (*paper.exhibits[:-1], last)})


def _of_page_fault(plant: str, rows: Sequence[table.PaperRows], pages: Mapping[Path, str]) -> list[str]:
    """A wrong outcome on a page, or a reproduced row whose figure is gone. Each is planted in one row of one paper."""
    for paper in rows:
        page, files = pages[table.ROWS / f"{paper.name}.md"], stored_files()
        wanted = "not distinguished" if plant == "status" else "reproduced"
        for row in paper.rows:
            if not row.exhibits or outcomes(page).get(row.id) != wanted:
                continue
            if plant == "status":
                spoilt = re.sub(rf"(?m)^(\| {row.id} \|.*?\| \*\*)not distinguished(\*\* \|)", r"\1reproduced\2", page)
                found = list(of_outcomes(paper, spoilt, files))
            else:
                kept = [
                    {**file, "exhibits": [each for each in file["exhibits"] if each["exhibit"] not in row.exhibits]}
                    for file in files
                ]
                found = [each for each in of_outcomes(paper, page, kept) if each.startswith(row.id)]
            if found:
                return found
    return []


def _bare(each: table.Recorded) -> table.Recorded:
    """A result whose points do not say that their meter is simulated."""
    shown = (
        one.model_copy(update={"measured": tuple(p.model_copy(update={"simulated": False}) for p in one.measured)})
        for one in each.exhibits
    )
    return each.model_copy(update={"exhibits": tuple(shown)})


def _swapped(each: table.Recorded) -> table.Recorded:
    """A result whose first figure has milliseconds for its unit."""
    first = each.exhibits[0].model_copy(update={"unit": "time, ms of another kind"})
    return each.model_copy(update={"exhibits": (first, *each.exhibits[1:])})


def stored_files() -> list[dict[str, Any]]:
    """Recorded results as they are stored."""
    return [json.loads(file.read_text("utf-8")) for file in sorted((table.ROWS / "results").glob("*.json"))]


def main() -> None:
    given = arguments(__doc__ or "", plants=PLANTS, folder=True, unjudged="what this host measures")
    rows = table.every()
    loaded = {name: papers.load(name) for paper in rows for name in paper.studies}
    problems = [problem for paper in rows for problem in of_rows(paper)]
    problems += [problem for name, paper in loaded.items() for problem in of_claims(name, paper)]
    fresh = table.written()
    pages = {file: file.read_text("utf-8") for file in fresh}
    problems += [*of_results(table.results()), *of_pages(pages, fresh)]
    files = stored_files()
    problems += [
        problem for paper in rows for problem in of_outcomes(paper, pages[table.ROWS / f"{paper.name}.md"], files)
    ]
    if given.plant:
        problems += of_fault(given.plant, rows, pages)
    left = ""
    if not given.quick:
        parts = {
            name: lambda name=name, paper=paper: measured(name, paper, loaded[name], given.folder)._asdict()
            for paper in rows
            for name in paper.studies
        }
        carried = [Carried(**part) for part in in_parts(parts, given).values()]
        problems += [problem for each in carried for problem in each.problems]
        left = f", {sum(each.left for each in carried)} of them about what was not measured here"
    for problem in problems:
        print(f"problem: {problem}")
    count_tables = sum(len(paper.exhibits) for paper in loaded.values())
    claims = sum(
        len(paper_table.claims) + len(paper_table.bounds) for paper in loaded.values() for paper_table in paper.exhibits
    )
    count = sum(len(paper.rows) for paper in rows)
    figure = f"{count} rows, {count_tables} tables and figures, {claims} claims{left}, {len(problems)} problems"
    every, untold, unrecorded = share_untold(pages, rows)
    share = f"{untold} of {every} statements with a result not distinguished, {unrecorded} not recorded"
    print(share)
    conclude("papers", figure, met=not problems, parts={"outcomes": (share, untold <= MOST_UNTOLD * every)})


if __name__ == "__main__":
    main()
