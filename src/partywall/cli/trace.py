"""`partywall trace`: shows where between the hops of a path packets are delayed or lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from partywall import units
from partywall.cli import leftovers
from partywall.cli.arguments import duration_ns
from partywall.cli.execution import carry_out
from partywall.cli.live import wide_console
from partywall.events import Event, Left, Report, Started
from partywall.kinds.kind import Options
from partywall.kinds.trace import TraceJob, Traces
from partywall.model.trace import TraceEvidence
from partywall.stats.trace import findings
from partywall.trace import ask

LINE_EVERY_S = 5.0


def trace(
    context: typer.Context,
    hops: Annotated[
        list[str],
        typer.Argument(
            metavar="HOP...",
            help="Interfaces in the order in which packets pass: eth0, NETNS/eth0 (a name of 'ip netns', a process "
            "number or a path), AGENT/eth0. With :in or :out, only packets that enter or leave, and only forward ones.",
        ),
    ],
    for_: Annotated[str | None, typer.Option("--for", help="Duration, e.g. 10s. Default: until Ctrl-C.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Only tcp, udp, icmp, icmpv6, or a number.")] = None,
    host: Annotated[str | None, typer.Option(help="Only packets from or to this address.")] = None,
    port: Annotated[int | None, typer.Option(help="Only packets from or to this port.", min=1, max=65535)] = None,
    nat: Annotated[
        list[str] | None,
        typer.Option(
            help="OUTSIDE=INSIDE, e.g. 198.51.100.1:4000=10.0.0.5:4000, if NAT changes addresses on the path."
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COMMAND of an agent elsewhere, e.g. vm1='ssh vm1 sudo partywall-agent serve'."),
    ] = None,
    horizon: Annotated[str, typer.Option(help="A packet not seen for this long counts as lost.")] = "500ms",
    budget: Annotated[
        str,
        typer.Option(
            help="Limit on the share of this host's CPU time. Above it, fewer flows are sampled, and a note reports it."
        ),
    ] = "10%",
    packets: Annotated[
        int, typer.Option(help="Packets a second, in each direction, to keep in the pcapng file.")
    ] = 2000,
    out: Annotated[Path | None, typer.Option(help="Directory to create. Default: runs/trace-TIME-CHANCE.")] = None,
) -> int:
    """Follow packets along a path of interfaces: delay, loss and reordering from hop to hop.

      partywall trace web/eth0 veth-web veth-db db/eth0 --protocol tcp --for 10s

    Packets are identified by a tag that does not change on the path: TCP's sequence numbers, a marker set by
    Partywall's own senders, or a hash of the unchanging fields. Both directions are traced. The report shows the delay
    and loss of each step. packets.pcapng opens in Wireshark. All hooks are removed at the end.

    Needs root. Exit code: 0 traced, 2 bad hop or option, 4 the host or a permission lacks something, 5 an agent ended.
    """
    console = wide_console()
    request = ask(
        hops,
        horizon=horizon,
        budget=budget,
        protocol=protocol,
        port=port,
        address=host,
        nat=nat or (),
        packets=packets,
        agents=agent or (),
    )
    job = TraceJob(request, None if for_ is None else duration_ns("--for", for_))
    leftovers.clean_up()
    options = Options(context.obj(), out)
    return carry_out(lambda emit: Traces().measure(job, options, emit), options, _View(console, job), console)


class _View:
    """Shows results so far: tables on a terminal, elsewhere a line from time to time."""

    def __init__(self, console: Console, job: TraceJob) -> None:
        from partywall.report import trace_view  # noqa: PLC0415 - what draws is slow to import

        self._view = trace_view
        self._console = console
        self._ends = job.duration_ns is not None
        self._left_s = (job.duration_ns or 0) / 1e9
        self._whole: TraceEvidence | None = None
        self._begun = self._printed = time.monotonic()
        self._live = Live(console=console, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._begun = time.monotonic()
            case Left(seconds):
                self._left_s = seconds
                self._show()
            case Report(_, so_far):
                self._whole = so_far
                self._show()

    def _show(self) -> None:
        spent = units.format_duration(round(time.monotonic() - self._begun) * 10**9)
        left = f"{units.format_duration(round(self._left_s) * 10**9)} left" if self._ends else "Ctrl-C ends it"
        status = f"tracing for {spent} · {left}"
        if self._console.is_terminal:
            tables = [self._view.summary(findings(self._whole))] if self._whole else []
            self._live.update(Group(*tables, Text(status)))
        elif time.monotonic() - self._printed > LINE_EVERY_S:
            self._printed = time.monotonic()
            seen = findings(self._whole).headline if self._whole else "nothing seen yet"
            self._console.print(f"{status} · {seen}", highlight=False, soft_wrap=True)
