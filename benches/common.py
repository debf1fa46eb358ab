"""What benchmarks share: options, the last line and its record, scenarios without a screen, peers timed in turn.

A benchmark that SIGTERM or SIGHUP ends cleans up as after Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import numpy as np

import results
from partywall.core import here
from partywall.events import silent
from partywall.host import Host
from partywall.model.evidence import Evidence
from partywall.model.finding import Findings
from partywall.model.scenario import Scenario
from partywall.run import stages
from partywall.sandbox import qemu, reap
from partywall.store import RunDirectory

PEERS = Path(__file__).parent / ".peers"
"""Programs to compare with that Debian does not package; `make bench-setup` gets them."""
PROGRAMS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
"""Where programs that benchmarks need are looked for: those for root may be outside of $PATH."""
WHERE_AND_WHEN = ("--folder", "--minutes", "--keep")
"""Options with a value that say where results stay, or how much is measured at a time."""

# Time and load at the start, for the record of results.
_BEGAN_S, _LOAD = time.monotonic(), os.getloadavg()[0]


Part = TypeVar("Part")
UNFINISHED = 3
"""Exit code of a benchmark that has parts left."""
ENDS = (signal.SIGTERM, signal.SIGHUP)


class Parser(argparse.ArgumentParser):
    """The options that every benchmark takes; one that has its own adds them.

    parts: names of parts that can run alone, with --only. folder: whether it takes --folder and --minutes, for
    `in_parts`. plants: faults that --plant plants in what is
    measured, each with a phrase about it; the benchmark has to fail with each. `--plant` without a name takes the
    first. unjudged: bars that the short form does not judge; its last line names them. needs: programs without which
    nothing is measured.
    """

    def __init__(
        self,
        description: str,
        parts: Sequence[str] = (),
        plants: Mapping[str, str] | None = None,
        *,
        folder: bool = False,
        unjudged: str = "",
        needs: Sequence[str] = (),
    ) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.set_defaults(unjudged=unjudged)
        self._needs = needs
        left_out = f"; does not judge {unjudged}" if unjudged else ""
        self.add_argument("--quick", action="store_true", help=f"about a minute; wider intervals{left_out}")
        self.add_argument("--record", action="store_true", help="add the result to benches/results.jsonl")
        if parts:
            self.add_argument("--only", action="append", choices=parts, help="this part; may be given again")
        if folder:
            self.add_argument(
                "--folder", type=Path, help="keep finished parts here; give it again to measure those that are left"
            )
            self.add_argument(
                "--minutes", type=float, default=9.0, help="begin no part that would end later (default: 9)"
            )
        if plants:
            plants_help = "; ".join(f"{name}: {what}" for name, what in plants.items()).replace("%", "%%")
            first = next(iter(plants))
            self.add_argument(
                "--plant", nargs="?", choices=plants, const=first, help=f"a fault to be found: {plants_help}"
            )

    def parse_args(self, *given: Any) -> argparse.Namespace:  # type: ignore[override]
        """As of argparse; kept for `conclude`. From here on, signals end the benchmark as Ctrl-C does."""
        global _options  # noqa: PLW0603 - what this process was called with does not change
        _options = super().parse_args(*given)
        if missing := [name for name in self._needs if shutil.which(name, path=PROGRAMS) is None]:
            not_measured(Path(sys.argv[0]).stem, f"it needs {', '.join(missing)}; run make bench-setup")
        for number in ENDS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _terminate)
        return _options


_options = argparse.Namespace(record=False, quick=False, unjudged="")


class Terminated(SystemExit, KeyboardInterrupt):
    """A signal ends the benchmark. Whatever cleans up after Ctrl-C does so. The exit code is the shell's, 128 + signal.

    Clean-up may take some seconds. Until its end, further signals of this kind do nothing.
    """


def _terminate(number: int, _frame: FrameType | None) -> None:
    # `timeout` sends it twice. Programs that clean up would inherit SIG_IGN, but inherit no function.
    for each in ENDS:
        signal.signal(each, lambda *_: None)
    raise Terminated(128 + number)


def arguments(
    description: str,
    parts: Sequence[str] = (),
    plants: Mapping[str, str] | None = None,
    *,
    folder: bool = False,
    unjudged: str = "",
    needs: Sequence[str] = (),
) -> argparse.Namespace:
    """What the benchmark was called with, for one that adds no options of its own."""
    return Parser(description, parts, plants, folder=folder, unjudged=unjudged, needs=needs).parse_args()


_earlier: dict[str, tuple[float, str]] = {}
"""Seconds and commit of each part that an earlier call measured."""


def in_parts(parts: Mapping[str, Callable[[], Part]], options: argparse.Namespace) -> dict[str, Part]:
    """The results of all parts, which are plain values. Ends the program with UNFINISHED if some are left.

    A part is expected to take as long as the longest so far. At least one is measured each time. What a folder keeps of
    a part is its result, the seconds that it took, and its commit, so that a record can state all of them.
    """
    folder: Path | None = options.folder
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.json" for name in parts} if folder else {}
    kept = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    done = {name: part["result"] for name, part in kept.items()}
    _earlier.update((name, (part["seconds"], part["commit"])) for name, part in kept.items())
    begun, longest_s = time.monotonic(), 0.0
    for name, measure in parts.items():
        if name in done:
            continue
        spent_s = time.monotonic() - begun
        if folder and longest_s and spent_s + longest_s > options.minutes * 60:
            left = len(parts) - len(done)
            print(f"{len(done)} of {len(parts)} parts are done, {left} left; run it again with --folder {folder}")
            sys.exit(UNFINISHED)
        done[name] = measure()
        took_s = time.monotonic() - begun - spent_s
        longest_s = max(longest_s, took_s)
        if folder:
            unfinished = files[name].with_suffix(".new")
            part = {"result": done[name], "seconds": round(took_s, 1), "commit": results.commit()}
            unfinished.write_text(json.dumps(part))
            unfinished.rename(files[name])
        print(f"part {name} took {took_s:.0f} s", flush=True)
    return {name: done[name] for name in parts}


def conclude(name: str, figure: str, *, met: bool, parts: Mapping[str, tuple[str, bool]] | None = None) -> NoReturn:
    """The figure on the last line; exit code 0 if the bar is met, 1 if not.

    A short form that leaves bars unjudged names them there. parts: figures of a benchmark with several bars, and
    whether each is met. With --record, all is recorded.
    """
    if _options.quick and _options.unjudged:
        figure += f"; not judged: {_options.unjudged}"
    if _options.record:
        _record({"": (figure, met)} | dict(parts or {}))
    print(f"{name}: {figure} [{'bar met' if met else 'BAR NOT MET'}]", flush=True)
    sys.exit(0 if met else 1)


def not_measured(name: str, why: str) -> NoReturn:
    """Ends a benchmark that cannot run here, with the reason and the remedy. Nothing is recorded."""
    print(f"{name}: not measured: {why} [BAR NOT MET]", flush=True)
    sys.exit(1)


def _record(parts: Mapping[str, tuple[str, bool]]) -> None:
    bench, seconds = Path(sys.argv[0]).stem, time.monotonic() - _BEGAN_S
    guests = any(claim.guests for rows in results.claims().values() for claim in rows if claim.bench == bench)
    machine = results.machine(kvm=qemu.choose("auto", Host.here()).name == "kvm" if guests else None)
    result = results.Result(
        bench=bench,
        arguments=tuple(_of_measurement(sys.argv[1:])),
        plant=str(getattr(_options, "plant", None) or ""),
        figure="",
        met=None,
        date=results.now(),
        seconds=round(seconds + sum(took for took, _ in _earlier.values()), 1),
        commit=", ".join(dict.fromkeys([*(commit for _, commit in _earlier.values()), results.commit()])),
        machine=machine,
        load=round(_LOAD, 2),
        stolen=round((stolen_s() - _STOLEN_S) / seconds / machine.cpus, 4),
        spread=speed_spread(),
    )
    results.append(
        [result.model_copy(update={"part": part, "figure": each, "met": met}) for part, (each, met) in parts.items()]
    )
    print("recorded in benches/results.jsonl; `make generate` writes docs/benchmarks.md")


def _of_measurement(words: Sequence[str]) -> Iterator[str]:
    """The arguments that change what is measured. Of a folder its name: where it is says nothing to others."""
    rest = iter(words)
    for word in rest:
        if word in WHERE_AND_WHEN:
            next(rest, None)
        elif word != "--record" and word.partition("=")[0] not in WHERE_AND_WHEN:
            yield Path(word).name if word.startswith("/") else word


# Faults to plant


@contextlib.contextmanager
def spoilt_python(code: str) -> Iterator[str]:
    """Every Python program that is started meanwhile runs `code` first. Gives the folder for $PYTHONPATH."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        # Python imports a module of this name at its start, see the documentation of `site`.
        Path(folder, "sitecustomize.py").write_text(code)
        # Other users run such programs too.
        Path(folder).chmod(0o755)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *([before] if before else [])])
        try:
            yield folder
        finally:
            os.environ.pop("PYTHONPATH")
            os.environ.update({"PYTHONPATH": before} if before else {})


MUTE = """
import partywall.errors as errors
errors.Problem.__str__ = lambda self: "something is wrong"
"""
"""Code after which no error says what is wrong, nor what to do."""


@contextlib.contextmanager
def busy_cpu(cpu: int, programs: int = 1) -> Iterator[None]:
    """Programs that want all of a CPU."""
    command = ["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]
    with contextlib.ExitStack() as stack:
        for _ in range(programs):
            loop = stack.enter_context(subprocess.Popen(command))
            stack.callback(loop.kill)
        yield


def measure(content: dict[str, Any], seed: int = 1) -> tuple[Evidence, Findings]:
    """Runs a scenario as `partywall run` does, in a temporary run directory."""
    reap()
    scenario = Scenario.model_validate({"partywall": 1} | content)
    host = here.this_host()
    plan = stages.plan(scenario, host, seed)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        run = RunDirectory.create(Path(folder) / "run", "", plan, host.facts)
        stages.measure(run, silent)
        return stages.analyse(run)


def idle_s(cpu: int) -> float:
    """How long a CPU has idled, waiting for a disk included."""
    return sum(_cpu_times(cpu)[3:5])


def stolen_s(cpu: int | None = None) -> float:
    """CPU time that a hypervisor gave to others while this machine, or one CPU of it, could have used it."""
    return _cpu_times(cpu)[7]


def _cpu_times(cpu: int | None) -> list[float]:
    """Seconds of each kind, as `/proc/stat` has them (proc_stat(5)), of one CPU or of all together."""
    of = "cpu" if cpu is None else f"cpu{cpu}"
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.split()[0] == of)
    return [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in line.split()[1:]]


_STOLEN_S = stolen_s()


def speed_spread(rounds: int = 40) -> dict[str, float]:
    """By resource, how much its speed changes from one hundredth of a second to the next on one CPU.

    From the first to the last decile of the times of equal work, as a share of their median. CPU: a hash that fits the
    first cache; memory: copies of 32 MiB. Who waits for the CPU does not count.
    """
    source = np.zeros(4 << 20, np.int64)
    copy = np.zeros_like(source)
    work = {
        "CPU": lambda: hashlib.pbkdf2_hmac("sha256", b"Partywall", b"steady", 20_000),
        "memory": lambda: np.copyto(copy, source),
    }
    spreads = {}
    for resource, do in work.items():
        begun_s = [time.thread_time()]
        for _ in range(rounds):
            do()
            begun_s.append(time.thread_time())
        low, middle, high = np.quantile(np.diff(begun_s)[1:], [0.1, 0.5, 0.9])
        spreads[resource] = round(float((high - low) / middle), 3)
    return spreads


def await_calm(within_s: float, share: float = 0.03) -> float:
    """Waits for half a second of which a hypervisor takes less than `share`; returns what is left of `within_s`."""
    while within_s > 0:
        before, until = stolen_s(), time.monotonic() + 0.5
        # From who wants nothing, nothing is taken.
        while time.monotonic() < until:
            pass
        within_s -= 0.5
        if stolen_s() - before < share / 2:
            break
    return within_s


Reading = TypeVar("Reading")


@contextlib.contextmanager
def read_meanwhile(read: Callable[[], Reading | None], every_s: float) -> Iterator[list[Reading]]:
    """The readings that a thread takes while the block runs, one at its start. None is not kept.

    An error of `read` is raised at the end of the block.
    """
    readings: list[Reading] = []
    over = threading.Event()

    def repeat() -> None:
        while True:
            if (reading := read()) is not None:
                readings.append(reading)
            if over.wait(every_s):
                return

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(repeat)
        try:
            yield readings
        finally:
            over.set()
    reader.result()


def interval_of_median(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """By order statistics: no assumption about the shape of the noise."""
    from scipy import stats  # noqa: PLC0415 - slow to import

    ordered = sorted(values)
    k = int(stats.binom.ppf((1 - level) / 2, len(ordered), 0.5))
    k = max(0, min(k, (len(ordered) - 1) // 2))
    return ordered[k], ordered[-1 - k]


@dataclass(frozen=True)
class Ratio:
    """Ours over the peer's, pair by pair."""

    pairs: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.pairs)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        return interval_of_median(self.pairs, level)

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.median:.3f} ({low:.3f} to {high:.3f}, {len(self.pairs)} pairs)"


def interleaved(ours: Callable[[], float], peer: Callable[[], float], pairs: int) -> Ratio:
    """Measures both in turn, changing who goes first, and pairs neighbours in time."""
    times = []
    for number in range(pairs):
        order = [ours, peer] if number % 2 == 0 else [peer, ours]
        values = {which: which() for which in order}
        times.append(values[ours] / values[peer])
    return Ratio(times)
