"""`partywall study`: repeats a published measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from partywall import units
from partywall.cli import output
from partywall.cli.arguments import SEED_MOST, Wait, WaitForMemory, WorkDir, memory_wait_ns
from partywall.cli.machine import FORMS
from partywall.errors import Exit, Problem, UsageError
from partywall.host.label import WORK_ROOT

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.core.capability import Outline
    from partywall.study.document import Machines


class Form(StrEnum):
    """How long a study measures: one of `Length`."""

    SHORT = "short"
    LONG = "long"
    PAPER = "paper"


def study(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A study that ships with Partywall, or a study file.", metavar="STUDY")
    ] = None,
    long: Annotated[
        bool, typer.Option("--long/--short", help="Measure for hours instead of minutes, for narrower intervals.")
    ] = False,
    form: Annotated[
        Form | None, typer.Option(help="short, long, or paper: as long as in the paper, if the study has that.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="container, qemu, process …; may be repeated, to show all in one table. Studies of a network: qemu, "
            "for guests instead of network namespaces."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Measure on this machine in place of this host, by ssh (a Host of ~/.ssh/config, user@name); "
            "its sandboxes are processes there.",
            metavar="HOST",
        ),
    ] = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            help="For studies of load generation: ROLE=HOST, a machine in the role of physical, of a sandbox (repeat "
            f"it for several) or of the application (by ssh; default: this host). HOST: {FORMS}. Needs --address.",
            metavar="ROLE=HOST",
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="With --machine: the application's address for the generators.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A part of the study, or a pattern such as 'memory*'; may be repeated. Default: all."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Number of rounds. Default: that of the form.", min=2, max=1000)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random orders.", min=0, max=SEED_MOST)] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be measured, and how long it takes; check this host.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to create. Default: runs/NAME-TIME-CHANCE.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue an interrupted study, given its folder.")] = None,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="Run the commands that the study's scenarios contain.")
    ] = False,
    wait_for_memory: WaitForMemory = None,
    wait: Wait = False,
    work_dir: WorkDir = WORK_ROOT,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Repeat a published measurement, and compare its tables and figures with the results of this host.

    \b
      partywall study                          list the studies
      partywall study papers/vits              in minutes; --long takes hours
      partywall study papers/vits --on shop    measure on another machine
      partywall study papers/load-generation-netto --address 10.0.0.7
          --machine physical=load1 --machine sandbox=libvirt:vm1

    Exit code: 0 measured, 2 bad study or option, 4 the host lacks something, 5 a part failed.
    """  # noqa: D301 - Click keeps the lines after a backspace
    from partywall.cli import leftovers
    from partywall.cli.execution import carry_out, go_on
    from partywall.cli.live import Live
    from partywall.core.capability import Options
    from partywall.study.capability import Studies, StudyJob
    from partywall.study.document import StudyRequest
    from partywall.study.record import StudyDirectory

    console, document = output.console(format_), output.document("study", format_)
    kept, wait_ns = Studies(), memory_wait_ns(wait_for_memory)
    options = Options(context.obj(), out, work_dir, allow_commands, wait_ns, wait) if name or resume else None
    if resume is not None and options:
        if name is not None:
            raise UsageError(f"--resume continues {resume} with its own study; leave out {name!r}")
        record = StudyDirectory.open(resume)
        leftovers.clean_up()
        given = {"--on": on, "--machine": machine, "--address": address}
        return go_on(kept, record, options, Live(console), console, document, given)
    if name is None or not options:
        return _list(console, format_)
    if long and form not in (None, Form.LONG):
        raise UsageError(f"--long and --form {form} contradict each other; leave one out")
    length = form or (Form.LONG if long else Form.SHORT)
    request = StudyRequest(
        length=length.value,
        backends=tuple(backend or ()),
        parts=tuple(only or ()),
        rounds=rounds,
        seed=seed,
        memory_wait_ns=wait_ns,
        on=on or "",
        machines=_machines(machine or (), address),
    )
    job = StudyJob.read(name, request)
    outline = kept.outline(job, options)
    _outline(console, outline, job.wanted.name, request.length, whole=dry_run)
    leftovers.clean_up()
    if dry_run:
        # As with `run --dry-run`, a plan may contain commands that are not allowed to run.
        kept.check(job, replace(options, allow_commands=True))
        if document:
            return output.outline(document, outline, format_, console)
        output.say(console, f"{on or 'This host'} can run the study. Nothing was measured.")
        return Exit.HOLDS
    return carry_out(lambda emit: kept.measure(job, options, emit), options, Live(console), console, document=document)


def _machines(given: Sequence[str], address: str | None) -> Machines | None:
    """The machines that options name, or None without any. UsageError, with all mistakes, if they are not complete."""
    from partywall.cli.machine import generator
    from partywall.load.document import Generator
    from partywall.load.tomcat import APPLICATION
    from partywall.sandbox.addresses import check_ssh_host
    from partywall.study.document import Machines
    from partywall.study.generation.machines import PHYSICAL, SANDBOX

    if not given and address is None:
        return None
    roles = (PHYSICAL, SANDBOX, APPLICATION)
    hosts: dict[str, list[Generator]] = {role: [] for role in roles}
    problems = []
    for text in given:
        role, _, host = text.partition("=")
        if role not in roles or not host:
            remedy = f"give ROLE=HOST, with one of the roles {', '.join(roles)}"
            problems.append(Problem(f"{text[:200]!r} names no role and host", remedy, key="--machine"))
        elif role == APPLICATION:
            check_ssh_host(host, "--machine")
            hosts[role].append(Generator(host=host))
        else:
            hosts[role].append(generator(host, "--machine"))
    problems += [
        Problem(f"two machines are named for the role {role}", "name one", key="--machine")
        for role in roles
        if role != SANDBOX and len(hosts[role]) > 1
    ]
    problems += [
        Problem(f"no machine is named for the role {role}", f"add --machine {role}=HOST", key="--machine")
        for role in (PHYSICAL, SANDBOX)
        if not hosts[role]
    ]
    if address is None:
        message = "the generators do not know where the application is"
        problems.append(Problem(message, "add its address, e.g. --address 10.0.0.7", key="--address"))
    if problems or address is None:
        raise UsageError(*problems)
    return Machines(
        physical=hosts[PHYSICAL][0],
        sandboxes=tuple(hosts[SANDBOX]),
        application=next((each.host for each in hosts[APPLICATION]), None),
        address=address,
    )


def _list(console: Console, format_: output.Format) -> int:
    from partywall import study as studies
    from partywall.core.document.reading import read

    files = {name: studies.find(name) for name in studies.names()}
    described = {
        name: studies.kind_of(file).read(read(file, "study"), str(file)).description for name, file in files.items()
    }
    if format_ == output.Format.JSON:
        listed = [{"name": name, "description": text} for name, text in described.items()]
        return output.write("study", {"studies": listed})
    for name, text in described.items():
        output.say(console, f"{name}: {text}")
    output.say(console, "to see what one measures, use: partywall study NAME --dry-run")
    return Exit.HOLDS


def _outline(console: Console, outline: Outline, name: str, form: str, *, whole: bool) -> None:
    length = units.format_duration(max(1, round(outline.seconds)) * 10**9)
    output.say(console, f"{name}, {form} form: about {length}")
    for line in outline.lines if whole else outline.lines[:1]:
        output.say(console, f"  {line}")
