"""Does every statement of the reproduced papers have an outcome that its data bear out, and every claim its verdict?

docs/papers/ lists the papers sentence by sentence, with the numbers as printed. Tests check that rows, numbers, units
and pages fit each other. The short form reads files only: each outcome on the pages must be borne out by the recorded
files, which are read here once more, without the code that computes outcomes. The long form carries out the shortest
form of each study, with the parts that rows name for tables that this form leaves out. Each table and figure must have
a measured point, unless a row says why it cannot, and each claim about places that were measured a verdict. Other
claims are listed and counted. It takes over an hour; with --folder it is measured study by study, and the records of
the studies are kept there for `python -m labs.papers`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from partywall.core import here

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from frame import Options, Outcome, bench, in_parts
from labs import papers as table
from partywall.core import capability
from partywall.events import silent
from partywall.host.label import WORK_ROOT
from partywall.study import papers
from partywall.study.agreement import ALIKE, Bounded, Pair, judge
from partywall.study.capability import Studies, StudyJob
from partywall.study.document import StudyRequest
from partywall.study.paper import Beside, Claim, Paper, Place

EVERY_PART = ("*",)
"""Some parts are measured only if they are requested."""
ROUNDS = 2
FEWEST = 3
"""Blocks below which a result decides nothing."""
MOST_UNTOLD = 0.1


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


# Outcomes on the pages, borne out by the recorded files


DECISIVE = {"reproduced": True, "another size": True, "contradicted": False}
"""Outcomes that a comparison decides, and whether it is as in the paper."""


def outcomes(page: str) -> dict[str, str]:
    """The outcome of each row, as a paper's page has it."""
    rows = re.findall(r"^\| ([A-Z][0-9]{2}) \|.*?\| \*\*([a-z :-]+)\*\* \|", page, re.MULTILINE)
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
        tables = [each for name in rows.studies for each in papers.load(name).exhibits if each.id == exhibit]
        claims = [claim for each in tables for claim in each.claims if _concerns(row, claim)]
        ratios += [
            (claim.direction, *ratio)
            for each in own
            for claim in claims
            if (ratio := _ratio(each, claim.left, claim.than))
        ]
    if ratios and not any(_says(each, wanted) for each in ratios):
        yield "none of its stored ratios says so"


def _concerns(row: table.Row, claim: Claim) -> bool:
    """Whether a row is about a claim: it names no places, one of the two, or both as 'A over B'."""
    names = (f"{claim.left} over {claim.than}", str(claim.left), str(claim.than))
    return not row.places or any(fnmatchcase(name, pattern) for pattern in row.places for name in names)


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
    options = capability.Options(here.this_host(), folder, WORK_ROOT, allow_commands=False)
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
    "unmeasured": "a study measures no point of a figure",
}


def of_fault(plant: str, rows: Sequence[table.PaperRows], pages: Mapping[Path, str]) -> list[str]:
    """What is reported of a planted fault: it is in one row of one paper."""
    if plant == "unmeasured":
        paper = papers.load(rows[0].studies[0])
        return list(unmeasured(Beside(paper=paper, table=paper.exhibits[0]), frozenset()))
    wanted = "not distinguished" if plant == "status" else "reproduced"
    for paper_rows in rows:
        page, files = pages[table.ROWS / f"{paper_rows.name}.md"], stored_files()
        for row in paper_rows.rows:
            if not row.exhibits or outcomes(page).get(row.id) != wanted:
                continue
            if plant == "status":
                spoilt = re.sub(rf"(?m)^(\| {row.id} \|.*?\| \*\*)not distinguished(\*\* \|)", r"\1reproduced\2", page)
                found = list(of_outcomes(paper_rows, spoilt, files))
            else:
                kept = [
                    {**file, "exhibits": [each for each in file["exhibits"] if each["exhibit"] not in row.exhibits]}
                    for file in files
                ]
                found = [each for each in of_outcomes(paper_rows, page, kept) if each.startswith(row.id)]
            if found:
                return found
    return []


def stored_files() -> list[dict[str, Any]]:
    """Recorded results as they are stored."""
    return [json.loads(file.read_text("utf-8")) for file in sorted((table.ROWS / "results").glob("*.json"))]


@bench(plants=PLANTS, folder=True, unjudged="what this host measures")
def main(given: Options) -> Outcome:
    rows = table.every()
    loaded = {name: papers.load(name) for paper in rows for name in paper.studies}
    pages = {file: file.read_text("utf-8") for file in table.written()}
    files = stored_files()
    problems = [
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
    return Outcome(figure, not problems, {"outcomes": (share, untold <= MOST_UNTOLD * every)})


if __name__ == "__main__":
    main()
