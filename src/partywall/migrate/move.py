"""One move of a guest, watched until the guest has answered on the other host, or stays.

QEMU was seen to report guests as completed and running that were dead. So a move counts only after its guest has
answered. The guest never runs twice: the destination is started with its CPUs stopped, and gets the command to continue
only after the source has given the guest up. If the destination ends before that, the guest continues on the source.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from partywall import units
from partywall.agent.clock import DRIFT_PPB, Alignment, Offset
from partywall.clock import Clock
from partywall.errors import AgentError, TrialError
from partywall.migrate import qmp
from partywall.migrate.guest import MovableGuest, Side
from partywall.migrate.network import LINK
from partywall.migrate.storage import Mirror
from partywall.model.migration import Method, Outcome, Pass, Progress

GONE: tuple[Outcome, ...] = ("paused", "lost")
"""Outcomes after which the guest does not run: it is ended, and another started."""
LOOK_S = 0.02
RECOVER_S = 20.0
STALL_NS = 5_000_000_000
"""A move by post-copy whose memory has not arrived for this long has lost its link, whether TCP has noticed or not."""
ORPHAN_S = 2.0
STAY_S = 5.0
DEATH_S = 0.5
"""From the end of a QEMU's monitor to that of its process."""
ARRIVE_S = 15.0
ANSWER_S = 30.0
"""A guest that stood still for long has much to catch up with, most of all if it is emulated."""
LOOKS = 24
FIRST_PORT = 40000
PORTS = 20000
TICKS = os.sysconf("SC_CLK_TCK")

Watch = Callable[[Progress], None]


@dataclass
class Moved:
    """What is known of a move so far; see `model.migration.Move`."""

    begin_ns: int
    end_ns: int = 0
    outcome: Outcome = "failed"
    reason: str = ""
    setup_ns: int | None = None
    downtime_ns: int | None = None
    total_ns: int | None = None
    paused_ns: int | None = None
    resumed_ns: int | None = None
    stopped_ns: int | None = None
    uncertainty_ns: int | None = None
    offset_ns: int | None = None
    passes: list[Pass] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    memory: dict[str, int | float] = field(default_factory=dict)
    storage_ns: int | None = None
    storage_bytes: int | None = None
    cpu_ns: dict[str, int] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """Bytes of memory sent so far."""
        return self.progress[-1].sent if self.progress else 0


@dataclass(frozen=True)
class Watching:
    """How a move is watched: what is called with each look, and after how long it is cancelled."""

    give_up_ns: int
    watch: Watch


class Steps:
    """What a method does while its move goes on: stops the guest, hands it over, cuts its connection, cancels."""

    def __init__(self, method: Method, give_up_ns: int, here: Side, there: Side) -> None:
        self._method = method
        self._give_up_ns = give_up_ns
        self._here, self._there = here, there
        self._pause_ns = method.postcopy.pause if method.postcopy else 0
        self._sent = 0
        self._moved_ns: int | None = None
        self._is_cut = self._is_cancelled = False
        self.has_stopped = self.has_handed_over = False

    def follow(self, state: str | None, moved: Moved, now_ns: int) -> None:
        """Does what is due in this state of the move."""
        if state == "postcopy-active":
            self._follow_handover(moved, now_ns)
        if state in ("setup", "active") and not self.has_handed_over:
            self._cancel(moved, now_ns)
        if state == "active" and not self._is_cancelled:
            self._begin_last_part(moved)

    def _begin_last_part(self, moved: Moved) -> None:
        postcopy = self._method.postcopy
        if postcopy and not self.has_handed_over and _is_due(postcopy.after_passes, moved):
            self._here.monitor.execute("migrate-start-postcopy")
            self.has_handed_over = True
        if not self.has_stopped and _is_due(self._method.stop_after, moved):
            self._here.monitor.execute("stop")
            self.has_stopped = True

    def _cancel(self, moved: Moved, now_ns: int) -> None:
        is_late = now_ns - moved.begin_ns > self._give_up_ns
        if (self._method.cancel or is_late) and not self._is_cancelled:
            self._here.monitor.execute("migrate_cancel")
            self._is_cancelled = True
            moved.reason = "" if self._method.cancel else _not_done(self._give_up_ns, moved)

    def _follow_handover(self, moved: Moved, now_ns: int) -> None:
        """Starts the guest on the destination, and cuts a link that carries nothing, so that a new one can be made."""
        if self._moved_ns is None:
            self._there.monitor.execute("cont")
        if self._moved_ns is None or moved.sent > self._sent:
            self.moving(now_ns)
            self._sent = moved.sent
        is_stalled = now_ns - (self._moved_ns or now_ns) > STALL_NS
        if not self._is_cut and (self._pause_ns or is_stalled) and self._runs_there():
            self._is_cut = True
            # The destination sees the end of the connection. QEMU 7.2 crashes if it gets the command there.
            self._here.monitor.execute("migrate-pause")

    def _runs_there(self) -> bool:
        """A destination that is cut off before it runs the guest ends."""
        return bool(self._there.monitor.execute("query-status")["status"] == "running")

    def moving(self, now_ns: int) -> None:
        """The memory that is left arrives."""
        self._moved_ns, self._is_cut = now_ns, False

    def take_pause(self) -> int:
        """The pause that is wanted, once; then 0."""
        pause_ns, self._pause_ns = self._pause_ns, 0
        return pause_ns


class Mover:
    """Moves one guest, back and forth."""

    def __init__(self, guest: MovableGuest, clock: Clock) -> None:
        self._guest = guest
        self._clock = clock
        self._number = 0
        self._usual = qmp.defaults(guest.current().monitor)

    def move(self, method: Method, give_up_ns: int, watch: Watch = lambda _: None) -> Moved:
        """Moves the guest to the other host, or reports why it stayed."""
        moved = Moved(begin_ns=self._clock.now_ns())
        try:
            before = self._offset()
            moved.offset_ns = before.offset_ns
        except AgentError as error:
            moved.end_ns, moved.outcome = self._clock.now_ns(), "lost"
            moved.reason = f"the guest did not answer before the move: {error}"
            return moved
        guest = self._guest
        here = guest.current()
        try:
            there = guest.expect()
        except TrialError as error:
            guest.stayed()
            moved.end_ns, moved.reason = self._clock.now_ns(), str(error)
            return moved
        mirror = self._mirror(here, there) if guest.moves_storage else None
        try:
            uri = self._prepare(moved, method, here, there, mirror)
            # Nothing is sent to the guest while it moves: what a QEMU has not read when the guest leaves it is lost.
            guest.hold()
            self._carry(moved, method, uri, Watching(give_up_ns, watch), here, there, mirror)
        except TrialError as error:
            self._broken(moved, here, there, str(error))
        except BaseException:
            guest.release()
            raise
        moved.end_ns = self._clock.now_ns()
        if mirror is not None:
            mirror.end(completed=moved.outcome == "completed")
        if moved.outcome == "completed":
            guest.arrived()
        elif moved.outcome != "paused":
            guest.stayed()
        if moved.outcome not in GONE:
            self._ask(moved, before)
        return moved

    def _mirror(self, here: Side, there: Side) -> Mirror:
        return Mirror(here.monitor, there.monitor, LINK[there.place], self._port())

    def _prepare(self, moved: Moved, method: Method, here: Side, there: Side, mirror: Mirror | None) -> str:
        """Sets both ends up, and copies a disk that moves along. The address that the destination listens on."""
        for side in (here, there):
            qmp.prepare(method, side.monitor, self._usual, with_storage=mirror is not None)
        uri = self._uri(there)
        there.monitor.execute("migrate-incoming", uri=uri)
        if mirror is not None:
            began_ns = self._clock.now_ns()
            moved.storage_bytes = mirror.begin()
            moved.storage_ns = self._clock.now_ns() - began_ns
        return uri

    def _carry(
        self, moved: Moved, method: Method, uri: str, watching: Watching, here: Side, there: Side, mirror: Mirror | None
    ) -> None:
        """The move itself, from QEMU's command to its end."""
        list(qmp.announced(here.monitor))
        sides = {"source": here, "destination": there}
        cpu_ns = {name: _cpu_ns(side) for name, side in sides.items()}
        moved.begin_ns = self._clock.now_ns()
        here.monitor.execute("migrate", uri=uri)
        try:
            self._follow(moved, method, watching, here, there, mirror)
        finally:
            moved.cpu_ns = {name: max(0, _cpu_ns(side) - cpu_ns[name]) for name, side in sides.items()}

    def _follow(
        self, moved: Moved, method: Method, watching: Watching, here: Side, there: Side, mirror: Mirror | None
    ) -> None:
        """Until the move has ended, one way or the other."""
        steps = Steps(method, watching.give_up_ns, here, there)
        while True:
            status = here.monitor.execute("query-migrate")
            self._take(moved, here, there)
            if look := qmp.progress(status):
                moved.progress.append(look)
                watching.watch(look)
            state = status.get("status")
            if state in qmp.ENDED:
                break
            if mirror is not None and state == "pre-switchover":
                mirror.finish()
            steps.follow(state, moved, self._clock.now_ns())
            if state == "postcopy-paused" and not self._recovered(moved, steps, here, there):
                moved.outcome = "paused"
                return
            here.monitor.wait(LOOK_S)
        if state == "completed":
            self._take_figures(moved, status)
            self._arrive(moved, here, there, can_return=not steps.has_handed_over)
        elif state == "cancelled":
            moved.outcome = "cancelled" if method.cancel else "gave up"
        else:
            moved.reason = status.get("error-desc") or "QEMU gives no reason"
        if moved.outcome != "completed" and steps.has_stopped:
            here.monitor.execute("cont")
        self._take(moved, here, there)

    def _recovered(self, moved: Moved, steps: Steps, here: Side, there: Side) -> bool:
        """Post-copy lost its link, or paused: a new connection continues it. False if there is none for some time."""
        if pause_ns := steps.take_pause():
            here.monitor.wait(pause_ns / 1e9)
        deadline_ns = self._clock.now_ns() + round(RECOVER_S * 1e9)
        reason = ""
        while self._clock.now_ns() < deadline_ns:
            uri = self._uri(there)
            try:
                there.monitor.execute("migrate-recover", uri=uri)
                here.monitor.execute("migrate", uri=uri, resume=True)
            except TrialError as error:
                reason = f": {error}"
            here.monitor.wait(1.0)
            if here.monitor.execute("query-migrate").get("status") != "postcopy-paused":
                steps.moving(self._clock.now_ns())
                if not pause_ns:
                    moved.reason = "the link broke after the hand-over, and the move continued over a new connection"
                return True
        moved.reason = (
            f"the link broke after the hand-over and did not return within {RECOVER_S:g} s: the guest waits on host "
            f"{there.place} for the rest of its memory, which is on host {here.place}{reason}"
        )
        return False

    def _take_figures(self, moved: Moved, status: dict[str, Any]) -> None:
        """QEMU's own figures of a completed move."""
        moved.total_ns, moved.downtime_ns, moved.setup_ns = (
            status[key] * 1_000_000 for key in ("total-time", "downtime", "setup-time")
        )
        moved.memory = {key: value for key, value in status["ram"].items() if isinstance(value, int | float)}

    def _arrive(self, moved: Moved, here: Side, there: Side, *, can_return: bool) -> None:
        """Starts the guest on the destination, which may still be reading. If it cannot, the source continues it.

        can_return: whether the source still has all of the guest's memory, which it has not after post-copy.
        """
        try:
            there.monitor.execute("cont")
            if self._await_state(there, ("running", "paused"), ARRIVE_S) == "paused":
                # A guest that was stopped before it moved arrives so.
                there.monitor.execute("cont")
        except TrialError as error:
            moved.reason = f"the guest did not start on host {there.place} after its memory had arrived: {error}"
            moved.outcome = "lost"
            if can_return:
                # Only after its QEMU has ended for certain may another one run the guest.
                there.process.kill()
                there.process.wait(ARRIVE_S)
                self._await_state(here, ("postmigrate",), STAY_S)
                here.monitor.execute("cont")
                moved.outcome = "failed"
                moved.reason += f"; it continues on host {here.place}"
            return
        moved.outcome = "completed"

    def _await_state(self, side: Side, wanted: Sequence[str], seconds: float) -> str:
        """The state in which a guest is found. TrialError if it is in none of these in time."""
        deadline_ns = self._clock.now_ns() + round(seconds * 1e9)
        while (state := str(side.monitor.execute("query-status")["status"])) not in wanted:
            if self._clock.now_ns() > deadline_ns:
                raise TrialError(f"its QEMU is still in the state {state} after {seconds:g} s")
            side.monitor.wait(LOOK_S)
        return state

    def _without_source(self, moved: Moved, there: Side) -> None:
        """The source has ended. If all memory had arrived before, the guest runs on the destination."""
        moved.outcome = "lost"
        moved.reason = "the QEMU of the source ended during the move"
        deadline_ns = self._clock.now_ns() + round(ORPHAN_S * 1e9)
        while there.process.poll() is None and self._clock.now_ns() < deadline_ns:
            with contextlib.suppress(TrialError):
                if there.monitor.execute("query-migrate").get("status") == "completed":
                    there.monitor.execute("cont")
                    moved.outcome = "completed"
                    moved.reason += ", after all memory had arrived"
                    return
            there.monitor.wait(LOOK_S)

    def _broken(self, moved: Moved, here: Side, there: Side, why: str) -> None:
        """QEMU on one side does not answer. The guest stays if the source still has it, or is gone."""
        moved.reason = why
        with contextlib.suppress(subprocess.TimeoutExpired):
            here.process.wait(DEATH_S)
        if here.process.poll() is not None:
            self._without_source(moved, there)
            return
        try:
            if not self._answers(here):
                here.monitor.unblock()
            here.monitor.execute("migrate_cancel")
            self._await_state(here, ("running",), STAY_S)
        except TrialError as error:
            moved.outcome = "lost"
            moved.reason = f"{why}; on the source: {error}"

    def _answers(self, side: Side) -> bool:
        try:
            side.monitor.execute("query-status")
        except TrialError:
            return False
        return True

    def _ask(self, moved: Moved, before: Offset) -> None:
        """Whether the guest answers, and how long it stood still."""
        try:
            after = self._offset()
        except AgentError as error:
            moved.reason = f"{moved.reason or 'QEMU says that all went well'}, but the guest does not answer: {error}"
            moved.outcome = "lost"
            return
        # The guest's clock stands still with the guest: afterwards more has to be added to its times to get ours.
        moved.stopped_ns = after.offset_ns - before.offset_ns
        # Both offsets are of their own time; the clocks may have drifted apart meanwhile.
        drift_ns = (moved.end_ns - moved.begin_ns) * DRIFT_PPB // 1_000_000_000
        moved.uncertainty_ns = after.bound_ns + before.bound_ns + drift_ns

    def _offset(self) -> Offset:
        """Of the guest's clock, now."""
        client = self._guest.client
        if client is None:
            raise AgentError(f"the guest of sandbox {self._guest.settings.name} has no agent")
        alignment = Alignment(client, self._clock, timeout_s=ANSWER_S)
        alignment.ask(LOOKS)
        return alignment.best

    def _take(self, moved: Moved, here: Side, there: Side) -> None:
        for side, name in ((here, "source"), (there, "destination")):
            for at_ns, event, content in qmp.announced(side.monitor):
                if at_ns < moved.begin_ns - 1_000_000:
                    continue
                match event, name:
                    case "MIGRATION_PASS", "source":
                        moved.passes.append(Pass(at_ns=at_ns, number=content["pass"]))
                    case "STOP", "source":
                        moved.paused_ns = at_ns
                    case "RESUME", "destination":
                        moved.resumed_ns = at_ns
                    case "RESUME", "source":
                        # A cancelled move lets the guest go on where it was.
                        moved.resumed_ns = at_ns

    def _uri(self, there: Side) -> str:
        return f"tcp:{LINK[there.place]}:{self._port()}"

    def _port(self) -> int:
        """A new one for each move: the last connection may still be closing."""
        self._number += 1
        return FIRST_PORT + self._number % PORTS


def _is_due(after_passes: int | None, moved: Moved) -> bool:
    """Whether so many passes over the memory are over."""
    return after_passes is not None and bool(moved.progress) and moved.progress[-1].passes > after_passes


def _not_done(give_up_ns: int, moved: Moved) -> str:
    text = f"it was not done after {units.format_duration(give_up_ns)}"
    if not moved.progress:
        return text
    last = moved.progress[-1]
    dirty, rate = (units.format_bytes(each) for each in (last.dirty_rate, last.rate))
    return f"{text}: the guest dirtied {dirty}/s, and {rate}/s were sent"


def _cpu_ns(side: Side) -> int:
    """CPU time of a QEMU so far; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{side.process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // TICKS
