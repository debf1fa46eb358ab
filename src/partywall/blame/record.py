"""The record of an experiment: the suspects, a line for each pulse before it begins, and one for each slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field

from partywall.blame.job import BlameJob
from partywall.core.record import JobRecord, Stream
from partywall.errors import TrialError
from partywall.values import Frozen

OF_LATENCY = "requests per second of latency"
"""The unit of a rate that is one by the mean latency."""


class Place(Frozen):
    """Where a suspect's limit is. tool: what changes it, and known_as: as what that tool knows the suspect.

    folder: of the group's files. vcpus: how many virtual CPUs share a limit of libvirt's. disk: its name in the domain.
    device: the number of the disk of its limit; empty: of CPU time. undo: a command that sets the limit of before.
    Both are empty in records of earlier versions. interface, mtu: what is shaped in the network `known_as`. cpus: those
    to which it is moved.
    """

    tool: Literal["systemd", "libvirt", "docker", "podman", "crun", "runc", "tc", "files"] = "files"
    known_as: str = ""
    folder: str
    is_v2: bool
    vcpus: int = 1
    disk: str = ""
    device: str = ""
    undo: str = ""
    interface: str = ""
    mtu: int = 0
    cpus: tuple[int, ...] = ()


class Began(Frozen):
    """How the experiment began. names: of the suspects, in the order of all other lines; places: in the same order.

    unit: of the victim's rate. is_weak: the rate only says how long the victim waited. left_out: who is no suspect, and
    why.
    """

    names: tuple[str, ...]
    places: tuple[Place, ...] = ()
    unit: str = ""
    is_weak: bool = False
    left_out: tuple[str, ...] = ()


class Pulse(Frozen):
    """The audit line of a slot's pulses, written before they begin. at_ns: of the monotonic clock."""

    slot: int
    at_ns: int
    suspects: tuple[str, ...]
    depth: float


class Slot(Frozen):
    """What was measured in one slot.

    start_ns: of the monotonic clock. depths: of the pulses, by suspect. ticks: the victim's rate in each part of the
    slot; None if nothing is known of it. use: by suspect, CPUs or bytes a second. own: the share of the time in which
    its own limit stopped the victim; None if it has none. steal: the share that the hypervisor took. waits: the
    share in which the victim, or some task of the host, waited, by what for.
    """

    start_ns: int
    length_ns: int
    depths: tuple[float, ...]
    ticks: tuple[float | None, ...]
    use: tuple[float, ...]
    own: float | None = None
    steal: float = 0.0
    waits: Mapping[str, float] = Field(default_factory=dict)


class Stopped(Frozen):
    """Why the experiment came to its end: precision, budget or harm."""

    why: str


class Applied(Frozen):
    """The audit line of a limit that is kept, written before it is set. at_ns, until_ns: since the epoch; None: no end.

    limit: CPUs, or bytes a second. writes: what is changed. keeper: the process that takes it back; None: nobody does.
    """

    at_ns: int
    suspect: str
    limit: float
    writes: str
    until_ns: int | None = None
    keeper: int | None = None


class TakenBack(Frozen):
    """The audit line of a limit that was taken back. at_ns: since the epoch."""

    at_ns: int
    suspect: str


class BlameRecord(JobRecord[BlameJob]):
    """The record of an experiment."""

    KIND = "blame"
    JOBS = (BlameJob,)
    stream = Stream[Began | Pulse | Slot | Stopped | Applied | TakenBack](
        began=Began, pulse=Pulse, slot=Slot, stopped=Stopped, applied=Applied, taken_back=TakenBack
    )

    @property
    def began(self) -> Began:
        """How it began. TrialError if it ended before."""
        for line in self.stream:
            if isinstance(line, Began):
                return line
        raise TrialError(f"{self.path}: it ended before its first pulse")

    def slots(self) -> Iterator[Slot]:
        """The slots in order."""
        return (line for line in self.stream if isinstance(line, Slot))

    def kept(self) -> tuple[Applied | TakenBack, ...]:
        """Which limit was kept, and when it was taken back."""
        return tuple(line for line in self.stream if isinstance(line, Applied | TakenBack))

    def why(self) -> str:
        """Why it came to its end; empty if it was interrupted."""
        return next((line.why for line in self.stream if isinstance(line, Stopped)), "")


class Standings(Frozen):
    """What is known while the experiment goes on. rows: suspect, state, share taken and its half width."""

    seconds: float
    rows: Sequence[tuple[str, str, float, float]]
