"""A load that Partywall runs itself: cores and intensities, or tenants, switched slot by slot in random order.

Each worker is an agent in a process of its own, with a CPU kernel that is paced by the agent. The controller sends the
intensities of each slot, and notes when the slot was.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from partywall.agent.calibration import calibrate
from partywall.clock import Clock, Monotonic
from partywall.errors import TrialError
from partywall.events import Doing, Emit, Left
from partywall.host.label import Label
from partywall.power.values import DisturbedCalibration, Slot
from partywall.sandbox import Settings
from partywall.sandbox.own_threads import kept_off
from partywall.session import Session

KERNEL = "integer"
INTENSITIES = (0.25, 0.5, 0.75, 1.0)
MOST_COUNTS = 8
"""Numbers of cores that are tried on a large host."""
SLICE_NS = 10_000_000
CALIBRATION_NS = 150_000_000
AHEAD_NS = 20_000_000
"""A schedule is sent this long before it takes effect."""


@dataclass(frozen=True)
class Worker:
    """A sandbox with one kernel. cpus: where it may run; threads: how many it has. guest: in a virtual machine."""

    name: str
    cpus: tuple[int, ...]
    kernel: str = KERNEL
    threads: int = 1
    guest: Settings | None = None

    @property
    def settings(self) -> Settings:
        return self.guest or Settings(name=self.name, backend="process", cpus=self.cpus)


@dataclass(frozen=True)
class Step:
    """One slot to come. intensity: of each worker that works."""

    block: int
    level: str
    intensity: Mapping[str, float]


def workers(cpus: Sequence[int]) -> list[Worker]:
    """One worker for each CPU."""
    return [Worker(f"cpu{cpu}", (cpu,)) for cpu in cpus]


def counts(cpus: int) -> list[int]:
    """Numbers of busy cores that are tried: all of them on a small host."""
    if cpus <= MOST_COUNTS:
        return list(range(1, cpus + 1))
    return sorted({round(cpus ** (step / (MOST_COUNTS - 1))) for step in range(MOST_COUNTS)})


def ladder(cpus: Sequence[int], blocks: int, seed: int) -> list[Step]:
    """Blocks of every level once, in random order. A level is a number of cores at an intensity, or idle."""
    chance, order = random.Random(seed), list(cpus)  # noqa: S311 - repeatable
    levels = [(0, 0.0), *((count, intensity) for count in counts(len(order)) for intensity in INTENSITIES)]
    steps = []
    for block in range(blocks):
        for count, intensity in chance.sample(levels, len(levels)):
            # Other cores each time, so that differences between cores average out.
            chosen = chance.sample(order, count)
            steps.append(Step(block, level_name(count, intensity), {f"cpu{cpu}": intensity for cpu in chosen}))
    return steps


def level_name(count: int, intensity: float) -> str:
    return "idle" if count == 0 else f"{count} × {intensity:.0%}"


def switching(names: Mapping[str, float], blocks: int, seed: int) -> list[Step]:
    """Blocks in which tenants are switched on one after the other, in random order. names: their intensities."""
    chance, steps = random.Random(seed), []  # noqa: S311 - repeatable
    for block in range(blocks):
        order = chance.sample(list(names), len(names))
        for number in range(len(order) + 1):
            on = {name: names[name] for name in order[:number]}
            steps.append(Step(block, f"{number} tenants", on))
    return steps


class Load:
    """Workers that run until the load is closed. Use it as a context manager."""

    def __init__(self, label: Label, every: Sequence[Worker], clock: Clock | None = None) -> None:
        self._session, self._workers = Session(label), every
        self._clock = clock or Monotonic()
        self.disturbed: list[DisturbedCalibration] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(kept_off(cpu for worker in self._workers for cpu in worker.settings.cpus))
            stack.callback(self._session.close)
            self._start()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _start(self) -> None:
        self._session.add(*(worker.settings for worker in self._workers))
        for worker in self._workers:
            self._begin(worker)

    def _begin(self, worker: Worker) -> None:
        """Starts and calibrates the kernel of a worker."""
        sandbox, client = self._session.sandboxes[worker.name], self._session.client(worker.name)
        work = {"kernel": {"name": worker.kernel, "params": {}}}
        client.call(
            "workload.start", timeout_s=60, id=worker.name, work=work, pace="scheduled", threads=worker.threads,
            slice_ns=SLICE_NS, work_dir=sandbox.work_dir, seed=1,
        )  # fmt: skip
        if warning := calibrate(client, worker.name, CALIBRATION_NS).warning:
            self.disturbed.append(DisturbedCalibration(worker=worker.name, warning=warning))

    @property
    def pids(self) -> dict[str, int]:
        """The process of each worker."""
        return {name: sandbox.pid or 0 for name, sandbox in self._session.sandboxes.items()}

    def carry_out(
        self, steps: Sequence[Step], slot_ns: int, emit: Emit, look: Callable[[], None] = lambda: None
    ) -> Iterator[Slot]:
        """Yields each slot when it is over. look: called once a slot."""
        at_ns = self._clock.now_ns() + AHEAD_NS
        for number, step in enumerate(steps):
            emit(Doing(f"{step.level}, slot {number + 1} of {len(steps)}"))
            emit(Left((len(steps) - number) * slot_ns / 1e9))
            self._switch(step, at_ns)
            self._clock.sleep_until(at_ns + slot_ns - AHEAD_NS)
            self._heed()
            look()
            yield Slot(
                block=step.block, begin_ns=at_ns, end_ns=at_ns + slot_ns, level=step.level, on=tuple(step.intensity)
            )
            at_ns += slot_ns
        self._switch(Step(0, "", {}), at_ns)

    def _switch(self, step: Step, at_ns: int) -> None:
        for worker in self._workers:
            switches = [{"at_ns": at_ns, "intensity": step.intensity.get(worker.name, 0.0)}]
            self._session.client(worker.name).call("workload.schedule", id=worker.name, switches=switches)

    def _heed(self) -> None:
        """TrialError if a worker has ended."""
        for name, method, params in self._session.take(0):
            if method in ("ended", "gone"):
                raise TrialError(f"worker {name} ended: {self._session.reason_gone(name, params['reason'])}")
