"""Carries a migration plan out: one guest, moved back and forth, each combination once a round in random order."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from partywall.agent import binary
from partywall.agent.client import AgentClient
from partywall.clock import Monotonic
from partywall.errors import AgentError, CapabilityError, PartywallError, TrialError
from partywall.events import Broken, Doing, Emit, Left, Note
from partywall.host import Host
from partywall.host.label import Label
from partywall.load.quick import Quick, program
from partywall.migrate.check import moves_of
from partywall.migrate.document import (
    POSTCOPY,
    PRECOPY,
    Activity,
    Bystander,
    GuestSpec,
    HttpSpec,
    Method,
    MigrationPlan,
    Move,
    ServiceSeen,
    Survey,
)
from partywall.migrate.measure import qmp
from partywall.migrate.measure.guest import MovableGuest
from partywall.migrate.measure.messages import BYSTANDER, DIGEST, PEER, SERVICE, USERS, VERIFY, WORK_ID, Messages
from partywall.migrate.measure.move import GONE, Moved, Mover, Watch
from partywall.migrate.measure.network import GUEST, Link, Network
from partywall.migrate.measure.pings import Pings
from partywall.migrate.measure.seen import MOVE_S, Seen, answers_of, watcher
from partywall.migrate.measure.survey import seen_service, survey
from partywall.sandbox import Settings, qemu
from partywall.sandbox.lab import lacking
from partywall.sandbox.reaper import clean
from partywall.sandbox.switch import BRIDGE
from partywall.session import Session

NAME, HOST = "guest", "host"
CALIBRATION = "calibration"
UNLIMITED = 10**13
"""Bit/s that no link carries."""
SETTLE_S = 0.5
FOREVER_NS = 24 * 3600 * 1_000_000_000
LEAD_NS = 100_000_000
SERVICE_S = 30.0
PEER_PORT = 9000
DISK_FILE = "/var/tmp/partywall-verify"  # noqa: S108 - in the guest
SLICE_NS = 20_000_000
ANSWERS_S = 10.0
STARTS_S = 120.0
"""A kernel fills its working set before it starts, which takes an emulated guest a minute for hundreds of megabytes."""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()"
CALM_S = 2.0
COLLECT_S = 0.2
SURVEY_S = 9.0


def check(host: Host) -> None:
    """CapabilityError with everything that keeps guests from being moved here."""
    reasons = [why for why in (lacking(), qemu.lacking(host)) if why]
    if reasons:
        raise CapabilityError(*reasons)


def prepare(plan: MigrationPlan, host: Host, emit: Emit) -> None:
    """Builds the guest's root image, if it has one and it is not there yet. CapabilityError if it cannot be built."""
    if plan.guest.root is not None:
        recipe = qemu.root.Recipe.of(plan.guest.root, host)
        qemu.root.build(recipe, lambda text: emit(Doing(text)), host)


class Series:
    """The moves of a plan. Use as a context manager: afterwards nothing of it is left on the host."""

    def __init__(self, plan: MigrationPlan, host: Host, run: str, work_root: Path) -> None:
        self.plan = plan
        self.label = Label.create(run, work_root)
        link = Link(plan.link.rate, plan.link.delay, plan.link.shared)
        self.network = Network(self.label, link, storage=plan.guest.storage == "network")
        self._settings = _settings(plan, host)
        self._guest: MovableGuest | None = None
        self._session = Session(self.label, make=self._made)
        self._heard = Messages()
        self._attached: set[str] = set()
        self.original = ""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(clean, self.label)
            # A lost guest is replaced by another with its session.
            stack.callback(lambda: self._session.close())
            self.network.build()
            self.boot()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def emulated(self) -> bool:
        client = self.guest.client
        return bool(client and client.hello.get("emulated"))

    @property
    def guest(self) -> MovableGuest:
        if self._guest is None:
            raise TrialError(f"the guest of {self.label.run} was not started")
        return self._guest

    def about(self) -> dict[str, Any]:
        """Facts of the guest and its QEMU that figures depend on."""
        monitor = self.guest.current().monitor
        version = monitor.execute("query-version")["qemu"]
        defaults = monitor.execute("query-migrate-parameters")
        return {
            "accelerator": self._settings.accel,
            "emulated": self.emulated,
            "qemu": "{major}.{minor}.{micro}".format(**version),
            "defaults": {name: defaults[name] for name in ("max-bandwidth", "downtime-limit") if name in defaults},
            "memory_bytes": monitor.execute("query-memory-size-summary")["base-memory"],
            "cpus": self._settings.cpus,
            "host_cpus": self._settings.host_cpus,
        }

    def boot(self) -> None:
        """Starts the guest, and in it what answers the clients. CapabilityError if QEMU lacks a feature of the plan."""
        self._session.add(self._settings)
        qmp.require(self.plan.methods, self.guest.current().monitor)
        argv = ["/proc/self/exe", "peer", "--stay", "--listen", f"0.0.0.0:{PEER_PORT}", "udp-request"]
        self._start(PEER, argv)
        self._take(ANSWERS_S, until=lambda: self._heard.listens)
        self.original = self.digest()
        self._verify(self.plan.guest)
        if self.plan.guest.service is not None:
            self._serve(self.plan.guest.service)

    def _verify(self, guest: GuestSpec) -> None:
        """Starts what writes and checks pages in the guest's memory, and on its disk if it has one."""
        if guest.verify is None:
            return
        for name, rate in VERIFY.items():
            file = ["--file", DISK_FILE] if name == "verify-disk" else []
            if not file or guest.root is not None:
                argv = ["/proc/self/exe", "verify", "--bytes", str(guest.verify), "--rate", str(rate), *file]
                self._start(name, argv)
                self._heard.verified[name] = (0, 0)
        self._take(ANSWERS_S, until=lambda: all(checked for checked, _ in self._heard.verified.values()))

    def pages(self) -> tuple[int, int] | None:
        """(checked, wrong) pages so far; None without `guest.verify`."""
        return self._heard.pages()

    def _serve(self, command: Sequence[str]) -> None:
        """Starts the service in the guest, and waits until it takes connections, if there are users for it."""
        self._start(SERVICE, command)
        http = next((served for each in self.plan.workloads.values() if (served := self._http(each))), None)
        if http is None:
            return
        probe = [*self.network.enter("clients"), sys.executable, "-c", CONNECT, GUEST.partition("/")[0], str(http.port)]
        deadline = time.monotonic() + SERVICE_S
        while not _succeeds(probe, SERVICE_S):
            self._take(0.2)
            if time.monotonic() > deadline:
                text = f"the service in the guest does not take connections on port {http.port} after {SERVICE_S:g} s"
                raise TrialError(f"{text}; check guest.service and clients.http.port")

    def survey(self, workload: str, emit: Emit) -> Survey:
        """What is known of the guest at a workload, before any move."""
        emit(Doing(f"watching the memory of the guest: {workload}"))
        activity = self.plan.workloads[workload]
        http = self._http(activity)
        with self._using(http), self.working(activity):
            self._take(SETTLE_S)
            service = self._seen_by_clients(workload, http, emit)
            surveyed = survey(workload, self.guest.current().memory, self._host_agent())
        return surveyed.model_copy(update={"service": service})

    def _seen_by_clients(self, workload: str, http: HttpSpec | None, emit: Emit) -> ServiceSeen | None:
        """Response times of a guest that stays where it is."""
        file = self.label.work / f"pings-{workload}.npy"
        with self._pinged(file) as pings:
            self._heard.tables()
            self._take(CALM_S)
            times = answers_of(pings, emit)["pings"]
        file.unlink(missing_ok=True)
        return seen_service(times, self._heard.tables()[USERS], http)

    def calibrate(self, emit: Emit, keep: Callable[[Seen], None], done: Collection[int] = ()) -> None:
        """Moves of the idle guest, for the costs that do not depend on its work. done: numbers that are left out."""
        mover = Mover(self.guest, Monotonic())
        order = calibrations(self.plan)
        for number, (place, name) in order.items():
            if number in done:
                continue
            emit(Doing(f"calibration {-number} of {len(order)}: {name}"))
            seen = self._observe(mover, None, name, place, number, emit)
            keep(seen)
            if seen.move.outcome in GONE:
                self._again()
                mover = Mover(self.guest, Monotonic())

    def digest(self) -> str:
        """A checksum of a part of the guest's memory that nobody writes: the agent's own program, on a RAM disk."""
        self._heard.digest = ""
        argv = ["/proc/self/exe", "digest", "/proc/self/exe"]
        self._start(DIGEST, argv)
        self._take(ANSWERS_S, until=lambda: bool(self._heard.digest))
        return self._heard.digest

    def _is_intact(self) -> bool | None:
        """Whether that part of its memory is what it was; None if the guest did not say in time."""
        try:
            digest = self.digest()
        except AgentError:
            # A busy emulated guest may be late; what the move cost is known all the same.
            return None
        return digest == self.original if digest and self.original else None

    def carry_out(self, emit: Emit, keep: Callable[[Seen], None], done: Collection[int] = ()) -> None:
        """All moves of the plan but those whose numbers are `done`.

        TrialError if the guest was lost and could not be started again.
        """
        every = moves_of(self.plan)
        left = {number: move for number, move in every.items() if number not in done}
        mover = Mover(self.guest, Monotonic())
        spent_s: list[float] = []
        for number, (round_number, (workload, method)) in left.items():
            began = time.monotonic()
            emit(Doing(f"move {number + 1} of {len(every)}: {workload}, {method}"))
            emit(Left((len(left) - len(spent_s)) * self._expected_s(spent_s)))
            seen = self._observe(mover, workload, method, round_number, number, emit)
            keep(seen)
            if seen.move.outcome in GONE:
                emit(Broken(f"move {number + 1} ({workload}, {method}): {seen.move.outcome}: {seen.move.reason}"))
                self._again()
                mover = Mover(self.guest, Monotonic())
            elif seen.move.reason:
                emit(Note(f"move {number + 1} ({workload}, {method}): {seen.move.reason}", is_warning=True))
            spent_s.append(time.monotonic() - began)

    def _host_agent(self) -> AgentClient:
        """An agent on this host, which reads the guest's memory."""
        if HOST not in self._attached:
            self._session.attach(HOST, [str(binary.find()), "serve", "--die-with-parent", "--only", "memory"])
            self._attached.add(HOST)
        return self._session.client(HOST)

    def _observe(
        self, mover: Mover, workload: str | None, method: str, round_number: int, number: int, emit: Emit
    ) -> Seen:
        plan = self.plan
        source = self.guest.current().place
        file = self.label.work / f"pings-{number}.npy"
        with self._pinged(file) as pings:
            activity = plan.workloads[workload] if workload else None
            # The guest is calibrated idle, without users.
            http = self._http(activity) if workload else None
            with self._using(http), self.working(activity), self._beside(plan.bystander):
                self._take(plan.before / 1e9)
                before = pings.timeouts()
                wanted_method = plan.methods[method] if workload else families_of(plan)[method]
                moved = self.move(mover, wanted_method, plan.give_up, watcher(emit))
                if moved.outcome not in GONE:
                    self._take(plan.after / 1e9)
                after = pings.timeouts()
            intact = None if moved.outcome in GONE else self._is_intact()
            answers = answers_of(pings, emit)
        file.unlink(missing_ok=True)
        checked, wrong = (None, None) if moved.outcome in GONE else self.pages() or (None, None)
        move = Move(
            workload=workload or CALIBRATION,
            intact=intact,
            checked_pages=checked,
            wrong_pages=wrong,
            method=method,
            round=round_number,
            number=number,
            source=source,
            timeouts=after - before if http and before is not None and after is not None else None,
            **asdict(moved),
        )
        tables = {**answers, **self._heard.tables()}
        return Seen(move, tables)

    def move(self, mover: Mover, method: Method, give_up_ns: int, watch: Watch = lambda _: None) -> Moved:
        """Moves the guest, and collects meanwhile what it sends.

        The agent of a guest whose messages wait for too long is cut off, and its guest ends with it.
        """
        ended = threading.Event()
        broken: list[Exception] = []

        def collect() -> None:
            try:
                while not ended.is_set():
                    self._take(COLLECT_S)
            except Exception as error:  # noqa: BLE001 - raised below, by the thread that waits
                broken.append(error)

        thread = threading.Thread(target=collect, name="collect", daemon=True)
        thread.start()
        try:
            moved = mover.move(method, give_up_ns, watch)
        finally:
            ended.set()
            thread.join()
        # The end of a guest that is lost is no news.
        if broken and not (moved.outcome in GONE and isinstance(broken[0], PartywallError)):
            raise broken[0]
        return moved

    def _pinged(self, file: Path) -> contextlib.AbstractContextManager[Pings]:
        """A client asks the guest while the block runs."""
        address = GUEST.partition("/")[0]
        pings = Pings(address, PEER_PORT, self.plan.clients.pings, file, self.network.enter("clients"), BRIDGE)
        return contextlib.closing(pings)

    @contextlib.contextmanager
    def working(self, activity: Activity | None) -> Iterator[None]:
        """The guest does this while the block runs."""
        if activity is None or (activity.kernel is None and activity.command is None):
            yield
            return
        self._heard.read(activity.metric)
        if activity.command is not None:
            self._start(WORK_ID, activity.command)
        else:
            work = {"kernel": {"name": activity.kernel, "params": activity.params}}
            self._call(
                "workload.start",
                timeout_s=STARTS_S,
                id=WORK_ID, work=work, pace="flat_out", threads=activity.threads, slice_ns=SLICE_NS, work_dir="/work",
            )  # fmt: skip
        self._heard.forget(WORK_ID)
        try:
            yield
        finally:
            # A guest that was lost has nothing to stop.
            with contextlib.suppress(AgentError):
                self._call("workload.stop", id=WORK_ID)
            self._take(0)

    @contextlib.contextmanager
    def _using(self, http: HttpSpec | None) -> Iterator[None]:
        """Virtual users are at work while the block runs."""
        if http is None:
            yield
            return
        client = self._users_agent()
        client.call(
            "workload.start",
            timeout_s=30,
            id=USERS, work={"load": _users(http)}, pace="scheduled", work_dir=str(self.label.work), seed=self.plan.seed,
        )  # fmt: skip
        begin_ns = time.monotonic_ns() + LEAD_NS
        client.call("workload.schedule", id=USERS, switches=[{"at_ns": begin_ns, "intensity": 1.0}])
        self._heard.forget(USERS)
        try:
            yield
        finally:
            client.call("workload.stop", timeout_s=60, id=USERS)
            self._take(0)

    @contextlib.contextmanager
    def _beside(self, bystander: Bystander | None) -> Iterator[None]:
        """A neighbour of the guest works on the hosts while the block runs."""
        if bystander is None:
            yield
            return
        if BYSTANDER not in self._attached:
            cpus = ",".join(map(str, self._settings.host_cpus))
            command = [str(binary.find()), "serve", "--die-with-parent", "--only", "probe", "--cpus", cpus]
            self._session.attach(BYSTANDER, command)
            self._attached.add(BYSTANDER)
        client = self._session.client(BYSTANDER)
        work = {"kernel": {"name": bystander.kernel, "params": bystander.params}}
        client.call(
            "workload.start",
            timeout_s=ANSWERS_S, id=BYSTANDER, work=work, pace="flat_out", threads=bystander.threads,
            slice_ns=SLICE_NS, work_dir=str(self.label.work),
        )  # fmt: skip
        self._heard.forget(BYSTANDER)
        try:
            yield
        finally:
            client.call("workload.stop", timeout_s=ANSWERS_S, id=BYSTANDER)
            self._take(0)

    def _http(self, activity: Activity | None) -> HttpSpec | None:
        """The virtual users of a workload."""
        usual = self.plan.clients.http
        return activity.users(usual) if activity else usual

    def _users_agent(self) -> AgentClient:
        """An agent where the clients are."""
        if USERS not in self._attached:
            command = [str(binary.find()), "serve", "--die-with-parent", "--only", "load"]
            self._session.attach(USERS, [*self.network.enter("clients"), *command])
            self._attached.add(USERS)
        return self._session.client(USERS)

    def _start(self, workload: str, argv: Sequence[str]) -> None:
        """Starts a command in the guest."""
        work = {"command": {"argv": list(argv)}}
        self._call("workload.start", id=workload, work=work, pace="flat_out", work_dir="/work")

    def _call(self, method: str, *, timeout_s: float = ANSWERS_S, **params: Any) -> Any:
        return self._session.client(NAME).call(method, timeout_s=timeout_s, **params)

    def _take(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Collects what the guest sends for a time. TrialError if what answers the clients ends."""
        deadline = time.monotonic() + seconds
        while True:
            for name, kind, params in self._session.take(max(0.0, min(0.05, deadline - time.monotonic()))):
                self._heard.take(name, kind, params)
            if time.monotonic() >= deadline or until():
                return

    def _made(self, settings: Settings, label: Label) -> MovableGuest:
        limits = any(method.dirty_limit is not None for method in self.plan.methods.values())
        self._guest = MovableGuest(settings, label, self.network, self.plan.guest.storage, dirty_ring=limits)
        return self._guest

    def _again(self) -> None:
        """Starts a new guest in place of one that was lost."""
        self._session.close()
        self._session = Session(self.label, make=self._made)
        self._heard = Messages()
        self._attached.clear()
        self.boot()

    def _expected_s(self, spent_s: list[float]) -> float:
        watched_s = (self.plan.before + self.plan.after) / 1e9
        return float(np.median(spent_s)) if spent_s else watched_s + MOVE_S


def _succeeds(argv: Sequence[str], within_s: float) -> bool:
    """True if a program ends within some time, with exit code 0."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(argv, capture_output=True, check=False, timeout=within_s).returncode == 0
    return False


def _users(http: HttpSpec) -> dict[str, Any]:
    """The program of virtual users, who stay until they are stopped."""
    url = f"http://{GUEST.partition('/')[0]}:{http.port}{http.path}"
    quick = Quick(
        url, FOREVER_NS, users=http.users, rate=http.rate, timeout_ns=http.timeout, keep_alive=http.keep_alive
    )
    return program(quick)


def calibrations(plan: MigrationPlan) -> dict[int, tuple[int, str]]:
    """By number: the round and the method of a calibration move. Numbers below 0 are not of the plan."""
    order = [(place, name) for place in range(plan.calibration) for name in families_of(plan)]
    return {-count: move for count, move in enumerate(order, 1)}


def families_of(plan: MigrationPlan) -> dict[str, Method]:
    """Methods for calibration, one of each sort whose fixed costs differ. The link alone sets their rate."""
    families = {PRECOPY: Method.model_construct(**{**Method().model_dump(), "bandwidth": UNLIMITED})}
    for method in plan.methods.values():
        if method.postcopy is not None:
            families[POSTCOPY] = families[PRECOPY].model_copy(update={"postcopy": method.postcopy})
            break
    return families


def _settings(plan: MigrationPlan, host: Host) -> Settings:
    """The guest's CPUs are the last of those allowed, so that QEMU's own threads and the clients have the others."""
    cpus = sorted(os.sched_getaffinity(0))
    own, others = tuple(cpus[-plan.guest.vcpus :]), tuple(cpus[: -plan.guest.vcpus])
    return Settings(
        name=NAME,
        backend="qemu",
        cpus=own,
        host_cpus=others or own,
        vcpus=plan.guest.vcpus,
        memory=plan.guest.memory,
        files=False,
        accel=qemu.choose(plan.guest.accel, host).name,
        root=plan.guest.root,
    )
