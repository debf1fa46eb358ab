"""Does every statement of the reproduced papers have its evidence, and every claim its verdict?

docs/papers/ lists the papers sentence by sentence, with the numbers as printed. The short form reads files only, and
checks for each study: the tables and figures of its file are those that the rows name; its published numbers are the
printed ones; some form of it, with guests or without, measures both places of each claim, and the comparison of such
measurements gives a verdict; a row that is measured has a recorded result; and docs/papers.md is up to date. The long
form carries out the shortest form of each study, with the parts that rows name for tables that this form leaves out. It
checks that each table and figure has a measured point, unless a row says which hardware its figure needs, and a verdict
for each claim about places that were measured. Other claims of it are listed and counted. It takes over an hour; with
--folder it is measured study by study, and the records of the studies are kept there for `python -m labs.papers`.

Bar: no problem.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
from partywall.model.agreement import Bounded, Pair, judge
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


def of_results(rows: table.PaperRows, recorded: Sequence[table.Recorded], benches: frozenset[str]) -> Iterator[str]:
    """Rows that are measured, and of which nothing is recorded."""
    for row in table.stated(rows, recorded, benches):
        if row.status == "unrecorded":
            yield f"{row.id}: {row.lacks}"


def of_page() -> Iterator[str]:
    text = table.PAGE.read_text("utf-8")
    if text != table.fresh(text):
        yield "docs/papers.md does not fit its rows; run make generate"


# The long form


def needing_hardware(rows: table.PaperRows) -> frozenset[str]:
    """Tables and figures of rows that say which hardware they need."""
    return frozenset(id_ for row in rows.rows if row.status == "unequipped" for id_ in row.exhibits)


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
    """A table or figure without a point, although no row says that it needs other hardware."""
    if not beside.measured and beside.table.id not in needed:
        yield f"{beside.table.id}: nothing was measured, and no row says that it needs other hardware"


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
    "number": "a published number differs from the printed one",
    "row": "no row has evidence",
    "claim": "a claim is about a place that no form measures",
    "result": "nothing is recorded of any study",
    "unmeasured": "a study measures no point of a figure",
}


def of_fault(plant: str, rows: table.PaperRows, name: str, paper: Paper) -> list[str]:
    """What the checks report if a fault is in a paper's rows or file."""
    if plant == "number":
        title, numbers = next(iter(rows.printed.items()))
        printed = {**rows.printed, title: (numbers[0] + 1, *numbers[1:])}
        return list(of_rows(rows.model_copy(update={"printed": printed})))
    if plant == "row":
        without = tuple(row.model_copy(update={"exhibits": ()}) for row in rows.rows)
        return list(of_rows(rows.model_copy(update={"rows": without})))
    if plant == "result":
        return list(of_results(rows, (), frozenset()))
    if plant == "unmeasured":
        return list(unmeasured(Beside(paper=paper, table=paper.exhibits[0]), frozenset()))
    claim: Any = {"left": ("nobody", 1.0), "is": "larger", "than": ("nobody", 2.0)}
    last = paper.exhibits[-1].model_copy(update={"claims": (Claim.model_validate(claim),)})
    return list(of_claims(name, paper.model_copy(update={"exhibits": (*paper.exhibits[:-1], last)})))


def main() -> None:
    given = arguments(__doc__ or "", plants=PLANTS, folder=True, unjudged="what this host measures")
    rows = table.every()
    loaded = {name: papers.load(name) for paper in rows for name in paper.studies}
    problems = [problem for paper in rows for problem in of_rows(paper)]
    problems += [problem for name, paper in loaded.items() for problem in of_claims(name, paper)]
    recorded, benches = table.results(), table.tried()
    problems += [problem for paper in rows for problem in of_results(paper, recorded, benches)]
    problems += of_page()
    if given.plant:
        problems += of_fault(given.plant, rows[0], *next(iter(loaded.items())))
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
    conclude("papers", figure, met=not problems)


if __name__ == "__main__":
    main()
