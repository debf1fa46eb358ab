"""A guest of the user's own, moved between two hosts of the user's own, by libvirt or by QEMU's monitors.

Nothing is started in the guest, and nothing is changed but what the move changes. Whoever uses the guest is stood for
by echo requests, if its address is given. Before it moves it is watched for some seconds, for predictions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from partywall.agent import binary
from partywall.clock import Monotonic
from partywall.errors import AgentError, CapabilityError, TrialError
from partywall.events import Broken, Doing, Emit, Left, Note
from partywall.host import waits
from partywall.host.label import Label
from partywall.migrate.check import moves_of
from partywall.migrate.document import HostSpec, HostsSpec, Method, MigrationPlan, Move, Place, Survey
from partywall.migrate.measure.channel import Channel
from partywall.migrate.measure.end import ENDED, End
from partywall.migrate.measure.libvirt_end import TRIES_ITSELF, TRIES_S, LibvirtEnd
from partywall.migrate.measure.move import FIRST_PORT, GONE, LOOK_S, RECOVER_S, STAY_S, TRY_S, Again, Moved, Mover
from partywall.migrate.measure.pings import Pings, answers
from partywall.migrate.measure.qemu_end import QemuEnd
from partywall.migrate.measure.refusals import refusals
from partywall.migrate.measure.seen import MOVE_S, Seen, answers_of, watcher
from partywall.migrate.measure.storage import Mirror, end_copies
from partywall.migrate.measure.survey import survey
from partywall.migrate.measure.watching import watched
from partywall.sandbox.reaper import clean
from partywall.session import Session

ICMP = 0
ANSWER_S = 30.0
OTHER: Mapping[Place, Place] = {"a": "b", "b": "a"}


class OwnGuest:
    """A guest with an end on each host. It has no agent."""

    client = None

    def __init__(
        self, ends: Mapping[Place, End], at: Place, address: str | None, *, moves_storage: bool = False
    ) -> None:
        self.ends = ends
        self.moves_storage = moves_storage
        self.at: Place = at
        self._address = address

    def current(self) -> End:
        return self.ends[self.at]

    def expect(self) -> End:
        """The other end. libvirt starts a QEMU there itself; a QEMU by its monitor waits there already."""
        return self.ends[OTHER[self.at]]

    def mirror(self, port: int) -> Mirror | None:
        """Of all disks that the guest writes, between QEMUs; libvirt copies them itself."""
        here, there = self.current(), self.expect()
        if not (self.moves_storage and isinstance(here, QemuEnd) and isinstance(there, QemuEnd)):
            return None
        return Mirror(here.monitor, there.monitor, there.address, port)

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def arrived(self) -> None:
        """A QEMU by its monitor that has given its guest up ends, as after any move; libvirt ends it itself."""
        left, self.at = self.current(), OTHER[self.at]
        if isinstance(left, QemuEnd):
            left.kill()
        self._restore(self.current())

    def stayed(self) -> None:
        self._restore(*self.ends.values())

    def _restore(self, *ends: End) -> None:
        """Settings of QEMUs that methods changed are the user's again."""
        for end in ends:
            if isinstance(end, QemuEnd):
                with contextlib.suppress(TrialError):
                    end.restore()

    def answers(self) -> bool | None:
        """Whether it answers an echo request within some time."""
        return None if self._address is None else answers(self._address, ANSWER_S)


def move_domain(name: str, source: str, destination: str, method: Method, give_up_ns: int) -> Moved:
    """Moves a libvirt domain from one daemon to another, by their URIs. CapabilityError if it cannot be moved."""
    with (
        contextlib.closing(LibvirtEnd("a", source, name)) as a,
        contextlib.closing(LibvirtEnd("b", destination, name)) as b,
    ):
        a.other(b)
        if reasons := _refusals(a, b, {"plan": method}, moves_storage=False):
            raise CapabilityError(*reasons)
        return Mover(OwnGuest({"a": a, "b": b}, "a", None), Monotonic()).move(method, give_up_ns)


def _refusals(here: End, there: End, methods: Mapping[str, Method], *, moves_storage: bool) -> list[str]:
    """What keeps the guest from being moved, and what of it only the hypervisor can tell."""
    source, destination = here.info(), there.info()
    reasons = refusals(source, destination, methods, moves_storage=moves_storage)
    if not source.runs:
        return reasons
    if isinstance(here, LibvirtEnd) and isinstance(there, LibvirtEnd) and (why := there.cpu_refusal(here)):
        reasons.append(
            f"{destination.host} cannot give the guest its CPU: {why}; choose a CPU model that both hosts have"
        )
    if isinstance(there, QemuEnd) and there.state() != "inmigrate":
        reasons.append(
            f"the QEMU on {destination.host} does not wait for a guest; start it as the source was started, with "
            "-incoming defer -S"
        )
    return reasons


class OwnSeries:
    """The moves of a plan with hosts of the user's own. Use as a context manager."""

    def __init__(self, plan: MigrationPlan, run: str, work_root: Path) -> None:
        if plan.hosts is None:
            raise TrialError(f"run {run}: the plan names no hosts")
        self.plan = plan
        self.hosts: HostsSpec = plan.hosts
        self.label = Label.create(run, work_root)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(clean, self.label)
            ends: dict[Place, End] = {
                "a": self._end("a", self.hosts.a, stack),
                "b": self._end("b", self.hosts.b, stack),
            }
            self._continue_broken(ends)
            self._cancel_halted(ends)
            self.guest = self._guest(ends)
            self._continue_arrived()
            self.refuse()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def refuse(self) -> None:
        """CapabilityError with everything that keeps the guest from being moved now."""
        reasons = _refusals(
            self.guest.current(), self.guest.expect(), self.plan.methods, moves_storage=self.guest.moves_storage
        )
        if reasons:
            raise CapabilityError(*reasons)

    def about(self) -> dict[str, Any]:
        """Facts that figures depend on."""
        infos = {end.place: end.info() for end in self.guest.ends.values()}
        here = infos[self.guest.at]
        # A hypervisor that does not tell its limits still moves the guest.
        usual = None
        with contextlib.suppress(TrialError):
            usual = self._watchable().usual()
        return {
            "accelerator": "own",
            "emulated": here.emulated,
            "qemu": here.version,
            "memory_bytes": here.memory or 0,
            "defaults": {"max-bandwidth": usual.bandwidth, "downtime-limit": usual.downtime_ms} if usual else {},
            "hosts": {place: info.host for place, info in infos.items()},
            "clocks_ahead_ns": {
                end.place: [end.ahead.ns, end.ahead.bound_ns]
                for end in self.guest.ends.values()
                if isinstance(end, QemuEnd) and end.ahead
            },
        }

    def survey(self, emit: Emit) -> Survey | None:
        """What is known of the guest before it moves. None if its hypervisor does not tell, which is not needed."""
        workload = next(iter(self.plan.workloads))
        try:
            return watched(workload, self._watchable(), lambda file: self._count(workload, file), emit)
        except (TrialError, AgentError, OSError) as error:
            emit(Note(f"nothing is predicted: {error}", is_warning=True))
            return None

    def _count(self, workload: str, file: Path) -> Survey:
        """By the pages of a file with the guest's memory, which an agent on this machine reads."""
        with contextlib.closing(Session(self.label)) as session:
            session.attach("host", [str(binary.find()), "serve", "--die-with-parent", "--only", "memory"])
            return survey(workload, file, session.client("host"))

    def _watchable(self) -> QemuEnd | LibvirtEnd:
        end = self.guest.current()
        if not isinstance(end, QemuEnd | LibvirtEnd):
            raise TrialError(f"host {end.place}: its hypervisor does not tell what its guest does")
        return end

    def carry_out(
        self, emit: Emit, keep: Callable[[Seen], None], done: Collection[int] = (), expected_s: Mapping[str, float] = {}
    ) -> None:
        """All moves of the plan, back and forth, but those with the numbers `done`. Ends early if the guest is gone.

        expected_s: what a move takes, by method, if it is predicted.
        """
        every = moves_of(self.plan)
        left = {number: move for number, move in every.items() if number not in done}
        mover = Mover(self.guest, Monotonic())
        for place, (number, (round_number, (workload, method))) in enumerate(left.items()):
            emit(Doing(f"move {number + 1} of {len(every)}: {method}, from host {self.guest.at}"))
            watched_s = (self.plan.before + self.plan.after) / 1e9
            later = list(left.values())[place:]
            emit(Left(sum(watched_s + expected_s.get(name, MOVE_S) for _, (_, name) in later)))
            self.refuse()
            seen = self._observe(mover, workload, method, round_number, number, emit)
            keep(seen)
            if seen.move.outcome in GONE:
                emit(Broken(f"move {number + 1} ({method}): {seen.move.outcome}: {seen.move.reason}"))
                return
            if seen.move.reason:
                emit(Note(f"move {number + 1} ({method}): {seen.move.reason}", is_warning=True))

    def _continue_broken(self, ends: Mapping[Place, End]) -> None:
        """A guest that was handed over by post-copy, and whose link broke then, waits for the rest of its memory.

        It is continued. CapabilityError that says what came of that.
        """
        place = next((place for place, end in ends.items() if _waits_to_send(end)), None)
        if place is None:
            return
        here, there = ends[place], ends[OTHER[place]]
        if isinstance(here, LibvirtEnd) and isinstance(there, LibvirtEnd):
            methods = self.plan.methods.values()
            method = next((each for each in methods if each.postcopy), Method(postcopy={}))
            here.other(there)
            here.prepare(method.model_copy(update={"downtime": None}), with_storage=self.plan.guest.storage == "moved")
        here_named, there_named = self._named(place), self._named(OTHER[place])
        said = f"the guest was handed over from {here_named} to {there_named}, and the link between them broke"
        if why := self._continued(here, there):
            raise CapabilityError(
                f"{said}: it waits on {there_named} for the rest of its memory, and cannot be continued: {why}. End "
                f"neither of the two; once the link is back, start this again, or {here.by_hand(there)}"
            )
        OwnGuest(ends, place, None).arrived()
        raise CapabilityError(
            f"{said}; its move continued now, and it is on {there_named}. Start this again to move it"
        )

    def _continued(self, here: End, there: End) -> str:
        """Sends the rest of a guest over a new connection. Why that was not possible; empty if it was."""
        why, is_sent = "the link carries nothing", False
        again, slowness = Again(here, there), waits.slowness()
        begun = time.monotonic()
        while time.monotonic() - begun < self._patience_s(why, slowness, is_sent=is_sent):
            try:
                look = here.look()
                # An earlier try of libvirt's own may have succeeded meanwhile.
                if look.state in ENDED:
                    return "" if look.state == "completed" or _has_left(here, there) else look.reason or look.state
                is_sent = look.state != "postcopy-paused"
                if not is_sent:
                    why = look.reason or why
                    again.connect(FIRST_PORT)
                here.wait(TRY_S * slowness)
            except TrialError as error:
                if _has_left(here, there):
                    return ""
                why = str(error)
                time.sleep(TRY_S * slowness)
        return f"it is not done after {self.plan.give_up / 1e9:g} s" if is_sent else why

    def _patience_s(self, why: str, slowness: float, *, is_sent: bool) -> float:
        """For how long a broken move is followed. why: it does not go on. slowness: of this host."""
        if is_sent:
            return self.plan.give_up / 1e9
        return TRIES_S if TRIES_ITSELF in why else RECOVER_S * slowness

    def _cancel_halted(self, ends: Mapping[Place, End]) -> None:
        """A guest whose disks move along stands still before its hand-over if nobody finishes their copies.

        That is so if Partywall was killed. CapabilityError that says so, after the move was cancelled.
        """
        for end in ends.values():
            if not isinstance(end, QemuEnd) or end.look().state != "pre-switchover":
                continue
            end.cancel()
            deadline = time.monotonic() + STAY_S
            while end.state() != "running" and time.monotonic() < deadline:
                end.wait(LOOK_S)
            end_copies(end.monitor, force=True)
            end.forget_switchover()
            raise CapabilityError(
                f"the guest on {self._named(end.place)} stood still before its hand-over, because its move was "
                "interrupted; that move is cancelled, and the guest is "
                f"{end.state()}. Start the QEMU that waits for it again, with a new image, before you move it again"
            )

    def _continue_arrived(self) -> None:
        """A guest that arrived when nobody followed its move, because Partywall was killed, waits for its start.

        CapabilityError that says so: what is left of such a move has to be looked at before another one.
        """
        here, there = self.guest.current(), self.guest.expect()
        both = isinstance(here, QemuEnd) and isinstance(there, QemuEnd)
        if both and here.state() == "paused" and there.state() == "postmigrate":
            here.resume()
            raise CapabilityError(
                f"the guest had arrived on {self._named(here.place)} when its move was interrupted, and waited there; "
                f"it continues now. End the QEMU that it left, {self._named(there.place)}, before you move it again"
            )

    def _observe(self, mover: Mover, workload: str, method: str, round_number: int, number: int, emit: Emit) -> Seen:
        source = self.guest.at
        with self._pinged(number) as pings:
            time.sleep(self.plan.before / 1e9 if pings else 0)
            moved = mover.move(self.plan.methods[method], self.plan.give_up, watcher(emit))
            time.sleep(self.plan.after / 1e9 if pings and moved.outcome not in GONE else 0)
            tables = answers_of(pings, emit) if pings else {}
        move = Move(workload=workload, method=method, round=round_number, number=number, source=source, **asdict(moved))
        return Seen(move, dict(tables))

    def _pinged(self, number: int) -> contextlib.AbstractContextManager[Pings | None]:
        address = self.plan.clients.address
        if address is None:
            return contextlib.nullcontext()
        file = self.label.work / f"pings-{number}.npy"
        return contextlib.closing(Pings(address, ICMP, self.plan.clients.pings, file, ()))

    def _guest(self, ends: Mapping[Place, End]) -> OwnGuest:
        with_guest = [place for place, end in ends.items() if _has_guest(end)]
        if len(with_guest) > 1:
            raise CapabilityError(
                f"the guest runs on both hosts, {self._named('a')} and {self._named('b')}; stop all but one"
            )
        if not with_guest:
            name = f"domain {self.plan.guest.domain}" if self.plan.guest.domain else "the guest"
            raise CapabilityError(f"{name} runs on neither {self._named('a')} nor {self._named('b')}; start it on one")
        a, b = ends["a"], ends["b"]
        if isinstance(a, LibvirtEnd) and isinstance(b, LibvirtEnd):
            a.other(b)
            b.other(a)
        moves_storage = self.plan.guest.storage == "moved"
        return OwnGuest(ends, with_guest[0], self.plan.clients.address, moves_storage=moves_storage)

    def _end(self, place: Place, host: HostSpec, stack: contextlib.ExitStack) -> End:
        if host.uri is not None:
            end = LibvirtEnd(
                place, host.uri, self.plan.guest.domain or "", address=host.address, peer=not self.hosts.direct
            )
            stack.callback(end.close)
            return end
        channel = stack.enter_context(Channel(f"host-{place}", host.qmp or "", host.ssh, self.label.work))
        if channel.monitor is None:
            raise TrialError(f"host {place}: its QEMU's monitor is closed")
        return QemuEnd(place, channel.monitor, host.address or "", self._named(place), channel.ahead, channel.resident)

    def _named(self, place: Place) -> str:
        host: HostSpec = getattr(self.hosts, place)
        return host.uri or f"{host.ssh or 'this machine'} ({host.qmp})"


def _waits_to_send(end: End) -> bool:
    """Whether it has the rest of the memory of a guest that runs on the other end, and no connection to that."""
    with contextlib.suppress(TrialError):
        return end.look().state == "postcopy-paused" and end.state() != "running"
    return False


def _has_left(here: End, there: End) -> bool:
    """Whether a guest runs on the other end, and nothing of it is left here."""
    with contextlib.suppress(TrialError):
        return not _waits_to_send(here) and not _has_guest(here) and there.state() == "running"
    return False


def _has_guest(end: End) -> bool:
    if isinstance(end, LibvirtEnd):
        return end.has_domain()
    return end.state() in ("running", "paused")
