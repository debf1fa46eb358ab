"""What benchmarks share to measure: faults in Python, waits, CPU time, scenarios without a screen, peers in turn."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from partywall.core import here
from partywall.events import silent
from partywall.host.label import WORK_ROOT, Label
from partywall.run import stages
from partywall.run.document.scenario import Scenario
from partywall.run.record import RunDirectory
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Findings
from partywall.sandbox import reap, reaper

PARTYWALL = (sys.executable, "-m", "partywall")


@contextlib.contextmanager
def work(name: str) -> Iterator[Label]:
    """A label for what is started in the block. All of it is removed at the end."""
    label = Label.create(name, WORK_ROOT)
    try:
        yield label
    finally:
        reaper.clean(label)


def until(condition: Callable[[], object], within_s: float = 60.0, otherwise: str = "", every_s: float = 0.05) -> Any:
    """Waits until a condition has a true value, and returns that. TimeoutError if it has none in time."""
    ends = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > ends:
            raise TimeoutError(otherwise or "the condition was not met")
        time.sleep(every_s)
    return value


@contextlib.contextmanager
def program(*argv: str, **how: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program that is killed at the end of the block. how: keywords of Popen."""
    with subprocess.Popen(argv, **how) as running:
        try:
            yield running
        finally:
            running.kill()


@contextlib.contextmanager
def served(before: Callable[[], object] = lambda: None) -> Iterator[str]:
    """An HTTP service that answers each request with `ok`, once `before` has returned. Gives its address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            before()
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def processes(is_one: Callable[[Path], bool]) -> list[Path]:
    """The folders in /proc of the processes that pass a test. One that ends meanwhile passes none."""
    passed = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            passed += [folder] if is_one(folder) else []
    return passed


def ran_ns(task: Path) -> int:
    """CPU time of a task, by its folder in /proc; 0 if it is gone (Documentation/scheduler/sched-stats.rst)."""
    try:
        return int((task / "schedstat").read_text().split()[0])
    except OSError:
        return 0


def cpu_ns(pid: int, *, but: str = "\n") -> int:
    """CPU time of all threads of a process whose name does not begin with `but`."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(ran_ns(task) for task in tasks if not (task / "comm").read_text().startswith(but))


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
    with contextlib.ExitStack() as stack:
        for _ in range(programs):
            stack.enter_context(program("taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"))
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
