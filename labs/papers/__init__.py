"""The reproduced papers: their statements, what Partywall measured of each, and what became of it.

Source: docs/papers/PAPER.yaml, a row for each statement, table and figure (`rows`); the published numbers of the
studies (src/partywall/scenarios/papers/NAME.paper.yaml); and recorded results of studies (`recorded`) and of
benchmarks (benches/results.jsonl). `outcome` computes what became of each row, and `page` shows it.

    python -m labs.papers                  writes docs/papers.md and docs/papers/ (part of make generate)
    python -m labs.papers --record FOLDER  adds the result of a finished study, given its folder; with --lab NAME, of
                                           a study that belongs to a lab. Of a study that measured some parts only,
                                           the tables and figures of these parts. Of one with --backend, a result of
                                           its own, which stands beside the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benches import results as benchmarks
from labs.papers import page
from labs.papers.outcome import Benches, Outcome, Stated, state
from labs.papers.recorded import Recorded, Shown, circular, record, results, unlike
from labs.papers.rows import ROOT, ROWS, Deviation, PaperRows, Row, command, every, misprinted, problems

PAGE = ROOT / "docs" / "papers.md"

__all__ = [
    "Benches",
    "Deviation",
    "Outcome",
    "PaperRows",
    "Recorded",
    "Row",
    "Shown",
    "Stated",
    "circular",
    "command",
    "every",
    "found",
    "misprinted",
    "problems",
    "record",
    "results",
    "state",
    "stated",
    "unlike",
    "write",
    "written",
]


def found() -> Benches:
    """What benchmarks found last, without planted faults."""
    claims: dict[str, list[benchmarks.Claim]] = {}
    for section in benchmarks.claims().values():
        for claim in section:
            claims.setdefault(claim.bench, []).append(claim)
    return Benches([result for result in benchmarks.recorded() if not result.plant], claims)


def stated(
    papers_rows: Sequence[PaperRows], recorded: Sequence[Recorded], benches: Benches
) -> Mapping[str, tuple[PaperRows, tuple[Stated, ...]]]:
    """Each paper's rows with their outcomes, by the paper's name."""
    return {rows.name: (rows, state(rows, recorded, benches)) for rows in papers_rows}


def written(
    papers_rows: Sequence[PaperRows] | None = None,
    recorded: Sequence[Recorded] | None = None,
    benches: Benches | None = None,
) -> dict[Path, str]:
    """The pages as they have to be, by file. Default: from what is checked in."""
    recorded = results() if recorded is None else recorded
    outcomes = stated(every() if papers_rows is None else papers_rows, recorded, benches or found())
    overview = benchmarks.written(PAGE.read_text("utf-8"), {"papers": page.overview(outcomes)})
    return {PAGE: overview} | {
        ROWS / f"{name}.md": page.details(rows, each, recorded) for name, (rows, each) in outcomes.items()
    }


def write() -> None:
    """Writes the pages."""
    for file, text in written().items():
        file.write_text(text, "utf-8")
