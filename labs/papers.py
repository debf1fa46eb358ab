"""The table of the reproduced papers: which of their statements Partywall measures, and with what result.

Source: docs/papers/PAPER.yaml, a row for each statement, table and figure; the published numbers of the studies
(src/partywall/scenarios/papers/NAME.paper.yaml); and recorded results of studies (docs/papers/results/NAME.json) and
of benchmarks (benches/results.jsonl).

    python -m labs.papers                  writes docs/papers.md (part of make generate)
    python -m labs.papers --record FOLDER  adds the result of a finished study, given its folder; with --lab NAME, of
                                           a study that belongs to a lab. Of a study that measured some parts only,
                                           the tables and figures of these parts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from benches.results import recorded as benchmarks
from benches.results import written
from partywall import study as studies
from partywall.model.agreement import judge
from partywall.model.paper import Measured, Number, Paper, PaperTable
from partywall.model.scenario import Frozen, Name
from partywall.model.study import StudyRequest
from partywall.report import figures
from partywall.report.paper import measured_text
from partywall.scenario import papers
from partywall.scenario.documents import validated
from partywall.store.study import StudyDirectory

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "docs" / "papers"
RESULTS = ROWS / "results"
PAGE = ROOT / "docs" / "papers.md"

Status = Literal["measured", "shown", "unrecorded", "stand-in", "unequipped", "partly", "missing", "impossible"]
WORDS: Mapping[Status, str] = {
    "measured": "measured again",
    "shown": "shown",
    "unrecorded": "not recorded",
    "stand-in": "on a stand-in",
    "unequipped": "needs hardware",
    "partly": "partly",
    "missing": "missing",
    "impossible": "not possible on Linux",
}
LABS = {"hosts": "make hosts", "xen": "make xen-lab"}
COMPLETE: tuple[Status, ...] = ("measured", "shown")


class Row(Frozen):
    """A statement, table or figure of a paper.

    by: what shows it: `study NAME`, `bench NAME`, `lab NAME` or a command.
    lacks: what is not there, or why it cannot be.
    """

    id: str = Field(pattern=r"^[A-Z][0-9]{2}$")
    where: str
    item: str
    status: Status
    by: tuple[str, ...] = ()
    exhibits: tuple[str, ...] = ()
    """In the study's file."""
    lacks: str = ""


class PaperRows(Frozen):
    """All rows of a paper. printed: the numbers as the paper prints them, by table or figure of its studies' files."""

    paper_rows: Literal[1]
    letter: str
    title: str
    studies: tuple[Name, ...]
    printed: dict[str, tuple[float, ...]]
    rows: tuple[Row, ...] = Field(min_length=1)


class Shown(Frozen):
    """A table or figure as a study measured it once. note: what differed from the rest of the study's results."""

    exhibit: str
    likeness: str
    measured: tuple[Measured, ...]
    note: str = ""


class Recorded(Frozen):
    """The result of a study. when, host: for people.

    by, paper: of a study that belongs to a lab: `lab NAME`, and the study beside whose numbers it is shown.
    """

    study: Name
    by: str = ""
    paper: Name | None = None
    when: str
    host: str
    form: str
    exhibits: tuple[Shown, ...]


def every() -> tuple[PaperRows, ...]:
    """The rows of all papers, in the order of the file names."""
    return tuple(validated(PaperRows, file.read_bytes(), file.name) for file in sorted(ROWS.glob("*.yaml")))


def results() -> dict[str, Recorded]:
    """Recorded results by study."""
    stored = (Recorded.model_validate_json(file.read_bytes()) for file in sorted(RESULTS.glob("*.json")))
    return {recorded.study: recorded for recorded in stored}


def tried() -> frozenset[str]:
    """Benchmarks with a recorded result."""
    return frozenset(result.bench for result in benchmarks() if not result.plant)


def without_result(row: Row, rows: PaperRows, recorded: Mapping[str, Recorded], benches: frozenset[str]) -> str:
    """What a row that is measured has no recorded result of; empty if it has all, and for other rows.

    A row that names tables and figures needs a measured point of each, and another the result of one of its studies or
    benchmarks. Results of other commands are not recorded, so a row of these alone is believed.
    """
    if row.status != "measured":
        return ""
    mine = [each for each in recorded.values() if each.by in row.by or (not each.by and each.study in rows.studies)]
    if row.exhibits:
        known = {shown.exhibit for each in mine for shown in each.exhibits if shown.measured}
        return ", ".join(name for name in row.exhibits if name not in known)
    named = [by for by in row.by if by.startswith(("study ", "bench "))]
    has = {f"study {each.study}" for each in mine if any(shown.measured for shown in each.exhibits)}
    has |= {f"bench {name}" for name in benches}
    return "" if len(named) < len(row.by) or has.intersection(named) else ", ".join(map(_command, named))


def stated(rows: PaperRows, recorded: Mapping[str, Recorded], benches: frozenset[str]) -> tuple[Row, ...]:
    """The rows as the page states them: what is measured, but has no recorded result, is not recorded."""
    return tuple(
        row.model_copy(update={"status": "unrecorded", "lacks": f"no result of {lacking} is recorded yet"})
        if (lacking := without_result(row, rows, recorded, benches))
        else row
        for row in rows.rows
    )


def problems(rows: PaperRows) -> Iterator[str]:
    """What is wrong with the rows of a paper."""
    ids = [row.id for row in rows.rows]
    wanted = [f"{rows.letter}{number:02}" for number in range(1, len(ids) + 1)]
    if ids != wanted:
        yield f"{rows.title}: the rows are not {wanted[0]} to {wanted[-1]} in order"
    known = {paper_table.id for name in rows.studies for paper_table in papers.load(name).exhibits}
    named = {paper_table for row in rows.rows for paper_table in row.exhibits}
    yield from (f"{rows.title}: no study has {name!r}" for name in sorted(named - known))
    yield from (f"{rows.title}: no row names {name!r}" for name in sorted(known - named))
    for row in rows.rows:
        yield from (f"{row.id}: {problem}" for problem in _wrong(row))


def _wrong(row: Row) -> Iterator[str]:
    if row.status not in ("missing", "impossible") and not row.by:
        yield f"{WORDS[row.status]}, but no command is named"
    if (row.status in COMPLETE) == bool(row.lacks):
        yield "a complete row lacks nothing, and any other row has a reason"
    for by in row.by:
        kind, _, name = by.partition(" ")
        exists = {
            "study": f"papers/{name}" in studies.names(),
            "bench": (ROOT / "benches" / f"{name}.py").exists(),
            "lab": name in LABS,
        }
        if not exists.get(kind, "partywall " in by):
            yield f"there is no {by}"


def misprinted(rows: PaperRows) -> Iterator[str]:
    """Published numbers of the studies' files that differ from the printed ones."""
    for name in rows.studies:
        for paper_table in papers.load(name).exhibits:
            printed, filed = sorted(set(rows.printed.get(paper_table.id, ()))), sorted(set(_numbers(paper_table)))
            if printed != filed:
                yield f"{name}, {paper_table.id}: the paper prints {printed}, the file has {filed}"


def _numbers(paper_table: PaperTable) -> Iterator[float]:
    """Numbers that the paper prints for a table or figure: values, bounds and ranges, but nothing inferred."""
    for number in paper_table.values.values():
        if not number.inferred:
            yield from (end for end in (number.value, number.at_least, number.at_most) if end is not None)
    for bound in (bound for bound in paper_table.bounds if not bound.inferred):
        # 100 % is where a range begins that the paper states with one end ("up to 130 %").
        yield from (end for end in (bound.at_least, bound.at_most) if end is not None and end != WHOLE)


WHOLE = 100.0


# The page


def page(papers_rows: Sequence[PaperRows], recorded: Mapping[str, Recorded], benches: frozenset[str]) -> str:
    """The generated part of docs/papers.md."""
    shown = [rows.model_copy(update={"rows": stated(rows, recorded, benches)}) for rows in papers_rows]
    return "\n\n".join(_parts(shown, recorded))


def _parts(papers_rows: Sequence[PaperRows], recorded: Mapping[str, Recorded]) -> Iterator[str]:
    yield _counts(papers_rows)
    for rows in papers_rows:
        yield f"## {rows.title}"
        yield "\n".join(
            ["| row | where | item | status | shown by | lacks |", "|---|---|---|---|---|---|", *_rows(rows)]
        )
        for name in rows.studies:
            yield from _beside(papers.load(name), f"papers/{name}", recorded.get(name))
            for by_lab in recorded.values():
                if by_lab.paper == name:
                    yield from _beside(papers.load(name), _command(by_lab.by), by_lab)


def _counts(papers_rows: Sequence[PaperRows]) -> str:
    head = ["paper", *WORDS.values(), "rows"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    every_row = [row for rows in papers_rows for row in rows.rows]
    for title, counted_rows in [*((rows.title, rows.rows) for rows in papers_rows), ("all", every_row)]:
        counts = [sum(row.status == status for row in counted_rows) for status in WORDS]
        lines.append(f"| {title} | {' | '.join(map(str, counts))} | {len(counted_rows)} |")
    return "\n".join(lines)


def _rows(rows: PaperRows) -> Iterator[str]:
    for row in rows.rows:
        commands = ", ".join(f"`{_command(by)}`" for by in row.by)
        shown = f"{commands} ({', '.join(row.exhibits)})" if row.exhibits else commands
        yield f"| {row.id} | {row.where} | {row.item} | {WORDS[row.status]} | {shown} | {row.lacks} |"


def _command(by: str) -> str:
    kind, _, name = by.partition(" ")
    made = {"study": f"sudo partywall study papers/{name}", "bench": f"sudo python benches/{name}.py"}
    return made.get(kind, LABS[name] if kind == "lab" else by)


def _beside(paper: Paper, title: str, recorded: Recorded | None) -> Iterator[str]:
    yield f"### Published and measured: `{title}`"
    if recorded is None:
        yield "No result is recorded yet. The table has the published values."
    else:
        yield f"Measured on {recorded.when} in the {recorded.form} form, on {recorded.host}."
        if any(point.emulated for shown in recorded.exhibits for point in shown.measured):
            yield figures.EMULATED
    measured = {shown.exhibit: shown for shown in recorded.exhibits} if recorded else {}
    lines = [
        "| figure or table | place | published | measured, with 95 % interval | verdict |",
        "|---|---|---|---|---|",
    ]
    for paper_table in paper.exhibits:
        # A lab measures a part of its paper.
        if recorded is None or not recorded.by or paper_table.id in measured:
            lines += _point_rows(paper_table, measured.get(paper_table.id))
    yield "\n".join(lines)


def _point_rows(paper_table: PaperTable, shown: Shown | None) -> Iterator[str]:
    """A line for each place that the verdict is about: published numbers, claims and bounds."""
    points = {point.place: point for point in shown.measured} if shown else {}
    verdict = "not recorded" if shown is None else f"{shown.likeness} ({shown.note})" if shown.note else shown.likeness
    claimed = [place for claim in paper_table.claims for place in (claim.left, claim.than)]
    bounded = [place for place in points if any(bound.covers(place) for bound in paper_table.bounds)]
    for place in dict.fromkeys([*paper_table.values, *claimed, *bounded]):
        number = paper_table.values.get(place)
        here = measured_text(points[place]) if place in points else "–"
        published = "no number" if number is None else _with_unit(number, paper_table.y.unit)
        yield f"| {paper_table.id} | {place} | {published} | {here} | {verdict} |"


def _with_unit(number: Number, unit: str) -> str:
    text = str(number.model_copy(update={"inferred": ""}))
    return " ".join(part for part in (text, unit, "(inferred)" if number.inferred else "") if part)


def fresh(text: str) -> str:
    """docs/papers.md with its generated part replaced."""
    return written(text, {"papers": page(every(), results(), tried())})


# Results


def record(folder: Path, only: Sequence[str] = (), lab: str = "") -> Path:
    """Adds the result of a finished study to the recorded ones, or of these tables and figures only.

    Of a study that measured some parts only, the tables and figures that it measured are added to the earlier result.
    lab: the lab that the study belongs to, if it is not one of Partywall's own.
    """
    directory = StudyDirectory.open(folder)
    report = studies.report(directory)
    cpus = len(directory.about.get("host", {}).get("cpus_allowed", ()))
    shown: list[dict[str, Any]] = [
        {
            "exhibit": beside.table.id,
            "likeness": judge(beside).likeness,
            "measured": [_rounded(point) for point in beside.measured],
        }
        for beside in report.comparisons
    ]
    document: dict[str, Any] = {
        "study": report.name,
        "when": _date(folder),
        "host": f"a shared virtual machine with {cpus} CPUs and other work",
        "form": report.length,
        "exhibits": shown,
    }
    if lab:
        file = directory.path / "study.yaml"
        of_lab = {"by": f"lab {lab}", "paper": studies.kind_of(file).read(directory.content, str(file)).paper}
        document |= of_lab | {"exhibits": [each for each in shown if each["measured"]]}
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{report.name}.json"
    if only or (directory.request.parts and not lab):
        wanted = only or [each["exhibit"] for each in shown if each["measured"]]
        note = ", ".join(filter(None, [document["when"], _options(directory.request)]))
        new = [{**each, "note": note} for each in shown if each["exhibit"] in wanted]
        earlier = json.loads(file.read_text("utf-8")) if file.exists() else document | {"exhibits": []}
        document = earlier | {"exhibits": [each for each in earlier["exhibits"] if each["exhibit"] not in wanted] + new}
    file.write_text(Recorded.model_validate(document).model_dump_json(indent=1, exclude_defaults=True) + "\n")
    return file


def _options(request: StudyRequest) -> str:
    """The options that made a study measure less than, or other than, its form: --backend qemu --only 'memory*'."""
    given = [("--backend", backend) for backend in request.backends] + [("--only", part) for part in request.parts]
    return " ".join(f"{name} {shlex.quote(value)}" for name, value in given)


def _rounded(point: Measured) -> dict[str, Any]:
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) and key != "x" else value
        for key, value in point.model_dump(exclude_none=True).items()
    }


def _date(folder: Path) -> str:
    changed = max(file.stat().st_mtime for file in folder.rglob("*.jsonl"))
    return datetime.datetime.fromtimestamp(changed, tz=datetime.UTC).date().isoformat()


def main() -> None:
    """Writes the page, or adds a result and then writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="add the result of a finished study")
    parser.add_argument(
        "--only", action="append", default=[], metavar="EXHIBIT", help="of it, only this table or figure"
    )
    parser.add_argument("--lab", default="", metavar="NAME", help="it is a study of this lab (labs/NAME)")
    given = parser.parse_args()
    if given.record:
        print(f"recorded in {record(given.record, given.only, given.lab)}")
    PAGE.write_text(fresh(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
