"""The state of a server: its folder, its sessions, and what it has read so far. Knows no HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jinja2 import UndefinedError

from partywall import pipeline
from partywall.errors import PartywallError
from partywall.host import Host
from partywall.store import RunDirectory
from partywall.web import forecasting, pages, records, runner, strip
from partywall.web.documents import Forecast, forecast
from partywall.web.jobs import Folder, Order, State
from partywall.web.live import Watched
from partywall.web.security import Role, Secrets, Site

WATCHED_MAX = 64
POLL_S = 0.1
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
        read_host: Callable[[], Host] = pipeline.this_host,
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
        self._plans: dict[str, Any] = {}
        self._stamps: dict[str, tuple[int, object]] = {}
        self._rendered: dict[str, tuple[object, dict[str, str]]] = {}
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
            if name not in self._watched:
                self._watched[name] = Watched(self.folder.root / name)
                # The oldest is read again if it is needed.
                while len(self._watched) > WATCHED_MAX:
                    del self._watched[next(iter(self._watched))]
            watch = self._watched[name]
            watch.advance()
            return watch

    def stamp(self, name: str) -> object:
        """A value that changes when the page of a record may have to change. Found once a tick for all watchers."""
        tick = int(time.monotonic() / POLL_S)
        with self._lock:
            known = self._stamps.get(name)
            if known is None or known[0] != tick:
                while len(self._stamps) >= WATCHED_MAX:
                    del self._stamps[next(iter(self._stamps))]
                refresh = int(time.monotonic() / REFRESH_S)
                known = self._stamps[name] = tick, (self.watched(name).offset, self.folder.of_record(name), refresh)
            return known[1]

    def plan(self, name: str) -> Any:
        """The plan of a run, read again if it was extended. None if it cannot be read."""
        file = self.folder.root / name / RunDirectory.MARK
        try:
            stamp = file.stat().st_mtime_ns
            if self._plans.get(name, (0, None))[0] != stamp:
                self._plans[name] = stamp, RunDirectory(file.parent).plan
        except (OSError, PartywallError):
            return None
        return self._plans[name][1]

    def panels(self, name: str, *, fresh: bool = False) -> dict[str, str]:
        """The parts of the watching page that change, as HTML by their names. Rendered once for all watchers.

        fresh: also shows what has changed within this tick.
        """
        with self._lock:
            if fresh:
                self._stamps.pop(name, None)
            stamp = self.stamp(name)
            if name not in self._rendered or self._rendered[name][0] != stamp:
                while len(self._rendered) >= WATCHED_MAX:
                    del self._rendered[next(iter(self._rendered))]
                self._rendered[name] = stamp, self._render(name)
            return self._rendered[name][1]

    def _render(self, name: str) -> dict[str, str]:
        job = self.folder.of_record(name)
        path = self.folder.record(name)
        watched = self.watched(name)
        live = watched.state
        running = live.running
        waiting = [
            waiting_job for waiting_job in self.folder.all() if waiting_job.state in (State.QUEUED, State.RUNNING)
        ]
        plan = self.plan(name)
        content = {
            "name": name,
            "job": job,
            "live": live,
            "running": running,
            "ended": not running and (job is None or job.state in (State.ENDED, State.CANCELLED)),
            "status": pages.status(job, live, waiting, running=running),
            "left": pages.left(live, running=running),
            "buttons": pages.buttons(job) if self.secrets.role is Role.FULL else pages.Buttons(),
            "key": partial(self.secrets.key, name, job.attempt if job else 0, job.state if job else ""),
            "matrix": pages.matrix(plan, live) if plan is not None else None,
            "strip": strip.strip(plan, live) if plan is not None and running else None,
            "seconds": list(pages.seconds_of(live))[:10],
            "chart": pages.chart(live),
            "output": pages.tail_of(self.folder.output(job.id)) if job and (path is None or not running) else "",
            "has_page": path is not None and (path / "report.html").is_file(),
            "outcome": records.outcome(path, job.exit if job and job.exit is not None else live.exit),
        }
        return {part: _rendered(f"live_{part}.html.j2", content) for part in ("status", "figures", "notes")}

    def is_open(self, name: str) -> bool:
        """True if the state of a record may still change by itself."""
        job = self.folder.of_record(name)
        running = self.folder.record(name) is not None and self.watched(name).state.running
        return running or (job is not None and job.state is not State.CANCELLED)


def _rendered(template: str, content: Mapping[str, Any]) -> str:
    """A part of a page. A journal with values of unexpected types does not make the rest of the page unusable."""
    try:
        return pages.render(template, **content)
    except (TypeError, ValueError, KeyError, ArithmeticError, UndefinedError):
        return '<p class="empty">The journal contains values that cannot be shown.</p>'
