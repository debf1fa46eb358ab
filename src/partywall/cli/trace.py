"""`partywall trace`: shows where between the hops of a path packets are delayed or lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from partywall.cli import leftovers, output
from partywall.cli.arguments import Wait, duration_ns
from partywall.cli.execution import carry_out
from partywall.cli.live import Drawn, Elapsed, wide_console
from partywall.core.capability import Options
from partywall.events import Event, Left, Report
from partywall.trace.capability import TraceJob, Traces
from partywall.trace.findings import findings
from partywall.trace.hops import ask
from partywall.trace.record import TraceEvidence


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
    one_in: Annotated[
        int,
        typer.Option(
            help="Record one packet in this many, and only count the others at each hop: cheaper. Losses are the "
            "difference of counts; delays and order are those of the recorded packets.",
            metavar="N",
        ),
    ] = 1,
    packets: Annotated[
        int, typer.Option(help="Packets a second, in each direction, to keep in the pcapng file.")
    ] = 2000,
    out: Annotated[Path | None, typer.Option(help="Directory to create. Default: runs/trace-TIME-CHANCE.")] = None,
    wait: Wait = False,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Follow packets along a path of interfaces: delay, loss and reordering from hop to hop.

      partywall trace web/eth0 veth-web veth-db db/eth0 --protocol tcp --for 10s

    Packets are identified by a tag that does not change on the path: TCP's sequence numbers, a marker set by
    Partywall's own senders, or a hash of the unchanging fields. Both directions are traced. The report shows the delay
    and loss of each step. packets.pcapng opens in Wireshark. All hooks are removed at the end.

    Needs root. Exit code: 0 traced, 3 no packet was seen or the hops are in the wrong order, 2 bad hop or option, 4 the
    host or a permission lacks something, 5 an agent ended.
    """
    console, document = wide_console(format_), output.document("trace", format_)
    request = ask(
        hops,
        horizon=horizon,
        budget=budget,
        one_in=one_in,
        protocol=protocol,
        port=port,
        address=host,
        nat=nat or (),
        packets=packets,
        agents=agent or (),
    )
    job = TraceJob(request, None if for_ is None else duration_ns("--for", for_))
    leftovers.clean_up()
    options = Options(context.obj(), out, waits=wait)
    view = _View(console, job)
    return carry_out(lambda emit: Traces().measure(job, options, emit), options, view, console, document=document)


class _View(Drawn):
    """Shows results so far: tables on a terminal, elsewhere a line from time to time."""

    def __init__(self, console: Console, job: TraceJob) -> None:
        from partywall.trace import report  # noqa: PLC0415 - what draws is slow to import

        self._view = report
        self._elapsed = Elapsed(job.duration_ns)
        self._whole: TraceEvidence | None = None
        self._live = Live(console=console, refresh_per_second=2, transient=True)
        super().__init__(console, self._live)

    def __call__(self, event: Event) -> None:
        self._elapsed(event)
        match event:
            case Left():
                self._show()
            case Report(_, so_far):
                self._whole = so_far
                self._show()
            case _:
                super().__call__(event)

    def _show(self) -> None:
        status = f"tracing {self._elapsed}"
        if self._console.is_terminal:
            tables = [self._view.summary(findings(self._whole))] if self._whole else []
            self._live.update(Group(*tables, Text(status)))
        seen = self._whole
        self.line(lambda: f"{status} · {findings(seen).headline if seen else 'nothing seen yet'}")
