"""Carries out a load: agents in their own sandboxes, a monitor beside them, and their seconds as they arrive.

The only module of virtual users that touches the host. Seconds are interpreted elsewhere.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from partywall import units
from partywall.agent import binary
from partywall.agent.inbox import NOT_READ
from partywall.agent.memory_check import Checks
from partywall.errors import AgentError, CapabilityError, LackError, Problem, RefusalError, TrialError, UsageError
from partywall.host.label import Label
from partywall.load.document import Generator
from partywall.load.health import Health, HostSecond, judge
from partywall.load.memory import USERS, generator_bytes
from partywall.load.second import SECOND_NS, Beside, Second, Seconds
from partywall.sandbox import Sandbox, Settings, Spent, qemu, reap, reaper
from partywall.sandbox.backends import Name as BackendName
from partywall.sandbox.own_threads import kept_off
from partywall.sandbox.qemu.machine import Nic
from partywall.session import Session

ID = "load"
MONITOR = "monitor"
GENERATOR = "generator's host"
SERVER = "server"
CLOCK_ROUNDS = 16
# Time between preparing and starting, for the command to reach every generator.
LEAD_NS = 100_000_000
LEAD_ELSEWHERE_NS = 300_000_000
# Counters of a second arrive within a fifth of a second after its end, if their agent gets CPU time.
COUNTERS_S = 1.5
# Counters are read for this long after all stages, which may end late; their times are sent so far ahead.
AFTER_S = 60
AHEAD_S = 3600
# A generator that is silent for this long has hung.
SILENCE_S = 10.0
WAIT_S = 0.2
CHECK_S = 60
# Interval between corrections of clocks elsewhere, so that their seconds match this host's.
LOOK_S = 10.0
GUESTS_HOST = Nic.user().gateway
"""The address of this host for a generator in a guest."""
GUEST_WAIT = "process_run_queue_wait_ns"

COUNTERS = {
    "cpu_steal_ns": "steal_ns",
    "cgroup_cpu_throttled_ns": "throttled_ns",
    "tcp_sent_segments_count": "sent_segments",
    "tcp_retransmitted_segments_count": "retransmitted_segments",
    "tcp_listen_drops_count": "listen_drops",
}
"""Counters for judging health, summed over their subjects."""
KEPT = 120
"""Readings of a host that stay in memory: a second is judged when all of its generators have reported it."""


@dataclass(frozen=True)
class Setup:
    """How a load is carried out.

    cpus: CPUs of the generators. sandboxes: the number of generators that share the users, each with `backend` and
    `cpu_limit`. accel: the accelerator of guests. host_cpus: CPUs of the monitor and of guests' emulators; by default
    the others. watch: commands that start agents on other hosts, such as the server's, by name, to read their counters.
    server_host: the server's host for ssh; an agent is copied there and removed afterwards. generators: other machines
    that generate the load in place of this host, by name. inside: read the counters of guests too, by their agents.
    server_pid: the process that serves the load, on the server's host or this one; its counters alone are read there.
    """

    name: str
    cpus: tuple[int, ...]
    threads: int = 1
    seed: int = 1
    work_root: Path = Path("/var/tmp")  # noqa: S108 - a folder of the load is created in it
    backend: str = "process"
    accel: str = "tcg"
    cpu_limit: float | None = None
    sandboxes: int = 1
    host_cpus: tuple[int, ...] = ()
    watch: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    server_host: str | None = None
    generators: Mapping[str, Generator] = field(default_factory=dict)
    inside: bool = False
    server_pid: int | None = None


def memory_here(program: Mapping[str, Any], setup: Setup) -> int:
    """Bytes of this host's memory that the generators of a load need; 0 if they are all on other machines."""
    if setup.generators:
        return 0
    each = qemu.MEMORY if setup.backend == "qemu" else generator_bytes(program, setup.sandboxes)
    return setup.sandboxes * each


@dataclass
class Monitor:
    """Readings of one host's counters, one at every full second of the generators' clock.

    cpus: CPUs of its generators. offset_ns: the value to add to its times to get ours. guests: True if its processes
    are generators' virtual machines.
    """

    counters: Sequence[Mapping[str, Any]]
    cpus: Sequence[int] = ()
    host_name: str = GENERATOR
    offset_ns: int = 0
    guests: bool = False
    readings: dict[int, list[float | None]] = field(default_factory=dict)
    fresh: dict[int, list[float | None]] = field(default_factory=dict)
    """Those that `take` has not returned yet."""

    def add(self, sample: Mapping[str, Any]) -> None:
        number = round((sample["at_ns"] + self.offset_ns) / SECOND_NS)
        self.readings[number] = self.fresh[number] = sample["values"]

    def take(self) -> dict[int, list[float | None]]:
        """What was read since the last call. Of all readings only the latest are kept, by which seconds are judged."""
        fresh, self.fresh = self.fresh, {}
        for number in list(itertools.islice(self.readings, max(0, len(self.readings) - KEPT))):
            del self.readings[number]
        return fresh

    def knows(self, number: int) -> bool:
        """True if the counters at the end of the second that begins at `number` have been read."""
        return number + 1 in self.readings

    def host(self, number: int) -> HostSecond | None:
        """The host in the second that begins at `number`, for judging health; None before it has been read."""
        before, after = self.readings.get(number), self.readings.get(number + 1)
        if before is None or after is None:
            return None
        figures: dict[str, float] = {}
        own = {f"cpu{cpu}" for cpu in self.cpus}
        for info, first, last in zip(self.counters, before, after, strict=True):
            name = COUNTERS.get(info["name"])
            elsewhere = str(info["subject"] or "").startswith("cpu") and info["subject"] not in own
            if name and not elsewhere and first is not None and last is not None:
                figures[name] = figures.get(name, 0.0) + last - first
            elif self.guests and info["name"] == GUEST_WAIT and first is not None and last is not None:
                figures["guest_wait_ns"] = max(figures.get("guest_wait_ns", 0.0), last - first)
        return HostSecond(cpus=len(self.cpus), **figures)


@dataclass
class Moments:
    """The full seconds at which counters are read, from `next` to below `end`, handed out up to an hour ahead.

    A message to an agent has a maximum length, and the agent keeps all that it has been given.
    """

    next: int
    end: int

    def due(self, now: int) -> range:
        """Those to hand out at the second `now`; empty while at least half of an hour has been handed out."""
        if self.next > now + AHEAD_S // 2:
            return range(0)
        due = range(self.next, min(self.end, now + AHEAD_S))
        self.next = max(self.next, due.stop)
        return due


class PreparedLoad:
    """A load whose agents are ready. Use it as a context manager. Afterwards nothing of it is left on the host."""

    def __init__(self, program: Mapping[str, Any], setup: Setup, checks: Checks | None = None) -> None:
        """checks: of the memory that users need in guests and on other machines; none by default."""
        self.setup = setup
        self._looked = time.monotonic()
        # None until it begins.
        self.begin_ns: int | None = None
        reap()
        label = Label.create(f"{setup.name}-{secrets.token_hex(4)}", setup.work_root)
        self._agents = Session(label)
        try:
            self._prepare(program, checks)
        except BaseException:
            self._agents.close()
            raise

    def _prepare(self, program: Mapping[str, Any], checks: Checks | None) -> None:
        allowed = os.sched_getaffinity(0)
        if not self.setup.generators:
            # Otherwise this process would delay the generator.
            room = contextlib.ExitStack()
            room.enter_context(kept_off(self.setup.cpus))
            self._agents.at_end(room.close)
        self._agents.at_end(reaper.clean, self._agents.label)
        self.monitors: dict[str, Monitor] = {}
        self._watchers: dict[str, str] = {}
        self._generators: dict[str, Sandbox] = {}
        self.clock_errors_ns: dict[str, int] = {}
        if self.setup.generators:
            self._start_elsewhere()
        else:
            self._start_here(program, allowed)
        if checks:
            self._check_memory(checks, generator_bytes(program, len(self._generators)))
        for name, command in self.setup.watch.items():
            with _option("--watch", name, name):
                self._agents.attach(name, command)
                self._watch(name)
        service = {} if self.setup.server_pid is None else {"pids": [self.setup.server_pid], "cpus": []}
        if self.setup.server_host is not None:
            there = Settings(name=SERVER, backend="ssh", cpus=(), host=self.setup.server_host, only=("monitor",))
            with _option("--server-host", SERVER, self.setup.server_host):
                self._agents.add(there)
                self._watch(SERVER, **service)
        elif service:
            beside = self.setup.host_cpus or tuple(sorted(allowed))
            self._agents.add(Settings(name=SERVER, backend="process", cpus=beside, only=("monitor",)))
            self._watch(SERVER, **service)
        self._ask_all(program)

    def _start_here(self, program: Mapping[str, Any], allowed: set[int]) -> None:
        """Starts the generators in their sandboxes on this host, and a monitor beside them."""
        others = tuple(sorted(allowed - set(self.setup.cpus))) or self.setup.cpus
        beside = self.setup.host_cpus or others
        generators = self._agents.add(*self._generator_settings(beside, files=compresses(program)))
        self._generators = {sandbox.settings.name: sandbox for sandbox in generators}
        self._agents.add(Settings(name=MONITOR, backend="process", cpus=beside, only=("monitor",)))
        self._watchers[GENERATOR] = MONITOR
        targets: dict[str, Any] = {"pids": [sandbox.pid for sandbox in generators if sandbox.pid is not None]}
        if caged := {name: s.cgroup_member for name, s in self._generators.items() if s.cgroup_member}:
            targets |= {"cgroups_of": caged, "cgroups_below": self._agents.label.cgroup}
        header = self._agents.client(MONITOR).call("monitor.start", id=MONITOR, cpus=sorted(allowed), **targets)
        guests = self.setup.backend == "qemu"
        self.monitors[GENERATOR] = Monitor(header["counters"], self.setup.cpus, guests=guests)
        if self.setup.inside and guests:
            for name in self._generators:
                # Its agent is already on this host's clock.
                inside = self._agents.client(name).call("monitor.start", id=MONITOR, cpus=[])
                self.monitors[name] = Monitor(inside["counters"], host_name=name)
                self._watchers[name] = name

    def _start_elsewhere(self) -> None:
        """Starts a generator on each of the machines. Its agent is its host's monitor too.

        All their clocks are this host's from now on.
        """
        try:
            every = self._agents.add(*(_settings(name, there) for name, there in self.setup.generators.items()))
        except (AgentError, TrialError, CapabilityError) as error:
            raise UsageError(*(_of_generator(str(error), self.setup.generators))) from None
        for sandbox in every:
            name, client = sandbox.settings.name, self._agents.client(sandbox.settings.name)
            cpus = client.hello["cpus"]
            header = client.call("monitor.start", id=MONITOR, cpus=cpus, pids=[client.hello["pid"]])
            self._generators[name] = sandbox
            self._watchers[name] = name
            self.monitors[name] = Monitor(header["counters"], cpus, name)
            self.clock_errors_ns[name] = sandbox.clock_error_ns(round(LOOK_S * SECOND_NS))

    def _check_memory(self, checks: Checks, needed: int) -> None:
        """Touches and times the memory of each generator in a guest or on another machine.

        CapabilityError if another machine lacks it; a guest without it is named in a warning.
        """
        for name in self._generators:
            there = self.setup.generators.get(name)
            if there is not None:
                checks.require(self._agents.client(name), needed, USERS, there.place)
            elif self.setup.backend == "qemu":
                checks.inspect(self._agents.client(name), needed, USERS, name)

    def _watch(self, name: str, **targets: Any) -> None:
        """Reads the counters of an agent beside the server at this host's full seconds."""
        offset_ns = self._agents.alignment(name, CLOCK_ROUNDS).best.offset_ns
        header = self._agents.client(name).call("monitor.start", id=MONITOR, **targets)
        self.monitors[name] = Monitor(header["counters"], host_name=name, offset_ns=offset_ns)
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
        """Prepares all generators. Each gets its share of the users, of the arrivals and of shared feeders' rows."""
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
            # Refusals of programs and servers are worded for users.
            said = error.why.split("\n")
            if self.setup.generators:
                said = [f"{line} (seen from generator {name})" for line in said]
            raise UsageError(*said) from None
        return answer

    def _called(self, name: str) -> str:
        """A generator, or the monitor of another host, for people."""
        if name in self.setup.generators:
            place = self.setup.generators[name].place
            return f"generator {name}" if name == place else f"generator {name} ({place})"
        return "generator" if name in self._generators else f"monitor {name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._agents.close()

    @property
    def generator_pid(self) -> int | None:
        """The process ID of the first generator on the host."""
        return next(iter(self._generators.values())).pid

    @property
    def guests(self) -> list[str]:
        """The names of monitors inside guests."""
        return [name for name in self.monitors if name in self._generators and GENERATOR in self.monitors]

    @property
    def emulated(self) -> list[str]:
        """The generators whose processors are emulated, as their agents see it."""
        return [name for name in self._generators if self._agents.client(name).hello.get("emulated")]

    def spent(self) -> Spent | None:
        """CPU time of all generators so far, and of the host's side of them; None without guests of this host."""
        parts = [spent for sandbox in self._generators.values() if (spent := sandbox.spent()) is not None]
        return Spent.total(parts) if len(parts) == len(self._generators) else None

    @property
    def stages_ns(self) -> int:
        return int(self.started["stages_ns"])

    @property
    def left_s(self) -> float:
        """Seconds until all stages end."""
        now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return max(0.0, ((self.begin_ns or now_ns) + self.stages_ns - now_ns) / 1e9)

    def run(self) -> Iterator[Second | None]:
        """Starts, and yields each second after all threads and the host have reported it, or None."""
        # Otherwise the garbage collector would scan all imported modules again and again, on CPUs that the service may
        # need.
        gc.collect()
        gc.freeze()
        self._agents.at_end(gc.unfreeze)
        begin_ns = self.begin_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + self._lead_ns
        for name in self._generators:
            self._agents.client(name).call("workload.schedule", id=ID, switches=[{"at_ns": begin_ns, "intensity": 1.0}])
        moments = Moments(
            (begin_ns - self._lead_ns) // SECOND_NS + 1, (begin_ns + self.stages_ns) // SECOND_NS + AFTER_S
        )
        threads = [(name, thread) for name in self._generators for thread in range(self.setup.threads)]
        seconds = Seconds(threads, begin_ns + self.stages_ns)
        heard = dict.fromkeys(self._generators, time.monotonic())
        running = set(self._generators)
        own = [monitor for name, monitor in self.monitors.items() if name == GENERATOR or name in self._generators]
        beside = Beside(lambda number: all(monitor.knows(number) for monitor in own), COUNTERS_S)
        while True:
            self._schedule_readings(moments)
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
            silent = min(running, key=lambda name: heard[name], default="")
            if silent and time.monotonic() - heard[silent] > SILENCE_S:
                said = f"the {self._called(silent)} sent nothing for {SILENCE_S:g} s"
                raise TrialError(f"{said}; check if its host is overloaded")
            yield None

    def judge(self, second: Second) -> Health:
        """The health of a second, with what is known about the hosts of its generators."""
        number = second.start_ns // SECOND_NS
        if here := self.monitors.get(GENERATOR):
            return judge(second, here.host(number))
        return judge(second, elsewhere={name: self.monitors[name].host(number) for name in self._generators})

    @property
    def _lead_ns(self) -> int:
        return LEAD_ELSEWHERE_NS if self.setup.generators else LEAD_NS

    def set_level(self, level: float) -> None:
        """Sets the users, or arrivals a second, of all generators until the end of the stages, from now on.

        RefusalError if the host has no room for so many.
        """
        at_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + self._lead_ns
        for name in self._generators:
            self._agents.client(name).call("load.level", id=ID, at_ns=at_ns, level=level)

    def _schedule_readings(self, moments: Moments) -> None:
        """Gives the monitors the next times to read at, if they have few left."""
        if due := moments.due(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // SECOND_NS):
            for name, agent in self._watchers.items():
                at_ns = [at * SECOND_NS - self.monitors[name].offset_ns for at in due]
                self._agents.client(agent).call("monitor.schedule", id=MONITOR, at_ns=at_ns)

    def _keep_clocks(self, running: Collection[str]) -> None:
        """Corrects clocks of generators in guests and elsewhere from time to time. TrialError if one jumped."""
        if time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            for name in running:
                try:
                    self._generators[name].look(round(LOOK_S * SECOND_NS))
                except (AgentError, TrialError) as error:
                    raise TrialError(f"the {self._called(name)} was lost: {error}") from error

    def _hear(self, name: str, method: str, params: dict[str, Any], seconds: Seconds) -> bool:
        """Handles one message. Returns whether that generator has ended."""
        if method == "gone" or (method == "ended" and params["reason"] != "all stages are over"):
            raise TrialError(f"the {self._called(name)} ended: {self._agents.reason_gone(name, params['reason'])}")
        if method == "load":
            for record in params["seconds"]:
                seconds.add((name, record["thread"]), record)
        elif method == "dropped" and params["what"] == "load":
            said = (
                f"{params['count']} seconds of {name} were not read in time, so the load's figures would not be whole"
            )
            raise TrialError(f"{said}; {NOT_READ}")
        elif method == "sample":
            self.monitors[GENERATOR if name == MONITOR else name].add(params)
        return method == "ended"


def check(program: Mapping[str, Any]) -> None:
    """UsageError for the agent's complaints about a program.

    The agent reads expressions and selectors; sends no requests.
    """
    command = [str(binary.find()), "check-load"]
    try:
        checked = subprocess.run(
            command,
            input=json.dumps(program),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=CHECK_S,
        )
    except subprocess.TimeoutExpired:
        said = f"the plan was not checked within {CHECK_S} s; check that the host is not overloaded"
        raise AgentError(f"agent {ID}: {said}") from None
    if checked.returncode:
        raise AgentError(f"agent {ID}: {checked.stderr.strip()}")
    if checked.stdout:
        raise UsageError(*checked.stdout.splitlines())


def compresses(part: Any) -> bool:
    """True if a program, or a part of one, creates files in the generator's sandbox."""
    if isinstance(part, dict):
        return "compress" in part or any(compresses(below) for below in part.values())
    return isinstance(part, list) and any(compresses(below) for below in part)


def generator_names(count: int) -> list[str]:
    return [ID] if count == 1 else [f"{ID}-{number}" for number in range(count)]


def _settings(name: str, there: Generator) -> Settings:
    """The sandbox of a generator on another machine."""
    backend: BackendName = "libvirt" if there.domain else "ssh"
    cpus = units.parse_cpus(there.cpus) if there.cpus else ()
    return Settings(name=name, backend=backend, cpus=cpus, host=there.host, uri=there.uri, domain=there.domain)


def _of_generator(said: str, generators: Mapping[str, Generator]) -> list[Problem]:
    """Why a generator could not be started, at its key in the plan or its option."""
    for name, there in generators.items():
        for prefix in (f"sandbox {name}: ", f"agent {name}: "):
            if said.startswith(prefix):
                key = "--generator" if name == there.place else f"generators.{name}"
                return [Problem(said.removeprefix(prefix), key=key)]
    return [Problem(said, key="generators")]


@contextlib.contextmanager
def _option(key: str, name: str, given: str) -> Iterator[None]:
    """UsageError for the option that names a host that cannot be watched. given: the host as the user wrote it."""
    try:
        yield
    except (AgentError, TrialError) as error:
        said = str(error).removeprefix(f"agent {name}: ").removeprefix(f"sandbox {name}: ")
        raise UsageError(Problem(f"{given!r} cannot be watched: {said}", key=key)) from None
