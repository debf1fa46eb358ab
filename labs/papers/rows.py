"""What the papers do, measure and say, row by row: docs/papers/NAME.yaml, and checks of these files.

A file says what kind of statement a row is and what measures it. It never says how that turned out (`outcome`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from partywall import study as studies
from partywall.core.document.formats import validated
from partywall.study import papers
from partywall.study.paper import PaperTable
from partywall.values import Frozen, Name

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "docs" / "papers"
LABS = {"hosts": "make hosts", "xen": "make xen-lab"}

Kind = Literal["result", "method", "set-up", "beyond"]
"""result: the paper measures or asserts it. method: a part of its tool or procedure. set-up: what it was measured on.
beyond: its future work, or what it never measured."""


class Row(Frozen):
    """A statement, table or figure of a paper."""

    id: str = Field(pattern=r"^[A-Z][0-9]{2}$")
    where: str
    item: str
    kind: Kind
    says: str = Field("", description="the paper's statement, in our words; default: what its figures' files say")
    by: tuple[str, ...] = Field(
        (), description="`study NAME`, `bench NAME` or `bench NAME: PART`, `lab NAME`, `test FILE`, or a command"
    )
    exhibits: tuple[str, ...] = Field((), description="tables and figures of the studies' files")
    places: tuple[str, ...] = Field(
        (),
        description="patterns of places: only comparisons with one of them are of this row, and each must be recorded; "
        "'A over B' is one comparison, and 'A by itself' the bound of one place",
    )
    instead: str = Field("", description="what takes the place of the paper's set-up")
    tried: str = Field("", description="what was tried to measure it, and why that does not work")
    given: str = Field(
        "", description="what of the statement the experiment was set up with, so that its result confirms nothing"
    )
    lacks: str = Field("", description="why nothing was tried, or what of the statement is not shown")
    cause: str = Field("", description="what shows why the paper's effect is not here")
    main: bool = Field(False, description="one of the paper's main findings")


class Deviation(Frozen):
    """A difference from the paper's set-up. of: patterns of `study: figure`, for every row that rests on one."""

    what: str
    of: tuple[str, ...] = Field(min_length=1)
    backend: str | None = Field(None, description="only of results in these sandboxes; an empty text: the study's own")


class PaperRows(Frozen):
    """All rows of a paper. printed: the numbers as the paper prints them, by table or figure of its studies' files."""

    paper_rows: Literal[2]
    name: str
    letter: str
    title: str
    studies: tuple[Name, ...]
    printed: dict[str, tuple[float, ...]]
    deviations: tuple[Deviation, ...] = ()
    rows: tuple[Row, ...] = Field(min_length=1)


def every() -> tuple[PaperRows, ...]:
    """The rows of all papers, in the order of the file names."""
    return tuple(validated(PaperRows, file.read_bytes(), file.name) for file in sorted(ROWS.glob("*.yaml")))


def command(by: str) -> str:
    """The command that a row's `by` stands for."""
    kind, _, name = by.partition(" ")
    made = {
        "study": f"sudo partywall study papers/{name}",
        "bench": f"sudo python benches/{name.partition(':')[0]}.py",
        "test": f"python -m pytest {name}",
    }
    return made.get(kind, LABS[name] if kind == "lab" else by)


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
    if not row.by and not (row.lacks or row.tried):
        yield "no command is named, and no reason why there is none"
    if row.places and not row.exhibits:
        yield "places need the table or figure that they are in"
    if row.given and not row.exhibits:
        yield "what is given needs the table or figure that shows it"
    if row.main and row.kind != "result":
        yield f"a main finding is a result, and this is a {row.kind}"
    for by in row.by:
        kind, _, name = by.partition(" ")
        exists = {
            "study": f"papers/{name}" in studies.names(),
            "bench": (ROOT / "benches" / f"{name.partition(':')[0]}.py").exists(),
            "lab": name in LABS,
            "test": (ROOT / name).exists(),
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


WHOLE = 100.0


def _numbers(paper_table: PaperTable) -> Iterator[float]:
    """Numbers that the paper prints for a table or figure: values, bounds and ranges, but nothing inferred."""
    for number in paper_table.values.values():
        if not number.inferred:
            yield from (end for end in (number.value, number.at_least, number.at_most) if end is not None)
    for bound in (bound for bound in paper_table.bounds if not bound.inferred):
        # 100 % is where a range begins that the paper states with one end ("up to 130 %").
        yield from (end for end in (bound.at_least, bound.at_most) if end is not None and end != WHOLE)
