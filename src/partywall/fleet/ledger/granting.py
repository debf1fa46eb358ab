"""Requests to the ledger of this host: to have a run, and to stop one. Each may be repeated, delayed or reordered."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partywall import units
from partywall.errors import Problem, UsageError
from partywall.files import write_whole
from partywall.fleet.ledger.lease import Book, Kernel, Lease, Phase, State, state_of
from partywall.host.label import not_ours
from partywall.sandbox import measuring

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
PROGRAM = (sys.executable, "-P", "-m", "partywall")
OLDER = "a newer controller has taken over this run"


@dataclass(frozen=True)
class Order:
    """What a host is to run. words: after `partywall`; the folder of the run is the current one.

    attempt: 1, or one more than the last one that is over. term_s: how long the lease lasts from now. files: texts by
    name, written before the first attempt begins.
    """

    run: str
    words: tuple[str, ...]
    attempt: int = 1
    term_s: float = 3600.0
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Order:
        return cls(**{**content, "words": tuple(content["words"])})

    def __post_init__(self) -> None:
        for name in (self.run, *self.files):
            if not re.fullmatch(NAME, name):
                raise UsageError(Problem(f"{name!r} is not the name of a run or of its file", "use letters and digits"))


def launch(root: Path, lease: Lease, lock: int) -> None:
    """Starts the keeper of a grant, detached, with the lock of measurements."""
    argv = [sys.executable, "-P", "-m", "partywall.fleet.ledger.keeper", str(root), str(lease.grant)]
    measuring.detached(argv, lock, root / "keeper.txt", Path("/"))


class Ledger:
    """The ledger of a host. kernel: of the host; lock: takes the lock of measurements; begin: starts a keeper."""

    def __init__(
        self,
        root: Path,
        *,
        kernel: Kernel | None = None,
        lock: Callable[[], int | None] = measuring.lock_alone,
        begin: Callable[[Path, Lease, int], None] = launch,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if why := not_ours(root):
            raise UsageError(Problem(f"{why}; a ledger needs a private folder", "set $PARTYWALL_FLEET", str(root)))
        self.book = Book(root, kernel)
        self._lock, self._begin, self._program = lock, begin, program

    def state(self, run: str) -> State:
        """What is known of a run. Changes nothing."""
        lease = self.book.lease()
        return state_of(run, lease, self.book.seen(lease), self.book.begun(run), self.book.exits(run))

    def ensure(self, order: Order, token: int) -> State:
        """Begins an attempt unless it has begun, and extends the lease of one that is going.

        An attempt begins at most once, however often it is requested. REFUSED with the reason if the host is held by
        another run or measurement, if the token is older than one that the run has seen, or if the attempt before is
        not over.
        """
        with self.book.locked():
            if not self._is_newest(order.run, token):
                return self._refused(order.run, OLDER)
            known = self.state(order.run)
            if known.phase.is_going:
                return self._extended(order, token)
            if known.attempt >= order.attempt:
                return known
            if order.attempt != known.attempt + 1:
                return self._refused(order.run, f"attempt {known.attempt + 1} comes before attempt {order.attempt}")
            return self._granted(order, token)

    def stop(self, run: str, token: int) -> State:
        """Asks a run to end. It keeps what it has measured."""
        with self.book.locked():
            if not self._is_newest(run, token):
                return self._refused(run, OLDER)
            lease = self.book.lease()
            if lease is not None and lease.run == run and self.state(run).phase.is_going and not lease.is_stopped:
                self.book.put(dataclasses.replace(lease, is_stopped=True, token=token))
                self.book.note("stop", lease, token=token)
            return self.state(run)

    def _is_newest(self, run: str, token: int) -> bool:
        """Whether no newer token was seen. Keeps the token."""
        file = self.book.folder(run) / "token"
        known = int(file.read_text(encoding="ascii")) if file.exists() else 0
        if token > known:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, str(token), durable=True)
        return token >= known

    def _extended(self, order: Order, token: int) -> State:
        lease = self.book.lease()
        if lease is None or lease.is_stopped:
            return self.state(order.run)
        until = max(lease.expires_ns, self.book.kernel.now_ns() + round(order.term_s * 1e9))
        self.book.put(dataclasses.replace(lease, expires_ns=until, token=token))
        return self.state(order.run)

    def _granted(self, order: Order, token: int) -> State:
        before, kernel = self.book.lease(), self.book.kernel
        now = kernel.now_ns()
        if before is not None and before.run != order.run and self._is_held(before):
            left = units.format_duration(max(0, before.expires_ns - now))
            return self._refused(order.run, f"run {before.run} holds this host for {left} at most")
        lock = self._lock()
        if lock is None:
            whom = " and ".join(map(str, measuring.others())) or "another measurement"
            return self._refused(order.run, f"this host is being measured by {whom}")
        try:
            self.book.forget(order.run, time.time())
            self._write(order)
            if before is not None and before.run != order.run and before.attempt not in self.book.exits(before.run):
                # Afterwards the lease no longer says that there was such an attempt.
                self.book.ended(before, State(Phase.DIED, why="it left no exit code"))
            lease = self.book.put(
                Lease(
                    (before.grant if before else 0) + 1, order.run, order.attempt, token, kernel.boot(),
                    now, now + round(order.term_s * 1e9),
                )
            )  # fmt: skip
            self.book.note("granted", lease, token=token)
            self._begin(self.book.root, lease, lock)
        finally:
            os.close(lock)
        return self.state(order.run)

    def _is_held(self, lease: Lease) -> bool:
        is_over = lease.attempt in self.book.exits(lease.run)
        return not is_over and self.book.seen(lease).phase(lease) is not Phase.DIED

    def _write(self, order: Order) -> None:
        folder = self.book.folder(order.run)
        for name, text in order.files.items():
            write_whole(folder / name, text, durable=True)
        argv = [*self._program, *order.words]
        write_whole(folder / "order.json", json.dumps({"attempt": order.attempt, "argv": argv}), durable=True)

    def _refused(self, run: str, why: str) -> State:
        self.book.note("refused", None, run=run, why=why)
        return State(Phase.REFUSED, self.book.begun(run), why=why)


def answered(ledger: Ledger, request: Mapping[str, Any]) -> dict[str, Any]:
    """Carries out a request as it comes over a wire. Returns a state as JSON."""
    if request["verb"] == "ensure":
        state = ledger.ensure(Order.of(request["order"]), request["token"])
    else:
        state = ledger.stop(request["run"], request["token"])
    return dataclasses.asdict(state)
