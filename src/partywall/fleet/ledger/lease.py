"""The files of a ledger as values: the lease, and what is known of a run. Imports only what a keeper needs."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from partywall.files import append_whole, write_whole
from partywall.host.label import start_ticks

ROOT = "/var/tmp/partywall-fleet"  # noqa: S108 - its folders belong to their users alone, which is checked
STARTING_NS = 15_000_000_000
"""How long a keeper may take until it has begun."""

KEPT_S = 30 * 86400.0
"""How long a host keeps what a run measured, after its last change. A controller has fetched it long before."""

_MARKS = ("token", "begun-*", "exit-*")
"""Files of a run that are never removed: an order that comes again, however late, must not begin it again."""


def default_root() -> Path:
    """The folder of this user's ledger. It is on a disk, because a grant must rise after a restart too."""
    return Path(os.environ.get("PARTYWALL_FLEET") or f"{ROOT}-{os.geteuid()}")


def boot_id() -> str:
    """Changes when the host restarts, after which its clock begins again."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def now_ns() -> int:
    """Nanoseconds since the host started, sleep included. No step of the time of day changes it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Phase(StrEnum):
    """What is known of a run on a host.

    NONE: nothing. STARTING: granted, not begun. ENDED: the command ended by itself. STOPPED: by request. LOST: it ended
    itself, because it lost its lease. DIED: it has no exit code, for example after a power failure. REFUSED: the
    request was not carried out.
    """

    NONE = "none"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    STOPPED = "stopped"
    LOST = "lost"
    DIED = "died"
    REFUSED = "refused"

    @property
    def is_going(self) -> bool:
        return self in (Phase.STARTING, Phase.RUNNING)


@dataclass(frozen=True)
class State:
    """A run as a host sees it. attempt: the latest one. exit: its code. why: it was refused, or ended by force.

    files: sizes by name, in bytes. left_s: until the lease ends.
    """

    phase: Phase
    attempt: int = 0
    exit: int | None = None
    why: str = ""
    files: Mapping[str, int] = field(default_factory=dict)
    left_s: float | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> State:
        return cls(**{**content, "phase": Phase(content["phase"])})


@dataclass(frozen=True)
class Lease:
    """The right to measure on a host. grant: of this lease; a process with another one has lost it.

    token: the holder's; one with an older token is refused. granted_ns, expires_ns: of the clock of this boot. pid,
    start_ticks: of the keeper, once it has begun. is_stopped: whether the run is to end.
    """

    grant: int
    run: str
    attempt: int
    token: int
    boot: str
    granted_ns: int
    expires_ns: int
    pid: int | None = None
    start_ticks: int | None = None
    is_stopped: bool = False

    @classmethod
    def parsed(cls, text: str) -> Lease | None:
        """The lease of a file's text; None if there is none, or a power failure damaged it."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Seen:
    """What tells whether a lease is held: this boot, its clock, and when the keeper's process started, if it exists."""

    boot: str
    now_ns: int
    ticks: int | None

    def phase(self, lease: Lease) -> Phase:
        """STARTING, RUNNING or DIED."""
        if lease.boot != self.boot:
            return Phase.DIED
        if lease.pid is None:
            return Phase.STARTING if self.now_ns < lease.granted_ns + STARTING_NS else Phase.DIED
        return Phase.RUNNING if self.ticks is not None and self.ticks == lease.start_ticks else Phase.DIED


def state_of(run: str, lease: Lease | None, seen: Seen, begun: int, exits: Mapping[int, str]) -> State:
    """The state of a run. begun: its latest attempt that began; 0 if none. exits: texts of the exit files, by attempt.

    Pure, so that a look from elsewhere and the ledger itself agree.
    """
    own = lease if lease is not None and lease.run == run else None
    attempt = max(begun, own.attempt if own else 0, *exits)
    if attempt == 0:
        return State(Phase.NONE)
    if attempt in exits:
        try:
            return State.of({**json.loads(exits[attempt]), "attempt": attempt})
        except (ValueError, TypeError, KeyError):
            return State(Phase.DIED, attempt, why="its exit file is damaged")
    if own is None or own.attempt != attempt:
        return State(Phase.DIED, attempt, why="it left no exit code")
    phase = seen.phase(own)
    if phase is Phase.DIED:
        why = "the host has restarted" if own.boot != seen.boot else "it left no exit code"
        return State(phase, attempt, why=why)
    return State(phase, attempt, left_s=(own.expires_ns - seen.now_ns) / 1e9)


@dataclass(frozen=True)
class Kernel:
    """What a ledger asks the kernel of its host. ticks: when a process started, in ticks; None if it does not exist."""

    now_ns: Callable[[], int] = now_ns
    boot: Callable[[], str] = boot_id
    ticks: Callable[[int], int | None] = start_ticks


class Book:
    """The files below a ledger's folder."""

    def __init__(self, root: Path, kernel: Kernel | None = None) -> None:
        self.root, self.kernel = root, kernel or Kernel()

    def folder(self, run: str) -> Path:
        return self.root / "runs" / run

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else changes the ledger within the block. The lock ends with its process."""
        with (self.root / "lock").open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def lease(self) -> Lease | None:
        try:
            return Lease.parsed((self.root / "lease.json").read_text(encoding="utf-8"))
        except OSError:
            return None

    def put(self, lease: Lease) -> Lease:
        """Stores the lease, so that it is there after a power failure."""
        write_whole(self.root / "lease.json", json.dumps(dataclasses.asdict(lease)), durable=True)
        return lease

    def note(self, what: str, lease: Lease | None, **more: Any) -> None:
        """Appends a line to the ledger's own account."""
        about = {} if lease is None else {"run": lease.run, "attempt": lease.attempt, "grant": lease.grant}
        line = {"at_ns": self.kernel.now_ns(), "boot": self.kernel.boot(), "what": what, **about, **more}
        append_whole(self.root / "ledger.jsonl", json.dumps(line).encode())

    def begun(self, run: str) -> int:
        """The latest attempt of a run that began; 0 if none."""
        return max((int(file.name[6:]) for file in self.folder(run).glob("begun-*")), default=0)

    def exits(self, run: str) -> dict[int, str]:
        """The texts of the exit files, by attempt."""
        return {int(file.name[5:]): file.read_text(encoding="utf-8") for file in self.folder(run).glob("exit-*")}

    def ended(self, lease: Lease, state: State) -> None:
        """Stores how an attempt ended."""
        content = {"phase": state.phase, "exit": state.exit, "why": state.why}
        write_whole(self.folder(lease.run) / f"exit-{lease.attempt}", json.dumps(content), durable=True)
        self.note(str(state.phase), lease, exit=state.exit, why=state.why)

    def forget(self, but: str, now_s: float) -> None:
        """Removes what runs measured that nobody has changed for KEPT_S, except this run. now_s: the time of day.

        What cannot be removed stays: a new run must not fail for it.
        """
        for folder in (self.root / "runs").glob("*/"):
            if folder.name == but:
                continue
            with contextlib.suppress(OSError):
                measured = [each for each in folder.iterdir() if not any(map(each.match, _MARKS))]
                if not measured or max(each.lstat().st_mtime for each in folder.rglob("*")) > now_s - KEPT_S:
                    continue
                for each in measured:
                    shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
                self.note("forgotten", None, run=folder.name)

    def seen(self, lease: Lease | None) -> Seen:
        """What tells whether a lease is held now."""
        ticks = self.kernel.ticks(lease.pid) if lease is not None and lease.pid is not None else None
        return Seen(self.kernel.boot(), self.kernel.now_ns(), ticks)
