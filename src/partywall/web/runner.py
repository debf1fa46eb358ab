"""The runner: carries out jobs one at a time, and every other action of the page, from a fixed list.

It listens on a Unix socket in the folder of records. A request is one line of JSON with an action, a key and the
action's fields. It is answered by one line. A job is started as a `partywall` command in a session of its own, with the
lock of `sandbox.measuring`. If the runner is killed, the job continues with the lock, and the next runner takes over.

The command line is built here from checked fields. Requests cannot contain options, paths or commands.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from partywall import kinds
from partywall.core import control
from partywall.core.record import stamped
from partywall.errors import PartywallError, Problem, ProblemsError, UsageError
from partywall.files import write_whole
from partywall.host.label import start_ticks
from partywall.kinds.journal import INTERRUPTED
from partywall.plain import plain
from partywall.sandbox import measuring
from partywall.web import deleted, made
from partywall.web.jobs import DOCUMENT_BYTES_MAX, Folder, Force, Frozen, Job, Key, Order, Plain, State, Want

REQUEST_BYTES_MAX = 1 << 20
REQUEST_S = 5.0
STEP_S = 0.2
IDLE_S = 600.0
AGAIN_S = 5.0
"""How long after a failure the queue is tried again."""
TOLD_BYTES = 512
PURGE_S = 3600.0
BESIDE_S = 1800.0
"""A report or a clean-up that takes longer is killed, so that the queue goes on."""
"""Time between two looks for deleted records that are no longer kept."""
PURGED_AT_A_TIME = 1000
KILL_AFTER_S = 10.0
"""Time between SIGTERM and SIGKILL for a job that was stopped twice."""
"""What can be changed while it runs, by kind of job."""
# Signals of a terminal end the command, not the shell that stores its exit code.
SHELL = 'trap : INT TERM HUP; status=$1; shift; "$@"; echo $? > "$status.new"; mv "$status.new" "$status"'


class Start(Frozen):
    key: Key
    order: Order


class Forecast(Frozen):
    order: Order


class OfJob(Frozen):
    key: Key
    job: Key


class Extend(OfJob):
    budget: Plain | None = None
    precision: Plain | None = None


class Adjust(OfJob):
    """level: of a load; policy: the text of the new policy of a guard."""

    level: float | None = Field(default=None, ge=0, le=1e7)
    policy: str | None = Field(default=None, max_length=DOCUMENT_BYTES_MAX)


class OfRecord(Frozen):
    key: Key
    record: str


class Restore(OfRecord):
    """entry: which deletion of the record; None: the latest one."""

    entry: Annotated[str, StringConstraints(max_length=255)] | None = None


class Empty(Frozen):
    """before: only what was deleted until then, in seconds since the epoch; None: everything."""

    key: Key
    before: Annotated[float, Field(ge=0, lt=1e11)] | None = None


class Annotate(OfRecord):
    note: str = Field(default="", max_length=10_000)
    tags: tuple[str, ...] = Field(default=(), max_length=20)


class Report(OfRecord):
    formats: tuple[Annotated[str, StringConstraints(max_length=40)], ...] = Field(default=(), max_length=20)


class Runner:
    """The state of a runner.

    allow_commands: whether jobs may run the commands that documents contain. tell: stores why the queue stands still.
    """

    def __init__(
        self, folder: Folder, *, allow_commands: bool = False, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder, self._tell = folder, tell
        self._allow_commands = allow_commands
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reports: dict[subprocess.Popen[bytes], float] = {}
        self._purge_at = 0.0
        self._removed: set[str] = set()
        self._again_at = 0.0
        self._failure = ""
        self.active_at = time.monotonic()

    def answer(self, line: bytes) -> dict[str, Any]:
        """Carries out a request. Returns {"ok": true, ...}, or {"error": text} with "problems" if it has several."""
        try:
            request = json.loads(line)
            model, carry_out = ACTIONS[request.pop("action")]
            asked = model.model_validate(request)
        except ValidationError as error:
            return {"error": "; ".join(_said(each) for each in error.errors(include_url=False)[:10])}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {"error": "this is not a request"}
        try:
            return {"ok": True} | carry_out(self, asked)
        except ProblemsError as error:
            return {"error": str(error), "problems": [plain(problem) for problem in error.problems]}
        except (PartywallError, OSError) as error:
            return {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - one request must not end the runner
            traceback.print_exc()
            return {"error": f"this is a bug: {error!r}; {self._folder.own / 'runner.txt'} has the details"}

    def start(self, request: Start) -> dict[str, Any]:
        """Puts a job in the queue. The same key never makes a second job."""
        if (known := self._folder.job(request.key)) is None:
            self._check(request.order)
            name = re.sub(r"[^A-Za-z0-9-]+", "-", _title(request.order)).strip("-") or request.order.kind
            known = Job(id=request.key, order=request.order, record=stamped(name[:60]), created=time.time())
            if request.order.document is not None:
                write_whole(self._folder.document(known.id), request.order.document, durable=True)
            self._folder.put(known)
        return {"job": known.id, "record": known.record}

    def _check(self, order: Order) -> None:
        """UsageError if an order names something that may not be carried out from a page."""
        from partywall.web.documents import refuse_files, shipped_names  # noqa: PLC0415 - slow to import

        if order.document is None and order.shipped is not None and order.shipped not in shipped_names(order.kind):
            raise UsageError(
                Problem(f"no {order.kind} called {order.shipped!r} ships with Partywall", "choose another")
            )
        command(order, Path("document"), Path("record"))
        if order.document is not None:
            refuse_files(order.document, allowed=self._allow_commands)

    def stop(self, request: OfJob) -> dict[str, Any]:
        """Ends a job. What it has measured is kept and reported. A second stop ends one that does not end by itself."""
        job = self._new(request)
        if job and job.state is State.RUNNING and job.want is Want.STOP:
            self._force(self._put(job, request.key), Force.KILL if job.force else Force.TERMINATE)
        elif job and job.state is State.RUNNING:
            self._interrupt(job, request.key, Want.STOP)
        elif job and job.state in (State.QUEUED, State.PAUSED):
            measured = self._folder.record(job.record) is not None
            self._put(job, request.key, state=State.ENDED if measured else State.CANCELLED)
            if measured:
                self._report(job.record)
        return {}

    def pause(self, request: OfJob) -> dict[str, Any]:
        """Ends a run between two blocks, so that it can be continued."""
        job = self._new(request)
        if job and not made.can_resume(job.order.kind):
            raise UsageError(Problem(f"a {job.order.kind} is measured in one piece", "stop it instead"))
        if job and job.state is State.RUNNING:
            self._interrupt(job, request.key, Want.PAUSE)
        elif job and job.state is State.QUEUED:
            self._put(job, request.key, state=State.PAUSED)
        return {}

    def resume(self, request: OfJob) -> dict[str, Any]:
        """Puts a paused, stopped or failed job in the queue again."""
        job = self._new(request)
        if job and job.state in (State.PAUSED, State.ENDED, State.CANCELLED):
            if not made.can_resume(job.order.kind) and job.state is State.ENDED:
                raise UsageError(Problem(f"a {job.order.kind} cannot be continued", "start a new one"))
            self._put(job, request.key, state=State.QUEUED, want=None)
        elif job and job.state is State.RUNNING and job.want is Want.PAUSE:
            self._put(job, request.key, want=Want.EXTEND)
        return {}

    def extend(self, request: Extend) -> dict[str, Any]:
        """Gives a run a larger budget or another precision. A running one is continued at once."""
        if (job := self._new(request)) is None:
            return {}
        if job.order.kind != "run":
            raise UsageError(Problem(f"a {job.order.kind} has no budget", "start a new one"))
        given = {"budget": request.budget, "precision": request.precision}
        changes = tuple(f"--{name}={value}" for name, value in given.items() if value)
        if not changes:
            raise UsageError(Problem("no new bound is given", "give for example budget=10min or precision=1%"))
        _check_extension(self._folder, job, given)
        if job.state is State.RUNNING:
            self._interrupt(job, request.key, Want.EXTEND, changes)
        else:
            self._put(job, request.key, state=State.QUEUED, want=None, changes=changes)
        return {}

    def adjust(self, request: Adjust) -> dict[str, Any]:
        """Changes the users, or the arrivals a second, of a running load, or the policy of a running guard."""
        if (job := self._new(request)) is None:
            return {}
        field = made.adjusts(job.order.kind)
        if not field or job.state is not State.RUNNING:
            message = f"a {job.order.kind} that is {job.state} has no users and no policy"
            raise UsageError(Problem(message, "start a load or a guard"))
        if (value := getattr(request, field)) is None:
            raise UsageError(Problem(f"no {field} is given", f"give the new {field} of the {job.order.kind}"))
        path = self._record(job.record)
        if field == "policy":
            self._check_policy(path, value)
        self._put(job, request.key)
        control.send(path, **{field: value})
        return {}

    def _check_policy(self, record: Path, policy: str) -> None:
        """UsageError if a running guard cannot go over to this policy."""
        from partywall.web.documents import check_change, refuse_files  # noqa: PLC0415 - slow to import

        refuse_files(policy, allowed=self._allow_commands)
        if problems := check_change(record, policy):
            raise UsageError(*problems)

    def annotate(self, request: Annotate) -> dict[str, Any]:
        """Stores a note and tags beside a record."""
        self._record(request.record)
        content = {"note": request.note, "tags": [tag.strip()[:40] for tag in request.tags if tag.strip()]}
        write_whole(self._folder.notes / f"{request.record}.json", json.dumps(content), durable=True)
        return {}

    def delete(self, request: OfRecord) -> dict[str, Any]:
        """Moves a record to the bin, from which `restore` returns it."""
        if self._folder.record(request.record) is None and deleted.of_name(self._folder, request.record) is not None:
            return {}
        path = self._record(request.record)
        job = self._folder.of_record(request.record)
        if job and job.state in (State.RUNNING, State.QUEUED):
            raise UsageError(Problem(f"{request.record} is {job.state}", "stop it first"))
        with kinds.opened(path).exclusive():
            deleted.put(self._folder, path)
        return {}

    def restore(self, request: Restore) -> dict[str, Any]:
        """Returns a deleted record. Its name must not be that of another one."""
        gone = deleted.of_name(self._folder, request.record, request.entry)
        is_there = self._folder.record(request.record) is not None
        if gone is not None and is_there:
            raise UsageError(Problem(f"there is a record {request.record!r} already", "delete or rename it first"))
        if gone is not None:
            deleted.back(self._folder, gone)
        elif not is_there:
            raise UsageError(Problem(f"{request.record[:100]} is not among the deleted records", "reload the page"))
        return {}

    def empty(self, request: Empty) -> dict[str, Any]:
        """Removes deleted records for good, as soon as nothing is measured."""
        before = time.time() if request.before is None else request.before
        return {"records": deleted.hide(self._folder, before)}

    def report(self, request: Report) -> dict[str, Any]:
        """Derives the findings of a record again, and writes its page and files for other programs."""
        files = kinds.of(kinds.opened(self._record(request.record))).files()
        self._report(request.record, files.chosen([*files.usual, *request.formats]) if request.formats else ())
        return {}

    def forecast(self, request: Forecast) -> dict[str, Any]:
        """What an order would do, and what is missing for it, with the rights of this process. Changes nothing."""
        from partywall.web import forecasting  # noqa: PLC0415 - slow to import

        self._check(request.order)
        return forecasting.answered(request.order, allow_commands=self._allow_commands)

    def doctor(self, request: Frozen) -> dict[str, Any]:
        """What `partywall doctor` reports with the rights of this process."""
        del request
        return {"doctor": doctor()}

    def ping(self, request: Frozen) -> dict[str, Any]:
        """Says that a runner is there."""
        del request
        return {"pid": os.getpid(), "allow_commands": self._allow_commands}

    def try_step(self) -> None:
        """Takes a step. One that fails, as on a full disk, is told and tried again after some time.

        Otherwise this process would end, and whoever needs it next would start another that ends as well.
        """
        if time.monotonic() < self._again_at:
            return
        try:
            self.step()
        except Exception as error:  # noqa: BLE001 - requests are still answered
            self._again_at = time.monotonic() + AGAIN_S
            if str(error) != self._failure:
                traceback.print_exc()
                self._failure = str(error)
                self._tell(self._failure)
        else:
            if self._failure:
                self._tell("")
            self._failure = ""

    def step(self) -> None:
        """Takes note of a job that has ended, and starts the next one if the host is free."""
        going = self._folder.waiting()
        self._reports = {report: until for report, until in self._reports.items() if not self._is_over(report, until)}
        if going or self._reports:
            self.active_at = time.monotonic()
        for job in going:
            if job.state is State.RUNNING and (code := self._ended(job)) is not None:
                self._after(job, code)
                return
            if job.force is Force.TERMINATE and not 0 <= time.time() - job.forced_at < KILL_AFTER_S:
                self._force(job, Force.KILL)
        running = [job for job in going if job.state is State.RUNNING]
        if not running and not self._reports:
            self._purge()
        if going and not running and not self._reports and self._locked():
            self._launch(going[0])

    def _new(self, request: OfJob) -> Job | None:
        """The job of a request; None if the request was carried out before."""
        job = self._folder.job(request.job)
        if job is None:
            raise UsageError(Problem(f"there is no job {request.job}", "reload the page"))
        return None if request.key in job.done else job

    def _put(self, job: Job, key: str | None = None, **changes: Any) -> Job:
        done = (*job.done, key)[-100:] if key else job.done
        return self._folder.put(job.model_copy(update={"done": done, **changes}))

    def _purge(self) -> None:
        """Removes what is no longer kept in the bin. The next job waits for it."""
        if time.monotonic() >= self._purge_at:
            self._purge_at = time.monotonic() + PURGE_S
            self._removed.clear()
            with contextlib.suppress(OSError):
                deleted.expire(self._folder)
        # What cannot be removed, such as the files of another user, is tried again with the next look.
        paths = [path for path in deleted.hidden(self._folder) if path not in self._removed][:PURGED_AT_A_TIME]
        if paths:
            self._removed.update(paths)
            self._follow(subprocess.Popen(["rm", "-rf", "--", *paths], stdin=subprocess.DEVNULL))

    def _record(self, name: str) -> Path:
        path = self._folder.record(name)
        if path is None:
            raise UsageError(Problem(f"there is no record {name[:100]!r}", "reload the page"))
        return path

    def _interrupt(self, job: Job, key: str, want: Want, changes: tuple[str, ...] = ()) -> None:
        """Asks a running job to end as Ctrl-C does. A later request replaces what happens afterwards."""
        first = job.want is None
        self._put(job, key, want=want, changes=changes or job.changes)
        if first and job.pid is not None and start_ticks(job.pid) == job.start_ticks:
            os.killpg(job.pid, signal.SIGINT)

    def _force(self, job: Job, force: Force) -> None:
        """Sends a running job the signal that ends it if Ctrl-C did not. `step` follows with SIGKILL."""
        if job.force is Force.KILL:
            return
        self._folder.put(job.model_copy(update={"force": force, "forced_at": time.time()}))
        if job.pid is not None and start_ticks(job.pid) == job.start_ticks:
            os.killpg(job.pid, signal.SIGKILL if force is Force.KILL else signal.SIGTERM)

    def _locked(self) -> bool:
        """True if this runner holds the lock for measurements of this host."""
        if self._lock is None:
            self._lock = measuring.lock_alone()
        return self._lock is not None

    def _launch(self, job: Job) -> None:
        folder, record = self._folder, self._folder.root / job.record
        job = job.model_copy(
            update={"attempt": job.attempt + 1, "state": State.RUNNING, "want": None, "force": None, "exit": None}
        )
        kind = job.order.kind
        if record.is_dir() and made.can_resume(kind):
            first = made.continued(kind, record) if made.is_made(kind) else [kind, f"--resume={record}"]
            words = [*first, *job.changes]
        else:
            words = command(job.order, folder.document(job.id), record) + list(job.changes)
        if self._allow_commands and kind in made.HAND_MADE:
            words.append("--allow-commands")
        # Stored before the start, so that a killed runner does not start the attempt twice.
        folder.put(job)
        argv = [
            "/bin/sh",
            "-c",
            SHELL,
            "sh",
            str(folder.exit_file(job)),
            sys.executable,
            "-P",
            "-m",
            "partywall",
            *words,
        ]
        environment = os.environ | {"COLUMNS": "120"}
        self._process = measuring.detached(argv, self._lock, folder.output(job.id), folder.root, environment)
        pid = self._process.pid
        folder.put(job.model_copy(update={"pid": pid, "start_ticks": start_ticks(pid)}))
        # The job holds the lock from here on.
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _ended(self, job: Job) -> int | None:
        """The exit code of a running job that has ended; None while it runs."""
        if self._process is not None and self._process.pid == job.pid:
            self._process.poll()
        alive = job.pid is not None and start_ticks(job.pid) == job.start_ticks
        with contextlib.suppress(OSError, ValueError):
            return int(self._folder.exit_file(job).read_text())
        if alive:
            return None
        if job.pid is None:
            # A runner was killed while it started the job. The lock tells whether the job's process exists.
            if self._locked():
                self._folder.put(job.model_copy(update={"state": State.QUEUED}))
            return None
        return -signal.SIGKILL

    def _after(self, job: Job, code: int) -> None:
        """Decides what follows the end of an attempt."""
        kept = self._folder.record(job.record) is not None
        ended = job.model_copy(
            update={"exit": code, "pid": None, "start_ticks": None, "want": None, "force": None, "changes": ()}
        )
        if job.force is Force.KILL:
            # It could remove nothing itself. The next job waits until that is done.
            self._beside("reap")
        interrupted = code == INTERRUPTED or job.force is not None
        if interrupted and job.want is Want.PAUSE:
            self._folder.put(ended.model_copy(update={"state": State.PAUSED if kept else State.QUEUED}))
        elif job.want is Want.EXTEND and code not in (2, 4):
            self._folder.put(ended.model_copy(update={"state": State.QUEUED, "changes": job.changes}))
        else:
            self._folder.put(ended.model_copy(update={"state": State.ENDED}))
            if interrupted and kept:
                self._report(job.record)

    def _report(self, record: str, formats: Sequence[str] = ()) -> None:
        """Starts to write the report of a record. The next job waits for it."""
        self._beside("report", str(self._folder.root / record), *(f"--format={name}" for name in formats))

    def _beside(self, *words: str) -> None:
        """Starts a short command. The next job waits for it."""
        output, command = subprocess.DEVNULL, [sys.executable, "-P", "-m", "partywall", *words]
        self._follow(subprocess.Popen(command, stdin=output, stdout=output, stderr=output, cwd=self._folder.root))

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        self._reports[process] = time.monotonic() + BESIDE_S

    def _is_over(self, process: subprocess.Popen[bytes], until: float) -> bool:
        """Whether a short command has ended. One that hangs must not hold up the queue for ever."""
        if process.poll() is None and time.monotonic() >= until:
            process.kill()
            print(f"killed after {BESIDE_S:g} s: {process.args!r}", file=sys.stderr)  # noqa: T201 - runner.txt
            process.wait()
        return process.poll() is not None


ACTIONS: Mapping[str, tuple[type[BaseModel], Callable[[Runner, Any], dict[str, Any]]]] = {
    "start": (Start, Runner.start),
    "stop": (OfJob, Runner.stop),
    "pause": (OfJob, Runner.pause),
    "resume": (OfJob, Runner.resume),
    "extend": (Extend, Runner.extend),
    "adjust": (Adjust, Runner.adjust),
    "annotate": (Annotate, Runner.annotate),
    "delete": (OfRecord, Runner.delete),
    "restore": (Restore, Runner.restore),
    "empty": (Empty, Runner.empty),
    "report": (Report, Runner.report),
    "forecast": (Forecast, Runner.forecast),
    "doctor": (Frozen, Runner.doctor),
    "ping": (Frozen, Runner.ping),
}
"""Everything that can be requested."""
SLOW = ("forecast", "doctor")
"""Requests that take seconds. They change nothing, so they need not be answered one after the other."""
EXAMINING = threading.BoundedSemaphore(4)
FIELDS: Mapping[str, tuple[str, ...]] = {"extend": ("budget", "precision"), "adjust": ("level", "policy")}
"""What a request about a job has in addition to its key and the job, by action."""


def command(order: Order, document: Path, record: Path) -> list[str]:
    """The words after `partywall` that carry out an order. UsageError if something is missing."""
    if made.is_made(order.kind):
        return made.command(order, str(document), record)
    source = str(document) if order.document is not None else order.shipped
    options = {
        "out": str(record),
        "budget": order.budget,
        "precision": order.precision,
        "seed": order.seed,
        "users": order.users,
        "rate": order.rate,
        "for": order.duration,
    }
    taken = {
        "run": ("out", "budget", "precision", "seed"),
        "load": ("out", "users", "rate", "for") if order.url else ("out",),
        "study": ("out",),
    }[order.kind]
    given = [f"--{name}={value}" for name, value in options.items() if name in taken and value is not None]
    first = {
        "run": ["run", source],
        "load": ["load", "run", order.url or source],
        "study": ["study", source, *(["--long"] if order.long else [])],
    }[order.kind]
    if None in first:
        raise UsageError(Problem(f"a {order.kind} needs something to measure", "choose or write a document"))
    return [*(word for word in first if word is not None), *given]


def _title(order: Order) -> str:
    if order.document is not None:
        named = re.search(r"^name:\s*['\"]?([A-Za-z0-9_-]+)", order.document, re.MULTILINE)
        return named.group(1) if named else order.kind
    return order.shipped or order.kind


def _check_extension(folder: Folder, job: Job, given: Mapping[str, str | None]) -> None:
    """UsageError if a value cannot be read, or the run would not get more of anything."""
    from partywall import units  # noqa: PLC0415 - of this action alone
    from partywall.errors import parsed  # noqa: PLC0415
    from partywall.run.record import RunDirectory  # noqa: PLC0415

    budget, precision = given["budget"], given["precision"]
    budget_ns = parsed("budget", budget, units.parse_duration_ns) if budget else 0
    share = parsed("precision", precision, units.parse_share) if precision else 1.0
    if (path := folder.record(job.record)) is not None:
        scenario = RunDirectory.open(path).plan.scenario
        if budget_ns <= scenario.budget and share >= scenario.precision:
            has = f"{units.format_duration(scenario.budget)} and ±{100 * scenario.precision:g}%"
            raise UsageError(Problem(f"the run has {has} already", "give a larger budget or a smaller precision"))


def _said(error: Any) -> str:
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}".lstrip(": ")


def serve(folder: Folder, *, user: int, allow_commands: bool = False) -> None:
    """Runs until it has been idle for some time. user: who may connect, beside this process's own user.

    Returns at once if the folder has a runner already.
    """
    folder.make()
    with _alone(folder) as first:
        if not first:
            return
        with _telling(folder) as tell, _listening(folder, user) as listener:
            runner = Runner(folder, allow_commands=allow_commands, tell=tell)
            while time.monotonic() - runner.active_at < IDLE_S:
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    runner.active_at = time.monotonic()
                    _serve_one(runner, connection, {user, os.geteuid()})
                runner.try_step()


@contextlib.contextmanager
def _alone(folder: Folder) -> Iterator[bool]:
    """Whether this process is the only runner of the folder."""
    descriptor = os.open(folder.own / "runner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _telling(folder: Folder) -> Iterator[Callable[[str], None]]:
    """Gives a function that stores why the queue stands still, in space that is taken while the disk has some."""
    descriptor = os.open(folder.stalled, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def tell(why: str) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, why.encode("utf-8", "replace")[:TOLD_BYTES].ljust(TOLD_BYTES), 0)

    tell("")
    try:
        yield tell
    finally:
        tell("")
        os.close(descriptor)


@contextlib.contextmanager
def _listening(folder: Folder, user: int) -> Iterator[socket.socket]:
    folder.socket.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX)
        with short(folder) as path:
            listener.bind(path)
    finally:
        os.umask(before)
    if user != os.geteuid():
        os.chown(folder.socket, user, -1)
    listener.listen(64)
    listener.settimeout(STEP_S)
    try:
        yield listener
    finally:
        listener.close()
        folder.socket.unlink(missing_ok=True)


@contextlib.contextmanager
def short(folder: Folder) -> Iterator[str]:
    """The path of the socket in at most 107 characters, which is all that the kernel takes."""
    descriptor = os.open(folder.own, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{folder.socket.name}"
    finally:
        os.close(descriptor)


def _serve_one(runner: Runner, connection: socket.socket, users: set[int]) -> None:
    """Answers one request and closes its connection. A client that is slow, or is another user, is cut off.

    What takes long and changes nothing is answered by a thread, so that other requests and the queue go on.
    """
    connection.settimeout(REQUEST_S)
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    line = _received(connection) if uid in users else b""
    if _action(line) in SLOW:
        threading.Thread(target=_examine, args=(runner, connection, line), daemon=True).start()
    else:
        _reply(connection, runner.answer(line) if line else None)


def _received(connection: socket.socket) -> bytes:
    """The line of a request; empty if it does not arrive whole in time."""
    ends = time.monotonic() + REQUEST_S
    line = b""
    with contextlib.suppress(OSError):
        while not line.endswith(b"\n") and len(line) <= REQUEST_BYTES_MAX and time.monotonic() < ends:
            piece = connection.recv(65536)
            if not piece:
                break
            line += piece
    return line if line.endswith(b"\n") else b""


def _action(line: bytes) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        request = json.loads(line)
        if isinstance(request, dict):
            return str(request.get("action"))
    return ""


def _examine(runner: Runner, connection: socket.socket, line: bytes) -> None:
    """Answers a slow request, if not too many are being answered."""
    if not EXAMINING.acquire(blocking=False):
        _reply(connection, {"error": "the host is being examined for other pages; try again in a minute"})
        return
    try:
        answer = runner.answer(line)
    finally:
        EXAMINING.release()
    _reply(connection, answer)


def _reply(connection: socket.socket, answer: dict[str, Any] | None) -> None:
    with connection, contextlib.suppress(OSError):
        if answer is not None:
            connection.sendall(json.dumps(answer).encode() + b"\n")


def request(folder: Folder, action: str, **fields: Any) -> dict[str, Any]:
    """Sends a request to the folder's runner. ConnectionError if there is none. UsageError if it refused."""
    try:
        with socket.socket(socket.AF_UNIX) as connection, short(folder) as path:
            connection.settimeout(330)
            connection.connect(path)
            connection.sendall(json.dumps({"action": action} | fields).encode() + b"\n")
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
    except OSError as error:
        raise ConnectionError(error.errno or errno.ECONNRESET, "the runner does not answer") from error
    if not answer.endswith(b"\n"):
        raise ConnectionError(errno.ECONNRESET, "the runner has ended")
    return accepted(json.loads(answer))


def accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of a runner. UsageError with its problems if it refused."""
    if "error" in answer:
        problems = [Problem(**problem) for problem in answer.get("problems", ())]
        raise UsageError(*(problems or [answer["error"]]))
    return answer


def doctor() -> dict[str, Any]:
    """The result of `partywall doctor`. Without checks if it failed."""
    words = [sys.executable, "-P", "-m", "partywall", "doctor", "--format", "json"]
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=120)
        document: dict[str, Any] = json.loads(done.stdout)["result"]
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return {"checks": []}
    return document or {"checks": []}


def start_runner(folder: Folder, *, user: int | None = None, allow_commands: bool = False) -> None:
    """Starts a runner in a session of its own, if the folder has none, and waits until it answers."""
    folder.make()
    with contextlib.suppress(ConnectionError):
        answer = request(folder, "ping")
        if answer["allow_commands"] != allow_commands:
            how = "with" if answer["allow_commands"] else "without"
            remedy = f"do the same, or end it first: kill {answer['pid']}"
            raise UsageError(Problem(f"the runner of {folder.root} was started {how} --allow-commands", remedy))
        return
    words = [sys.executable, "-P", "-m", "partywall.web.runner", str(folder.root)]
    words += [f"--user={os.geteuid() if user is None else user}", *(["--allow-commands"] if allow_commands else [])]
    with (folder.own / "runner.txt").open("ab") as output:
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, close_fds=True
        )
    await_runner(folder)


def await_runner(folder: Folder) -> None:
    """Waits until the folder's runner answers. PartywallError if it does not in time."""
    ends = time.monotonic() + 20
    while True:
        try:
            request(folder, "ping")
        except ConnectionError:
            if time.monotonic() > ends:
                raise PartywallError(f"the runner did not start; see {folder.own / 'runner.txt'}") from None
            time.sleep(0.05)
        else:
            return


def main(words: Sequence[str]) -> None:
    """The process: FOLDER --user=UID [--allow-commands]."""
    # A shell's background process ignores it, and so would every job.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    user = next(int(word.removeprefix("--user=")) for word in words if word.startswith("--user="))
    serve(Folder(Path(words[0])), user=user, allow_commands="--allow-commands" in words)


if __name__ == "__main__":
    main(sys.argv[1:])
