"""`partywall probe` and `partywall stress`: run one kernel by hand, with a live figure."""

from __future__ import annotations

import json
import queue
import secrets
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text
from typer.core import TyperCommand

from partywall import units
from partywall.agent.calibration import calibrate
from partywall.agent.catalogue import KernelInfo, Role, shipped
from partywall.agent.client import AgentClient
from partywall.agent.inbox import Inbox
from partywall.cli import leftovers, output, show
from partywall.cli.arguments import Cpus, WorkDir, allowed_cpus
from partywall.core import here
from partywall.core.document.explain import did_you_mean
from partywall.core.report import figures
from partywall.errors import Exit, Problem, TrialError, UsageError, parsed
from partywall.events import Event, Note
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Sandbox, Settings, make, reaper
from partywall.sandbox.measuring import measuring
from partywall.sandbox.own_threads import kept_off

ID = "workload"
CALIBRATION_NS = 300_000_000
LEAST_INTENSITY = 0.001
REACHED_SHARE = 0.9
"""Of a requested intensity. Less is a warning."""

KernelName = Annotated[str, typer.Argument(help="See: partywall kernels.", metavar="KERNEL")]
ForOption = Annotated[str, typer.Option("--for", help="How long, e.g. 10s.")]
Threads = Annotated[int, typer.Option(help="Worker threads. Each runs its own copy of the kernel.", min=1, max=1024)]


def probe(
    context: typer.Context,
    kernel: KernelName,
    for_: ForOption = "5s",
    threads: Threads = 1,
    cpus: Cpus = None,
    work_dir: WorkDir = WORK_ROOT,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Measure one resource: run a kernel flat out and show its rate.

    Give the kernel's own parameters as options:

    partywall probe cache --level L2 --order random

    To list them: partywall probe cache --help

    The result is the median and the range over windows of half a second. It says nothing about neighbours; to measure
    isolation, use 'partywall run'.
    """
    info, params = _kernel_and_params(kernel, "probe", context.args)
    duration_ns = _duration(for_)
    with _sandbox(cpus, work_dir) as (sandbox, messages):
        _start(sandbox, info, params, threads, "flat_out")
        rates = _watch(info, messages, duration_ns, f"{info.name}")
    return _conclude(output.document("probe", format_), info, rates)


def stress(
    context: typer.Context,
    kernel: KernelName,
    intensity: Annotated[str, typer.Option(help="Share of the time in which it runs flat out: 0.5 or 50%.")] = "100%",
    for_: ForOption = "10s",
    threads: Threads = 1,
    cpus: Cpus = None,
    work_dir: WorkDir = WORK_ROOT,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """Load one resource: run a kernel at an intensity and show the rate achieved.

    Give the kernel's own parameters as options:

    partywall stress disk-direct-write --request-bytes 128KiB

    To list them: partywall stress disk-direct-write --help
    """
    info, params = _kernel_and_params(kernel, "stressor", context.args)
    duration_ns = _duration(for_)
    share = _intensity(intensity)
    with _sandbox(cpus, work_dir) as (sandbox, messages):
        client = _start(sandbox, info, params, threads, "scheduled")
        calibration = calibrate(client, ID, CALIBRATION_NS)
        if calibration.warning:
            sys.stderr.write(f"partywall: warning: {info.name}: {calibration.warning}\n")
        most = calibration.rate
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        switches = [{"at_ns": now, "intensity": share}, {"at_ns": now + duration_ns, "intensity": 0.0}]
        client.call("workload.schedule", id=ID, switches=switches)
        cpu = CpuTime()
        rates = _watch(info, messages, duration_ns, f"{info.name} at intensity {share:g}", most, share, cpu)
    return _conclude(output.document("stress", format_), info, rates, most, cpu.share, share)


@dataclass
class CpuTime:
    """What the worker threads used of their time."""

    used_ns: int = 0
    lasted_ns: int = 0

    def add(self, slices: Iterable[dict[str, Any]]) -> None:
        for piece in slices:
            self.used_ns += piece["cpu_ns"]
            self.lasted_ns += piece["end_ns"] - piece["start_ns"]

    @property
    def share(self) -> float | None:
        """Of one CPU, the mean of all threads; None before the first slice."""
        return self.used_ns / self.lasted_ns if self.lasted_ns else None


class KernelCommand(TyperCommand):
    """A command whose --help also lists the parameters of the kernel named on the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # --help is processed before the arguments are parsed, so the words are saved here.
        self._words = tuple(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        super().format_epilog(ctx, formatter)
        info = next((known for word in self._words if (known := shipped().kernel(word))), None)
        if info and info.parameters:
            with formatter.section(f"Parameters of {info.name}"):
                formatter.write_dl([(parameter.option, parameter.help) for parameter in info.parameters])


def kernels(
    name: Annotated[str | None, typer.Argument(help="Only this kernel, with its parameters.", metavar="NAME")] = None,
    format_: output.FormatOption = output.Format.TEXT,
) -> int:
    """List the kernels and their roles, or show one kernel with its parameters."""
    if format_ == output.Format.JSON:
        chosen = [known(name)] if name is not None else [known(each) for each in shipped().names()]
        return output.write("kernels", {"kernels": [_described(info) for info in chosen]})
    if name is None:
        show.kernels(Console(), shipped())
    else:
        show.kernel(Console(), known(name))
    return Exit.HOLDS


def _described(info: KernelInfo) -> dict[str, Any]:
    """A kernel as a JSON value."""
    figure = figures.scale_of_kernel(info.figure)
    return {
        "name": info.name,
        "summary": info.summary,
        "resource": info.resource,
        "roles": [role for role in ("probe", "stressor") if info.roles in (role, "both")],
        "unit": info.unit,
        "figure": {"label": figure.label, "direction": figure.direction},
        "latency_of": info.latency.get("of"),
        "parameters": [parameter.model_dump() | {"option": parameter.option} for parameter in info.parameters],
    }


def known(kernel: str, role: Role | None = None) -> KernelInfo:
    """A kernel by name. If there is none, raises a UsageError with the nearest name of that role."""
    info = shipped().kernel(kernel)
    if info is None:
        near = did_you_mean(kernel, shipped().names(role))
        raise UsageError(Problem(f"no kernel is called {kernel!r}", near or "'partywall kernels' lists them"))
    return info


def _kernel_and_params(kernel: str, role: Role, arguments: Sequence[str]) -> tuple[KernelInfo, dict[str, Any]]:
    info = known(kernel, role)
    if not info.can_be(role):
        other = "partywall stress" if role == "probe" else "partywall probe"
        raise UsageError(Problem(f"{kernel} cannot be used as a {role}", f"try: {other} {kernel}"))
    params = _params(info, arguments)
    mistakes = shipped().check_params(kernel, params)
    if mistakes:
        raise UsageError(
            *(Problem(message, remedy, key=f"--{key.replace('_', '-')}") for key, message, remedy in mistakes)
        )
    return info, params


def _params(info: KernelInfo, arguments: Sequence[str]) -> dict[str, Any]:
    """`--block-bytes 64MiB` → {"block_bytes": 67108864}."""
    params: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        if not option.startswith("--") or (not rest and "=" not in option):
            raise UsageError(
                Problem(f"{option!r} is not understood", f"parameters of {info.name} are given as --NAME VALUE")
            )
        name, equals, value = option.removeprefix("--").partition("=")
        params[name.replace("-", "_")] = _value(name.replace("-", "_"), value if equals else rest.pop(0))
    return params


def _value(name: str, text: str) -> Any:
    if name.endswith("bytes"):
        try:
            return units.parse_bytes(text)
        except ValueError as error:
            raise UsageError(Problem(str(error), key=f"--{name.replace('_', '-')}")) from None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _duration(text: str) -> int:
    duration_ns = parsed("--for", text, units.parse_duration_ns)
    if duration_ns < 200_000_000:
        raise UsageError(Problem(f"must be at least 200ms, not {text}", "give for example 5s", key="--for"))
    return duration_ns


def _intensity(text: str) -> float:
    share = parsed("--intensity", text, units.parse_share)
    if not LEAST_INTENSITY <= share <= 1:
        raise UsageError(Problem(f"must be from 0.1% to 100%, not {text}", "give for example 50%", key="--intensity"))
    return share


@contextmanager
def _sandbox(cpus: str | None, work_dir: Path) -> Iterator[tuple[Sandbox, Inbox]]:
    chosen = allowed_cpus(cpus)
    here.check_folder(work_dir)
    leftovers.clean_up()
    label = Label.create(f"kernel-{secrets.token_hex(4)}", work_dir)
    messages = Inbox()
    sandbox = make(Settings(name=ID, backend="process", cpus=chosen), label)
    try:
        with measuring("a kernel of 'partywall probe' or 'partywall stress'", _warn), kept_off(chosen):
            sandbox.start(lambda method, params: messages.put(ID, method, params))
            yield sandbox, messages
    finally:
        sandbox.stop()
        reaper.clean(label)


def _warn(event: Event) -> None:
    if isinstance(event, Note):
        sys.stderr.write(f"partywall: warning: {event.text}\n")


def _start(sandbox: Sandbox, info: KernelInfo, params: dict[str, Any], threads: int, pace: str) -> AgentClient:
    client = sandbox.client
    if client is None:
        raise TrialError(f"the agent of sandbox {sandbox.settings.name} did not start")
    work = {"kernel": {"name": info.name, "params": params}}
    client.call(
        "workload.start", timeout_s=300, id=ID, work=work, pace=pace, threads=threads, work_dir=sandbox.work_dir
    )
    return client


def _watch(
    info: KernelInfo,
    messages: Inbox,
    duration_ns: int,
    title: str,
    most: float | None = None,
    intensity: float = 1.0,
    cpu: CpuTime | None = None,
) -> list[float]:
    """Shows the rate twice a second until the time is up. Returns the rate of each half second, and adds to `cpu`."""
    rates: list[float] = []
    cpu = cpu or CpuTime()
    slices: list[dict[str, Any]] = []
    end = time.monotonic_ns() + duration_ns
    with Live(console=Console(), refresh_per_second=4, transient=True) as live:
        while (left := end - time.monotonic_ns()) > 0:
            fresh = _slices(messages, min(left, 500_000_000) / 1e9, intensity)
            cpu.add(fresh)
            slices += fresh
            if rate := _rate(slices, 500_000_000):
                rates.append(rate)
                slices.clear()
            figure = _shown(info, rates[-1]) if rates else "starting"
            share = f", {rates[-1] / most:.0%} of its maximum{_of_cpu(cpu.share)}" if rates and most else ""
            live.update(Text(f"{title}: {figure}{share} · {units.format_duration(left)} left"))
    if rate := _rate(slices, 1):
        rates.append(rate)
    return rates


def _slices(messages: Inbox, timeout_s: float, intensity: float) -> list[dict[str, Any]]:
    slices: list[dict[str, Any]] = []
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        try:
            _, method, params = messages.get(timeout=left)
        except queue.Empty:
            break
        if method in ("ended", "gone"):
            raise TrialError(f"the kernel stopped: {params['reason']}")
        if method == "slices":
            slices += [piece for piece in params["slices"] if piece["intensity"] == intensity]
    return slices


def _rate(slices: Sequence[dict[str, Any]], span_ns: int) -> float | None:
    """Work per second of all threads; None until the slices span `span_ns`."""
    if not slices:
        return None
    covered: int = max(s["end_ns"] for s in slices) - min(s["start_ns"] for s in slices)
    if covered < span_ns:
        return None
    return float(sum(s["work"] for s in slices)) * 1e9 / covered


def _of_cpu(share: float | None) -> str:
    """What the dose takes of a CPU: ', 25.1% of a CPU'."""
    return "" if share is None else f", {share:.1%} of a CPU"


def _conclude(
    document: str,
    info: KernelInfo,
    rates: Sequence[float],
    most: float | None = None,
    cpu: float | None = None,
    requested: float = 1.0,
) -> int:
    if not rates:
        raise TrialError(f"{info.name} finished no work in that time; give a longer --for")
    middle = statistics.median(rates)
    if document:
        spread_of = {"median": middle, "least": min(rates), "most": max(rates)}
        unthrottled = {"calibrated": most, "cpu_share": cpu, "intensity": requested if most else None}
        return output.write(document, {"kernel": info.name, "unit": f"{info.unit}/s", "rate": spread_of} | unthrottled)
    low, high = (max(rates), min(rates)) if figures.scale_of_kernel(info.figure).inverse else (min(rates), max(rates))
    share = f", {middle / most:.1%} of its maximum{_of_cpu(cpu)}" if most else ""
    spread = f" (windows of half a second: {_shown(info, low)} to {_shown(info, high)})" if len(rates) > 1 else ""
    also = f" = {figures.value(middle, figures.scale_of_kernel(info.also))}" if info.also else ""
    Console().print(
        f"{info.name}: {_shown(info, middle)}{also}{share}{spread}", highlight=False, markup=False, soft_wrap=True
    )
    if most and (said := _missed(middle / most, requested)):
        sys.stderr.write(f"partywall: warning: {info.name}: {said}\n")
    return Exit.HOLDS


def _missed(reached: float, requested: float) -> str:
    """What to say of an intensity that was not reached; empty if it was."""
    if reached >= REACHED_SHARE * requested:
        return ""
    said = f"{requested:.0%} of its maximum was requested, and {reached:.0%} was reached"
    return f"{said}: other processes used its CPUs; keep them free, or choose others with --cpus"


def _shown(info: KernelInfo, rate: float) -> str:
    return figures.value(rate, figures.scale_of_kernel(info.figure))
