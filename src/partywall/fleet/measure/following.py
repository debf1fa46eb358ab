"""One host, from the first request to its figures. It runs in a thread of its own and only waits."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from partywall import units
from partywall.errors import TrialError
from partywall.fleet.engines.engine import Engine, Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.job import FleetJob
from partywall.fleet.ledger.granting import OLDER, Order
from partywall.fleet.ledger.lease import Phase, State
from partywall.fleet.ledger.look import CHUNK
from partywall.fleet.record import Cell, Home, Measured, Tried

T = TypeVar("T")
PLANS = {"run": "plan.json", "study": "study.json"}
"""The file of a record without which it cannot be continued, by the command that makes it."""
FIRST_S = 15.0
"""How long the first request to a host is repeated while there is no answer."""
UNREACHED_S = 120.0
"""The same for later ones."""
RELEASED_S = 60.0
"""How long an attempt waits for what is left of the one before."""
PAUSE_S = 2.0
ANSWERED = (0, 1, 3)
"""Exit codes of a command that has findings."""
UNFINISHED = (Phase.DIED, Phase.LOST, Phase.STOPPED)
WORDS_MOST = 300
_ODD = "its ledger no longer knows the run that it had begun; --resume begins it again"


class Given(Exception):  # noqa: N818 - it is no error
    """The controller ends. Hosts measure on."""


class Superseded(Given):
    """A newer controller or `fleet stop` has taken over, so that this controller ends."""


class NotNow(Exception):  # noqa: N818 - it is no error
    """The policy does not allow to begin on a host now. The message says why."""


@dataclass(frozen=True)
class Progress:
    """Something that happened to a host, for the table and the record. share: of its time, if known."""

    host: str
    attempt: int
    phase: Phase
    why: str = ""
    share: float | None = None


class Time:
    """The clock of those who follow hosts, and how they wait. over: ends them all."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def now(self) -> float:
        """Seconds of a clock that never steps."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Waits. Raises Given if the controller ends meanwhile."""
        if self._over.wait(seconds):
            raise Given


class Follower:
    """Follows one host. tried: says that an attempt is about to be ordered; say: what happens.

    share: of its time that the host has measured when it has ended.
    """

    def __init__(
        self,
        place: Place,
        engine: Engine,
        job: FleetJob,
        run: str,
        token: int,
        home: Home,
        tried: Callable[[Tried], None],
        say: Callable[[Progress], None],
        time: Time,
        share: float = 1.0,
    ) -> None:
        self._host, self._engine, self._job, self._run, self._token = place.name, engine, job, run, token
        self._home, self._tried, self._say, self._time, self._share = home, tried, say, time, share
        self._began_s: float | None = None

    def follow(self, attempt: int) -> Measured:
        """Measures the host. attempt: the first that may measure this share.

        TrialError if it fails for good; NotNow if the host may not begin yet.
        """
        self._time.pause(0)
        state = self._patiently(lambda: self._engine.state(self._host, self._run), FIRST_S)
        # What was stopped or died before this controller began goes on.
        attempt = state.attempt + 1 if state.phase in UNFINISHED else max(attempt, state.attempt, 1)
        last = attempt + self._job.attempts - 1
        if attempt > state.attempt:
            self._allowed()
        while True:
            if not state.phase.is_going and self._home.since(state):
                state = self._fetched(state)
            order = self._order(attempt, state)
            if attempt > state.attempt:
                self._home.forget_whole()
            state = self._attempted(order)
            if state.phase is Phase.ENDED:
                self._home.settle(state := self._fetched(state))
                return self._measured(state)
            if state.phase not in (Phase.DIED, Phase.LOST) or state.attempt >= last:
                raise TrialError(f"{self._host}: {state.why or (_ODD if state.phase is Phase.NONE else state.phase)}")
            attempt = state.attempt + 1

    def _allowed(self) -> None:
        """Raises NotNow if the policy does not allow to begin now."""
        if why := self._job.not_now(datetime.datetime.now().astimezone().time()):
            raise NotNow(why)
        if (most := self._job.load_most) is None:
            return
        load = self._patiently(lambda: self._engine.fetch(self._host, self._run, {}), FIRST_S).load
        if load is not None and load >= most:
            raise NotNow(f"it is not idle: its load is {100 * load:.0f} % of its CPUs")

    def _order(self, attempt: int, state: State) -> Order:
        """What an attempt does: it continues the record of the one before if that has a plan."""
        verb = self._job.scenario.subject.verb
        known = (n for n in range(attempt - 1, 0, -1) if f"record-{n}/{PLANS[verb]}" in state.files or self._planned(n))
        last = next(known, None)
        what = ["scenario.yaml", f"--out=record-{attempt}"] if last is None else [f"--resume=record-{last}"]
        wanted_ns = round(self._job.seconds * self._share * 1e9)
        # A record that has this much time already would refuse it.
        if (self._job.budget_ns or self._share < 1) if last is None else self._planned_ns(last) < wanted_ns:
            what.append(f"--budget={wanted_ns / 1e9:g}s")
        commands = ["--allow-commands"] if self._job.allow_commands else []
        words = (verb, *what, "--format=json", *commands)
        files = {"scenario.yaml": self._job.scenario.text}
        return Order(self._run, words, attempt, self._job.lease_ns / 1e9, files)

    def _planned_ns(self, attempt: int) -> int:
        """The time that a record's plan has, as far as it has come home."""
        try:
            plan = json.loads(self._planned(attempt))
            return units.parse_duration_ns(plan["scenario"]["budget"])
        except (ValueError, KeyError, TypeError):
            return round(self._job.seconds * 1e9)

    def _planned(self, attempt: int) -> str:
        """The plan of an attempt's record, as far as it has come home."""
        return self._home.text(f"record-{attempt}/{PLANS[self._job.scenario.subject.verb]}")

    def _attempted(self, order: Order) -> State:
        """Carries out an attempt, and returns how it ended."""
        self._tried(Tried(host=self._host, attempt=order.attempt, share=self._share))
        state = self._begun(order)
        while state.phase.is_going:
            self._tell(state)
            self._time.pause(self._job.every_ns / 1e9)
            state = self._fetched(state)
            if state.left_s is not None and state.left_s < order.term_s / 2:
                # What has not begun yet has no lease that could end.
                within_s = UNREACHED_S if state.phase is Phase.STARTING else 0.0
                state = self._ensured(order, max(within_s, state.left_s))
        self._tell(state)
        if state.phase is Phase.REFUSED:
            raise Superseded if state.why == OLDER else TrialError(f"{self._host}: {state.why}")
        return state if state.files else self._fetched(state)

    def _begun(self, order: Order) -> State:
        """Orders an attempt. What is left of the one before may hold the host for a moment."""
        until = self._time.now() + (RELEASED_S if order.attempt > 1 else 0.0)
        while (state := self._ensured(order, UNREACHED_S)).phase is Phase.REFUSED:
            if state.why == OLDER or self._time.now() >= until:
                break
            self._tell(state)
            self._time.pause(PAUSE_S)
        return state

    def _ensured(self, order: Order, within_s: float) -> State:
        return self._patiently(lambda: self._engine.ensure(self._host, order, self._token), within_s)

    def _fetched(self, state: State) -> State:
        """Brings home what the host has more of, and returns the newest state."""
        within_s = max(UNREACHED_S, state.left_s or 0.0)
        while True:
            since = self._home.since(state)
            look = self._patiently(lambda: self._engine.fetch(self._host, self._run, since), within_s)  # noqa: B023
            self._home.take(look.chunks)
            state = look.state
            if state.phase.is_going and not any(len(chunk.content) == CHUNK for chunk in look.chunks):
                return state
            left = self._home.since(state)
            if not left:
                return state
            if left == since:
                raise TrialError(f"{self._host}: {', '.join(left)} cannot be read there")

    def _patiently(self, ask: Callable[[], T], within_s: float) -> T:
        """Repeats a request that got no answer. Ledgers make that harmless. Unreachable if it never gets one."""
        began = self._time.now()
        while True:
            try:
                return ask()
            except Unreachable as error:
                if error.is_lasting:
                    raise
                within_s = max(within_s, error.within_s)
                if self._time.now() >= began + within_s:
                    raise Unreachable(f"{error}; --resume asks again (asked for {within_s:.0f} s)") from None
                self._say(Progress(self._host, 0, Phase.NONE, f"no answer yet: {error}"))
            self._time.pause(PAUSE_S)

    def _tell(self, state: State) -> None:
        if state.phase.is_going and self._began_s is None:
            self._began_s = self._time.now()
        seconds = self._job.seconds / self._job.rounds
        share = (self._time.now() - self._began_s) / seconds if self._began_s and seconds else None
        self._say(Progress(self._host, state.attempt, state.phase, state.why, share and min(1.0, share)))

    def _measured(self, state: State) -> Measured:
        """The figures of a host that has ended. TrialError with its own words if it has none."""
        try:
            document = json.loads(self._home.text("result.json"))
            result, problems = document["result"], document["problems"]
        except (ValueError, KeyError, TypeError):
            result, problems = None, []
        if state.exit not in ANSWERED or result is None:
            said = "; ".join(
                each["message"] + (f" — {each['remedy']}" if each.get("remedy") else "") for each in problems
            )
            last = self._home.text("output.txt").strip().rpartition("\n")[2]
            why = said or state.why or last or "it said nothing"
            raise TrialError(f"{self._host}: exit code {state.exit}: {why[:WORDS_MOST]}")
        cells = tuple(cells_of(result))
        facts = facts_of(self._facts(state))
        of = {"host": self._host, "exit": state.exit, "share": self._share}
        return Measured(**of, headline=result["headline"], cells=cells, facts=facts)

    def _facts(self, state: State) -> Mapping[str, Any]:
        """The facts of the measured host, of its own record."""
        for attempt in range(state.attempt, 0, -1):
            with contextlib.suppress(ValueError):
                return dict(json.loads(self._home.text(f"record-{attempt}/host.json")))
            with contextlib.suppress(ValueError, KeyError):
                return dict(json.loads(self._planned(attempt))["host"])
        return {}


def cells_of(result: Mapping[str, Any]) -> Iterator[Cell]:
    """The figures of a run's findings: each isolation factor, and the rate of each victim that is alone.

    Of a study: each measured point of its tables and figures.
    """
    if "exhibits" in result:
        for exhibit in result["exhibits"]:
            for point in exhibit["measured"]:
                # A simulated meter says nothing of a host.
                if not point["simulated"]:
                    name = f"{exhibit['exhibit']}: {point['series']}, {point['x']}"
                    yield from _cell(name, point, is_rate=True, is_directed=False)
        return
    alone: dict[str, Mapping[str, Any]] = {}
    for cell in result["cells"]:
        if cell["role"] == "null":
            continue
        levels = ", ".join(f"{path.rpartition('.')[2]} {level}" for path, level in cell.get("levels", {}).items())
        about = f" ({levels})" if levels else ""
        yield from _cell(f"{cell['victim']} beside {cell['label']}{about}", cell["isolation"], is_rate=False)
        alone.setdefault(f"{cell['victim']} alone{about}", cell["baseline_rate"])
    for name, rate in alone.items():
        yield from _cell(name, rate, is_rate=True)


def _cell(name: str, estimate: Mapping[str, Any], *, is_rate: bool, is_directed: bool = True) -> Iterator[Cell]:
    """A figure, unless it has no logarithm or no interval yet."""
    ends = [estimate[end] for end in ("value", "low", "high")]
    if all(end is not None and math.isfinite(end) and end > 0 for end in ends) and (estimate["n"] or 0) > 1:
        value, low, high = ends
        level = estimate.get("level", 0.95)
        kind = {"is_rate": is_rate, "is_directed": is_directed}
        yield Cell(name=name, value=value, low=low, high=high, level=level, n=estimate["n"], **kind)


PARTS = ("cpu", "kernel", "cgroup", "virtualisation", "memory", "neighbours")
"""The parts of a host's facts that may tell hosts apart."""


def facts_of(host: Mapping[str, Any]) -> dict[str, str]:
    """The facts of a host that are one word or number each, such as kernel.release or cpu.frequency.governor.

    Each name in a list is a fact of its own, such as neighbours.dockerd, whose value is `yes`.
    """
    return {name: fact for part in PARTS for name, fact in _words(part, host.get(part))}


def _words(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for inner, content in value.items():
            yield from _words(f"{name}.{inner}", content)
    elif isinstance(value, list):
        yield from ((f"{name}.{each}", "yes") for each in value if isinstance(each, str))
    elif isinstance(value, str | bool | int | float) and value != "":
        yield name, str(value)
