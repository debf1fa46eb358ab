"""`partywall study`: a published measurement made again, whatever it is of."""

from __future__ import annotations

import datetime
import secrets
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from partywall import __version__, pipeline, preflight, units
from partywall import study as studies
from partywall.cli import leftovers, output
from partywall.cli.kernel import WorkDir
from partywall.cli.live import Live
from partywall.cli.report import show_record
from partywall.errors import Exit, Problem, UsageError
from partywall.host import Host
from partywall.model.study import Asked, Outline
from partywall.sandbox import WORK_ROOT
from partywall.scenario.load import read
from partywall.store.study import FILE, StudyDirectory
from partywall.study import Kind


def study(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A study that ships with Partywall, or a study file.", metavar="STUDY")
    ] = None,
    long: Annotated[bool, typer.Option("--long/--short", help="Hours instead of minutes: narrower intervals.")] = False,
    backend: Annotated[
        list[str] | None, typer.Option(help="container, qemu, process …; may be repeated: shown in one table.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A part, or a pattern such as 'memory*'; may be repeated. Default: all.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds; default: the form's.", min=2, max=1000)] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random orders.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured, and for how long.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to make. Default: runs/NAME-TIME-CHANCE.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with an interrupted study, given its folder.")] = None,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="Run the commands that the study's scenarios hold.")
    ] = False,
    work_dir: WorkDir = WORK_ROOT,
    format_: Annotated[
        output.Format,
        typer.Option(
            "--format", "-f", help="Of the list of studies: text, or json: one JSON document (docs/report.md)."
        ),
    ] = output.Format.TEXT,
) -> int:
    """Make a published measurement again, and put the paper's tables and figures beside what is found here.

    partywall study                        the studies there are

    partywall study papers/vits            the short form, in minutes; --long takes hours

    Exit code: 0 measured, 2 a study that cannot be, 4 the host lacks something, 5 something of it came to nothing.
    """
    console = Console()
    if format_ == output.Format.JSON and (name is not None or resume is not None):
        remedy = "leave it out, and afterwards use: partywall report FOLDER --format json"
        raise UsageError(Problem("json is only for the list of studies", remedy, key="--format"))
    if resume is not None:
        if name is not None:
            raise UsageError(f"--resume goes on with {resume} and its own study; leave out {name!r}")
        return _go_on(StudyDirectory.open(resume), context.obj(), console, work_dir, allow_commands=allow_commands)
    if name is None:
        return _list(console, format_)
    file = studies.find(name)
    kind, content = studies.kind_of(file), read(file, "study")
    wanted, asked = (
        kind.read(content, str(file)),
        Asked(
            length="long" if long else "short",
            backends=tuple(backend or ()),
            parts=tuple(only or ()),
            rounds=rounds,
            seed=seed,
        ),
    )
    host: Host = context.obj()
    _outline(console, kind.outline(wanted, asked, host), wanted.name, asked.length, whole=dry_run)
    if dry_run:
        return Exit.HOLDS
    leftovers.clean_up()
    preflight.check_folder(work_dir)
    kind.check(wanted, asked, host, work_dir, allow_commands=allow_commands)
    facts = {key: value for key, value in host.facts.items() if key != "kernels"}
    stamp = f"{wanted.name}-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    about = {"partywall": __version__, "host": facts}
    directory = StudyDirectory.create(out or Path("runs") / stamp, content, asked, about)
    return _measure(directory, kind, wanted, host, console, work_dir, allow_commands=allow_commands)


def _list(console: Console, format_: output.Format) -> int:
    files = {name: studies.find(name) for name in studies.names()}
    described = {
        name: studies.kind_of(file).read(read(file, "study"), str(file)).description for name, file in files.items()
    }
    if format_ == output.Format.JSON:
        listed = [{"name": name, "description": text} for name, text in described.items()]
        return output.write("study", {"studies": listed})
    for name, text in described.items():
        _say(console, f"{name}: {text}")
    _say(console, "see one with: partywall study NAME --dry-run")
    return Exit.HOLDS


def _outline(console: Console, outline: Outline, name: str, form: str, *, whole: bool) -> None:
    length = units.format_duration(max(1, round(outline.seconds)) * 10**9)
    _say(console, f"{name}, {form} form: about {length}")
    for line in outline.lines if whole else outline.lines[:1]:
        _say(console, f"  {line}")


def _go_on(directory: StudyDirectory, host: Host, console: Console, work_dir: Path, *, allow_commands: bool) -> int:
    file = directory.path / FILE
    kind = studies.kind_of(file)
    wanted = kind.read(directory.content, str(file))
    leftovers.clean_up()
    preflight.check_folder(work_dir)
    kind.check(wanted, directory.asked, host, work_dir, allow_commands=allow_commands)
    return _measure(directory, kind, wanted, host, console, work_dir, allow_commands=allow_commands)


def _measure(
    directory: StudyDirectory,
    kind: Kind[Any],
    wanted: Any,
    host: Host,
    console: Console,
    work_dir: Path,
    *,
    allow_commands: bool,
) -> int:
    try:
        with directory.exclusive(), pipeline.terminated_as_interrupt(), Live(console) as live:
            kind.measure(wanted, directory, host, work_dir, live)
    except KeyboardInterrupt:
        words = ["partywall", "study", "--resume", str(directory.path)]
        words += ["--allow-commands"] if allow_commands else []
        words += ["--work-dir", str(work_dir)] if work_dir != WORK_ROOT else []
        _say(console, "Interrupted. All its processes have ended, and the measurements are kept.")
        _say(console, f"Continue with:  {shlex.join(words)}")
        _say(console, f"Or show the findings:  partywall report {shlex.quote(str(directory.path))}")
        raise
    return show_record(directory, console)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
