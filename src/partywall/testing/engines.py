"""Doubles of engines: a hostile network before another engine, and hosts whose runs take no time."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from partywall.fleet.engines.engine import Engine, Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.granting import Ledger, Order
from partywall.fleet.ledger.lease import Book, Lease, Phase, State
from partywall.fleet.ledger.look import Chunk, Look
from partywall.fleet.record import GROWING
from partywall.host.label import start_ticks

T = TypeVar("T")
GOES_ON = -1
Ends = Callable[[Path, Lease], int | None]
"""What a run on a simulated host does: it writes files into its folder. Returns the exit code; None if it dies.

With `GOES_ON`, it measures until `Simulated.end` is called.
"""


class Simulated:
    """Hosts with real ledgers in folders, whose runs end at once. runs: by host, what each of its attempts does."""

    def __init__(self, root: Path, runs: Mapping[str, Sequence[Ends]]) -> None:
        self._root, self._runs = root, runs
        self.began: list[tuple[str, int]] = []
        self._ledgers = {host: self._ledger(host) for host in runs}

    def hosts(self) -> Sequence[Place]:
        return [Place(host) for host in self._runs]

    def ensure(self, host: str, order: Order, token: int) -> State:
        answer = self._ledgers[host].ensure(order, token)
        return answer if answer.phase is Phase.REFUSED else self.state(host, order.run)

    def stop(self, host: str, run: str, token: int) -> State:
        return self._ledgers[host].stop(run, token)

    def state(self, host: str, run: str) -> State:
        ledger = self._ledgers[host]
        folder = ledger.book.folder(run)
        sizes = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
        return replace(ledger.state(run), files=sizes)

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        folder = self._ledgers[host].book.folder(run)
        chunks = (Chunk(name, offset, (folder / name).read_bytes()[offset:]) for name, offset in since.items())
        return Look(self.state(host, run), tuple(chunks))

    def end(self, host: str, code: int = 0, phase: Phase = Phase.ENDED) -> None:
        """Ends the run of a host that goes on."""
        book = self._ledgers[host].book
        lease = book.lease()
        if lease is not None:
            book.ended(lease, State(phase, exit=code))

    def _ledger(self, host: str) -> Ledger:
        def begin(root: Path, lease: Lease, _lock: int) -> None:
            book = Book(root)
            self.began.append((host, lease.attempt))
            (book.folder(lease.run) / f"begun-{lease.attempt}").touch()
            code = self._runs[host][lease.attempt - 1](book.folder(lease.run), lease)
            if code is None:
                book.put(replace(lease, boot="the one before"))
            elif code == GOES_ON:
                book.put(replace(lease, pid=os.getpid(), start_ticks=start_ticks(os.getpid())))
            else:
                book.ended(lease, State(Phase.ENDED, exit=code))

        return Ledger(self._root / host, lock=lambda: os.open(self._root, os.O_RDONLY), begin=begin)


class Hostile:
    """Another engine behind a hostile network. chance: decides what happens to each call; share: of calls with a fault.

    A call is lost on its way there or back, is carried out twice, or is kept and carried out before a later one. What
    came earlier of files that grow comes again.
    """

    def __init__(self, engine: Engine, chance: random.Random, share: float = 0.5) -> None:
        self._engine, self._chance, self._share = engine, chance, share
        self._kept: list[Callable[[], object]] = []
        self._looks: dict[tuple[str, str], Look] = {}
        self.calls: list[str] = []

    def hosts(self) -> Sequence[Place]:
        return self._engine.hosts()

    def ensure(self, host: str, order: Order, token: int) -> State:
        return self._carried(host, lambda: self._engine.ensure(host, order, token))

    def stop(self, host: str, run: str, token: int) -> State:
        return self._carried(host, lambda: self._engine.stop(host, run, token))

    def state(self, host: str, run: str) -> State:
        return self._carried(host, lambda: self._engine.state(host, run))

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        """As the engine does, but its chunks may be those of an earlier look."""
        look = self._carried(host, lambda: self._engine.fetch(host, run, since))
        older = self._looks.get((host, run))
        self._looks[host, run] = look
        if older is not None and self._chance.random() < self._share / 2:
            self.calls.append("older")
            again = [chunk for chunk in older.chunks if chunk.name.endswith(GROWING)]
            return Look(look.state, (*again, *look.chunks, *look.chunks))
        return look

    def deliver(self) -> None:
        """Carries out everything that was kept."""
        while self._kept:
            with contextlib.suppress(Unreachable):
                self._kept.pop()()

    def _carried(self, host: str, call: Callable[[], T]) -> T:
        if self._kept and self._chance.random() < 0.5:
            self.calls.append("late")
            self._kept.pop(self._chance.randrange(len(self._kept)))()
        fault = self._chance.choice(("lost", "answer lost", "twice", "kept")) if self._faulty() else "none"
        self.calls.append(fault)
        if fault == "kept":
            self._kept.append(call)
        if fault in ("lost", "kept"):
            raise Unreachable(f"{host}: the network lost a call")
        if fault == "twice":
            call()
        answer = call()
        if fault == "answer lost":
            raise Unreachable(f"{host}: the network lost an answer")
        return answer

    def _faulty(self) -> bool:
        return self._chance.random() < self._share
