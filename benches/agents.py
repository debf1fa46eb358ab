"""What benchmarks share that drive agents directly: a pinned workload, switched by schedule, and its slices."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from partywall.errors import TrialError
from partywall.host.label import Label
from partywall.sandbox import Settings
from partywall.sandbox.process import Process

SLICE_NS = 10_000_000
_numbers = itertools.count()


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def sleep_until(at_ns: int) -> None:
    while (left_ns := at_ns - now_ns()) > 0:
        time.sleep(left_ns / 1e9)


@dataclass(frozen=True)
class Kernel:
    """A kernel of work with its parameters; threads: how many workers."""

    name: str
    params: dict[str, Any]
    threads: int = 1

    @property
    def work(self) -> dict[str, Any]:
        return {"kernel": {"name": self.name, "params": self.params}}

    def __str__(self) -> str:
        shown = " ".join(f"{key}={value}" for key, value in self.params.items())
        workers = [f"x{self.threads}"] if self.threads > 1 else []
        return " ".join([self.name, *workers, *([shown] if shown else [])])


@dataclass(frozen=True)
class Command:
    """A program as a workload, stopped and continued by schedule. It gets warm_up_s to build its data."""

    argv: Sequence[str]
    warm_up_s: float = 0.5

    @property
    def work(self) -> dict[str, Any]:
        return {"command": {"argv": list(self.argv), "env": {}, "warm_up_ns": int(self.warm_up_s * 1e9)}}

    @property
    def threads(self) -> int:
        return 1


class Resident:
    """One workload in an agent of its own, in a process pinned to `cpus`. Off until scheduled, unless `flat_out`.

    namespace: the network namespace of that process.
    """

    def __init__(
        self,
        label: Label,
        workload: Kernel | Command,
        cpus: Iterable[int],
        *,
        flat_out: bool = False,
        seed: int = 1,
        slice_ns: int = SLICE_NS,
        namespace: str = "",
    ) -> None:
        self.id = f"w{next(_numbers)}"
        self.is_kernel = isinstance(workload, Kernel)
        self._slices: list[dict[str, Any]] = []
        self._ended = ""
        self.sandbox = Process(Settings(name=self.id, backend="process", cpus=tuple(cpus)), label)
        self.sandbox.enter = ("ip", "netns", "exec", namespace) if namespace else ()
        self.client = self.sandbox.start(self._hear)
        try:
            started = self.client.call(
                "workload.start",
                timeout_s=120,
                id=self.id,
                work=workload.work,
                pace="flat_out" if flat_out else "scheduled",
                threads=workload.threads,
                slice_ns=slice_ns,
                work_dir=self.sandbox.work_dir,
                seed=seed,
            )
        except BaseException:
            self.close()
            raise
        self.facts: list[dict[str, Any]] = started["facts"]

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "slices":
            self._slices += params["slices"]
        elif method in ("ended", "gone"):
            self._ended = params["reason"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sandbox.stop()

    @property
    def pid(self) -> int:
        assert self.sandbox.pid is not None
        return self.sandbox.pid

    def thread(self, name: str) -> int:
        """The number of the agent's thread of this name, of which the operating system keeps 15 characters.

        A thread takes its name a moment after it was made, so this waits for it; TrialError if it never comes.
        """
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                if (task / "comm").read_text().strip() == name[:15]:
                    return int(task.name)
            time.sleep(0.01)
        raise TrialError(f"{self.id} has no thread called {name!r}")

    def pin(self, thread: str, cpu: int) -> None:
        os.sched_setaffinity(self.thread(thread), {cpu})

    def calibrate(self, seconds: float) -> float:
        """Rate at intensity 1."""
        answer = self.client.call("workload.calibrate", timeout_s=60, id=self.id, for_ns=int(seconds * 1e9))
        return float(sum(answer["rate_max"]))

    def schedule(self, switches: Iterable[tuple[int, float]]) -> None:
        moments = [{"at_ns": at_ns, "intensity": intensity} for at_ns, intensity in switches]
        self.client.call("workload.schedule", id=self.id, switches=moments)

    def alive(self) -> None:
        """TrialError if the workload has ended by itself."""
        if self._ended:
            raise TrialError(f"{self.id} ended: {self._ended}")

    def slices(self, until_ns: int) -> list[dict[str, Any]]:
        """All slices so far, once those up to about `until_ns` have come."""
        deadline = time.monotonic() + 20
        while True:
            self.alive()
            if any(s["end_ns"] >= until_ns - 2 * SLICE_NS for s in self._slices[-4:]):
                return list(self._slices)
            if time.monotonic() > deadline:
                raise TrialError(f"{self.id} sent no slice of the last 20 s")
            time.sleep(0.05)

    def come(self) -> list[dict[str, Any]]:
        """The slices that have come so far. One that idles sends none."""
        self.alive()
        return list(self._slices)

    def forget(self) -> None:
        """Lets go of the slices that have come, so that long benchmarks stay small."""
        self._slices.clear()

    def stretch(self, seconds: float, *, intensity: float = 1.0, settle_s: float = 0.05) -> float:
        """Runs for settle_s + seconds from now on, and returns the rate of the latter part."""
        on_ns = now_ns() + 2_000_000
        off_ns = on_ns + int((settle_s + seconds) * 1e9)
        self.schedule([(on_ns, intensity), (off_ns, 0.0)])
        sleep_until(off_ns)
        # The last step ends after the switch.
        measured = rate(self.slices(off_ns), on_ns + int(settle_s * 1e9), now_ns())
        self.forget()
        return measured

    def typical(self, seconds: float, *, settle_s: float = 0.05) -> float:
        """The median of the slices' rates of one thread that runs flat out, from settle_s on."""
        first_ns = now_ns() + int(settle_s * 1e9)
        last_ns = first_ns + int(seconds * 1e9)
        sleep_until(last_ns)
        pieces = [piece for piece in self.slices(last_ns) if piece["start_ns"] >= first_ns]
        self.forget()
        return statistics.median(rate([piece], first_ns, piece["end_ns"]) for piece in pieces)


def rate(slices: Iterable[dict[str, Any]], first_ns: int, last_ns: int) -> float:
    """Work per second of the slices that lie between two moments. Threads add up."""
    totals: dict[int, tuple[float, int]] = {}
    for piece in slices:
        if piece["start_ns"] >= first_ns and piece["end_ns"] <= last_ns and piece["intensity"] > 0:
            work, time_ns = totals.get(piece["thread"], (0.0, 0))
            totals[piece["thread"]] = work + piece["work"], time_ns + piece["end_ns"] - piece["start_ns"]
    return sum(work * 1e9 / time_ns for work, time_ns in totals.values() if time_ns)
