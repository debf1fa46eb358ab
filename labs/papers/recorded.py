"""Recorded results of studies: docs/papers/results/NAME.json, and NAME-BACKEND.json of one in other sandboxes.

A result holds what a verdict is computed from: points with their intervals and numbers of blocks, and the ratios of
places that were measured in the same rounds. It holds no verdict.
"""

from __future__ import annotations

import datetime
import functools
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labs.papers.rows import LABS, ROWS, command
from partywall import study as studies
from partywall.study import papers
from partywall.study.agreement import Pair, judge
from partywall.study.document import StudyRequest
from partywall.study.paper import Beside, Measured, Paired, Paper
from partywall.study.record import StudyDirectory
from partywall.values import Frozen, Name

RESULTS = ROWS / "results"


@functools.cache
def paper_of(name: str) -> Paper:
    """The published numbers of a study."""
    return papers.load(name)


@functools.cache
def study_of(name: str) -> Any:
    """A shipped study."""
    file = studies.find(name)
    return studies.kind_of(file).read(file.read_bytes(), str(file))


class Shown(Frozen):
    """A table or figure as a study measured it once.

    unit: of its values, as the study's file said then. measured: each point with its number of blocks. paired: ratios
    of places measured in the same rounds. why: what the study measured that explains an effect that does not show.
    note: what differed from the rest of the result.
    """

    exhibit: str
    unit: str = ""
    measured: tuple[Measured, ...]
    paired: tuple[Paired, ...] = ()
    why: tuple[str, ...] = ()
    note: str = ""

    def beside(self, paper: Paper) -> Beside:
        """The same beside the paper's statements, for a verdict.

        Bounds on rates are those of the paper's link, of which emulated guests have a share.
        """
        paper_table = paper.table(self.exhibit)
        if paper_table.y.unit.endswith("/s") and any(point.emulated for point in self.measured):
            paper_table = paper_table.model_copy(update={"bounds": ()})
        return Beside(paper=paper, table=paper_table, measured=self.measured, paired=self.paired)


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
            return f"measured by `{command(self.by)}`"
        return f"measured with `--backend {self.backend}`" if self.backend else "measured"

    @property
    def sandboxes(self) -> str:
        """The backend, for a row."""
        return LABS[self.by.partition(" ")[2]] if self.by else self.backend

    def shown(self, exhibit: str) -> Shown | None:
        return next((each for each in self.exhibits if each.exhibit == exhibit), None)

    def is_of(self, by: str) -> bool:
        """Whether what shows a row measures this: the lab, or the study with this backend or none."""
        if self.by or by.startswith(("lab ", "bench ", "test ")):
            return self.by == by
        words = shlex.split(command(by).partition(", with ")[0])
        backend = words[words.index("--backend") + 1] if "--backend" in words else ""
        return f"papers/{self.study}" in words and backend == self.backend


def results() -> tuple[Recorded, ...]:
    """Recorded results of studies; those in a study's own sandboxes first, those of labs last."""
    stored = (Recorded.model_validate_json(file.read_bytes()) for file in sorted(RESULTS.glob("*.json")))
    return tuple(sorted(stored, key=lambda recorded: (recorded.by, recorded.backend)))


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
    shown = [stored(beside).model_dump(exclude_defaults=True) for beside in report.comparisons]
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


def stored(beside: Beside) -> Shown:
    """What is kept of a table or figure: enough to compute its verdict again."""
    compared = {frozenset(pair.places) for pair in judge(beside).pairs if isinstance(pair, Pair)}
    wanted = beside.table.best
    if wanted is not None:
        compared |= {frozenset((one, other)) for one in wanted.places for other in wanted.places if one != other}
    return Shown(
        exhibit=beside.table.id,
        unit=str(beside.table.y),
        measured=tuple(Measured.model_validate(rounded(point)) for point in beside.measured),
        paired=tuple(
            each.model_copy(update={end: float(f"{getattr(each, end):.5g}") for end in ("value", "low", "high")})
            for each in beside.paired
            if frozenset((each.left, each.right)) in compared
        ),
        why=tuple(dict.fromkeys(beside.why.values())),
    )


def rounded(point: Measured) -> dict[str, Any]:
    """A point with values of four digits."""
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) and key != "x" else value
        for key, value in point.model_dump(exclude_none=True).items()
    }


def unlike(recorded: Sequence[Recorded]) -> list[str]:
    """Recorded tables and figures whose unit is no longer that of the study's file."""
    found = []
    for each in recorded:
        known = {paper_table.id: str(paper_table.y) for paper_table in paper_of(each.beside).exhibits}
        for shown in each.exhibits:
            if shown.exhibit not in known:
                found.append(f"{each.study}: {shown.exhibit} is recorded, and the study's file has no such figure")
            elif shown.unit != known[shown.exhibit]:
                said = f"recorded as {shown.unit!r}, and the study's file says {known[shown.exhibit]!r}"
                found.append(f"{each.study}, {shown.exhibit}: {said}")
    return found


def circular(recorded: Sequence[Recorded]) -> list[str]:
    """Points of a simulated meter that are not marked as such."""
    found = []
    for each in recorded:
        if str(getattr(study_of(each.beside), "meter", "")).startswith("simulated:"):
            found += [
                f"{each.study}, {shown.exhibit}, {point.place}: its meter is simulated, and the point does not say so"
                for shown in each.exhibits
                for point in shown.measured
                if not point.simulated
            ]
    return found


def _options(request: StudyRequest) -> str:
    """The options that made a study measure less than its form: --only 'memory*'."""
    return " ".join(f"--only {shlex.quote(part)}" for part in request.parts)


def _date(folder: Path) -> str:
    changed = max(file.stat().st_mtime for file in folder.rglob("*.jsonl"))
    return datetime.datetime.fromtimestamp(changed, tz=datetime.UTC).date().isoformat()
