"""`partywall guard`: enforces a bandwidth policy, and shows that it is kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from partywall import events, guard, units
from partywall.agent.commands import commands_or_error
from partywall.cli import output
from partywall.cli.arguments import PrometheusFile, Wait, check_metrics_file, duration_ns, write_metrics
from partywall.cli.execution import carry_out
from partywall.cli.group import group
from partywall.cli.live import Elapsed, show_note, wide_console
from partywall.cli.report import show_record
from partywall.core.capability import Options
from partywall.core.document.shipped import text
from partywall.core.here import check_hooks
from partywall.errors import Exit, Problem, UsageError
from partywall.events import Event, Note, reports
from partywall.guard import prometheus
from partywall.guard.capability import KEEPS, GuardJob, Guards
from partywall.guard.document import Link, Policy, Promise, Total, Vif
from partywall.guard.findings import Means
from partywall.guard.measure.flatten import RECEIVES, on_link
from partywall.guard.measure.left import owner
from partywall.guard.measure.run import Report
from partywall.guard.record import GuardDirectory
from partywall.host.label import state_root

app = group(
    "Enforce guaranteed bit/s and packets/s for each vif, and show that they are kept.\n\n"
    "A policy is a YAML file; see docs/guard.md. Start with: partywall guard check POLICY",
)

PAGE = "report.html"
PolicyPath = Annotated[Path, typer.Argument(help="A policy file.", metavar="POLICY")]


@app.command()
def check(policy: PolicyPath) -> int:
    """Check a policy. All mistakes are reported at once, with line, key and remedy.

    The host need not have its vifs. If it has, the side of each is compared with the interface.
    """
    loaded = guard.load(policy)
    guard.check_sides_here(loaded)
    _show_policy(wide_console(), loaded)
    return Exit.HOLDS


@app.command()
def run(
    context: typer.Context,
    policy: PolicyPath,
    for_: Annotated[str | None, typer.Option("--for", help="How long, e.g. 30s. Default: until Ctrl-C.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Find every vif and show what would be done; change nothing.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to create for the time series of every vif.")] = None,
    every: Annotated[str, typer.Option(help="How often to report.")] = "1s",
    prometheus_file: PrometheusFile = None,
    leave: Annotated[
        bool,
        typer.Option("--leave", help="Keep hooks and rates in the kernel at the end; 'guard remove' removes them."),
    ] = False,
    wait: Wait = False,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=COMMAND of an agent in a guest, for vifs with source: NAME/INTERFACE, e.g. vm1='ssh vm1 sudo "
            "partywall-agent serve'."
        ),
    ] = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Enforce a policy until Ctrl-C, with a live table. Afterwards the host is as before.

    Exit code: 0 no problem was found; 1 traffic bypassed a hook, a ceiling was exceeded or a hook was lost; 3 no
    problem was found, but reports were lost; 5 guarantees were kept, but --out or --prometheus could not be written
    until the end.
    """
    if prometheus_file is not None:
        check_metrics_file(prometheus_file)
    kept_for = duration_ns("--for", for_, "1s") if for_ is not None else None
    every_ns = duration_ns("--every", every, "1s")
    agents = commands_or_error(agent or ())
    job = replace(GuardJob.read(policy), every_ns=every_ns, for_ns=kept_for, leave=leave, agents=agents)
    options, console = Options(context.obj(), out, waits=wait), wide_console(format_)
    document = output.document("guard run", format_)
    if document and out is None and not dry_run:
        remedy = "add --out FOLDER: the document holds the findings of a record"
        raise UsageError(Problem("json needs a record", remedy, key="--format"))
    if dry_run:
        _show_policy(console, job.policy)
        return output.outline("guard run", Guards().outline(job, options), format_, console)
    totals = prometheus.Totals()
    sinks = {"the findings": reports(totals.add)}
    if prometheus_file is not None:
        metrics, name = prometheus_file, job.policy.name
        sinks[str(metrics)] = reports(lambda place: write_metrics(metrics, prometheus.text(name, place, totals)))
    view = _View(console, job)
    code = carry_out(lambda emit: Guards().measure(job, options, emit), options, view, console, KEEPS, sinks, document)
    if out is None:
        view.show_result()
    return Exit.VIOLATED if totals.wrong else code


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder created by 'guard run --out'.")],
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Write the page of a time series again, and show its path."""
    document = output.document("guard report", format_)
    return show_record(GuardDirectory.open(folder), output.console(format_), document=document)


@app.command()
def adjust(
    running: Annotated[Path, typer.Argument(help="The folder of a running guard (--out).", metavar="GUARD")],
    policy: PolicyPath,
) -> int:
    """Replace the policy of a running guard, whole or not at all. Hooks stay attached.

    partywall guard adjust series edge.yaml

    Promises, ceilings, priorities, goals, tenants, capacities of links and times may change. Links, vifs, flow classes
    and their packets may not: start the guard again for that. The guard says what became of it, and its report shows
    from when which promise held.
    """
    from partywall.core import control  # noqa: PLC0415 - of this command alone

    new, record = guard.load(policy), GuardDirectory.open(running)
    current = guard.loads(record.policy(), str(running))
    guard.refuse(current, new, str(policy), text(policy, "policy"))
    control.ask(record, "its policy", policy=text(policy, "policy"))
    console = Console()
    for change in guard.changes(current, new) or ["no key differs from the policy that is enforced"]:
        console.print(change, highlight=False, markup=False, soft_wrap=True)
    return Exit.HOLDS


@app.command()
def status(format_: output.FormatOption = output.Format.TEXT) -> int:
    """Show the policies that are enforced on this host, by which process, and those whose process has died."""
    console = Console()
    files = sorted(state_root().glob("guard-*.json")) if state_root().is_dir() else []
    kept = {name: owner(name) for name in (file.stem.removeprefix("guard-") for file in files)}
    if format_ == output.Format.JSON:
        return output.write("guard status", {"policies": [{"name": name, "pid": pid} for name, pid in kept.items()]})
    for name, pid in kept.items():
        said = (
            f"enforced by process {pid}"
            if pid
            else f"its process has died; clean up with: partywall guard remove {name}"
        )
        console.print(f"{name}: {said}", highlight=False)
    if not files:
        console.print("no policy is enforced on this host")
    return Exit.HOLDS


@app.command()
def remove(
    policy: Annotated[str, typer.Argument(help="A policy file, or the name 'guard status' shows.", metavar="POLICY")],
) -> int:
    """Remove everything that a guard left in the kernel: hooks, buckets and queues."""
    name, hooks = _left(policy)
    check_hooks("guard remove")
    if pid := owner(name):
        raise UsageError(Problem(f"policy {name!r} is enforced by process {pid}", "end that process first"))
    console = Console()
    for what in guard.remove(name, hooks) or ["nothing was left"]:
        console.print(what, highlight=False)
    return Exit.HOLDS


def _left(policy: str) -> tuple[str, list[object]]:
    """Name and hooks of a policy: from the state file of its process, or else from the policy itself."""
    name = guard.load(policy).name if Path(policy).is_file() else policy
    state = state_root() / f"guard-{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        return name, json.loads(state.read_text())["hooks"]
    if not Path(policy).is_file():
        raise UsageError(Problem(f"no policy {policy!r} is enforced here", "'partywall guard status' lists them"))
    policy_job = guard.load(policy)
    return name, guard.flatten(policy_job, guard.resolve(policy_job)).start["hooks"]


class _View:
    """A table of all vifs, redrawn at each report, at the end with means. Notes are printed above it."""

    def __init__(self, console: Console, job: GuardJob) -> None:
        self._console = console
        self._job = job
        self._elapsed = Elapsed(job.for_ns)
        self._live = Live(console=console, auto_refresh=False)
        self._means = Means()
        self._last: Report | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._last is not None:
                means = replace(self._last, rows=self._means.rows())
                length = units.format_duration(self._means.length_ns)
                self._live.update(_table(self._job.policy, means, f"means over {length}"), refresh=True)
            self._live.stop()
            if not self._console.is_terminal:
                self._console.print()

    def __call__(self, event: Event) -> None:
        self._elapsed(event)
        match event:
            case Note():
                show_note(self._console, event)
            case events.Report(report):
                for hook, kind, text in report.notes:
                    self._console.print(f"{hook}: {kind}: {text}", style="yellow", highlight=False)
                self._last = report
                self._means.add(report.at_ns - report.from_ns, report.rows)
                self._live.update(_table(self._job.policy, report, f"kept {self._elapsed}"), refresh=True)

    def show_result(self) -> None:
        """Shows what each vif got, for a guard without a record."""
        from partywall.guard.report import got  # noqa: PLC0415 - what draws is slow to import

        for said in got(self._means):
            self._console.print(said, highlight=False, markup=False, soft_wrap=True)


def _table(policy: Policy, report: Report, extent: str) -> Table:
    table = Table(title=f"{policy.name}: {extent}", title_justify="left")
    named = bool(policy.links)
    for heading in (
        "vif",
        *(["link"] if named else []),
        "offered",
        "passed",
        "granted",
        "offered",
        "passed",
        "granted",
        "dropped",
        "marked",
        "waits",
    ):
        table.add_column(heading, justify="left" if heading in ("vif", "link") else "right")
    for leaf, row in report.rows.items():
        bits = [units.format_bit_rate(row[key]) for key in ("offered_bps", "passed_bps", "granted_bps")]
        packets = [units.format_packet_rate(row[key]) for key in ("offered_pps", "passed_pps")]
        granted = units.format_packet_rate(row["granted_pps"]) if row["granted_pps"] is not None else "no limit"
        counts = [units.format_number(row[key]) for key in ("dropped_packets", "marked_packets")]
        waits = units.format_duration(row["delay_ns"]) if row["delay_ns"] is not None else "no queue"
        table.add_row(leaf, *([row["link"]] if named else []), *bits, *packets, granted, *counts, waits)
    table.caption = "\n".join(_divided(policy, report)) or None
    return table


def _divided(policy: Policy, report: Report) -> Iterator[str]:
    """A line for each link whose capacity is not fully divided."""
    for name, link in policy.by_link.items():
        divided = report.pools[on_link("send", name)]["divided_bps"]
        if divided < link.capacity:
            said = f"{units.format_bit_rate(divided)} of {units.format_bit_rate(link.capacity)} are divided"
            yield f"{on_link(said, name)}, to meet a delay goal"


def _show_policy(console: Console, policy: Policy) -> None:
    table = Table(title=f"{policy.name}: guarantees and ceilings", title_justify="left")
    named = ["link"] if policy.links else []
    left = ["vif", *named, "service class"]
    for heading in (*left, "guarantee", "ceiling", "packets guaranteed", "packets at most"):
        table.add_column(heading, justify="left" if heading in left else "right")
    for name, vif in policy.vifs.items():
        for row in _vif_rows(policy, name, vif):
            table.add_row(*row)
    for name, total in policy.tenants.items():
        for row in _total_rows(policy, name, total):
            table.add_row(*row)
    console.print(table)
    if policy.has_default_class:
        said = "service classes: the policy has no service_classes, so all vifs are in one class (default)"
        console.print(said, highlight=False, soft_wrap=True)
    console.print(f"queue for waiting packets: {policy.queue or 'fq if the kernel has it, else tbf'}", highlight=False)
    for said in _guaranteed(policy):
        console.print(said, highlight=False)


def _guaranteed(policy: Policy) -> Iterator[str]:
    """The sums of the guarantees on each link."""
    for name, link in policy.by_link.items():
        vifs = [vif for vif in policy.vifs.values() if policy.link_name(vif) == name]
        received = [vif.receive for vif in vifs if vif.receive]
        for way, promises in (("send", [vif.send for vif in vifs]), ("receive", received)):
            if promises:
                yield f"guaranteed to {on_link(way, name)}: {_sums(link, promises)}"


def _total_rows(policy: Policy, name: str, total: Total) -> Iterator[list[str]]:
    """Rows of a tenant's totals, for each direction."""
    mine = {key: vif for key, vif in policy.vifs.items() if vif.tenant == name}
    links = ", ".join(dict.fromkeys(policy.link_name(vif) for vif in mine.values()))
    for suffix, ceilings in (("", total), (RECEIVES, total.receive)):
        if ceilings:
            most = _promised(Promise(packets=ceilings.packets), ceilings.ceiling)
            named = [links] if policy.links else []
            yield [f"{name}{suffix}: {', '.join(mine)}", *named, "all of them", *most]


def _vif_rows(policy: Policy, name: str, vif: Vif) -> Iterator[list[str]]:
    """Rows of a vif and of its flow classes, for each direction."""
    capacity = policy.link_of(vif).capacity
    named = [policy.link_name(vif)] if policy.links else []
    for suffix, promise in (("", vif.send), (RECEIVES, vif.receive)):
        if promise:
            ceiling = promise.ceiling or capacity
            yield [name + suffix, *named, policy.class_of(vif), *_promised(promise, ceiling)]
    for key, flow in vif.flows.items():
        whole, suffix = (vif.send, "") if flow.way == "send" else (vif.receive, RECEIVES)
        ceiling = flow.ceiling or (whole and whole.ceiling) or capacity
        yield [f"{name}:{key}{suffix}", *named, policy.class_of(vif, flow), *_promised(flow, ceiling)]


def _sums(link: Link, promises: Sequence[Promise]) -> str:
    bits = sum(promise.guarantee or 0 for promise in promises)
    packets = sum(promise.packets_guarantee or 0 for promise in promises)
    said = f"{units.format_bit_rate(bits)} of {units.format_bit_rate(link.capacity)}"
    if link.packets:
        said += f", {units.format_packet_rate(packets)} of {units.format_packet_rate(link.packets)}"
    return said


def _promised(promise: Promise, ceiling: int | None) -> list[str]:
    """Table cells: guarantee and ceiling of bit/s, guarantee and ceiling of packets/s."""

    def shown(rate: int | None, form: Callable[[float], str], without: str) -> str:
        return form(rate) if rate else without

    return [
        shown(promise.guarantee, units.format_bit_rate, "none"),
        shown(ceiling, units.format_bit_rate, "no limit"),
        shown(promise.packets_guarantee, units.format_packet_rate, "none"),
        shown(promise.packets, units.format_packet_rate, "no limit"),
    ]
