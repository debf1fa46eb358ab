"""A victim that this process starts in an agent: a probe beside the suspects, or virtual users of a service."""

from __future__ import annotations

import contextlib
import socket
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from partywall import units
from partywall.agent.catalogue import shipped
from partywall.blame.job import BlameJob
from partywall.blame.measure import service
from partywall.core.record import stamped
from partywall.errors import AgentError, Problem, TrialError, UsageError
from partywall.host import Host
from partywall.host.label import WORK_ROOT, Label
from partywall.load.document import Load
from partywall.load.lasting import lasting
from partywall.sandbox import Settings, reaper
from partywall.sandbox.own_threads import kept_off
from partywall.session import Session

VICTIM = "victim"
SLICE_NS = 2_000_000
START_TIMEOUT_S, ANSWER_S = 300.0, 3.0
KEPT_NS = 5_000_000_000
"""Work longer ago is forgotten: no slot waits for so long."""


class Work:
    """What the threads of a workload have done, by time. Slices arrive some 200 ms after their end."""

    def __init__(self) -> None:
        self._ends: dict[int, list[int]] = {}
        self._done: dict[int, list[float]] = {}

    def add(self, slices: list[dict[str, Any]]) -> None:
        """Adds slices. Those of one thread are in order."""
        for each in slices:
            ends = self._ends.setdefault(each["thread"], [each["start_ns"]])
            done = self._done.setdefault(each["thread"], [0.0])
            ends.append(each["end_ns"])
            done.append(done[-1] + each["work"])
        for thread, ends in self._ends.items():
            old = bisect_left(ends, ends[-1] - KEPT_NS) - 1
            if old > 0:
                del ends[:old], self._done[thread][:old]

    @property
    def known_ns(self) -> int:
        """The time up to which every thread has reported."""
        return min((ends[-1] for ends in self._ends.values()), default=0)

    def until(self, at_ns: int) -> float:
        """The work of all threads so far. Within a slice, work is even."""
        return sum(float(np.interp(at_ns, ends, self._done[thread])) for thread, ends in self._ends.items())


class AtWork:
    """A workload in an agent on this host. unit: of its work per second.

    served_by: of users, the processes of their service. Users only see what it does: the service waits.
    """

    is_weak = False

    def __init__(self, session: Session, unit: str, served_by: Sequence[int] | None = None) -> None:
        self.unit, self._served_by = unit, served_by
        self._session, self._work, self._ended = session, Work(), ""

    def _hear(self) -> None:
        for sender, method, params in self._session.take(0):
            if method == "slices":
                self._work.add(params["slices"])
            elif method in ("ended", "gone"):
                self._ended = f"has ended: {self._session.reason_gone(sender, params['reason'])}"

    def read(self, now_ns: int) -> int:
        return now_ns

    def is_known(self, now_ns: int) -> bool:
        self._hear()
        return self._work.known_ns >= now_ns

    def rate(self, before: int, after: int) -> float | None:
        seconds = (after - before) / 1e9
        return (self._work.until(after) - self._work.until(before)) / seconds if seconds > 0 else None

    def pids(self) -> list[int]:
        if self._served_by is not None:
            return list(self._served_by)
        pid = self._session.sandboxes[VICTIM].pid
        return [] if pid is None else [pid]

    def ended(self) -> str:
        self._hear()
        return self._ended


@contextlib.contextmanager
def started(job: BlameJob, host: Host) -> Iterator[AtWork]:
    """The workload of a job, until the end of the block."""
    work, unit = work_of(job)
    cpus = units.parse_cpus(job.cpus) if job.cpus else tuple(host.facts["cpus_allowed"])
    label = Label.create(stamped("blame"), WORK_ROOT)
    try:
        # Levers are written when pulses begin: on the victim's CPU, it would be slower exactly then.
        with kept_off(cpus if job.cpus else ()), Session(label) as session:
            (sandbox,) = session.add(Settings(VICTIM, "process", cpus))
            request: dict[str, Any] = {
                "id": VICTIM,
                "work": work,
                "pace": "flat_out",
                "threads": 1,
                "slice_ns": SLICE_NS,
            }
            request |= {"work_dir": sandbox.work_dir, "seed": job.seed}
            try:
                session.client(VICTIM).call("workload.start", timeout_s=START_TIMEOUT_S, **request)
            except AgentError as error:
                raise TrialError(f"the victim could not start: {error}") from error
            yield AtWork(session, unit, served_by(job, host) if job.url else None)
    finally:
        reaper.clean(label)


def expect_answer(job: BlameJob) -> None:
    """UsageError if nothing listens where the users of a job would go."""
    try:
        socket.create_connection(_place(job), ANSWER_S).close()
    except (OSError, UnicodeError) as error:
        said = f"nothing answers at {job.url}: {getattr(error, 'strerror', None) or error}"
        raise UsageError(Problem(said, "start the service, or give another URL", key="--url")) from None


def _place(job: BlameJob) -> tuple[str, int]:
    """Host name and port of a job's URL."""
    url = urlsplit(job.url)
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def served_by(job: BlameJob, host: Host) -> list[int]:
    """The processes on this host that serve the users of a job; none if the service is elsewhere."""
    name, port = _place(job)
    with contextlib.suppress(OSError, UnicodeError):
        infos = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        if any(_is_own(str(info[4][0]), info[0]) for info in infos):
            return service.listening(host, port)
    return []


def _is_own(address: str, family: int) -> bool:
    """True for an address of this host: only to these a socket can be bound."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return True
    return False


def work_of(job: BlameJob) -> tuple[dict[str, Any], str]:
    """The workload in the form for the agent, and the unit of its work per second.

    UsageError if there is no such probe, or there cannot be such users.
    """
    if job.url:
        return {"load": lasting(Load(url=job.url, users=job.users), Path())}, "responses/s"
    names = [name for name in shipped().names("probe") if name != "null"]
    kernel = shipped().kernel(job.probe)
    if kernel is None or job.probe not in names:
        raise UsageError(Problem(f"there is no probe {job.probe!r}", f"give one of {', '.join(names)}", key="--probe"))
    return {"kernel": {"name": job.probe, "params": {}}}, f"{kernel.unit}/s"
