"""A simulated host: neighbours with known effects on each other, and a clock that does not wait.

The block loop, storage and statistics run on it as on a real host, in a fraction of the time, and their results can be
compared with the truth. Agents are simulated at the level of the wire: they answer requests and send messages.
"""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from partywall.agent.client import AgentClient, Sink
from partywall.errors import AgentError
from partywall.events import Emit, silent
from partywall.host.label import Label
from partywall.run import stages
from partywall.run.measure.execute import execute
from partywall.run.record import RunDirectory
from partywall.run.values.evidence import VICTIM
from partywall.sandbox import Sandbox, Settings
from partywall.session import Session

SECOND_NS = 1_000_000_000
PERIOD_NS = 100_000_000
# How long one of two programs on a CPU runs before the other does, on average.
TURN_NS = 4_000_000


@dataclass
class VirtualClock:
    """A clock that jumps to the requested time. at_time: called with each new time."""

    time_ns: int = 10 * SECOND_NS
    at_time: list[Callable[[int], None]] = field(default_factory=list)

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, deadline_ns: int) -> None:
        self.time_ns = max(self.time_ns, deadline_ns)
        for call in self.at_time:
            call(self.time_ns)


class _Drift:
    """A part of a speed that returns to its mean of 0: an Ornstein-Uhlenbeck process."""

    def __init__(self, deviation: float, relax_ns: int, chance: random.Random) -> None:
        self._deviation, self._relax_ns, self._chance = deviation, relax_ns, chance
        self._value = chance.gauss(0, deviation)

    def after(self, passed_ns: int) -> float:
        """Its value after some time."""
        kept = math.exp(-passed_ns / self._relax_ns)
        self._value = kept * self._value + self._chance.gauss(0, self._deviation) * math.sqrt(1 - kept * kept)
        return self._value


class _Tenant:
    """Other work on the victim's CPU that comes and goes. While it is there, both have the CPU in turn."""

    def __init__(self, works_ns: int, away_ns: int, chance: random.Random) -> None:
        self._stay, self._turn = _Alternating((away_ns, works_ns), chance), _Alternating((TURN_NS, TURN_NS), chance)

    def has_cpu(self, now_ns: int) -> bool:
        """Whether the victim waits for it."""
        return self._stay.at(now_ns) and self._turn.at(now_ns)


class _Alternating:
    """Yes and no in turn, for random times whose means are given: first no, then yes. Begins with no."""

    def __init__(self, means_ns: tuple[int, int], chance: random.Random) -> None:
        self._means_ns, self._chance = means_ns, chance
        self._is, self._until_ns = True, 0

    def at(self, now_ns: int) -> bool:
        while now_ns >= self._until_ns:
            self._is = not self._is
            length_ns = self._chance.expovariate(1 / self._means_ns[self._is])
            # The first begins with the first question.
            self._until_ns = (self._until_ns or now_ns) + int(length_ns) + 1
        return self._is


@dataclass
class _Workload:
    """A running workload. switches: (ns, intensity) in order. sent_ns: the time up to which its slices were sent."""

    sandbox: str
    sink: Sink
    rate: float
    sent_ns: int
    slice_ns: int
    switches: list[tuple[int, float]]

    def intensity(self, start_ns: int, end_ns: int) -> float:
        """The mean intensity between two times."""
        at = bisect_right(self.switches, (start_ns, math.inf)) - 1
        begin_ns, present, total = start_ns, self.switches[at][1] if at >= 0 else 0.0, 0.0
        for at_ns, following in itertools.islice(self.switches, at + 1, None):
            if at_ns >= end_ns:
                break
            total += present * (at_ns - begin_ns)
            begin_ns, present = at_ns, following
        return (total + present * (end_ns - begin_ns)) / (end_ns - start_ns)


class SimulatedHost:
    """Neighbours with known effects.

    keeps: what a victim keeps of its rate beside an aggressor at full intensity, by its name; 1 for others. rate: work
    per second. noise: relative standard deviation of a slice's work. wander: that of a random walk over one second,
    which all slots of a block share. drifts: (relative standard deviation, ns) of parts of the victim's speed that
    return to their mean in that time. effect_drift: the same for the loss that each aggressor causes. cpu_limit: the
    share of each period of 100 ms in which the victim runs, until it has used it up. tenant: how long on average other
    work is on the victim's CPU, and away. reports_ns: how long
    each of the victim's slices lasts; 0 for as long as requested. loses: times (ns on the virtual clock) between which
    its slices are lost. dies: (agent's name, ns on the virtual clock); it ends then, once.
    """

    def __init__(
        self,
        keeps: Mapping[str, float] | None = None,
        *,
        rate: float = 1e6,
        noise: float = 0.02,
        wander: float = 0.02,
        drifts: Sequence[tuple[float, int]] = (),
        effect_drift: tuple[float, int] = (0.0, SECOND_NS),
        cpu_limit: float = 1.0,
        tenant: tuple[int, int] | None = None,
        reports_ns: int = 0,
        loses: Sequence[tuple[int, int]] = (),
        dies: tuple[str, int] | None = None,
        seed: int = 1,
    ) -> None:
        self.keeps = dict(keeps or {})
        self.rate = rate
        self.noise = noise
        self.wander = wander
        self.clock = VirtualClock(at_time=[self._advance])
        self.requests: list[tuple[str, str]] = []
        """(agent, method) of every request, in order."""
        self._reports_ns = reports_ns
        self._loses = loses
        self._dies = dies
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._speed = 1.0
        self._drifts = [_Drift(*drift, self._chance) for drift in drifts]
        self._effect = _Drift(*effect_drift, self._chance)
        self._cpu_limit = cpu_limit
        self._tenant = _Tenant(*tenant, random.Random(seed)) if tenant else None  # noqa: S311 - repeatable, not secret
        self._period_ns = self._chance.randrange(PERIOD_NS)
        self._running: dict[str, _Workload] = {}

    def session(self, label: Label) -> Session:
        """A session with simulated sandboxes."""
        return Session(label, self.clock, make=lambda settings, label: _Simulated(self, settings, label))

    def carry_out(self, run: RunDirectory, emit: Emit = silent) -> None:
        """Measures a run, whose plan is in its directory, on this host."""
        label = Label("simulated", run.path / "state", run.path / "work")
        execute(run, label, stages.decisions(run.plan), emit, self.clock, self.session)

    def answer(self, agent: str, sink: Sink, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of an agent."""
        self.requests.append((agent, method))
        match method:
            case "memory.check":
                return {"doubt": None}
            case "monitor.start":
                return {"counters": [], "missing": []}
            case "workload.start":
                flat_out = params["pace"] == "flat_out"
                switches = [(0, 1.0)] if flat_out else []
                slice_ns = params.get("slice_ns", 2_000_000)
                if agent == VICTIM:
                    slice_ns = max(slice_ns, self._reports_ns)
                now_ns = self.clock.now_ns()
                self._running[params["id"]] = _Workload(agent, sink, self.rate, now_ns, slice_ns, switches)
                return {"facts": []}
            case "workload.calibrate":
                return {"rate_max": [self.rate], "disturbed": 0.0}
            case "workload.schedule":
                self._running[params["id"]].switches += [(s["at_ns"], s["intensity"]) for s in params["switches"]]
            case "workload.stop":
                self._running.pop(params["id"], None)
                return {"facts": []}
        return {}

    def end(self, agent: str) -> None:
        """Removes an agent's sandbox."""
        self._running = {name: workload for name, workload in self._running.items() if workload.sandbox != agent}

    def _advance(self, now_ns: int) -> None:
        if self._dies is not None and now_ns >= self._dies[1] and self._dies[0] in self._running:
            workload = self._running.pop(self._dies[0])
            self._dies = None
            workload.sink("gone", {"reason": "it was killed by signal 9"})
        if VICTIM not in self._running:
            return
        victim = self._running[VICTIM]
        others = {name: workload for name, workload in self._running.items() if name != VICTIM}
        slices = []
        while (end_ns := victim.sent_ns + victim.slice_ns) <= now_ns:
            slices.append(_slice(victim.sent_ns, end_ns, self._work(victim, others, end_ns), 1.0))
            victim.sent_ns = end_ns
        if any(begin <= now_ns < end for begin, end in self._loses):
            victim.sink("dropped", {"id": VICTIM, "what": "slices", "count": len(slices)})
        if slices:
            victim.sink("slices", {"id": VICTIM, "slices": slices})
        for name, other in others.items():
            slices = []
            while (end_ns := other.sent_ns + other.slice_ns) <= now_ns:
                intensity = other.intensity(other.sent_ns, end_ns)
                slices.append(_slice(other.sent_ns, end_ns, other.rate * intensity * other.slice_ns / 1e9, intensity))
                other.sent_ns = end_ns
            if slices:
                other.sink("slices", {"id": name, "slices": slices})

    def _work(self, victim: _Workload, others: Mapping[str, _Workload], end_ns: int) -> float:
        passed_ns = end_ns - victim.sent_ns
        worse = 1 + self._effect.after(passed_ns)
        kept = 1.0
        for name, other in others.items():
            kept *= 1 - (1 - self.keeps.get(name, 1.0)) * worse * other.intensity(victim.sent_ns, end_ns)
        self._speed *= 1 + self._chance.gauss(0, self.wander) * (passed_ns / 1e9) ** 0.5
        speed = self._speed * (1 + sum(drift.after(passed_ns) for drift in self._drifts))
        if self._tenant is not None and self._tenant.has_cpu(end_ns):
            return 0.0
        running_s = self._running_ns(victim.sent_ns, end_ns) / 1e9
        return max(0.0, victim.rate * running_s * kept * speed * (1 + self._chance.gauss(0, self.noise)))

    def _running_ns(self, start_ns: int, end_ns: int) -> float:
        """How long the victim runs between two times, at the beginning of each period of its limit."""

        def until(at_ns: int) -> float:
            periods, rest_ns = divmod(at_ns - self._period_ns, PERIOD_NS)
            return periods * self._cpu_limit * PERIOD_NS + min(rest_ns, self._cpu_limit * PERIOD_NS)

        return until(end_ns) - until(start_ns)


def _slice(start_ns: int, end_ns: int, work: float, intensity: float) -> dict[str, Any]:
    own = {"thread": 0, "start_ns": start_ns, "end_ns": end_ns, "work": work, "intensity": intensity}
    return own | {"cpu_ns": int((end_ns - start_ns) * intensity), "latency": []}


class _Agent:
    """The connection to a simulated agent."""

    def __init__(self, host: SimulatedHost, name: str, sink: Sink) -> None:
        self.name = name
        self.hello: dict[str, Any] = {"emulated": False}
        self.process = SimpleNamespace(pid=None)
        self._host, self._sink = host, sink
        self.is_gone = False

    def call(
        self, method: str, *, timeout_s: float = 30, each_second: Callable[[], None] | None = None, **params: Any
    ) -> Any:
        del timeout_s, each_second
        if self.is_gone:
            raise AgentError(f"agent {self.name}: it is gone")
        return self._host.answer(self.name, self._tell, method, params)

    def _tell(self, method: str, params: dict[str, Any]) -> None:
        self.is_gone = self.is_gone or method == "gone"
        self._sink(method, params)


class _Simulated(Sandbox):
    """A sandbox without any process."""

    def __init__(self, host: SimulatedHost, settings: Settings, label: Label) -> None:
        super().__init__(settings, label)
        self._host = host

    def start(self, sink: Sink) -> AgentClient:
        self.client = cast("AgentClient", _Agent(self._host, self.settings.name, sink))
        return self.client

    def stop(self) -> None:
        self._host.end(self.settings.name)

    @property
    def work_dir(self) -> str:
        return "/nowhere"

    @property
    def pid(self) -> int | None:
        return None
