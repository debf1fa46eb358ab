"""The state of a server: its folder, its sessions, and what it has read so far. Knows no HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from secrets import token_urlsafe
from typing import Any, TypeVar

from partywall.core import here
from partywall.errors import PartywallError
from partywall.host import Host
from partywall.run.record import RunDirectory
from partywall.web import forecasting, runner
from partywall.web.documents import Forecast, forecast
from partywall.web.jobs import Folder, Job, Order, State
from partywall.web.live import State as Live
from partywall.web.live import Watched
from partywall.web.parts import Facts, Matrix, parts
from partywall.web.security import Role, Secrets, Site
from partywall.web.shown import Feed, Shown

WATCHED_MAX = 64
REFRESH_S = 2.0
"""The longest time after which a change is noticed that no event tells of, such as a killed process."""


class Server:
    """Shared by all requests."""

    def __init__(
        self,
        folder: Folder,
        site: Site,
        secrets: Secrets,
        *,
        read_host: Callable[[], Host] = here.this_host,
        start_runner: Callable[[], None] = lambda: None,
        allow_commands: bool = False,
        is_runner_other_user: bool = False,
    ) -> None:
        self.folder = folder
        self.site = site
        self.secrets = secrets
        self.allow_commands = allow_commands
        self._is_runner_other_user = is_runner_other_user
        self._read_host = read_host
        self._start_runner = start_runner
        self._host: Host | None = None
        self.known_doctor: Mapping[str, Any] | None = None
        self._watched: dict[str, Watched] = {}
        self._matrices: dict[str, tuple[int, Matrix]] = {}
        self._shown: dict[str, Shown] = {}
        self._feeds: dict[str, Feed] = {}
        self._boot = token_urlsafe(6)
        self._lock = threading.RLock()
        self.watchers = 0

    def host(self) -> Host:
        """The host of this process, read once."""
        if self._host is None:
            self._host = self._read_host()
        return self._host

    def doctor(self, *, again: bool = False) -> Mapping[str, Any]:
        """What `partywall doctor` reports of this host, called once."""
        if self.known_doctor is None or again:
            self.known_doctor = self.act("doctor")["doctor"] if self._is_runner_other_user else runner.doctor()
        return self.known_doctor

    def forecast(self, order: Order) -> Forecast:
        """What an order would do on this host, with the rights of whoever carries it out. Changes nothing."""
        if self._is_runner_other_user:
            return forecasting.read(self.act("forecast", order=order.model_dump(mode="json")))
        return forecast(order, self.host(), allow_commands=self.allow_commands)

    def act(self, action: str, **fields: Any) -> dict[str, Any]:
        """Has the runner carry out an action. Starts a runner if there is none."""
        try:
            return runner.request(self.folder, action, **fields)
        except ConnectionError:
            self._start_runner()
            return runner.request(self.folder, action, **fields)

    def watched(self, name: str) -> Watched:
        """The journal of a record, shared by all that watch it."""
        with self._lock:
            watch = _kept(self._watched, name, lambda: Watched(self.folder.root / name))
            watch.advance()
            return watch

    def feed(self, name: str) -> Feed:
        """What tells all that watch a record when its page has changed."""
        return _kept(self._feeds, name, lambda: Feed(partial(self.look, name), partial(self.look_unless_busy, name)))

    def token(self, version: int) -> str:
        """What a page says it has, when it asks for what came later than a version."""
        return f"{self._boot}-{version}"

    def version(self, token: str) -> int:
        """The version of a token; 0 if it is not one of this server."""
        boot, _, version = token.rpartition("-")
        return int(version) if boot == self._boot and version.isascii() and version.isdigit() else 0

    def matrix(self, name: str) -> Matrix | None:
        """The frame of the matrix of a run, read again if it was extended. None if its plan cannot be read."""
        file = self.folder.root / name / RunDirectory.MARK
        try:
            stamp = file.stat().st_mtime_ns
            kept = self._matrices.get(name)
            if kept is None or kept[0] != stamp:
                self._matrices.pop(name, None)
                kept = _kept(self._matrices, name, lambda: (stamp, Matrix.of(RunDirectory(file.parent).plan)))
        except (OSError, PartywallError):
            return None
        return kept[1]

    def look(self, name: str) -> Shown:
        """The parts of the watching page that change, as they are now. Rendered once for all watchers."""
        with self._lock:
            shown = _kept(self._shown, name, Shown)
            watched, job = self.watched(name), self.folder.of_record(name)
            stamp = watched.offset, job, int(time.monotonic() / REFRESH_S)
            if shown.stamp != stamp:
                shown.take(parts(self._facts(name, job, watched.state)))
                shown.stamp = stamp
            return shown

    def look_unless_busy(self, name: str) -> Shown | None:
        """As `look`; None while another thread looks or renders, so that it never waits for one."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self.look(name)
        finally:
            self._lock.release()

    def _facts(self, name: str, job: Job | None, live: Live) -> Facts:
        return Facts(
            name=name,
            path=self.folder.record(name),
            job=job,
            live=live,
            matrix=self.matrix(name),
            may_change=self.secrets.role is Role.FULL,
            waiting=self.folder.waiting,
            stalled=self.folder.why_stalled,
            output=self.folder.output(job.id) if job else None,
            key=partial(self.secrets.key, name, job.attempt if job else 0, job.state if job else ""),
        )

    def is_open(self, name: str) -> bool:
        """True if the page of a record may still change: browsers hold only six streams of a server at a time."""
        job, path = self.folder.of_record(name), self.folder.record(name)
        if path is not None and self.watched(name).state.running:
            return True
        if job is None or job.state is State.CANCELLED:
            return False
        return job.state is not State.ENDED or path is None or not (path / "report.html").is_file()


T = TypeVar("T")


def _kept(known: dict[str, T], name: str, make: Callable[[], T]) -> T:
    """An entry, made if there is none. The oldest entries are dropped: they can be made again."""
    if name not in known:
        while len(known) >= WATCHED_MAX:
            del known[next(iter(known))]
        known[name] = make()
    return known[name]
