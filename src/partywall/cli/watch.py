"""`partywall watch`: says when a disk of this host is slow, and which tenants use it then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from partywall import units
from partywall.cli import output
from partywall.cli.arguments import PrometheusFile, check_metrics_file, duration_ns, write_metrics
from partywall.cli.execution import carry_out, go_on
from partywall.cli.live import Drawn, Elapsed, wide_console
from partywall.core.capability import Options
from partywall.events import Event, Report, Started, reports
from partywall.watch import sentences
from partywall.watch.capability import Watches, WatchJob
from partywall.watch.prometheus import Totals
from partywall.watch.record import Seen, WatchDirectory

EVERY = "1s"
KEEPS = "the watch goes on"
DRAW_S = 1.9
"""Tables are drawn again after this time, because drawing costs half as much as reading the counters."""
NAME = 32
"""The longest name that is shown while it watches."""
TENANTS = 5
"""The most tenants that are shown while it watches."""


def watch(
    context: typer.Context,
    tenant: Annotated[
        list[str] | None,
        typer.Argument(
            help="pid:NUMBER or a cgroup such as /system.slice/nginx.service; NAME=… names it. "
            "Default: all containers, guests and services, also those that start later.",
            metavar="TENANT...",
        ),
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", help="How long, e.g. 10m. Default: until Ctrl-C.")] = None,
    every: Annotated[str, typer.Option(help="Length of a period.")] = EVERY,
    device: Annotated[
        list[str] | None, typer.Option(help="A disk, e.g. sda; may be given again. Default: all disks.")
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(help="A saturated disk is slow if its reads or writes take longer, e.g. 20ms."),
    ] = None,
    prometheus_file: PrometheusFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be watched, and what is missing.")] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Continue an interrupted watch for the rest of its time.", metavar="DIR")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to create. Default: runs/watch-TIME-CHANCE.")] = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Watch the disks of this host: say when one is slow, and which tenants use it then.

    \b
      partywall watch    all disks and tenants, until Ctrl-C
      partywall watch --device sda --latency 20ms --for 10m
      partywall watch db=pid:1234 web=/docker/4f2…

    A disk is slow while it is saturated (busy for 90 % of a period) and its reads or writes take longer than --latency,
    or much longer than is usual for it. A line says when that begins, and one when it ends, with the tenants' shares of
    the disk's work. That is a coincidence, not a proof: 'partywall run' measures what one tenant costs another.

    It changes nothing on the host. What the host does not count is named at the start (docs/watch.md).

    Exit code: 0 watched, 1 a saturated disk exceeded --latency three periods in a row, 2 bad disk, tenant or option,
    3 a saturated disk could not be judged, 4 there is no disk, 130 interrupted before the end of --for.
    """  # noqa: D301 - Click keeps the lines after a backspace
    console, document = wide_console(format_), output.document("watch", format_)
    options = Options(context.obj(), out)
    if prometheus_file is not None:
        check_metrics_file(prometheus_file)
    if resume is not None:
        record = WatchDirectory.open(resume)
        given: dict[str, object] = {
            "TENANT": tenant,
            "--for": for_,
            "--device": device,
            "--latency": latency,
            "--dry-run": dry_run,
        }
        given |= {"--every": every != EVERY, "--out": out, "--prometheus": prometheus_file}
        view = _View(console, WatchJob.of(record.about).for_ns)
        return go_on(Watches(), record, options, view, console, document, given, measures=False)
    job = WatchJob(
        None if for_ is None else duration_ns("--for", for_, "10m"),
        duration_ns("--every", every, "1s"),
        None if latency is None else duration_ns("--latency", latency, "20ms"),
        tuple(device or ()),
        tuple(tenant or ()),
    )
    if dry_run:
        return output.outline("watch", Watches().outline(job, options), format_, console)
    sinks, totals = {}, Totals()
    if prometheus_file is not None:
        metrics = prometheus_file

        def write(seen: Seen) -> None:
            totals.add(seen)
            write_metrics(metrics, totals.text())

        sinks[str(metrics)] = reports(write)
    view = _View(console, job.for_ns)
    return carry_out(
        lambda emit: Watches().measure(job, options, emit),
        options,
        view,
        console,
        KEEPS,
        sinks,
        document,
        measures=False,
    )


class _View(Drawn):
    """Shows the last period: tables on a terminal, elsewhere a line from time to time. Notes stay."""

    EVERY_S = 60.0

    def __init__(self, console: Console, for_ns: int | None) -> None:
        self._elapsed, self._shown = Elapsed(for_ns), 0.0
        self._live = Live(console=console, auto_refresh=False, transient=True)
        super().__init__(console, self._live)

    def __call__(self, event: Event) -> None:
        self._elapsed(event)
        match event:
            case Started(path):
                self._console.print(f"watching; Ctrl-C ends it; record: {path}", highlight=False, soft_wrap=True)
            case Report(seen):
                self._show(seen)
            case _:
                super().__call__(event)

    def _show(self, seen: Seen) -> None:
        span = seen.span
        # Both tables are of the same time, which ends when processes are read.
        if self._console.is_terminal and not span.unread and time.monotonic() - self._shown >= DRAW_S:
            self._shown = time.monotonic()
            disks = _padded(sentences.DISKS, [sentences.disk_cells(disk, span.length_ns) for disk in span.disks])
            tenants = _padded(sentences.TENANTS, sentences.tenant_cells(span, TENANTS))
            lines = (*disks, "", *tenants, "", f"watching {self._elapsed}")
            self._live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
        slow = ", ".join(f"{each.disk} slow for {units.format_duration(each.length_ns)}" for each in seen.slow)
        unjudged = ", ".join(disk.disk for disk in span.disks if disk.unjudged_ns)
        blind = f"; not judged, because its usual latency is not known yet: {unjudged}" if unjudged else ""
        self.line(lambda: f"watching {self._elapsed}: {slow or 'no disk is slow'}{blind}")


def _short(name: str) -> str:
    """A name without its middle: the names of containers often differ at the end, or only in it."""
    return name if len(name) <= NAME else f"{name[: NAME // 2]}…{name[1 - NAME // 2 :]}"


def _padded(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines. Rich's own takes ten times as long, which is more than reading the counters."""
    every = [columns, *([_short(row[0]), *row[1:]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in every
    ]
