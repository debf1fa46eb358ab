"""Carries out a load: agents in sandboxes of their own, a monitor beside them, and their seconds as they come.

The one module of virtual users that touches the host. Deliberately not here: what a second means.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from partywall.agent.client import AgentClient
from partywall.errors import AgentError, TrialError, UsageError
from partywall.load.health import HostSecond
from partywall.load.second import SECOND_NS, Second, Seconds
from partywall.sandbox import Label, Sandbox, Settings, make, reap, reaper

ID = "load"
MONITOR = "monitor"
# Between preparing and beginning: enough for the switch to reach every generator.
LEAD_NS = 100_000_000
# A generator that says nothing for so long has hung.
SILENCE_S = 10.0

COUNTERS = {
    "cpu_steal_ns": "steal_ns",
    "cgroup_cpu_throttled_ns": "throttled_ns",
    "tcp_sent_segments_count": "sent_segments",
    "tcp_retransmitted_segments_count": "retransmitted_segments",
    "tcp_listen_drops_count": "listen_drops",
}
"""Counters that health is judged by; sums over their subjects."""


@dataclass(frozen=True)
class Setup:
    """How a load is carried out. cpus: those of the generator; backend: of its sandbox."""

    name: str
    cpus: tuple[int, ...]
    threads: int = 1
    seed: int = 1
    work_root: Path = Path("/var/tmp")  # noqa: S108 - a folder of the load's own is made in it
    backend: str = "process"
    cpu_limit: float | None = None


@dataclass
class Monitor:
    """Readings of the host's counters, one at every full second."""

    counters: Sequence[Mapping[str, Any]]
    readings: dict[int, list[float | None]] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Any]) -> None:
        self.readings[round(sample["at_ns"] / SECOND_NS)] = sample["values"]

    def host(self, number: int, cpus: Sequence[int]) -> HostSecond | None:
        """What health is judged by in the second that begins at `number`; None before it has been read."""
        before, after = self.readings.get(number), self.readings.get(number + 1)
        if before is None or after is None:
            return None
        found: dict[str, float] = {}
        own = {f"cpu{cpu}" for cpu in cpus}
        for info, first, last in zip(self.counters, before, after, strict=True):
            name = COUNTERS.get(info["name"])
            elsewhere = str(info["subject"] or "").startswith("cpu") and info["subject"] not in own
            if name and not elsewhere and first is not None and last is not None:
                found[name] = found.get(name, 0.0) + last - first
        return HostSecond(cpus=len(cpus), **found)


class Session:
    """A load that has been prepared. Use as a context manager: nothing of it is left on the host afterwards."""

    def __init__(self, program: Mapping[str, Any], setup: Setup) -> None:
        self.setup = setup
        self._messages: queue.SimpleQueue[tuple[str, str, dict[str, Any]]] = queue.SimpleQueue()
        self._stack = contextlib.ExitStack()
        try:
            self._prepare(program)
        except BaseException:
            self._stack.close()
            raise

    def _prepare(self, program: Mapping[str, Any]) -> None:
        reap()
        label = Label.create(f"{self.setup.name}-{secrets.token_hex(4)}", self.setup.work_root)
        self._stack.callback(reaper.clean, label)
        generator = Settings(name=ID, backend=self.setup.backend, cpus=self.setup.cpus, cpu_limit=self.setup.cpu_limit)
        self._generator = self._start(generator, label)
        others = tuple(sorted(set(os.sched_getaffinity(0)) - set(self.setup.cpus))) or self.setup.cpus
        watcher = _client(self._start(Settings(name=MONITOR, backend="process", cpus=others), label))
        self._watcher = watcher
        pid = self._generator.pid
        targets: dict[str, Any] = {"pids": [pid] if pid is not None else []}
        if pid is not None and self._generator.cgroup:
            targets["cgroups_of"] = {ID: pid}
        header = watcher.call("monitor.start", id=MONITOR, cpus=sorted(os.sched_getaffinity(0)), **targets)
        self.monitor = Monitor(header["counters"])
        self.started: dict[str, Any] = self._ask_to_start(program)["load"]
        self._make_room()

    def _make_room(self) -> None:
        """Keeps this process off the generator's CPUs, which it would make wait; not where there are no others."""
        allowed = os.sched_getaffinity(0)
        others = allowed - set(self.setup.cpus)
        if others:
            os.sched_setaffinity(0, others)
            self._stack.callback(os.sched_setaffinity, 0, allowed)

    def _start(self, settings: Settings, label: Label) -> Sandbox:
        sandbox = make(settings, label)
        self._stack.callback(sandbox.stop)
        sandbox.start(lambda method, params: self._messages.put((settings.name, method, params)))
        return sandbox

    def _ask_to_start(self, program: Mapping[str, Any]) -> dict[str, Any]:
        patience_s = 30 + program.get("connections", {}).get("connect_timeout_ns", 10_000_000_000) / 1e9 * 4
        try:
            answer: dict[str, Any] = _client(self._generator).call(
                "workload.start",
                timeout_s=patience_s,
                id=ID,
                work={"load": program},
                pace="scheduled",
                threads=self.setup.threads,
                work_dir=self._generator.work_dir,
                seed=self.setup.seed,
            )
        except AgentError as error:
            raise _as_users_mistake(error) from None
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def generator_pid(self) -> int | None:
        """The generator's process number on the host."""
        return self._generator.pid

    @property
    def stages_ns(self) -> int:
        return int(self.started["stages_ns"])

    def run(self) -> Iterator[Second | None]:
        """Begins, and gives out each second when all threads have told of it; None now and then while there is none."""
        self.begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + LEAD_NS
        _client(self._generator).call("workload.schedule", id=ID, switches=[{"at_ns": self.begin_ns, "intensity": 1.0}])
        last = self.begin_ns + self.stages_ns + 60 * SECOND_NS
        moments = [at * SECOND_NS for at in range(self.begin_ns // SECOND_NS, last // SECOND_NS)]
        self._watcher.call("monitor.schedule", id=MONITOR, at_ns=[at for at in moments if at > self.begin_ns - LEAD_NS])
        seconds = Seconds(range(self.setup.threads))
        heard = time.monotonic()
        while True:
            ended = False
            for name, method, params in self._take():
                ended |= self._hear(name, method, params, seconds)
                heard = time.monotonic() if name == ID else heard
            yield from (second for second in seconds.complete(all_=ended) if second.end_ns > self.begin_ns)
            if ended:
                return
            if time.monotonic() - heard > SILENCE_S:
                raise TrialError(f"the generator has said nothing for {SILENCE_S:g} s; is its host overloaded?")
            yield None

    def _take(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Messages that came, after waiting for one for a moment."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._messages.get(timeout=0.2))
            while True:
                found.append(self._messages.get_nowait())
        return found

    def _hear(self, name: str, method: str, params: dict[str, Any], seconds: Seconds) -> bool:
        """Takes one message; returns whether the load has ended."""
        if method == "gone" or (method == "ended" and params["reason"] != "all stages are over"):
            sandbox = self._generator if name == ID else None
            reason = sandbox.reason_gone(params["reason"]) if sandbox else params["reason"]
            raise TrialError(f"the {'generator' if sandbox else 'monitor'} ended: {reason}")
        if method == "load":
            for record in params["seconds"]:
                seconds.add(record["thread"], record)
        elif method == "sample":
            self.monitor.add(params)
        return method == "ended"


def _client(sandbox: Sandbox) -> AgentClient:
    if sandbox.client is None:
        raise TrialError(f"the agent of {sandbox.settings.name} did not start")
    return sandbox.client


def _as_users_mistake(error: AgentError) -> UsageError | AgentError:
    """The agent refuses programs and servers in words meant for users, each problem on a line."""
    text = str(error).removeprefix(f"agent {ID}: ")
    if text == str(error) or "was not answered" in text:
        return error
    return UsageError(*text.split("\n"))
