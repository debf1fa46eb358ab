"""`partywall trace`: where between the hops of a path packets are delayed or lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from partywall import pipeline, units
from partywall.cli import leftovers
from partywall.cli.live import wide_console
from partywall.cli.report import show_record
from partywall.errors import Problem, UsageError
from partywall.model.trace import Report, TraceEvidence
from partywall.stats.trace import findings
from partywall.trace import ask

LINE_EVERY_S = 5.0


def trace(
    hops: Annotated[
        list[str],
        typer.Argument(
            metavar="HOP...",
            help="Interfaces in the order in which packets pass: eth0, NETNS/eth0 (a name of 'ip netns', a process "
            "number, or a path), AGENT/eth0. With :in or :out only that side, and only forward packets.",
        ),
    ],
    for_: Annotated[str | None, typer.Option("--for", help="How long, e.g. 10s. Default: until Ctrl-C.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Only tcp, udp, icmp, icmpv6, or a number.")] = None,
    host: Annotated[str | None, typer.Option(help="Only packets from or to this address.")] = None,
    port: Annotated[int | None, typer.Option(help="Only packets from or to this port.", min=1, max=65535)] = None,
    nat: Annotated[
        list[str] | None,
        typer.Option(
            help="OUTSIDE=INSIDE, e.g. 198.51.100.1:4000=10.0.0.5:4000, where NAT changes addresses on the way."
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="NAME=COMMAND of an agent elsewhere, e.g. vm1='ssh vm1 sudo partywall-agent serve'."),
    ] = None,
    horizon: Annotated[str, typer.Option(help="How long a packet is waited for before it is lost.")] = "500ms",
    budget: Annotated[
        str, typer.Option(help="Share of this host's CPU time; above it fewer flows are sampled, and it says so.")
    ] = "10%",
    packets: Annotated[int, typer.Option(help="Packets a second, each way, kept for the pcapng file.")] = 2000,
    out: Annotated[Path | None, typer.Option(help="Run directory to make. Default: runs/trace-TIME-CHANCE.")] = None,
) -> int:
    """Follow packets along a path of interfaces: delay, loss and reordering from hop to hop.

    partywall trace web/eth0 veth-web veth-db db/eth0 --protocol tcp --for 10s

    Every packet is told by a tag that stays the same on the way: TCP's sequence numbers, a marker of our own senders,
    or a hash of what does not change. Both directions are traced. The report says where time and packets went;
    packets.pcapng opens in Wireshark. What was made on the interfaces is gone at the end.

    Needs root. Exit code: 0 traced, 2 bad hop or option, 4 the host or a permission lacks something, 5 an agent ended.
    """
    console = wide_console()
    asked = ask(
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
    duration_ns = _duration(for_)
    if any(hop.agent is None for hop in asked.hops):
        pipeline.check_hooks("a trace")
    leftovers.clean_up()
    view = _View(console, duration_ns)
    directory = pipeline.trace(asked, out, duration_ns, view.report, view.tick)
    view.end()
    return show_record(directory, console)


def _duration(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        duration_ns = units.parse_duration_ns(text)
    except ValueError as error:
        raise UsageError(Problem(str(error), key="--for")) from None
    if duration_ns <= 0:
        raise UsageError(Problem(f"must be greater than 0, got {text}", "give for example 10s", key="--for"))
    return duration_ns


class _View:
    """What is found by now: tables on a terminal, elsewhere a line now and then."""

    def __init__(self, console: Console, duration_ns: int | None) -> None:
        from partywall.report import trace_view  # noqa: PLC0415 - what draws is slow to import

        self._view = trace_view
        self._console = console
        self._duration_ns = duration_ns
        self._whole: TraceEvidence | None = None
        self._printed = time.monotonic()
        self._live = Live(console=console, refresh_per_second=2, transient=True)
        if console.is_terminal:
            self._live.start()

    def report(self, evidence: TraceEvidence, _: Report) -> None:
        self._whole = evidence

    def tick(self, spent_ns: int) -> None:
        left = (
            "" if self._duration_ns is None else f"{units.format_duration(max(0, self._duration_ns - spent_ns))} left"
        )
        status = f"tracing for {units.format_duration(spent_ns)} · {left or 'Ctrl-C ends it and reports'}"
        if self._console.is_terminal:
            tables = [self._view.summary(findings(self._whole))] if self._whole else []
            self._live.update(Group(*tables, Text(status)))
        elif time.monotonic() - self._printed > LINE_EVERY_S:
            self._printed = time.monotonic()
            told = findings(self._whole).headline if self._whole else "nothing seen yet"
            self._console.print(f"{status} · {told}", highlight=False, soft_wrap=True)

    def end(self) -> None:
        self._live.stop()
