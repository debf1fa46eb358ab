"""Commands that are made from the jobs of a capability. Nothing here knows which capabilities there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from partywall import kinds, registry
from partywall.cli import group, output
from partywall.cli.arguments import PrometheusFile, Wait
from partywall.core.capability import Capability
from partywall.core.job import Asked, Job
from partywall.host.label import WORK_ROOT

AnyCapability = Capability[Any, Any, Any]


def command(name: str) -> Any:
    """The command of a capability, or the group of its commands."""
    capability, name = kinds.made(name), registry.command(name)
    made = group.group(inspect.getdoc(type(capability)) or name)
    for job in capability.jobs:
        called = f"{name} {job.verb}".strip()
        function = _function(job, _shared(capability, job), partial(_carry_out, called, capability))
        if not job.verb:
            return function
        made.command(job.verb)(function)
    for action in capability.actions:
        made.command(action.verb)(_function(action, FORMAT, partial(_act, f"{name} {action.verb}")))
    return made


def _function(
    job: type[Job], shared_options: dict[str, tuple[Any, Any]], does: Callable[..., int]
) -> Callable[..., int]:
    """A function with the options of a job, from whose signature Typer makes a command. does: carries it out."""

    def call(context: typer.Context, **given: Any) -> int:
        shared = Shared(**{key: given.pop(key) for key in shared_options})
        known = {key: value for key, value in given.items() if value not in (None, [], False)}
        return does(job, context, known, shared)

    asked = {each.name: _asked(each) for each in job.asked()}
    every = {"context": (typer.Context, inspect.Parameter.empty)} | asked | dict(shared_options)
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


def _carry_out(name: str, capability: AnyCapability, *given: Any) -> int:
    from partywall.cli import carrying

    return carrying.carry_out(name, capability, *given)


def _act(name: str, *given: Any) -> int:
    from partywall.cli import carrying

    return carrying.act(name, *given)


FORMAT = {"format_": (output.FormatOption, output.Format.TEXT)}


@dataclass(frozen=True)
class Shared:
    """What a command takes beside its job."""

    format_: output.Format
    out: Path | None = None
    dry_run: bool = False
    resume: Path | None = None
    prometheus_file: Path | None = None
    wait: bool = False
    work_dir: Path = WORK_ROOT


def _shared(capability: AnyCapability, job: type[Job]) -> dict[str, tuple[Any, Any]]:
    """The types and defaults of options that do not belong to the job."""
    word = capability.named(job, "" if job.subject is Job.subject else "NAME")
    options: dict[str, tuple[Any, Any]] = {}
    if capability.metrics is not None:
        options["prometheus_file"] = PrometheusFile, None
    said = typer.Option("--dry-run", help="Say what would be done and how long it takes, and what is missing.")
    options["dry_run"] = Annotated[bool, said], False
    if not (capability.cannot_resume or job.cannot_resume):
        said = typer.Option(help="Continue an interrupted record with what it lacks.", metavar="DIR")
        options["resume"] = Annotated[Path | None, said], None
    default = "none: no record is kept" if capability.only_with_out else f"runs/{word}-TIME-CHANCE"
    said = typer.Option(help=f"Directory to create. Default: {default}.")
    options["out"] = Annotated[Path | None, said], None
    if capability.disturbs:
        options["wait"] = Wait, False
    if job.makes_files:
        options["work_dir"] = Annotated[Path, typer.Option(help="Folder for temporary files.")], WORK_ROOT
    return options | FORMAT
