"""`partywall load study`: a published study of load generation, measured again here."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer
from rich.console import Console
from rich.table import Table

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
from partywall.stats import overhead
from partywall.stats.overhead import Pair

if TYPE_CHECKING:
    from partywall.report.study_page import ModelReport, StudyReport

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
        model=_model(studies.pairs(asked, observations)),
    )


def _model(pairs: Sequence[Pair]) -> ModelReport | None:
    """The overhead model of a study's rounds, each level held out in turn; None with too few levels."""
    from partywall.report.study_page import LevelReport, ModelReport  # noqa: PLC0415 - what draws is slow to import

    if len({pair.users for pair in pairs}) <= overhead.LEVELS_LEAST:
        return None
    judged = overhead.held_out(pairs)
    levels = []
    for level in judged:
        rest = overhead.fit([pair for pair in pairs if pair.users != level.users])
        own = [pair for pair in pairs if pair.users == level.users]
        forecast = rest.forecast(overhead.mean_pair(own))
        levels.append(
            LevelReport(
                users=level.users,
                sandbox_s=overhead.mean_pair(own).sandbox_s,
                forecast_s=forecast.response_s,
                physical_s=level.physical_s,
                forecast_rate=forecast.rate,
                physical_rate=level.physical_rate,
            )
        )
    whole = overhead.fit(pairs)
    factor = f"exp({whole.a:.3g} {whole.b:+.3g} · (u − {whole.used_middle:.2g}))"
    formula = (
        f"Service demand there is that in the sandbox times {factor}, u: the share of its CPUs that the sandbox used"
    )
    return ModelReport(
        tuple(levels),
        overhead.mean_error(judged),
        sum(level.covered for level in judged),
        sum(level.rounds for level in judged),
        formula,
    )


def model(
    run: Annotated[Path, typer.Argument(help="A study's directory: what models are made of.", metavar="STUDY_RUN")],
    users: Annotated[
        int | None, typer.Option(help="Users of a load from the sandbox alone to be foretold.", min=1)
    ] = None,
    response: Annotated[str | None, typer.Option(help="Its mean response time there, e.g. 45ms.")] = None,
    used: Annotated[str | None, typer.Option(help="Share of its CPUs that the sandbox used, e.g. 40%.")] = None,
) -> int:
    """Foretell what the bare host would have measured from what a sandboxed generator measured.

    Shows how well the model of a study does on numbers of users it has not seen. With --users, --response and --used it
    foretells a load of the same users' script that was measured in the sandbox alone.
    """
    from partywall.report import study_page  # noqa: PLC0415 - what draws is slow to import

    if not StudyDirectory.is_one(run):
        raise UsageError(Problem(f"{run} is no study", "make one: partywall load study papers/load-generation-netto"))
    directory = StudyDirectory(run)
    asked = Study.model_validate(directory.about()["study"])
    pairs = studies.pairs(asked, directory.observations())
    made = _model(pairs)
    if made is None:
        remedy = f"measure at more than {overhead.LEVELS_LEAST} numbers of users, from a process and from a sandbox"
        raise UsageError(
            Problem(f"{run} has too few numbers of users measured both ways, or a pause without a plain mean", remedy)
        )
    console = Console()
    table = Table(
        "users", "in the sandbox", "foretold (90 %)", "measured", "per s foretold (90 %)", "measured", box=None
    )
    for row in study_page.model_rows(made):
        table.add_row(*row)
    console.print(table)
    _say(console, study_page.model_summary(made))
    given = {"--users": users, "--response": response, "--used": used}
    if missing := [option for option, value in given.items() if value is None]:
        if len(missing) < len(given):
            raise UsageError(Problem(f"{' and '.join(missing)}: missing", "give all three, or none"))
        return Exit.HOLDS
    pair = _asked_pair(users or 1, response or "", used or "", pairs[0].think_s)
    forecast = overhead.fit(pairs).forecast(pair)
    one = LevelText(pair, forecast)
    _say(console, f"{users} users: {one.response} on the bare host, {one.rate} iterations/s")
    return Exit.HOLDS


@dataclass(frozen=True)
class LevelText:
    """A forecast in words."""

    pair: Pair
    forecast: overhead.Forecast

    @property
    def response(self) -> str:
        value, low, high = (units.format_duration(part * 1e9) for part in self.forecast.response_s)
        return f"{value} ({low} to {high})"

    @property
    def rate(self) -> str:
        value, low, high = (units.format_number(part) for part in self.forecast.rate)
        return f"{value} ({low} to {high})"


def _asked_pair(users: int, response: str, used: str, think_s: float) -> Pair:
    problems = []
    values: dict[str, float] = {}
    for option, text, parse in (("--response", response, units.parse_duration_ns), ("--used", used, units.parse_share)):
        try:
            values[option] = float(parse(text))
        except ValueError as error:
            problems.append(Problem(str(error), key=option))
    if not problems and values["--response"] <= 0:
        problems.append(Problem("a response takes some time", "give for example 45ms", key="--response"))
    if problems:
        raise UsageError(*problems)
    return Pair(users, think_s, values["--response"] / 1e9, values["--used"])


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
