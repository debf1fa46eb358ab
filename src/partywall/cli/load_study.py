"""`partywall load study`: a published study of load generation, measured again here."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer
from rich.console import Console

from partywall import __version__, pipeline, units
from partywall.cli.kernel import WorkDir
from partywall.cli.live import Live
from partywall.errors import Exit, Problem, TrialError, UsageError
from partywall.load import study as studies
from partywall.load import tomcat
from partywall.load.study import StudyDirectory
from partywall.model.load_study import METRICS, Form, Study
from partywall.model.scenario import Scenario
from partywall.sandbox import Label, reap, reaper

if TYPE_CHECKING:
    from partywall.report.study_page import StudyReport

FOLDER = resources.files("partywall").joinpath("scenarios", "papers")


def study(
    name: Annotated[str, typer.Argument(help="A study file, or papers/load-generation-netto.", metavar="STUDY")],
    form: Annotated[str, typer.Option(help="short (minutes) or long (hours).")] = "short",
    rounds: Annotated[int | None, typer.Option(help="Rounds; default: the form's.", min=2, max=100)] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random orders.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the cells and how long it takes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to make. Default: runs/NAME-TIME-CHANCE.")] = None,
    work_dir: WorkDir = pipeline.WORK_ROOT,
) -> int:
    """Measure a published study of load generation again, and put its tables and figures beside ours.

    Starts Debian's Tomcat on a folder of its own and takes it away again; needs root, crun or runc, and tomcat10.
    Exit code: 0 measured, 4 the host lacks something, 5 a cell failed.
    """
    console = Console()
    asked = studies.load(find(name))
    chosen = _form(asked, form, rounds)
    total_s = studies.estimate_s(asked, chosen)
    length = units.format_duration(round(total_s) * 1e9)
    _say(console, f"{asked.name}, {form} form: {len(asked.cells)} cells in {chosen.rounds} rounds, about {length}")
    if dry_run:
        for cell in asked.cells:
            _say(console, f"  {cell.id}")
        return Exit.HOLDS
    pipeline.check_folder(work_dir)
    pipeline.check_host(_containers())
    stamp = f"{asked.name}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    directory = _measure(console, asked, form, chosen, seed, out or Path("runs") / stamp, work_dir)
    return report(directory, console, None)


def _measure(
    console: Console, asked: Study, form: str, chosen: Form, seed: int, out: Path, work_dir: Path
) -> StudyDirectory:
    reap()
    host = pipeline.host_facts()
    host.pop("kernels", None)
    about = {"partywall": __version__, "seed": seed, "rounds": chosen.rounds, "host": host}
    label = Label.create(f"tomcat-{secrets.token_hex(4)}", work_dir)
    total_ns = int(studies.estimate_s(asked, chosen) * 1e9)
    try:
        with (
            pipeline.terminated_as_interrupt(),
            tomcat.running(label) as url,
            Live(console, total_ns, total_ns) as live,
        ):
            directory = StudyDirectory.create(out, asked, form, about)

            def tell(doing: str, done: int, of: int) -> None:
                live.spent(total_ns * done // of, total_ns)
                live.doing(doing)

            studies.carry_out(asked, chosen, url, directory, work_dir, seed, tell)
            return directory
    finally:
        reaper.clean(label)


def report(directory: StudyDirectory, console: Console, formats: Sequence[str] | None) -> int:
    """Shows what a study found, and writes it into its folder."""
    from partywall.report import paper, study_page  # noqa: PLC0415 - what draws is slow to import

    made = read(directory)
    paper.show(made.besides, console)
    _say(console, f"\n{study_page.headline(made)}")
    for note in made.notes:
        _say(console, f"note: {note}")
    for path in study_page.export(made, directory.path, formats or study_page.DEFAULT_FORMATS):
        _say(console, str(path))
    return Exit.HOLDS


def read(directory: StudyDirectory) -> StudyReport:
    """A study's report from its folder. TrialError if nothing was measured twice."""
    from partywall.report.study_page import StudyReport  # noqa: PLC0415 - what draws is slow to import

    about = directory.about()
    asked = Study.model_validate(about["study"])
    form = asked.forms[cast("Literal['short', 'long']", about["form"])]
    observations = directory.observations()
    if not any(observed.round for observed in observations):
        raise TrialError(f"{directory.path}: no cell was measured twice, so there is no interval; measure again")
    doubtful = [observed.values["doubtful"] or 0.0 for observed in observations]
    share = sum(doubtful) / len(doubtful)
    notes = [f"In {share:.0%} of the seconds the generator doubted itself: what it measured is its own work too, "
             "which is what this study is about"] if share > 0.1 else []  # fmt: skip
    differs = [f"the short form compresses {units.format_bytes(form.compress)}, not 5 MB, and holds each cell for "
               f"{units.format_duration(form.hold)}, not two hours"] if about["form"] == "short" else []  # fmt: skip
    return StudyReport(
        run=directory.path.resolve().name,
        study=asked,
        form=about["form"],
        observations=tuple(observations),
        estimates={metric: {c.id: e for c, e in studies.estimates(observations, metric)} for metric in METRICS},
        besides=tuple(studies.besides(asked, observations, differs)),
        notes=tuple(notes),
        facts=(
            ("rounds", f"{1 + max(observed.round for observed in observations)} of {about['rounds']}"),
            (
                "each cell",
                f"held for {units.format_duration(form.hold)}, the first {units.format_duration(form.settle)} left out",
            ),
            ("compression", units.format_bytes(form.compress)),
            ("seed", str(about["seed"])),
            ("Partywall", str(about["partywall"])),
        ),
        host=about["host"],
    )


def find(name: str) -> Path:
    """The file that is meant: a path, or the name of a study that ships with Partywall."""
    shipped = {
        f"papers/{f.name.removesuffix(studies.SUFFIX)}": f for f in FOLDER.iterdir() if f.name.endswith(studies.SUFFIX)
    }
    if name in shipped:
        return Path(str(shipped[name]))
    if Path(name).exists():
        return Path(name)
    raise UsageError(Problem(f"there is no study {name!r}", f"give a path, or one of {', '.join(sorted(shipped))}"))


def _form(asked: Study, form: str, rounds: int | None) -> Form:
    if form not in asked.forms:
        raise UsageError(Problem(f"{form!r} is no form of it", f"there are {', '.join(asked.forms)}", key="--form"))
    chosen = asked.forms[form]
    return chosen if rounds is None else chosen.model_copy(update={"rounds": rounds})


def _containers() -> Scenario:
    """What the study needs of a host, as a scenario asks for it."""
    victim = {"probe": "integer", "sandbox": {"backend": "container"}}
    return Scenario.model_validate({"partywall": 1, "name": "study", "victims": {"generator": victim}})


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
