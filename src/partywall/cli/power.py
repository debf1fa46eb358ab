"""`partywall power`: what meters read, a node's power model, and each consumer's watts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from partywall import units
from partywall.cli import leftovers, output
from partywall.cli.arguments import SEED_MOST, Wait, duration_ns
from partywall.cli.execution import carry_out, go_on
from partywall.cli.group import group
from partywall.cli.live import Live, wide_console
from partywall.core.capability import Options
from partywall.errors import Exit, Problem, UsageError
from partywall.host.label import WORK_ROOT
from partywall.kinds.power import PowerJob, Powers, move_energy
from partywall.power import activity, profiles
from partywall.power import meters as every_meter
from partywall.report.power_view import energy_text
from partywall.stats.power_move import PARTS
from partywall.store.power import PowerDirectory

app = group(
    "Read power meters, fit a power model of this host, and show who uses the watts.\n\n"
    "\b\n"
    "  partywall power meters             list the meters of this host\n"
    "  partywall power calibrate METER    fit a model to a load that Partywall runs\n"
    "  partywall power attribute --meter METER --model FILE\n"
    "                                     show the watts of each container\n\n"
    "Without a meter: partywall power attribute --model PROFILE (docs/power.md)",
)

Names = Annotated[
    list[str],
    typer.Argument(help="Meters, as 'partywall power meters' names them; such as rapl.", metavar="METER..."),
]
For = Annotated[str, typer.Option("--for", help="How long, e.g. 30s.")]
Every = Annotated[str, typer.Option(help="Time between two readings of a meter, e.g. 100ms.")]
Out = Annotated[Path | None, typer.Option(help="Directory to make. Default: runs/power-TASK-TIME-CHANCE.")]
WorkDir = Annotated[Path, typer.Option(help="Folder for temporary files.")]


@app.command()
def meters(context: typer.Context, format_: output.FormatOption = output.Format.TEXT) -> int:
    """List the meters of this host, those that need a name, and what is missing for the others."""
    places = every_meter.find(context.obj())
    if format_ == output.Format.JSON:
        return output.write("power meters", {"meters": places})
    console = wide_console()
    table = Table("meter", "what it is", "here", "remedy", box=None, pad_edge=False)
    for place in places:
        table.add_row(
            place.name, place.what, place.missing or "yes", place.remedy, style="" if not place.missing else "dim"
        )
    console.print(table)
    note = "Fill in names in capitals. Passwords come from PARTYWALL_METER_PASSWORD (docs/power.md)."
    console.print(f"\n{note}", highlight=False, markup=False, soft_wrap=True)
    return Exit.HOLDS


@app.command(name="profiles")
def list_profiles(format_: output.FormatOption = output.Format.TEXT) -> int:
    """List the published power profiles that stand in for a model, with their watts."""
    if format_ == output.Format.JSON:
        return output.write("power profiles", {"profiles": list(profiles.PROFILES.values())})
    table = Table("profile", "source", "cores", "idle", "full", "off", "break-even", box=None, pad_edge=False)
    for profile in profiles.PROFILES.values():
        off = "–" if profile.off_watts is None else f"{profile.off_watts:g} W"
        even = "–" if profile.break_even_s is None else f"{profile.break_even_s:.0f} s"
        watts = [f"{value:g} W" for value in (profile.points[0][1], profile.points[-1][1])]
        table.add_row(profile.name, profile.source, str(profile.cpus), *watts, off, even)
    wide_console().print(table)
    return Exit.HOLDS


@app.command()
def read(
    context: typer.Context,
    meter: Names,
    for_: For = "10s",
    every: Every = "100ms",
    out: Out = None,
    wait: Wait = False,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Read one or more meters for some time, with the host's CPU time beside them.

    partywall power read rapl nut://ups1@localhost --for 1min

    Exit code: 0 every meter was read, 3 one was not, 2 bad name or option.
    """
    job = PowerJob("read", tuple(meter), duration_ns("--for", for_), duration_ns("--every", every, "100ms"))
    return _carried_out(job, Options(context.obj(), out, waits=wait), format_)


@app.command()
def calibrate(
    context: typer.Context,
    meter: Annotated[
        list[str] | None,
        typer.Argument(help="Meters, as 'partywall power meters' names them; such as rapl.", metavar="METER..."),
    ] = None,
    slot: Annotated[str, typer.Option(help="Length of each level; several times the meter's refresh and lag.")] = "4s",
    blocks: Annotated[int, typer.Option(min=2, max=1000, help="How often each level is tried.")] = 4,
    every: Every = "100ms",
    seed: Annotated[int, typer.Option(min=0, max=SEED_MOST, help="Of the order of levels.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(help="Continue an interrupted calibration with the levels that it lacks.", metavar="DIR"),
    ] = None,
    out: Out = None,
    wait: Wait = False,
    work_dir: WorkDir = WORK_ROOT,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Fit a power model of this host: watts by busy cores, from a load ladder that Partywall runs itself.

    partywall power calibrate rapl

    Levels (0 to all cores, 25 to 100 % busy) come in random order. The first meter is the one that the model is fitted
    to. The model is written to model.json in the record. It takes some minutes of all CPUs.

    Exit code: 0 left-out levels are predicted within 3 %, 3 they are not, 2 bad name or option.
    """
    options = Options(context.obj(), out, work_dir, waits=wait)
    if resume is not None:
        record = PowerDirectory.open(resume)
        leftovers.clean_up()
        console, document = wide_console(format_), output.document("power calibrate", format_)
        given = {"METER": meter, "--dry-run": dry_run, "--out": out}
        return go_on(Powers(), record, options, Live(console), console, document, given)
    if not meter:
        raise UsageError("the meter is missing; 'partywall power meters' lists those of this host")
    job = PowerJob(
        "calibrate",
        tuple(meter),
        every_ns=duration_ns("--every", every, "100ms"),
        slot_ns=duration_ns("--slot", slot, "4s"),
        blocks=blocks,
        seed=seed,
    )
    if dry_run:
        kind = Powers()
        kind.check(job, options)
        return output.outline("power calibrate", kind.outline(job, options), format_, wide_console())
    leftovers.clean_up()
    return _carried_out(job, options, format_)


@app.command()
def attribute(
    context: typer.Context,
    consumer: Annotated[
        list[str] | None,
        typer.Argument(
            help="pid:NUMBER or a cgroup such as /system.slice/nginx.service; NAME=… names it. "
            "Default: all containers, guests and services.",
            metavar="CONSUMER...",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="A model file of 'partywall power calibrate', or the name of a profile."),
    ] = "",
    meter: Annotated[list[str] | None, typer.Option(help="A meter for the total; without one it is modelled.")] = None,
    for_: For = "10s",
    every: Every = "100ms",
    out: Out = None,
    wait: Wait = False,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Show each consumer's watts: containers, guests, services or processes.

    partywall power attribute --meter rapl --model runs/power-calibrate-…/model.json web=pid:1234

    partywall power attribute --model cervera-dl120-g6          no meter: watts of a named profile, marked modelled

    The watts of activity are divided by what each consumer adds to the power, over all orders of switching them on. The
    idle power is shown apart, and divided by two rules.
    """
    if not model:
        remedy = f"give a file of 'partywall power calibrate', or a profile: {', '.join(profiles.PROFILES)}"
        raise UsageError(Problem("an attribution needs a power model", remedy, key="--model"))
    host = context.obj()
    chosen = tuple(consumer or ())
    if not chosen:
        chosen = tuple(f"{each.name}=cgroup:{each.name}" for each in activity.containers(host))
    job = PowerJob(
        "attribute",
        tuple(meter or ()),
        duration_ns("--for", for_),
        duration_ns("--every", every, "100ms"),
        consumers=chosen,
        model=profiles.find(model),
    )
    return _carried_out(job, Options(host, out, waits=wait), format_)


@app.command()
def migration(
    record: Annotated[Path, typer.Argument(help="A record of 'partywall migrate'.")],
    model: Annotated[str, typer.Option(help="A model file of 'partywall power calibrate', or a profile's name.")],
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Show what the moves of a migration record cost in joules: source, destination, and the stretched service.

    partywall power migration runs/migration-… --model cervera-dl120-g6

    The CPU time of both QEMUs is measured; the watts are those of the model. Power that does not depend on CPU time,
    such as that of a network card, is not included.
    """
    energy = move_energy(record, model)
    if format_ is output.Format.JSON:
        return output.write("power migration", [each.model_dump(mode="json") for each in energy], Exit.HOLDS)
    console = wide_console()
    table = Table("workload", "method", "moves", "time of a move", *PARTS, "in total")
    for each in energy:
        parts = [energy_text(part) for part in (*(each.parts[name] for name in PARTS), each.total)]
        seconds = units.format_duration(each.seconds * 1e9)
        table.add_row(each.workload, each.method, str(each.moves), seconds, *parts)
    console.print(table)
    text = f"energy of one move, {energy[0].origin} from {energy[0].model}; from the cheapest to the dearest core"
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    if bounds := [each.workload for each in energy if not each.own_known]:
        text = f"note: {', '.join(bounds)}: the source includes the guest's own work, so it is an upper bound"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return Exit.HOLDS


def _carried_out(job: PowerJob, options: Options, format_: output.Format) -> int:
    console, document = wide_console(format_), output.document(f"power {job.task}", format_)
    return carry_out(
        lambda emit: Powers().measure(job, options, emit), options, Live(console), console, document=document
    )
