"""Commands that are made from the jobs of a capability. Nothing here knows which capabilities there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from partywall import kinds
from partywall.cli import group, leftovers, output
from partywall.cli.arguments import PrometheusFile, Wait, check_metrics_file, write_metrics
from partywall.cli.execution import carry_out, go_on
from partywall.cli.live import Live, Watching, wide_console
from partywall.core.capability import Capability, Options
from partywall.core.job import Asked, Job
from partywall.events import Emit, reports

AnyCapability = Capability[Any, Any, Any]


def command(name: str) -> Any:
    """The command of a capability, or the group of its commands."""
    capability = kinds.made(name)
    if len(capability.jobs) == 1 and not capability.jobs[0].verb:
        return _function(name, capability, capability.jobs[0])
    made = group.group(inspect.getdoc(type(capability)) or name)
    for job in capability.jobs:
        made.command(job.verb)(_function(f"{name} {job.verb}", capability, job))
    return made


def _function(name: str, capability: AnyCapability, job: type[Job]) -> Callable[..., int]:
    """A function with the options of a job, from whose signature Typer makes a command."""

    def call(context: typer.Context, **given: Any) -> int:
        shared = _Shared(**{key: given.pop(key) for key in shared_options})
        known = {key: value for key, value in given.items() if value not in (None, [], False)}
        return _carry_out(name, capability, job, context, known, shared)

    shared_options = _shared(name, capability)
    asked = {each.name: _asked(each) for each in job.asked()}
    every = {"context": (typer.Context, inspect.Parameter.empty)} | asked | shared_options
    keyword = inspect.Parameter.KEYWORD_ONLY
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(key, keyword, annotation=type_, default=default) for key, (type_, default) in every.items()]
    )
    call.__annotations__ = {key: type_ for key, (type_, _) in every.items()}
    call.__doc__ = job.__doc__
    return call


def _asked(asked: Asked) -> tuple[Any, Any]:
    """The type and default of an option. Values stay texts: the job parses all of them, and says all that is wrong.

    The job says too what is missing, because `--resume` needs nothing.
    """
    option = asked.option
    more = f"  [default: {asked.default_text}]" if asked.default_text else "  [required]" if asked.is_required else ""
    if asked.is_switch:
        return Annotated[bool, typer.Option(asked.flag, help=option.help)], False
    type_: Any = list[str] | None if asked.is_list else str | None
    if option.metavar:
        return Annotated[type_, typer.Argument(help=option.help + more, metavar=option.metavar)], None
    shown = {int: "<int>", float: "<float>"}.get(asked.type)
    return Annotated[type_, typer.Option(asked.flag, help=option.help + more, metavar=shown)], None


class _Shared:
    """What every command of this kind takes beside its job."""

    def __init__(
        self,
        out: Path | None,
        dry_run: bool,
        format_: output.Format,
        resume: Path | None = None,
        prometheus_file: Path | None = None,
        wait: bool = False,
    ) -> None:
        self.out, self.dry_run, self.format, self.resume = out, dry_run, format_, resume
        self.prometheus_file, self.wait = prometheus_file, wait


def _shared(name: str, capability: AnyCapability) -> dict[str, tuple[Any, Any]]:
    """The types and defaults of options that do not belong to the job."""
    word = name.partition(" ")[0]
    options: dict[str, tuple[Any, Any]] = {}
    if capability.metrics is not None:
        options["prometheus_file"] = PrometheusFile, None
    said = typer.Option("--dry-run", help="Say what would be done and how long it takes, and what is missing.")
    options["dry_run"] = Annotated[bool, said], False
    if not capability.cannot_resume:
        said = typer.Option(help="Continue an interrupted record for the rest of its time.", metavar="DIR")
        options["resume"] = Annotated[Path | None, said], None
    said = typer.Option(help=f"Directory to create. Default: runs/{word}-TIME-CHANCE.")
    options["out"] = Annotated[Path | None, said], None
    if capability.disturbs:
        options["wait"] = Wait, False
    return options | {"format_": (output.FormatOption, output.Format.TEXT)}


def _carry_out(
    name: str,
    capability: AnyCapability,
    job: type[Job],
    context: typer.Context,
    given: Mapping[str, Any],
    shared: _Shared,
) -> int:
    console, document = wide_console(shared.format), output.document(name, shared.format)
    if shared.prometheus_file is not None:
        check_metrics_file(shared.prometheus_file)
    if shared.resume is not None:
        record = capability.record.open(shared.resume)
        called = {each.name: each.flag for each in job.asked()}
        extra: dict[str, object] = {called[key]: value for key, value in given.items()}
        extra |= {"--out": shared.out, "--prometheus": shared.prometheus_file, "--dry-run": shared.dry_run}
        options = Options(context.obj(), waits=shared.wait)
        view = _view(capability, record.job, console)
        return go_on(capability, record, options, view, console, document, extra, measures=capability.disturbs)
    wanted = job.parsed(given)
    options = Options(context.obj(), shared.out, waits=shared.wait)
    if shared.dry_run:
        return output.outline(name, capability.outline(wanted, options), shared.format, console)
    if capability.disturbs:
        leftovers.clean_up()
    return carry_out(
        lambda emit: capability.begin(wanted, options, emit),
        options,
        _view(capability, wanted, console),
        console,
        capability.keeps,
        _metrics(capability, shared.prometheus_file),
        document,
        measures=capability.disturbs,
        live=capability.live,
    )


def _view(capability: AnyCapability, job: Job, console: Any) -> Any:
    if type(capability).live is Capability.live:
        return Live(console)
    return Watching(console, capability.live, capability.doing, ends=job.ends)


def _metrics(capability: AnyCapability, file: Path | None) -> dict[str, Emit]:
    """The listener that writes the metrics file."""
    if file is None or capability.metrics is None:
        return {}
    metrics = capability.metrics()

    def write(seen: Any) -> None:
        metrics.add(seen)
        write_metrics(file, metrics.text())

    return {str(file): reports(write)}
