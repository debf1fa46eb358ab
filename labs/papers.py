"""The table of the reproduced papers: which of their statements Partywall measures, and with what result.

Source: docs/papers/PAPER.yaml, a row for each statement, table and figure; the published numbers of the studies
(src/partywall/scenarios/papers/NAME.paper.yaml); and recorded results of studies (docs/papers/results/NAME.json, and
NAME-BACKEND.json of one measured in other sandboxes than its own) and of benchmarks (benches/results.jsonl).

    python -m labs.papers                  writes docs/papers.md (part of make generate)
    python -m labs.papers --record FOLDER  adds the result of a finished study, given its folder; with --lab NAME, of
                                           a study that belongs to a lab. Of a study that measured some parts only,
                                           the tables and figures of these parts. Of one with --backend, a result of
                                           its own, which stands beside the other.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from benches.results import recorded as benchmarks
from benches.results import written
from partywall import study as studies
from partywall.core.document.formats import validated
from partywall.core.report import figures
from partywall.model.agreement import best_text, judge
from partywall.model.paper import Beside, Measured, Number, Paper, PaperTable, Place
from partywall.model.study import StudyRequest
from partywall.report.paper import measured_text, x_text
from partywall.scenario import papers
from partywall.store.study import StudyDirectory
from partywall.study import isolation
from partywall.values import Frozen, Name

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
MEASURED: tuple[Status, ...] = ("measured", "stand-in")


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
    """A table or figure as a study measured it once.

    reason: how many comparisons decide its likeness, and how. note: what differed from the rest of the result.
    """

    exhibit: str
    likeness: str
    reason: str = ""
    measured: tuple[Measured, ...]
    note: str = ""

    @property
    def verdict(self) -> str:
        noted = f" ({self.note})" if self.note else ""
        return ": ".join(filter(None, [f"**{self.likeness}**{noted}", self.reason]))


class Recorded(Frozen):
    """The result of a study. when, host: for people.

    by, paper: of a study that belongs to a lab: `lab NAME`, and the study beside whose numbers it is shown. backend: of
    one in other sandboxes than its own.
    """

    study: Name
    by: str = ""
    paper: Name | None = None
    backend: str = ""
    when: str
    host: str
    form: str
    exhibits: tuple[Shown, ...]

    @property
    def beside(self) -> str:
        """The study whose page it is on."""
        return self.paper or self.study

    @property
    def column(self) -> str:
        if self.by:
            return f"measured by `{_command(self.by)}`"
        return f"measured with `--backend {self.backend}`" if self.backend else "measured"

    def is_of(self, by: str) -> bool:
        """Whether what shows a row measures this: the lab, or the study with this backend or none."""
        if self.by or by.startswith(("lab ", "bench ")):
            return self.by == by
        words = shlex.split(_command(by).partition(", with ")[0])
        backend = words[words.index("--backend") + 1] if "--backend" in words else ""
        return f"papers/{self.study}" in words and backend == self.backend


def every() -> tuple[PaperRows, ...]:
    """The rows of all papers, in the order of the file names."""
    return tuple(validated(PaperRows, file.read_bytes(), file.name) for file in sorted(ROWS.glob("*.yaml")))


def results() -> tuple[Recorded, ...]:
    """Recorded results of studies; those in a study's own sandboxes first, those of labs last."""
    stored = (Recorded.model_validate_json(file.read_bytes()) for file in sorted(RESULTS.glob("*.json")))
    return tuple(sorted(stored, key=lambda recorded: (recorded.by, recorded.backend)))


def tried() -> frozenset[str]:
    """Benchmarks with a recorded result."""
    return frozenset(result.bench for result in benchmarks() if not result.plant)


def without_result(row: Row, recorded: Sequence[Recorded], benches: frozenset[str]) -> str:
    """What a row that is measured, also on a stand-in, has no recorded result of; empty for other rows.

    A row that names tables and figures needs a measured point of each from one of its studies and labs, and another the
    result of one of its studies or benchmarks. Results of other commands are not recorded, so a row of these alone is
    believed.
    """
    if row.status not in MEASURED:
        return ""
    mine = [each for each in recorded if any(map(each.is_of, row.by))]
    if row.exhibits:
        known = {shown.exhibit for each in mine for shown in each.exhibits if shown.measured}
        return ", ".join(name for name in row.exhibits if name not in known)
    named = [by for by in row.by if by.startswith(("study ", "bench "))]
    has = any(shown.measured for each in mine for shown in each.exhibits)
    has |= any(f"bench {name}" in named for name in benches)
    return "" if len(named) < len(row.by) or has else ", ".join(map(_command, named))


def stated(rows: PaperRows, recorded: Sequence[Recorded], benches: frozenset[str]) -> tuple[Row, ...]:
    """The rows as the page states them: what is measured, but has no recorded result, is not recorded."""
    return tuple(
        row.model_copy(update={"status": "unrecorded", "lacks": f"no result of {lacking} is recorded yet"})
        if (lacking := without_result(row, recorded, benches))
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
WIDTH = 120
"""Characters in a line of prose."""


# The page


def page(papers_rows: Sequence[PaperRows], recorded: Sequence[Recorded], benches: frozenset[str]) -> str:
    """The generated part of docs/papers.md."""
    shown = [rows.model_copy(update={"rows": stated(rows, recorded, benches)}) for rows in papers_rows]
    return "\n\n".join(_parts(shown, recorded))


def _parts(papers_rows: Sequence[PaperRows], recorded: Sequence[Recorded]) -> Iterator[str]:
    yield _counts(papers_rows)
    for rows in papers_rows:
        yield f"## {rows.title}"
        yield "\n".join(
            ["| row | where | item | status | shown by | lacks |", "|---|---|---|---|---|---|", *_rows(rows)]
        )
        for name in rows.studies:
            yield from _beside(papers.load(name), name, [each for each in recorded if each.beside == name])


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


def _beside(paper: Paper, name: str, recorded: Sequence[Recorded]) -> Iterator[str]:
    yield f"### Published and measured: `papers/{name}`"
    if not recorded:
        yield "No result is recorded yet. The table has the published values."
    for each in recorded:
        when = f"on {each.when} in the {each.form} form, on {each.host}."
        yield _wrapped(f"{each.column.capitalize()} {when}")
    if any(point.emulated for each in recorded for shown in each.exhibits for point in shown.measured):
        yield figures.EMULATED
    columns = ["figure or table", "place", "published", *(each.column for each in recorded)]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for paper_table in paper.exhibits:
        shown = [next((shown for shown in each.exhibits if shown.exhibit == paper_table.id), None) for each in recorded]
        lines += _point_rows(paper_table, shown)
    yield "\n".join(lines)
    for each in recorded:
        yield from _grades(each)


def _grades(recorded: Recorded) -> Iterator[str]:
    """The overview of resources, of a study that grades them."""
    if recorded.by:
        return
    file = studies.find(recorded.study)
    study = studies.kind_of(file).read(file.read_bytes(), str(file))
    points = {shown.exhibit: shown.measured for shown in recorded.exhibits}
    if isinstance(study, isolation.Study) and (graded := isolation.overview(study, points)):
        title = f"{graded.title}, {recorded.column}" if recorded.backend else graded.title
        yield _wrapped(f"{title}. {graded.lead}")
        lines = [graded.columns, ["---"] * len(graded.columns), *graded.rows]
        yield "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _point_rows(paper_table: PaperTable, shown: Sequence[Shown | None]) -> Iterator[str]:
    """The verdicts, and a line for each place that they are about: published numbers, claims and bounds.

    If the paper gives no result, a line for each series that was measured.
    """
    points = [{point.place: point for point in each.measured} if each else {} for each in shown]
    verdicts = [each.verdict if each else "" for each in shown]
    yield f"| **{paper_table.id}** | {' | '.join([paper_table.title, '', *verdicts])} |"
    measured = dict.fromkeys(place for each in points for place in each)
    if not paper_table.has_statements:
        for series in dict.fromkeys(place.series for place in measured):
            here = [_series_text(each, series) for each in points]
            yield f"| {paper_table.id} | {' | '.join([series, 'no number', *here])} |"
        return
    claimed = [place for claim in paper_table.claims for place in (claim.left, claim.than)]
    bounded = [place for place in measured if any(bound.covers(place) for bound in paper_table.bounds)]
    for place in dict.fromkeys([*paper_table.values, *claimed, *bounded]):
        number = paper_table.values.get(place)
        here = [measured_text(each[place]) if place in each else "–" for each in points]
        published = "no number" if number is None else _with_unit(number, paper_table.y.unit)
        yield f"| {paper_table.id} | {' | '.join([str(place), published, *here])} |"


def _series_text(points: Mapping[Place, Measured], series: str) -> str:
    """'50: 41.2 ± 0.8; 150: 43 ± 2'."""
    own = (f"{x_text(place)}: {measured_text(point)}" for place, point in points.items() if place.series == series)
    return "; ".join(own) or "–"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


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
    lab: the lab that the study belongs to, if it is not one of Partywall's own. ValueError for several backends, whose
    results are to be recorded apart.
    """
    directory = StudyDirectory.open(folder)
    report = studies.report(directory)
    cpus = len(directory.about.get("host", {}).get("cpus_allowed", ()))
    if len(directory.request.backends) > 1:
        raise ValueError(f"{folder} has the backends {', '.join(directory.request.backends)}; measure each apart")
    backend = "" if lab else next(iter(directory.request.backends), "")
    shown = [_shown(beside) for beside in report.comparisons]
    document: dict[str, Any] = {
        "study": report.name,
        "backend": backend,
        "when": _date(folder),
        "host": f"a shared virtual machine with {cpus} CPUs and other work",
        "form": report.length,
        "exhibits": shown,
    }
    variant = backend
    if lab:
        file = directory.path / "study.yaml"
        study = studies.kind_of(file).read(directory.content, str(file))
        # A lab has a study of its own, or measures the paper's on another host.
        paper = getattr(study, "paper", report.name)
        variant = lab if paper == report.name else ""
        document |= {"by": f"lab {lab}", "paper": paper, "exhibits": [each for each in shown if each["measured"]]}
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{'-'.join(filter(None, [report.name, variant]))}.json"
    if only or (directory.request.parts and not lab):
        wanted = only or [each["exhibit"] for each in shown if each["measured"]]
        note = ", ".join(filter(None, [document["when"], _options(directory.request)]))
        new = [{**each, "note": note} for each in shown if each["exhibit"] in wanted]
        earlier = json.loads(file.read_text("utf-8")) if file.exists() else document | {"exhibits": []}
        document = earlier | {"exhibits": [each for each in earlier["exhibits"] if each["exhibit"] not in wanted] + new}
    file.write_text(Recorded.model_validate(document).model_dump_json(indent=1, exclude_defaults=True) + "\n")
    return file


def _shown(beside: Beside) -> dict[str, Any]:
    verdict = judge(beside)
    measured = [_rounded(point) for point in beside.measured]
    reason = "; ".join(filter(None, [verdict.reason if verdict.pairs else "", best_text(beside)]))
    return {"exhibit": beside.table.id, "likeness": verdict.likeness, "reason": reason, "measured": measured}


def _options(request: StudyRequest) -> str:
    """The options that made a study measure less than its form: --only 'memory*'."""
    return " ".join(f"--only {shlex.quote(part)}" for part in request.parts)


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
