"""`partywall load`: virtual users against one URL, with a live view, a summary, and everything kept."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from partywall import __version__, pipeline, units
from partywall.cli.kernel import Cpus, WorkDir
from partywall.errors import Exit, Problem, TrialError, UsageError
from partywall.load.health import ADVICE, Doubt, Health, judge
from partywall.load.quick import USERS_OPEN, Quick, program
from partywall.load.second import SECOND_NS, Second, Timing, histogram, longest_ns, merged
from partywall.load.session import Session, Setup
from partywall.load.store import LoadDirectory
from partywall.load.summary import SHARES, Summary, summarise
from partywall.report.latency import quantiles

PRINT_EVERY_S = 5.0
ERRORS_SHOWN = 8
NAMES = {0.5: "p50", 0.9: "p90", 0.99: "p99", 0.999: "p99.9"}


def load(
    url: Annotated[str, typer.Argument(help="What to ask, e.g. http://127.0.0.1:8080/")],
    users: Annotated[
        int | None,
        typer.Option(
            help="Users, each of which asks again when it was answered; with --rate: users there are at most "
            f"(default {USERS_OPEN}).",
            min=1,
            max=1_000_000,
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second, whether or not earlier ones were answered.")
    ] = None,
    for_: Annotated[str, typer.Option("--for", help="How long, after the ramp, e.g. 30s.")] = "30s",
    ramp: Annotated[str, typer.Option(help="Time in which users or rate rise from 0.")] = "0s",
    think: Annotated[str, typer.Option(help="What each user waits before it asks again.")] = "0s",
    poisson: Annotated[bool, typer.Option("--poisson", help="With --rate: at random times, not evenly.")] = False,
    method: Annotated[str, typer.Option(help="Method.")] = "GET",
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="'NAME: VALUE'; may be repeated.")] = None,
    data: Annotated[str | None, typer.Option(help="Body.")] = None,
    data_file: Annotated[Path | None, typer.Option(help="File that is the body.")] = None,
    timeout: Annotated[str, typer.Option(help="A response that takes longer is an error.")] = "30s",
    redirects: Annotated[int, typer.Option(help="Redirects followed.", min=0, max=50)] = 5,
    no_keep_alive: Annotated[bool, typer.Option("--no-keep-alive", help="A new connection for every request.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not verify certificates.")] = False,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust besides the host's, in PEM.")] = None,
    connect_to: Annotated[
        str | None, typer.Option(help="Connect to ADDRESS:PORT or unix:PATH instead of the URL's host.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of the generator.", min=1, max=256)] = 1,
    cpus: Cpus = None,
    seed: Annotated[int, typer.Option(help="Seed of all chance.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder to keep the load in. Default: runs/load-TIME-CHANCE.")
    ] = None,
    work_dir: WorkDir = pipeline.WORK_ROOT,
) -> int:
    """Put a service under load, and say whether the numbers are the service's or the generator's own.

    Without --rate each of --users asks, waits for the answer, and asks again (closed model). With --rate requests are
    sent at their times whether or not earlier ones were answered (open model), and latency counts from when a request
    was meant to leave, so that a stalled service cannot hide behind a stalled generator; the raw one stands beside it.

    The table's lines: response, from the intended start to the last byte; raw, the same from when it was really sent;
    first byte, from when the request was handed over; body, from the first to the last byte; lateness, how late
    requests left that had a time to leave at.

    Exit code: 0 measured, 3 measured but more than half of the seconds are doubtful, 5 nothing was answered.
    """
    if method != method.upper():
        raise UsageError(Problem(f"{method!r} is no method", f"write {method.upper()}", key="--method"))
    asked = Quick(
        url=url,
        for_ns=_duration("--for", for_),
        users=users,
        rate=rate,
        poisson=poisson,
        ramp_ns=_duration("--ramp", ramp),
        think_ns=_duration("--think", think),
        method=method,
        headers=tuple(header or ()),
        data=data,
        data_file=data_file,
        timeout_ns=_duration("--timeout", timeout),
        keep_alive=not no_keep_alive,
        verify=not insecure,
        authorities=ca_file,
        connect_to=connect_to,
        redirects=redirects,
    )
    compiled = program(asked)
    pipeline.check_folder(work_dir)
    name = f"load-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    setup = Setup(name=name, cpus=_cpus(cpus), threads=threads, seed=seed, work_root=work_dir)
    return carry_out(Console(), compiled, setup, out or Path("runs") / name, title=url)


def carry_out(console: Console, compiled: Mapping[str, Any], setup: Setup, out: Path, title: str) -> int:
    """Runs a program, shows it live, keeps it, and shows what it found."""
    with pipeline.terminated_as_interrupt(), Session(compiled, setup) as session:
        about = {
            "partywall": __version__,
            "program": compiled,
            "started": session.started,
            "counters": session.monitor.counters,
            "cpus": setup.cpus,
            "threads": setup.threads,
            "seed": setup.seed,
        }
        directory = LoadDirectory.create(out, about)
        seconds: list[Second] = []
        healths: list[Health] = []
        try:
            _follow(console, session, directory, seconds, healths, title)
        finally:
            directory.finish(session.started["labels"], session.monitor.counters, session.monitor.readings)
        summary = summarise(seconds, healths, session.begin_ns, session.stages_ns)
        _conclude(console, summary, session.started, title)
    console.print(f"kept in {out}", highlight=False, markup=False, soft_wrap=True)
    if not summary.responses:
        raise TrialError(f"{title}: no request was answered; the errors above say why")
    return Exit.HOLDS if summary.good * 2 >= summary.seconds else Exit.INCONCLUSIVE


def _follow(
    console: Console,
    session: Session,
    directory: LoadDirectory,
    seconds: list[Second],
    healths: list[Health],
    title: str,
) -> None:
    view = _View(console, session, title)
    with view:
        for second in session.run():
            if second is not None:
                number = second.start_ns // SECOND_NS
                health = judge(second, session.monitor.host(number, session.setup.cpus))
                seconds.append(second)
                healths.append(health)
                directory.append(second, health)
            view.show(seconds, healths)


class _View:
    """The last seconds of a load, on a terminal four times a second; elsewhere a line now and then."""

    def __init__(self, console: Console, session: Session, title: str) -> None:
        self._console = console
        self._session = session
        self._title = title
        self._printed = 0.0
        self._live = Live(console=console, refresh_per_second=4, transient=True, auto_refresh=False)

    def __enter__(self) -> None:
        self._printed = time.monotonic()
        if self._console.is_terminal:
            self._live.start()

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, seconds: Sequence[Second], healths: Sequence[Health]) -> None:
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        left_ns = max(0, self._session.begin_ns + self._session.stages_ns - now_ns)
        left = f"{units.format_duration(round(left_ns / 1e9) * 1e9)} left" if left_ns > 5e8 else "ending"
        if self._console.is_terminal:
            self._live.update(self._table(seconds, healths, left), refresh=True)
        elif seconds and time.monotonic() - self._printed >= PRINT_EVERY_S:
            self._printed = time.monotonic()
            self._console.print(
                f"{_line(seconds[-1], healths[-1])} · {left}", highlight=False, markup=False, soft_wrap=True
            )

    def _table(self, seconds: Sequence[Second], healths: Sequence[Health], left: str) -> Group:
        table = Table("", "users", "requests/s", "p50", "p90", "p99", "raw p99", "errors", "generator", box=None)
        for number in range(max(0, len(seconds) - 8), len(seconds)):
            table.add_row(*_row(number, seconds[number], healths[number]))
        return Group(Text(f"{self._title} · {left}", style="bold"), table)


def _row(number: int, second: Second, health: Health) -> tuple[str, ...]:
    timing = _total(second)
    raw = quantiles(histogram(timing.raw), (0.99,))
    tops = [units.format_duration(at) for at in quantiles(histogram(timing.corrected), (0.5, 0.9, 0.99))]
    errors = sum(second.errors.values())
    return (
        f"{number + 1}",
        str(second.users),
        units.format_number(sum(second.statuses.values()) / second.length_s),
        *(tops or ["-"] * 3),
        units.format_duration(raw[0]) if raw else "-",
        str(errors) if errors else "",
        _verdict(health),
    )


def _line(second: Second, health: Health) -> str:
    timing = _total(second)
    tops = quantiles(histogram(timing.corrected), (0.5, 0.99))
    shown = f"p50 {units.format_duration(tops[0])} p99 {units.format_duration(tops[1])}" if tops else "no answer"
    rate = units.format_number(sum(second.statuses.values()) / second.length_s)
    errors = sum(second.errors.values())
    return f"{second.users} users · {rate}/s · {shown} · {errors} errors · {_verdict(health)}"


def _verdict(health: Health) -> str:
    if health.good:
        return "good"
    return "doubtful: " + ", ".join(f"{ADVICE[doubt][0]} ({figure})" for doubt, figure in health.doubts.items())


def _total(second: Second) -> Timing:
    total = Timing()
    for timing in merged([second]).values():
        total.merge(timing)
    return total


def _conclude(console: Console, summary: Summary, started: Mapping[str, Any], title: str) -> None:
    spread = (
        ""
        if summary.rate_deviation is None
        else f" (seconds vary by ±{units.format_number(summary.rate_deviation, 2)})"
    )
    lines = [
        f"{title}: {summary.responses} responses in {units.format_duration(summary.length_s * 1e9)}: "
        f"{units.format_number(summary.rate)}/s{spread}; "
        f"{units.format_bytes(summary.received_bytes)} received, {units.format_bytes(summary.sent_bytes)} sent",
        *(
            f"{origin['name']}: {origin['protocol']} at {', '.join(origin['addresses'])}"
            for origin in started["origins"]
        ),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(_latencies(summary, started["labels"]))
    _print_errors(console, summary, started["labels"])
    _print_health(console, summary)


def _latencies(summary: Summary, labels: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("", "mean", "sd", *(NAMES[share] for share in SHARES), "longest", box=None)
    for column in table.columns:
        column.no_wrap = True
    for label, timing in sorted(summary.timings.items()):
        name = labels[label]["name"] if len(summary.timings) > 1 else "response"
        table.add_row(name, _shown(timing.mean_ns), _shown(timing.deviation_ns), *_tops(timing.corrected))
        for what, counts in (("raw", timing.raw), ("first byte", timing.first_byte), ("body", timing.body)):
            if counts:
                table.add_row(f"  {what}", "", "", *_tops(counts))
    for what, found in (("connecting", summary.connect), ("TLS", summary.tls), ("lateness", summary.lateness)):
        if found:
            table.add_row(what, "", "", *_tops(found))
    return table


def _tops(counts: Mapping[int, int]) -> list[str]:
    found: list[float | None] = list(quantiles(histogram(counts), SHARES))
    return [_shown(value) for value in [*(found or [None] * len(SHARES)), longest_ns(counts)]]


def _shown(value: float | None) -> str:
    return "-" if value is None else units.format_duration(value)


def _print_errors(console: Console, summary: Summary, labels: Sequence[Mapping[str, Any]]) -> None:
    if not summary.errors:
        console.print("errors: none")
        return
    ordered = sorted(summary.errors.items(), key=lambda pair: -pair[1])
    for error, count in ordered[:ERRORS_SHOWN]:
        where = f" of {labels[error.label]['name']}" if error.label is not None else ""
        detail = f" {error.detail}" if error.detail else ""
        text = f"error: {count} × {error.kind.replace('_', ' ')}{detail}{where}"
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
    if len(ordered) > ERRORS_SHOWN:
        console.print(f"… and {len(ordered) - ERRORS_SHOWN} other kinds", highlight=False)


def _print_health(console: Console, summary: Summary) -> None:
    doubtful = summary.seconds - summary.good
    if not doubtful:
        text = f"generator: good in all {summary.seconds} seconds; these are the service's numbers"
        console.print(text, highlight=False, soft_wrap=True)
        return
    whose = "the generator's own" if doubtful * 2 > summary.seconds else "the service's, but for those seconds"
    text = f"generator: doubtful in {doubtful} of {summary.seconds} seconds; these numbers are {whose}"
    console.print(text, style="yellow", highlight=False, soft_wrap=True)
    for doubt, count in sorted(summary.doubtful.items(), key=lambda pair: -pair[1]):
        what, remedy = ADVICE[Doubt(doubt)]
        console.print(f"  {count} s: {what}; {remedy}", highlight=False, markup=False, soft_wrap=True)


def _duration(option: str, text: str) -> int:
    try:
        return units.parse_duration_ns(text)
    except ValueError as error:
        raise UsageError(Problem(str(error), key=option)) from None


def _cpus(text: str | None) -> tuple[int, ...]:
    allowed = os.sched_getaffinity(0)
    try:
        chosen = tuple(sorted(allowed)) if text is None else units.parse_cpus(text)
    except ValueError as error:
        raise UsageError(Problem(str(error), key="--cpus")) from None
    if missing := set(chosen) - allowed:
        there = ", ".join(map(str, sorted(allowed)))
        raise UsageError(
            Problem(f"CPU {min(missing)} is not online or not allowed here", f"there are {there}", key="--cpus")
        )
    return chosen
