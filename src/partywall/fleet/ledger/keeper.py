"""The keeper of one attempt: starts its command, and ends it as soon as the lease is lost.

It is a process of its own, in a session of its own, so that no network, engine or controller can end it. If it is
killed, its command gets SIGTERM from the kernel, and ends as after Ctrl-C. `python -m partywall.fleet.ledger.keeper`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol, Self

from partywall.files import write_whole
from partywall.fleet.ledger.lease import Book, Lease, Phase, State

LOOK_S = 0.2
"""Time between two looks at the lease. A look that finds it unchanged costs the host two system calls."""
LOST_NS = 500_000_000
"""Time between SIGTERM and SIGKILL for a command whose lease was taken away."""
STOP_NS = 60_000_000_000
"""The same for one that was stopped: it removes what it made, and writes its results."""
EARLY_NS = 10_000_000_000
"""How long before its lease expires a command gets SIGTERM; a tenth of a shorter lease."""
EXPIRED = "its lease expired"
WITH_PARENT = '[ "$PPID" = "$0" ] && exec "$@"'
"""Begins a command only while its keeper is there: one that was killed before `setpriv` came to ask sends no signal."""


class Process(Protocol):
    """A command that goes on or has ended, with everything in its process group."""

    def poll(self) -> int | None:
        """The exit code; None while it goes on."""
        ...

    def signal(self, number: signal.Signals) -> None: ...


class Command(subprocess.Popen[bytes]):
    """The command of an attempt, with everything in its process group."""

    def __init__(self, folder: Path) -> None:
        argv = json.loads((folder / "order.json").read_text(encoding="utf-8"))["argv"]
        with (folder / "result.json").open("wb") as result, (folder / "output.txt").open("ab") as output:
            super().__init__(
                ["setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", WITH_PARENT, str(os.getpid()), *argv],
                cwd=folder, stdin=subprocess.DEVNULL,
                stdout=result, stderr=output, close_fds=False, process_group=0, env=os.environ | {"COLUMNS": "120"},
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Keeper:
    """One attempt. lease: as it was when it began."""

    def __init__(self, book: Book, lease: Lease) -> None:
        self._book, self._lease = book, lease
        self._folder, self._file = book.folder(lease.run), book.root / "lease.json"
        self._stamp: tuple[int, int] | None = None
        self._known: Lease | None = lease
        self._why: tuple[Phase, str] | None = None
        self._kill_at_ns = float("inf")

    @classmethod
    def begun(cls, book: Book, grant: int, pid: int) -> Self | None:
        """Takes over a grant, and says so in the ledger. None if the lease has gone to somebody else."""
        with book.locked():
            lease, kernel = book.lease(), book.kernel
            if lease is None or lease.grant != grant or lease.boot != kernel.boot() or lease.pid is not None:
                return None
            if lease.is_stopped or kernel.now_ns() >= lease.expires_ns:
                phase, why = (Phase.STOPPED, "it was stopped") if lease.is_stopped else (Phase.LOST, EXPIRED)
                book.ended(lease, State(phase, why=f"{why} before it began"))
                return None
            lease = book.put(dataclasses.replace(lease, pid=pid, start_ticks=kernel.ticks(pid)))
            write_whole(book.folder(lease.run) / f"begun-{lease.attempt}", "", durable=True)
            book.note("began", lease)
        return cls(book, lease)

    def run(self) -> None:
        """Carries out the attempt, and stores how it ended."""
        try:
            command = Command(self._folder)
        except OSError as error:
            self._store(State(Phase.ENDED, exit=127, why=f"{error.filename or 'the command'}: {error.strerror}"))
            return
        while not self.is_over(command):
            time.sleep(LOOK_S)

    def is_over(self, command: Process) -> bool:
        """Looks at the lease, and stores how the command ended once it has."""
        code = command.poll()
        if code is None:
            self._look(command)
            return False
        command.signal(signal.SIGKILL)
        phase, why = self._why or (Phase.ENDED, "")
        if why and code == -signal.SIGKILL:
            self._clean_up()
        self._store(State(phase, exit=code, why=why))
        return True

    def _look(self, command: Process) -> None:
        """Process the command if the lease is lost, is about to expire, or the run was stopped."""
        lease, now = self._newest(), self._book.kernel.now_ns()
        if lease is None or (lease.grant, lease.granted_ns) != (self._lease.grant, self._lease.granted_ns):
            self._end(command, Phase.LOST, "its lease was taken away", now + LOST_NS)
        elif now >= lease.expires_ns - min(EARLY_NS, (lease.expires_ns - lease.granted_ns) // 10):
            self._end(command, Phase.LOST, EXPIRED, lease.expires_ns)
        elif lease.is_stopped:
            self._end(command, Phase.STOPPED, "it was stopped", now + STOP_NS)
        if now >= self._kill_at_ns:
            command.signal(signal.SIGKILL)

    def _newest(self) -> Lease | None:
        """The lease as it is now. It is replaced whole, so an unchanged file has the same inode."""
        try:
            status = self._file.stat()
        except OSError:
            return None
        if (stamp := (status.st_ino, status.st_mtime_ns)) != self._stamp:
            self._stamp, self._known = stamp, self._book.lease()
        return self._known

    def _end(self, command: Process, phase: Phase, why: str, by_ns: int) -> None:
        """Asks the command to end. A later reason may only shorten its time."""
        if self._why is None or self._why[0] is not phase:
            self._why = phase, why
            command.signal(signal.SIGTERM)
        self._kill_at_ns = min(self._kill_at_ns, by_ns)

    def _clean_up(self) -> None:
        """Removes what a killed command could not remove. The lock of measurements is held meanwhile."""
        with (self._folder / "output.txt").open("ab") as output, contextlib.suppress(OSError):
            subprocess.run(
                [sys.executable, "-P", "-m", "partywall", "reap"], stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, check=False,
            )  # fmt: skip

    def _store(self, state: State) -> None:
        with self._book.locked():
            self._book.ended(self._lease, state)


def main(root: str, grant: str) -> None:
    keeper = Keeper.begun(Book(Path(root)), int(grant), os.getpid())
    if keeper is not None:
        keeper.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
