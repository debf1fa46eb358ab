"""`partywall load`: puts a URL, or the services of a plan, under load with virtual users; checks plans."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partywall import units
from partywall.cli import machine, output
from partywall.cli.arguments import SEED_MOST, Cpus, Wait, WaitForMemory, WorkDir, allowed_cpus, memory_wait_ns
from partywall.cli.group import Group, group
from partywall.cli.load_model import model
from partywall.cli.load_record import import_har, record
from partywall.cli.machine import FORMS
from partywall.errors import Exit, Problem, UsageError, parsed
from partywall.host.label import WORK_ROOT
from partywall.load.quick import USERS_OPEN, Quick, program

if TYPE_CHECKING:
    from partywall.load.capability import LoadJob
    from partywall.load.document import Generator

WITH_PLAN = (
    "target",
    "threads",
    "cpus",
    "seed",
    "out",
    "work_dir",
    "watch",
    "server_host",
    "sandbox",
    "sandboxes",
    "cpu_limit",
    "generator",
    "wait_for_memory",
    "wait",
)


class _Group(Group):
    """Treats `partywall load X` as `partywall load run X`, unless X is another command of the group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = group(
    "Put a service under load with virtual users.\n\n"
    "\b\n"
    "  partywall load URL --users 100 --for 30s    many users, one request\n"
    "  partywall load plan.yaml                    users and thresholds of a plan\n\n"
    "All options: partywall load run --help. Plans: docs/load-plan.md",
    _Group,
)

PlanPath = Annotated[Path, typer.Argument(help="A plan file.", metavar="PLAN")]


@app.command()
def check(plan: PlanPath) -> int:
    """Check a plan. All mistakes are reported at once, with line, key and remedy. Sends nothing."""
    from partywall.load import check as plans
    from partywall.load.capability import located_in_plan
    from partywall.load.compiling import program as compiled_plan
    from partywall.load.measure import check as judged_by_agent

    console = output.console(output.Format.TEXT)
    loaded = plans.load(plan)
    compiled = compiled_plan(loaded)
    with located_in_plan(loaded):
        judged_by_agent(compiled)
    output.say(console, f"{plan}: no mistakes")
    for name, user in loaded.plan.users.items():
        counts = f"{len(user.init)} steps in init, {len(user.actions)} in actions, {len(user.end)} in end"
        output.say(console, f"  {name} (weight {user.weight:g}): {counts}")
    output.say(console, f"  {_pacing_text(compiled['pacing'])}")
    output.say(console, f"  named: {', '.join(plans.labels_of(loaded.plan))}")
    return Exit.HOLDS


@app.command()
def schema() -> int:
    """Print the JSON Schema of plans, for editors."""
    from partywall.load.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
    return Exit.HOLDS


@app.command()
def adjust(
    load: Annotated[Path, typer.Argument(help="The record of a running load.", metavar="LOAD")],
    level: Annotated[
        float,
        typer.Argument(help="Users, or requests a second of a load with --rate.", min=0, max=1e7, metavar="LEVEL"),
    ],
) -> int:
    """Change the users, or the requests a second, of a running load until its end.

    partywall load adjust runs/load-20261124-221724-116e 200

    The load says what became of it, and its report notes the change.
    """
    from partywall.core import control
    from partywall.load.capability import Loads

    control.ask(Loads.record.open(load), "its users", level=level)
    return Exit.HOLDS


app.command("import")(import_har)
app.command()(record)
app.command()(model)


@app.command()
def run(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(help="A URL to request, e.g. http://127.0.0.1:8080/, or a plan (YAML).", metavar="URL|PLAN")
    ],
    users: Annotated[
        int | None,
        typer.Option(
            help="Users. Each sends its next request after the response (default 1). With --rate: most users "
            f"at a time (default {USERS_OPEN}).",
            min=1,
            max=1_000_000,
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second, sent whether or not earlier ones were answered.")
    ] = None,
    for_: Annotated[str, typer.Option("--for", help="Duration after the ramp, e.g. 30s.")] = "30s",
    ramp: Annotated[str, typer.Option(help="Time over which users or rate rise from 0.")] = "0s",
    think: Annotated[str, typer.Option(help="Time each user waits before its next request.")] = "0s",
    poisson: Annotated[
        bool, typer.Option("--poisson", help="With --rate: send at random times instead of evenly.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="Method; default GET, or POST with a body.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="'NAME: VALUE'; may be repeated.")] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help="Body.")] = None,
    data_file: Annotated[Path | None, typer.Option(help="File that contains the body.")] = None,
    timeout: Annotated[str, typer.Option(help="A response that takes longer is an error.")] = "30s",
    redirects: Annotated[int, typer.Option(help="Most redirects to follow.", min=0, max=50)] = 5,
    no_keep_alive: Annotated[
        bool, typer.Option("--no-keep-alive", help="Open a new connection for every request.")
    ] = False,
    http2: Annotated[
        bool,
        typer.Option(
            "--http2", help="HTTP/2: negotiated over TLS, assumed without it. A user sends one request at a time."
        ),
    ] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not verify certificates.")] = False,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust in addition to the host's, in PEM.")
    ] = None,
    connect_to: Annotated[
        str | None, typer.Option(help="Connect to ADDRESS:PORT or unix:PATH instead of the URL's host.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of the generator; default: 1, or as in the plan.", min=1, max=256)
    ] = None,
    cpus: Cpus = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.", min=0, max=SEED_MOST)] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder to create for the record. Default: runs/load-TIME-CHANCE.")
    ] = None,
    sandbox: Annotated[
        str,
        typer.Option(
            help="Where the generator runs: process, container (needs crun or runc, and root or a delegated scope) or "
            "qemu (a virtual machine, see partywall vm), which reaches the service through QEMU's network stack."
        ),
    ] = "process",
    sandboxes: Annotated[int, typer.Option(help="Number of generators that share the users.", min=1, max=64)] = 1,
    cpu_limit: Annotated[
        str | None, typer.Option(help="For container and qemu: maximum share of its CPUs' time, e.g. 50%.")
    ] = None,
    watch: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=COMMAND that starts an agent on another host, to read its counters too, e.g. "
            "'server=ssh shop partywall-agent serve'; may be repeated."
        ),
    ] = None,
    server_host: Annotated[
        str | None,
        typer.Option(
            help="The server's host for ssh (a Host of ~/.ssh/config, user@name): its counters are read too, "
            "by an agent that is copied there and removed afterwards. Nothing needs to be installed there."
        ),
    ] = None,
    generator: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A machine that generates load in place of this host: {FORMS}; may be repeated: they share the "
            "users. By ssh, an agent is copied there and removed afterwards; in a domain, yours listens on its port.",
            metavar="HOST",
        ),
    ] = None,
    wait_for_memory: WaitForMemory = None,
    wait: Wait = False,
    work_dir: WorkDir = WORK_ROOT,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Put a service under load, and show whether the figures are the service's or the generator's own.

    With a plan (docs/load-plan.md), users do what the plan says, and its thresholds decide the exit code. Only these
    options apply to a plan: --threads, --cpus, --sandbox, --sandboxes, --cpu-limit, --generator, --seed, --watch,
    --server-host, --wait-for-memory, --wait, --out and --work-dir.

    Without --rate, each user sends a request, waits for the response, and sends the next one (closed model). With
    --rate, requests are sent at their times whether or not earlier ones were answered (open model). Latency then counts
    from the intended start of a request, so that a stalled generator cannot hide a stalled service. The raw latency is
    shown too.

    Lines of the table: response, from the intended start to the last byte; raw, from the actual start to the last byte;
    first byte, from sending the request to the first byte; body, from the first to the last byte; lateness, how late
    requests with an intended start were sent.

    Exit code: 0 measured, and all thresholds hold; 1 a threshold is violated; 3 more than half of the seconds are
    doubtful; 5 no request was answered.
    """
    from partywall.cli import leftovers
    from partywall.cli.execution import carry_out
    from partywall.cli.live import wide_console
    from partywall.cli.load_view import View
    from partywall.core import here
    from partywall.core.capability import Options
    from partywall.load import check as plans
    from partywall.load.capability import LoadJob, Loads
    from partywall.load.compiling import program as compiled_plan
    from partywall.load.measure import Setup
    from partywall.sandbox import qemu

    wait_ns = memory_wait_ns(wait_for_memory)
    chosen = plans.load(Path(target)) if _is_plan(target) else None
    if chosen is None:
        if method is not None and method != method.upper():
            raise UsageError(Problem(f"{method!r} is not an HTTP method", f"write {method.upper()}", key="--method"))
        options_given = Quick(
            url=target,
            for_ns=parsed("--for", for_, units.parse_duration_ns),
            users=users,
            rate=rate,
            poisson=poisson,
            ramp_ns=parsed("--ramp", ramp, units.parse_duration_ns),
            think_ns=parsed("--think", think, units.parse_duration_ns),
            method=method,
            headers=tuple(header or ()),
            data=data,
            data_file=data_file,
            timeout_ns=parsed("--timeout", timeout, units.parse_duration_ns),
            keep_alive=not no_keep_alive,
            http2=http2,
            verify=not insecure,
            authorities=ca_file,
            connect_to=connect_to,
            redirects=redirects,
        )
        job = LoadJob(target, program(options_given))
    else:
        _no_others(context)
        job = LoadJob(f"{chosen.plan.name} ({target})", compiled_plan(chosen), chosen)
    elsewhere = _generators(generator or ())
    if elsewhere or job.generators:
        _no_places_here(context)
    share = None if cpu_limit is None else _share(cpu_limit)
    here.check_folder(work_dir)
    host = context.obj()
    setup = Setup(
        name=job.name,
        cpus=allowed_cpus(cpus),
        threads=threads or job.threads,
        seed=seed,
        work_root=work_dir,
        watch=_watched_hosts(watch or (), server_host),
        server_host=server_host,
        backend=_backend(sandbox, cpu_limit),
        accel=qemu.choose("auto", host).name if sandbox == "qemu" else "tcg",
        sandboxes=sandboxes,
        cpu_limit=share,
        generators=elsewhere or job.generators,
    )
    job = dataclasses.replace(_reaching(job, sandbox), setup=setup)
    leftovers.clean_up()
    console, options = wide_console(format_), Options(host, out, work_dir, memory_wait_ns=wait_ns, waits=wait)
    view, document = View(console, job.title), output.document("load", format_)
    return carry_out(lambda emit: Loads().measure(job, options, emit), options, view, console, document=document)


def _reaching(job: LoadJob, sandbox: str) -> LoadJob:
    """The job with addresses that its sandbox knows, and no file of this host."""
    from partywall.load.compiling import inlined
    from partywall.load.lasting import addresses, for_guest
    from partywall.load.measure import GUESTS_HOST

    if sandbox == "process":
        return job
    resolved = addresses(job.program) if sandbox == "container" else for_guest(job.program, GUESTS_HOST)
    return dataclasses.replace(job, program=inlined(job.program) | {"addresses": resolved})


def _generators(given: Sequence[str]) -> dict[str, Generator]:
    """Machines named by options. UsageError for a name that cannot be one, or that is given twice."""
    every = [machine.generator(text, "--generator") for text in given]
    if twice := next((each for each in every if every.count(each) > 1), None):
        raise UsageError(Problem(f"{twice.place!r} is given twice", "use --threads for more of it", key="--generator"))
    return {each.place: each for each in every}


def _no_places_here(context: typer.Context) -> None:
    """UsageError for options that say where generators are on this host."""
    names = {"cpus": "--cpus", "sandbox": "--sandbox", "sandboxes": "--sandboxes", "cpu_limit": "--cpu-limit"}
    given = [option for name, option in names.items() if _is_given(context, name)]
    if given:
        said = "the generators are on other machines"
        raise UsageError(*(Problem(said, "leave it out; a plan can set their cpus", key=option) for option in given))


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _backend(name: str, cpu_limit: str | None) -> str:
    """Checks the sandbox of a load. UsageError if it does not exist, CapabilityError if this user cannot use it."""
    from partywall.sandbox.needs import check_containers, check_guests

    if name not in ("process", "container", "qemu"):
        remedy = "give process, container or qemu"
        raise UsageError(Problem(f"{name!r} is not a sandbox for a load", remedy, key="--sandbox"))
    if name == "process" and cpu_limit is not None:
        remedy = "add --sandbox container, or leave it out"
        raise UsageError(Problem("a process has no CPU limit", remedy, key="--cpu-limit"))
    settings = {"--cpu-limit": "cpu"} if cpu_limit is not None else {}
    if name == "container":
        check_containers("--sandbox", settings)
    elif name == "qemu":
        check_guests(settings)
    return name


def _share(text: str) -> float:
    share = parsed("--cpu-limit", text, units.parse_share)
    if not 0 < share <= 1:
        raise UsageError(
            Problem(f"must be greater than 0 and at most 100%, not {text}", "give for example 50%", key="--cpu-limit")
        )
    return share


def _watched_hosts(watch: Sequence[str], server_host: str | None) -> dict[str, tuple[str, ...]]:
    """Commands by the name of their host. UsageError if two hosts have the same name."""
    from partywall.load.measure import SERVER
    from partywall.sandbox.addresses import check_ssh_host

    named = [_watched(text) for text in watch]
    if server_host is not None:
        check_ssh_host(server_host, "--server-host")
    names = [name for name, _ in named] + ([SERVER] if server_host else [])
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(Problem(f"two hosts are called {twice!r}", "give each a name of its own", key="--watch"))
    return dict(named)


def _watched(text: str) -> tuple[str, tuple[str, ...]]:
    """'NAME=COMMAND' as (name, words)."""
    name, _, command = text.partition("=")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(Problem(f"{text!r}: {error}", "close the quotes", key="--watch")) from None
    if not name or not words:
        remedy = "write for example 'server=ssh shop partywall-agent serve'"
        raise UsageError(Problem(f"{text!r} is not NAME=COMMAND", remedy, key="--watch"))
    return name, words


def _is_plan(target: str) -> bool:
    """True for a file that exists, or a name that only a file can have."""
    return "://" not in target and (target.endswith((".yaml", ".yml")) or Path(target).exists())


def _no_others(context: typer.Context) -> None:
    """UsageError for options that a plan defines itself."""
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in WITH_PLAN and parameter.name in context.params and _is_given(context, parameter.name)
    ]
    if given:
        raise UsageError(*(Problem("this is part of the plan", "move it to the plan", key=option) for option in given))


def _pacing_text(pacing: Mapping[str, Any]) -> str:
    model, said = next(iter(pacing.items()))
    stages = ", ".join(
        f"{stage['to']:g} in {units.format_duration(stage['for_ns'])}" for stage in said["stages"] if stage["for_ns"]
    )
    return f"{model}, {'users' if model == 'closed' else 'arrivals a second'}: {stages}"
