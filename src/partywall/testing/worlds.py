"""A host of a fleet in simulated time: its real ledger and keeper, a command, a link, and what goes wrong with them.

One thread carries out everything in the order of the simulated clock, so that a seed is one schedule. What becomes of
the host is judged by what its commands did and by the host's own ledger, never by the controller.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from partywall.errors import TrialError
from partywall.fleet.engines.engine import Engine, Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.job import RunJob
from partywall.fleet.ledger.granting import Ledger, Order
from partywall.fleet.ledger.keeper import LOOK_S, Keeper
from partywall.fleet.ledger.lease import Kernel, Lease, Phase, State
from partywall.fleet.ledger.look import Chunk, Look
from partywall.fleet.measure.following import Follower, Given, Time
from partywall.fleet.record import Home, Tried
from partywall.testing.engines import Hostile

T = TypeVar("T")
HOST, RUN, RIVAL = "host", "fleet", "rival"
MEASURES_S = 40.0
"""How long a run measures at most."""
TROUBLE_S = 60.0
"""Nothing begins to go wrong afterwards."""
ENDS_S = 900.0
"""A schedule that has not come to an end by then is lost."""


class Killed(BaseException):
    """The controller was killed."""


class _Time(Time):
    """The clock of a controller in a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.now_s

    def pause(self, seconds: float) -> None:
        self._world.alive(seconds)


class _Network(Hostile):
    """A hostile network to a world."""

    def __init__(self, world: World, chance: random.Random, share: float) -> None:
        super().__init__(world, chance, share)
        self._world = world

    def _carried(self, host: str, call: Callable[[], T]) -> T:
        self._world.asked()
        return super()._carried(host, call)


@dataclass
class Judged:
    """What a host says of a schedule. Each is a count, or the longest time in seconds.

    twice: commands that began beside another one; silent: attempts that began again, or that no controller had written
    down; lost: schedules whose files did not come home whole; fenced: orders of an old controller that were carried
    out; faults: what happened; ends: how attempts ended, if their keepers wrote that; late_s: from a lease's end to
    that of its command, unless its keeper was killed; resumed_s: from the moment when the controller and the link are
    up to the next request.
    """

    twice: int = 0
    silent: int = 0
    lost: int = 0
    fenced: int = 0
    late_s: float = 0.0
    resumed_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def add(self, other: Judged) -> None:
        for name in ("twice", "silent", "lost", "fenced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.late_s, self.resumed_s = max(self.late_s, other.late_s), max(self.resumed_s, other.resumed_s)
        self.faults, self.ends = self.faults + other.faults, self.ends + other.ends


class Command:
    """A command in simulated time. It appends a line each time it is polled, and needs a moment to end."""

    def __init__(self, world: World, lease: Lease) -> None:
        self._world, self.lease, self._folder = world, lease, world.ledger.book.folder(lease.run)
        record = self._folder / "record-1"
        if not record.exists():
            record.mkdir()
            (record / "plan.json").write_text('{"scenario": {"budget": 1}}')
        (self._folder / "result.json").write_text("")
        self.ends_s, self._code = world.now_s + world.chance.uniform(1, MEASURES_S), 0
        self._cleans_up_s = world.chance.uniform(0, 5)

    @property
    def is_going(self) -> bool:
        return self._world.now_s < self.ends_s

    def poll(self) -> int | None:
        if self.is_going:
            with (self._folder / "record-1" / "events.jsonl").open("a") as stream:
                stream.write(f'{{"at": {self._world.now_s:.1f}}}\n')
            return None
        if self._code == 0:
            result = {"headline": "", "cells": []}
            (self._folder / "result.json").write_text(json.dumps({"result": result, "problems": []}))
        return self._code

    def signal(self, number: signal.Signals) -> None:
        if self.is_going:
            self._code = -number
            wait_s = 0.0 if number is signal.SIGKILL else self._cleans_up_s
            self.ends_s = min(self.ends_s, self._world.now_s + wait_s)


class SimulatedKeeper(Keeper):
    """A keeper of commands that leave nothing."""

    def _clean_up(self) -> None:
        pass


class World:
    """A host. seed: decides everything that happens. ledger, keeper: classes, which may have planted faults."""

    def __init__(
        self,
        root: Path,
        job: RunJob,
        seed: int,
        ledger: type[Ledger] = Ledger,
        keeper: type[SimulatedKeeper] = SimulatedKeeper,
    ) -> None:
        self.chance, self._job, self._keeper = random.Random(seed), job, keeper  # noqa: S311 - a schedule
        self.now_s, self._booted_s, self._boot, self._next_pid = 1000.0, 0.0, 1, 1
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._alive: dict[int, int] = {}
        self._holders: dict[int, Command | None] = {}
        self.is_cut = self.is_down = False
        self._is_killed, self._token = False, 0
        self._up_s: float | None = None
        self.tried: list[Tried] = []
        self.judged = Judged()
        self._root = root
        kernel = Kernel(
            lambda: round((self.now_s - self._booted_s) * 1e9), lambda: f"boot {self._boot}", self._alive.get
        )
        self.ledger = ledger(root / "ledger", kernel=kernel, lock=self._lock, begin=self._begin)
        self.home = Home(root / "home")

    # The clock.

    def at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), what))

    def advance(self, seconds: float) -> None:
        """Lets time pass, with all that happens meanwhile."""
        until_s = self.now_s + seconds
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
        self.now_s = until_s

    def alive(self, seconds: float) -> None:
        """Lets time pass for a controller. Raises Killed if it does not survive that."""
        self.advance(seconds)
        if self._is_killed:
            raise Killed

    # Processes of the host.

    def _lock(self) -> int | None:
        """The lock of measurements, which ends with its last holder: a keeper that lives, or a command."""
        self._holders = {
            pid: command
            for pid, command in self._holders.items()
            if pid in self._alive or (command is not None and command.is_going)
        }
        return None if self._holders else os.open(self._root, os.O_RDONLY)

    def _begin(self, _root: Path, lease: Lease, _lock: int) -> None:
        self._next_pid += 1
        pid, boot = self._next_pid, self._boot
        self._alive[pid], self._holders[pid] = round(self.now_s * 100), None
        self.at(self.now_s + self.chance.uniform(0.1, 1.5), lambda: self._keeps(pid, boot, lease))

    def _keeps(self, pid: int, boot: int, lease: Lease) -> None:
        if boot != self._boot or pid not in self._alive:
            return
        keeper = self._keeper.begun(self.ledger.book, lease.grant, pid)
        if keeper is None:
            del self._alive[pid]
            return
        self.judged.twice += any(command is not None and command.is_going for command in self._holders.values())
        self._holders[pid] = command = Command(self, lease)
        self._looks(pid, boot, keeper, command)

    def _looks(self, pid: int, boot: int, keeper: Keeper, command: Command) -> None:
        if boot != self._boot or pid not in self._alive:
            return
        if keeper.is_over(command):
            del self._alive[pid]
            lease = self.ledger.book.lease()
            if lease is not None and lease.grant == command.lease.grant:
                late_s = command.ends_s - self._booted_s - lease.expires_ns / 1e9
                self.judged.late_s = max(self.judged.late_s, late_s)
        else:
            self.at(self.now_s + LOOK_S, lambda: self._looks(pid, boot, keeper, command))

    # What goes wrong.

    def trouble(self) -> None:
        """Plans what goes wrong, from the seed."""
        faults = {
            "cut": self._cut, "restart": self._restart, "keeper killed": self._kill_keeper, "rival": self._rival,
            "controller killed": self._kill_controller, "stop": self._stop, "controller and link": self._kill_all,
        }  # fmt: skip
        for _ in range(self.chance.randint(1, 8)):
            name = self.chance.choice(list(faults))
            self.judged.faults[name] += 1
            self.at(self.now_s + self.chance.uniform(0, TROUBLE_S), faults[name])

    def _cut(self) -> None:
        self.is_cut, self._up_s = True, None
        self.at(self.now_s + self.chance.uniform(1, 60), self._heal)

    def _heal(self) -> None:
        self.is_cut = False
        self._is_up()

    def _is_up(self) -> None:
        """The time from which a request is expected."""
        if not (self.is_cut or self.is_down or self._is_killed):
            self._up_s = self.now_s

    def _restart(self) -> None:
        self._boot += 1
        self._alive.clear()
        self._holders.clear()
        self.is_down, self._booted_s, self._up_s = True, self.now_s, None

        def up() -> None:
            self.is_down = False
            self._is_up()

        self.at(self.now_s + self.chance.uniform(1, 20), up)

    def _kill_keeper(self) -> None:
        for pid in list(self._alive):
            del self._alive[pid]
            if (command := self._holders[pid]) is not None:
                # The kernel tells the command (prctl(2), PR_SET_PDEATHSIG).
                command.signal(signal.SIGTERM)

    def _rival(self) -> None:
        if not self.is_down:
            known = self.ledger.state(RIVAL)
            self.ledger.ensure(Order(RIVAL, ("run",), known.attempt + 1, 60.0, {}), 1)

    def _kill_controller(self) -> None:
        self._is_killed, self._up_s = True, None

    def _kill_all(self) -> None:
        self._kill_controller()
        self._cut()

    def _stop(self) -> None:
        """As `partywall fleet stop`, whose request may come late."""
        self._token += 1
        token = self._token
        self.at(self.now_s + self.chance.choice((0.0, 0.5, 30.0)), lambda: self._stopped(token))
        self._kill_controller()

    def _stopped(self, token: int) -> None:
        if not self.is_down:
            state = self.ledger.stop(RUN, token)
            self.judged.fenced += token < self._newest() and state.phase is not Phase.REFUSED

    # The engine: what reaches the host.

    def hosts(self) -> list[Place]:
        return [Place(HOST)]

    def ensure(self, _host: str, order: Order, token: int) -> State:
        self._reached()
        answer = self.ledger.ensure(order, token)
        return answer if answer.phase is Phase.REFUSED else self._state(order.run)

    def stop(self, _host: str, run: str, token: int) -> State:
        self._reached()
        return self.ledger.stop(run, token)

    def state(self, _host: str, run: str) -> State:
        self._reached()
        return self._state(run)

    def fetch(self, _host: str, run: str, since: Mapping[str, int]) -> Look:
        self._reached()
        folder = self.ledger.book.folder(run)
        chunks = (Chunk(name, offset, (folder / name).read_bytes()[offset:]) for name, offset in since.items())
        return Look(self._state(run), tuple(chunks))

    def asked(self) -> None:
        """Takes a request of the controller into account, which need not arrive."""
        if self._up_s is not None:
            self.judged.resumed_s = max(self.judged.resumed_s, self.now_s - self._up_s)
            self._up_s = None
        self.alive(self.chance.uniform(0.01, 0.3))

    def _reached(self) -> None:
        if self.is_cut or self.is_down:
            raise Unreachable(f"{HOST}: it cannot be reached")

    def _state(self, run: str) -> State:
        folder = self.ledger.book.folder(run)
        files = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
        return State(**{**vars(self.ledger.state(run)), "files": files})

    def _newest(self) -> int:
        file = self.ledger.book.folder(RUN) / "token"
        return int(file.read_text()) if file.exists() else 0

    # The controllers.

    def follow(self) -> Judged:
        """Carries out the schedule: controllers follow one another until the host is measured."""
        self.trouble()
        engine = _Network(self, self.chance, 0.4 if self.chance.random() < 0.7 else 0.0)
        ends_s, is_measured = self.now_s + ENDS_S, False
        while not is_measured and self.now_s < ends_s:
            self._is_killed = False
            self._token += 1
            self._is_up()
            is_measured = self._followed(engine)
            self._up_s = None
            self.advance(self.chance.uniform(0.5, 10))
        engine.deliver()
        self.advance(ENDS_S)
        self.judged.lost += not is_measured or not self._came_home()
        self._judge()
        return self.judged

    def _followed(self, engine: Engine) -> bool:
        attempt = max((line.attempt for line in self.tried), default=1)
        follower = Follower(
            Place(HOST), engine, self._job, RUN, self._token, self.home, self.tried.append, lambda _: None, _Time(self)
        )
        try:
            follower.follow(attempt)
        except (TrialError, Given, Killed):
            return False
        return True

    def _came_home(self) -> bool:
        there = self.ledger.book.folder(RUN)
        # The token changes while later controllers ask.
        files = [file for file in there.rglob("*") if file.is_file() and file.name != "token"]
        return all(self.home.text(str(file.relative_to(there))) == file.read_text() for file in files)

    def _judge(self) -> None:
        lines = [json.loads(line) for line in (self.ledger.book.root / "ledger.jsonl").read_text().splitlines()]
        self.judged.ends = Counter(line["what"] for line in lines if "exit" in line)
        began = Counter((line["run"], line["attempt"]) for line in lines if line["what"] == "began")
        ordered = {line.attempt for line in self.tried}
        self.judged.silent += sum(count - 1 for count in began.values())
        self.judged.silent += sum(run == RUN and attempt not in ordered for run, attempt in began)
