"""One end of a move: what a hypervisor on one of the two hosts does, and tells, whichever hypervisor it is.

`qemu_end` talks to QEMU itself, on this machine or on another by ssh. `libvirt_end` talks to a libvirt daemon. The
steps of a move (`move`) are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from partywall.migrate.document import Method, Place, Progress

State = Literal[
    "none",
    "setup",
    "active",
    "pre-switchover",
    "postcopy-active",
    "postcopy-paused",
    "completed",
    "failed",
    "cancelled",
]
ENDED: tuple[State, ...] = ("completed", "failed", "cancelled")
LEAST_CONTENT = 0.75
"""Share of the memory that a guest has used of which it is assumed that it is not zero."""


@dataclass(frozen=True)
class Look:
    """A move as its source tells it now. figures: of a move that has ended, in ns; memory: counters of bytes and pages.

    What a hypervisor does not tell is None, or missing.
    """

    state: State
    progress: Progress | None = None
    reason: str = ""
    setup_ns: int | None = None
    downtime_ns: int | None = None
    total_ns: int | None = None
    memory: dict[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Announced:
    """An event of a hypervisor: a pass over the memory begins, or the guest stops or continues there."""

    at_ns: int
    name: Literal["pass", "stop", "resume"]
    number: int = 0


@dataclass(frozen=True)
class Info:
    """What is to be known of one end before anything moves. Figures are bytes; None: not known.

    machine: type of the guest's machine, and machines: the types that this end knows. cpu: features of the guest's CPU
    by name, and cpus: those that a guest can have here. blockers: what keeps the guest from moving, in the
    hypervisor's words. moving: whether a move of it goes on already. disks: those that the guest writes, by name, and
    what it sees of each; disk: what they take there.
    emulated: whether the guest's CPU is. exact: whether memory is what QEMU gives the guest, to the byte.
    """

    host: str
    version: str = ""
    runs: bool = False
    moving: bool = False
    blockers: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()
    memory: int | None = None
    memory_free: int | None = None
    disks: Mapping[str, int] = field(default_factory=dict)
    disk: int | None = None
    disk_free: int | None = None
    machine: str | None = None
    machines: frozenset[str] = frozenset()
    cpu: frozenset[str] = frozenset()
    cpus: frozenset[str] | None = None
    emulated: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Memory:
    """What is to be known of a guest's memory without a look at its pages. Bytes.

    content: of pages that are not zero, at most; content_least: at least; content_from: how that is known, in words;
    layout: content in equal parts of the memory, by address, empty if it is not known. file: one with the same pages,
    which may be read. pages_sampled: pages that are sampled for a dirty rate.
    """

    size: int
    content: int
    content_least: int
    content_from: str
    pages_sampled: int
    file: Path | None = None
    layout: tuple[int, ...] = ()


@dataclass(frozen=True)
class Usual:
    """The limits of a move that sets none. bandwidth: bytes/s, 0 for none; downtime_ms: the downtime limit."""

    bandwidth: int
    downtime_ms: int


class Watchable(Protocol):
    """An end that can tell beforehand what a move of its guest may cost. Methods raise TrialError."""

    def in_use(self) -> Memory: ...

    def usual(self) -> Usual: ...

    def begin_sampling(self, seconds: int) -> None:
        """Lets the hypervisor watch for some time how much memory the guest changes."""
        ...

    def dirty_rate(self) -> int | None:
        """Whole MiB/s that the guest changed meanwhile; None while it is watched."""
        ...


class End(Protocol):
    """Methods raise TrialError if the hypervisor refuses or does not answer."""

    is_ours: bool
    """Whether Partywall started the process: then its end is the end of the guest there, not only of the connection."""

    @property
    def place(self) -> Place: ...

    def info(self) -> Info:
        """What is to be known before anything moves. Changes nothing."""
        ...

    def prepare(self, method: Method, *, with_storage: bool = False) -> None:
        """Sets it up for one move. with_storage: a disk moves along, and is finished before the hand-over."""
        ...

    def listen(self, port: int) -> str:
        """Waits for the guest. Where the other end has to send it."""
        ...

    def migrate(self, to: str) -> None:
        """Begins a move, and returns at once."""
        ...

    def look(self) -> Look: ...

    def announced(self) -> Iterator[Announced]:
        """Events since the last call."""
        ...

    def hand_over(self) -> None:
        """Post-copy: the guest continues on the other end now."""
        ...

    def cut(self) -> None:
        """Post-copy: breaks the connection, so that another can be made."""
        ...

    def recover(self, port: int) -> str:
        """Post-copy on the destination: waits for another connection. Where to send the rest."""
        ...

    def go_on(self, to: str) -> None:
        """Post-copy on the source: sends the rest over another connection. May be repeated."""
        ...

    def by_hand(self, there: End) -> str:
        """How a user continues a post-copy from here whose connection broke; empty if nobody can."""
        ...

    def cancel(self) -> None: ...

    def pause(self) -> None:
        """Stops the guest."""
        ...

    def resume(self) -> None:
        """Lets the guest run here. Only for the end that has it."""
        ...

    def state(self) -> str:
        """Of the guest here: running, paused, inmigrate, postmigrate and so on."""
        ...

    def answers(self) -> bool:
        """Whether the hypervisor does."""
        ...

    def unblock(self) -> None:
        """Breaks connections to the other end that the hypervisor hangs on."""
        ...

    def wait(self, seconds: float) -> None:
        """Lets events arrive, at most for this time."""
        ...

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Whether the hypervisor, or the way to it, is gone."""
        ...

    def ending(self) -> str:
        """How it ended: its signal or exit code, and its last words; empty if that is not known."""
        ...

    def kill(self) -> None:
        """Ends the guest here. Returns only when it has ended for certain."""
        ...

    def cpu_ns(self) -> int | None:
        """CPU time of the guest's process so far; None if it is not known."""
        ...

    def link_bytes(self) -> int | None:
        """Bytes that its host has sent over the link so far; None if that is not known."""
        ...
