"""Carries out a load: agents in sandboxes of their own, a monitor beside them, and their seconds as they come.

The one module of virtual users that touches the host. Deliberately not here: what a second means.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from partywall.agent import binary
from partywall.errors import AgentError, LackError, Problem, RefusalError, TrialError, UsageError
from partywall.load.health import HostSecond
from partywall.load.second import SECOND_NS, Beside, Second, Seconds
from partywall.sandbox import Label, Sandbox, Settings, reap, reaper
from partywall.sandbox.qemu.machine import Nic
from partywall.session import Session

ID = "load"
MONITOR = "monitor"
GENERATOR = "generator's host"
SERVER = "server"
CLOCK_ROUNDS = 16
# Between preparing and beginning: enough for the switch to reach every generator.
LEAD_NS = 100_000_000
# Counters of a second come within a fifth of one of its end, if their agent gets to run.
COUNTERS_S = 1.5
# A generator that says nothing for so long has hung.
SILENCE_S = 10.0
WAIT_S = 0.2
# How often a guest's clock is looked at, so that its seconds stay the host's.
LOOK_S = 10.0
GUESTS_HOST = Nic.user().gateway
"""This host, as a generator in a guest sees it."""
GUEST_WAIT = "process_run_queue_wait_ns"

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
    """How a load is carried out.

    cpus: those of the generators; sandboxes: how many share the users, each of `backend` and with `cpu_limit`. accel:
    what carries those that are guests.
    host_cpus: where the monitor and, of guests, the emulator run; the other CPUs by default. watch: commands that start
    agents on other hosts, such as the server's, by name; their counters are read too. server_host: the server's, as ssh
    knows it; an agent is copied there and taken away again.
    """

    name: str
    cpus: tuple[int, ...]
    threads: int = 1
    seed: int = 1
    work_root: Path = Path("/var/tmp")  # noqa: S108 - a folder of the load's own is made in it
    backend: str = "process"
    accel: str = "tcg"
    cpu_limit: float | None = None
    sandboxes: int = 1
    host_cpus: tuple[int, ...] = ()
    watch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    server_host: str | None = None


@dataclass
class Monitor:
    """Readings of one host's counters, one at every full second of the generators' clock.

    offset_ns: what to add to its times to get ours. guests: whether its processes are generators' machines.
    """

    counters: Sequence[Mapping[str, Any]]
    host_name: str = GENERATOR
    offset_ns: int = 0
    guests: bool = False
    readings: dict[int, list[float | None]] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Any]) -> None:
        self.readings[round((sample["at_ns"] + self.offset_ns) / SECOND_NS)] = sample["values"]

    def knows(self, number: int) -> bool:
        """Whether the end of the second that begins at `number` has been read."""
        return number + 1 in self.readings

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
            elif self.guests and info["name"] == GUEST_WAIT and first is not None and last is not None:
                found["guest_wait_ns"] = max(found.get("guest_wait_ns", 0.0), last - first)
        return HostSecond(cpus=len(cpus), **found)


class PreparedLoad:
    """A load whose agents are ready. Use as a context manager: nothing of it is left on the host afterwards."""

    def __init__(self, program: Mapping[str, Any], setup: Setup) -> None:
        self.setup = setup
        self._looked = time.monotonic()
        # None until it begins.
        self.begin_ns: int | None = None
        reap()
        label = Label.create(f"{setup.name}-{secrets.token_hex(4)}", setup.work_root)
        self._agents = Session(label)
        try:
            self._prepare(program)
        except BaseException:
            self._agents.close()
            raise

    def _prepare(self, program: Mapping[str, Any]) -> None:
        allowed = os.sched_getaffinity(0)
        self._make_room(allowed)
        self._agents.at_end(reaper.clean, self._agents.label)
        others = tuple(sorted(allowed - set(self.setup.cpus))) or self.setup.cpus
        beside = self.setup.host_cpus or others
        generators = self._agents.add(*self._generator_settings(beside, files=compresses(program)))
        self._generators = {sandbox.settings.name: sandbox for sandbox in generators}
        self._agents.add(Settings(name=MONITOR, backend="process", cpus=beside, only=("monitor",)))
        self._watchers = {GENERATOR: MONITOR}
        targets: dict[str, Any] = {"pids": [sandbox.pid for sandbox in generators if sandbox.pid is not None]}
        if caged := {name: s.cgroup_member for name, s in self._generators.items() if s.cgroup_member}:
            targets |= {"cgroups_of": caged, "cgroups_below": self._agents.label.cgroup}
        header = self._agents.client(MONITOR).call("monitor.start", id=MONITOR, cpus=sorted(allowed), **targets)
        self.monitor = Monitor(header["counters"], guests=self.setup.backend == "qemu")
        self.monitors = {GENERATOR: self.monitor}
        for name, command in self.setup.watch.items():
            with _option("--watch", name, name):
                self._agents.attach(name, command)
                self._watch(name)
        if self.setup.server_host is not None:
            there = Settings(name=SERVER, backend="ssh", cpus=(), host=self.setup.server_host, only=("monitor",))
            with _option("--server-host", SERVER, self.setup.server_host):
                self._agents.add(there)
                self._watch(SERVER)
        self._ask_all(program)

    def _make_room(self, allowed: set[int]) -> None:
        """Keeps this process off the generator's CPUs, which it would make wait; not where there are no others.

        Before agents are started, for the threads that read from them are bound as this one is when it makes them.
        """
        others = allowed - set(self.setup.cpus)
        if others:
            os.sched_setaffinity(0, others)
            self._agents.at_end(os.sched_setaffinity, 0, allowed)

    def _watch(self, name: str) -> None:
        """An agent on another host: its counters are read at this host's full seconds."""
        offset_ns = self._agents.alignment(name, CLOCK_ROUNDS).best.offset_ns
        header = self._agents.client(name).call("monitor.start", id=MONITOR)
        self.monitors[name] = Monitor(header["counters"], name, offset_ns)
        self._watchers[name] = name

    def _generator_settings(self, beside: tuple[int, ...], *, files: bool) -> list[Settings]:
        like = Settings(
            name=ID,
            backend=self.setup.backend,
            cpus=self.setup.cpus,
            cpu_limit=self.setup.cpu_limit,
            host_cpus=beside,
            network="host",
            files=files,
            accel=self.setup.accel,
            interface="user" if self.setup.backend == "qemu" else None,
        )
        return [replace(like, name=name) for name in generator_names(self.setup.sandboxes)]

    def _ask_all(self, program: Mapping[str, Any]) -> None:
        """All generators prepare; each takes its share of the users, of the arrivals and of shared feeders' rows."""
        for number, sandbox in enumerate(self._generators.values()):
            share = {"number": number, "of": len(self._generators)}
            self.started: dict[str, Any] = self._ask_to_start(sandbox, {**program, "share": share})["load"]

    def _ask_to_start(self, sandbox: Sandbox, program: Mapping[str, Any]) -> dict[str, Any]:
        patience_s = 30 + program.get("connections", {}).get("connect_timeout_ns", 10_000_000_000) / 1e9 * 4
        name = sandbox.settings.name
        try:
            answer: dict[str, Any] = self._agents.client(name).call(
                "workload.start",
                timeout_s=patience_s,
                id=ID,
                work={"load": program},
                pace="scheduled",
                threads=self.setup.threads,
                work_dir=sandbox.work_dir,
                seed=self.setup.seed,
            )
        except LackError:
            raise
        except RefusalError as error:
            # Programs and servers are refused in words meant for users.
            raise UsageError(*error.why.split("\n")) from None
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._agents.close()

    @property
    def generator_pid(self) -> int | None:
        """The first generator's process number on the host."""
        return next(iter(self._generators.values())).pid

    @property
    def stages_ns(self) -> int:
        return int(self.started["stages_ns"])

    @property
    def left_s(self) -> float:
        """Seconds until all stages are over."""
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return max(0.0, ((self.begin_ns or now_ns) + self.stages_ns - now_ns) / 1e9)

    def run(self) -> Iterator[Second | None]:
        """Begins, and gives out each second when all threads and the host have told of it, or None."""
        # Else records that fill the heap have all that was imported looked through, on CPUs the service may need.
        gc.collect()
        gc.freeze()
        self._agents.at_end(gc.unfreeze)
        begin_ns = self.begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + LEAD_NS
        for name in self._generators:
            self._agents.client(name).call("workload.schedule", id=ID, switches=[{"at_ns": begin_ns, "intensity": 1.0}])
        last = begin_ns + self.stages_ns + 60 * SECOND_NS
        moments = [at * SECOND_NS for at in range(begin_ns // SECOND_NS, last // SECOND_NS)]
        for name, agent in self._watchers.items():
            offset = self.monitors[name].offset_ns
            due = [at - offset for at in moments if at > begin_ns - LEAD_NS]
            self._agents.client(agent).call("monitor.schedule", id=MONITOR, at_ns=due)
        threads = [(name, thread) for name in self._generators for thread in range(self.setup.threads)]
        seconds = Seconds(threads, begin_ns + self.stages_ns)
        heard = dict.fromkeys(self._generators, time.monotonic())
        running = set(self._generators)
        beside = Beside(self.monitor.knows, COUNTERS_S)
        while True:
            self._keep_clocks(running)
            for name, method, params in self._agents.take(WAIT_S):
                if self._hear(name, method, params, seconds):
                    running.discard(name)
                if name in heard:
                    heard[name] = time.monotonic()
            whole = (second for second in seconds.complete(all_=not running) if second.end_ns > begin_ns)
            yield from beside.take(whole, time.monotonic())
            if not running and not beside:
                return
            if running and time.monotonic() - min(heard[name] for name in running) > SILENCE_S:
                raise TrialError(f"the generator sent nothing for {SILENCE_S:g} s; check if its host is overloaded")
            yield None

    def _keep_clocks(self, running: Collection[str]) -> None:
        """Of generators in guests, now and then; TrialError if one jumped."""
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            for name in running:
                self._generators[name].look(round(LOOK_S * SECOND_NS))

    def _hear(self, name: str, method: str, params: dict[str, Any], seconds: Seconds) -> bool:
        """Takes one message; returns whether that generator has ended."""
        if method == "gone" or (method == "ended" and params["reason"] != "all stages are over"):
            who = "generator" if name in self._generators else f"monitor {name}"
            raise TrialError(f"the {who} ended: {self._agents.reason_gone(name, params['reason'])}")
        if method == "load":
            for record in params["seconds"]:
                seconds.add((name, record["thread"]), record)
        elif method == "dropped" and params["what"] == "load":
            said = (
                f"{params['count']} seconds of {name} were not read in time, so the load's figures would not be whole"
            )
            raise TrialError(f"{said}; was this process stopped, or its host overloaded?")
        elif method == "sample":
            self.monitors[GENERATOR if name == MONITOR else name].add(params)
        return method == "ended"


def check(program: Mapping[str, Any]) -> None:
    """UsageError for what the agent, which reads expressions and selectors, finds wrong with a program; asks nobody."""
    command = [str(binary.find()), "check-load"]
    told = subprocess.run(command, input=json.dumps(program), capture_output=True, text=True, check=False, timeout=60)
    if told.returncode:
        raise AgentError(f"agent {ID}: {told.stderr.strip()}")
    if told.stdout:
        raise UsageError(*told.stdout.splitlines())


def compresses(part: Any) -> bool:
    """Whether a program, or a part of one, keeps files in the generator's sandbox."""
    if isinstance(part, dict):
        return "compress" in part or any(compresses(below) for below in part.values())
    return isinstance(part, list) and any(compresses(below) for below in part)


def generator_names(count: int) -> list[str]:
    return [ID] if count == 1 else [f"{ID}-{number}" for number in range(count)]


@contextlib.contextmanager
def _option(key: str, name: str, given: str) -> Iterator[None]:
    """A host to be watched that cannot be: the option that names it is wrong. given: what the user calls it."""
    try:
        yield
    except (AgentError, TrialError) as error:
        said = str(error).removeprefix(f"agent {name}: ").removeprefix(f"sandbox {name}: ")
        raise UsageError(Problem(f"{given!r} cannot be watched: {said}", key=key)) from None
