"""Carries out the jobs and actions of commands that are made from them, and shows what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from partywall.cli import execution, leftovers, output
from partywall.cli.arguments import check_metrics_file, write_metrics
from partywall.cli.live import Live, Watching, wide_console
from partywall.core.capability import EXITS, Capability, Options
from partywall.core.job import Action, Following, Job
from partywall.core.report import terminal
from partywall.errors import Problem, UsageError
from partywall.events import Emit, Seen, reports

if TYPE_CHECKING:
    import typer

    from partywall.cli.made import AnyCapability, Shared
    from partywall.core.report.value import Report


def act(name: str, action: type[Action], context: typer.Context, given: Mapping[str, Any], shared: Shared) -> int:
    """Carries out an action, and shows what is said of it."""
    wanted, console = action.parsed(given), wide_console(shared.format_)
    if isinstance(wanted, Following):
        with Watching(console, lambda seen: cast("Report", seen), wanted.doing, ends=False) as view:
            for seen in wanted.follow():
                view(Seen(seen))
    report = wanted.act(context.obj)
    code = EXITS[report.outcome]
    if shared.format_ == output.Format.JSON:
        return output.write(name, report.values, code)
    terminal.show(report, console)
    return code


def carry_out(
    name: str,
    capability: AnyCapability,
    job: type[Job],
    context: typer.Context,
    given: Mapping[str, Any],
    shared: Shared,
) -> int:
    console, document = wide_console(shared.format_), output.document(name, shared.format_)
    if shared.prometheus_file is not None:
        check_metrics_file(shared.prometheus_file)
    if shared.resume is not None:
        record = capability.record.open(shared.resume)
        called = {each.name: each.flag for each in job.asked()}
        extra: dict[str, object] = {called[key]: value for key, value in given.items()}
        extra |= {"--out": shared.out, "--prometheus": shared.prometheus_file, "--dry-run": shared.dry_run}
        options = Options(context.obj(), work_root=shared.work_dir, waits=shared.wait)
        view = _view(capability, record.job, console)
        return execution.go_on(
            capability, record, options, view, console, document, extra, measures=capability.disturbs
        )
    wanted = job.parsed(given)
    if document and capability.only_with_out and shared.out is None and not shared.dry_run:
        remedy = "add --out FOLDER: the document holds the findings of a record"
        raise UsageError(Problem("json needs a record", remedy, key="--format"))
    options = Options(context.obj(), shared.out, shared.work_dir, waits=shared.wait)
    if shared.dry_run:
        with Live(console) as view:
            outline = capability.foretell(wanted, options, view)
        return output.outline(name, outline, shared.format_, console)
    if capability.disturbs:
        leftovers.clean_up()
    return execution.carry_out(
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
