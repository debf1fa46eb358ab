"""One move of a guest, watched until the guest has answered on the other host, or stays.

QEMU was seen to report guests as completed and running that were dead. So a move counts only after its guest has
answered. The guest never runs twice: the destination is started with its CPUs stopped, and gets the command to continue
only after the source has given the guest up. If the destination ends before that, the guest continues on the source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from partywall import units
from partywall.agent.client import AgentClient
from partywall.agent.clock import DRIFT_PPB, Alignment, Offset
from partywall.clock import Clock
from partywall.errors import AgentError, TrialError
from partywall.host import waits
from partywall.migrate.document import Method, Outcome, Pass, Progress
from partywall.migrate.measure.end import ENDED, End, Look
from partywall.migrate.measure.storage import Mirror

GONE: tuple[Outcome, ...] = ("paused", "lost")
"""Outcomes after which the guest does not run: it is ended, and another started."""
LOOK_S = 0.02
RECOVER_S, TRY_S = 20.0, 1.0
"""How long a broken post-copy is tried again, and how long one try has. A slow host gets as many times as much."""
STALL_NS = 5_000_000_000
"""A move by post-copy whose memory has not arrived for this long has lost its link, whether TCP has noticed or not."""
STUCK = f"the link carried nothing for {STALL_NS // 10**9} s before the hand-over"
BEFORE = ("setup", "active", "pre-switchover", "device")
"""States in which the guest is on the source, and a move can be cancelled."""
STRANDED_NS = STALL_NS + round(RECOVER_S * 1e9)
"""A guest that the destination has not started after this long without a byte goes on where it was."""
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

Watch = Callable[[Progress], None]


@dataclass
class Moved:
    """What is known of a move so far; see `migrate.document.Move`."""

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
    link_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """Bytes of memory sent so far."""
        return self.progress[-1].sent if self.progress else 0


@dataclass(frozen=True)
class Watching:
    """How a move is watched: what is called with each look, and after how long it is cancelled."""

    give_up_ns: int
    watch: Watch


class Guest(Protocol):
    """A guest with an end on each host. client: its agent, if it has one."""

    @property
    def client(self) -> AgentClient | None: ...

    def current(self) -> End:
        """The end that has the guest."""
        ...

    def expect(self) -> End:
        """The other end, ready for the guest."""
        ...

    @property
    def moves_storage(self) -> bool:
        """Whether its disks are copied along."""
        ...

    def mirror(self, port: int) -> Mirror | None:
        """Of disks that Partywall copies; libvirt copies them itself."""
        ...

    def hold(self) -> None:
        """Requests to the agent wait until the guest has arrived or stays."""
        ...

    def release(self) -> None: ...

    def arrived(self) -> None:
        """The guest is on the other end now."""
        ...

    def stayed(self) -> None: ...

    def answers(self) -> bool | None:
        """Whether a guest without an agent answers; None if there is nobody to ask."""
        ...


class Steps:
    """What a method does while its move goes on: stops the guest, hands it over, cuts its connection, cancels."""

    def __init__(self, method: Method, give_up_ns: int, here: End, there: End) -> None:
        self._method = method
        self._give_up_ns = give_up_ns
        self._here, self._there = here, there
        self._pause_ns = method.postcopy.pause if method.postcopy else 0
        self._sent = self._last_sent = 0
        self._moved_ns: int | None = None
        self._carried_ns: int | None = None
        self._state: str | None = None
        self._is_cut = self._is_cancelled = self._has_begun = False
        self.has_stopped = self.has_handed_over = self.is_stranded = False

    def follow(self, state: str | None, moved: Moved, now_ns: int) -> None:
        """Does what is due in this state of the move."""
        if state == "postcopy-active":
            self._follow_handover(moved, now_ns)
        if state in BEFORE and not self._is_cancelled:
            self._cancel_if_due(state, moved, now_ns)
        if state == "active" and not self._is_cancelled:
            self._begin_last_part(moved)

    def _cancel_if_due(self, state: str, moved: Moved, now_ns: int) -> None:
        """Cancels a move that is late, or that waits for a dead link while the guest stands still or is handed over."""
        is_stuck = self._is_stuck(state, moved, now_ns)
        # QEMU has stopped the guest for the last pass, and not the method before.
        stands = moved.paused_ns is not None and moved.resumed_ns is None and not self.has_stopped
        is_late = now_ns - moved.begin_ns > self._give_up_ns
        if self._method.cancel and state in ("setup", "active"):
            self._cancel("", moved)
        elif is_stuck and (stands or self.has_handed_over):
            self._cancel(STUCK, moved)
        elif is_late and not (stands or self.has_handed_over):
            self._cancel(_not_done(self._give_up_ns, moved), moved)

    def _is_stuck(self, state: str, moved: Moved, now_ns: int) -> bool:
        """Whether the link has carried nothing for some time in one state.

        The guest is still on the source. QEMU cannot hand it over between this look and the cancelling, because its
        migration waits in the kernel.
        """
        if self._carried_ns is None or moved.sent > self._last_sent or state != self._state:
            self._carried_ns, self._last_sent, self._state = now_ns, moved.sent, state
        return now_ns - self._carried_ns > STALL_NS

    def _begin_last_part(self, moved: Moved) -> None:
        postcopy = self._method.postcopy
        if postcopy and not self.has_handed_over and _is_due(postcopy.after_passes, moved):
            self._here.hand_over()
            self.has_handed_over = True
        if not self.has_stopped and _is_due(self._method.stop_after, moved):
            self._here.pause()
            self.has_stopped = True

    def _cancel(self, reason: str, moved: Moved) -> None:
        self._here.cancel()
        self._is_cancelled = True
        moved.reason = reason or moved.reason

    def _follow_handover(self, moved: Moved, now_ns: int) -> None:
        """Starts the guest on the destination, and cuts a link that carries nothing, so that a new one can be made."""
        self._begin_there()
        if self._moved_ns is None or moved.sent > self._sent:
            self.moving(now_ns)
            self._sent = moved.sent
        stalled_ns = now_ns - (self._moved_ns or now_ns)
        if self._is_cut or not (self._pause_ns or stalled_ns > STALL_NS):
            return
        if self._runs_there():
            self._is_cut = True
            self._here.cut()
        else:
            self.is_stranded = stalled_ns > STRANDED_NS

    def _begin_there(self) -> None:
        """Lets the guest run on the destination. This is repeated if it does not answer and has not ended."""
        if self._has_begun:
            return
        try:
            self._there.resume()
            self._has_begun = True
        except TrialError:
            if self._there.is_ours and self._there.has_ended():
                raise

    def _runs_there(self) -> bool:
        """A destination that is cut off before it runs the guest ends. One that does not answer may run it."""
        try:
            return self._there.state() == "running"
        except TrialError:
            if self._there.is_ours and self._there.has_ended():
                raise
            return True

    def moving(self, now_ns: int) -> None:
        """The memory that is left arrives."""
        self._moved_ns, self._is_cut = now_ns, False

    def take_pause(self) -> int:
        """The pause that is wanted, once; then 0."""
        pause_ns, self._pause_ns = self._pause_ns, 0
        return pause_ns


class Again:
    """The tries to continue a post-copy over another connection."""

    def __init__(self, here: End, there: End) -> None:
        self._here, self._there, self._to = here, there, ""

    def connect(self, port: int) -> None:
        """One try. TrialError if an end refuses it."""
        try:
            self._to = self._there.recover(port)
        except TrialError:
            # A destination that waits for a connection since an earlier try may refuse to be asked again.
            if not self._to:
                raise
        self._here.go_on(self._to)


class Mover:
    """Moves one guest, back and forth."""

    def __init__(self, guest: Guest, clock: Clock) -> None:
        self._guest = guest
        self._clock = clock
        self._number = 0
        self._is_handed_over = False

    def move(self, method: Method, give_up_ns: int, watch: Watch = lambda _: None) -> Moved:
        """Moves the guest to the other host, or reports why it stayed."""
        moved = Moved(begin_ns=self._clock.now_ns())
        self._is_handed_over = False
        try:
            before = self._offset()
            moved.offset_ns = before.offset_ns if before else None
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
        mirror, watching = guest.mirror(self._port()), Watching(give_up_ns, watch)
        try:
            uri = self._prepare(moved, method, here, there, mirror, watching)
            # Nothing is sent to the guest while it moves: what a QEMU has not read when the guest leaves it is lost.
            guest.hold()
            self._carry(moved, method, uri, watching, here, there, mirror)
        except TrialError as error:
            self._broken(moved, here, there, str(error))
        except BaseException:
            guest.release()
            self._abandon(here, there, mirror)
            raise
        moved.end_ns = self._clock.now_ns()
        if mirror is not None:
            mirror.end(completed=moved.outcome == "completed")
            if moved.outcome not in ("completed", *GONE) and not here.answers():
                # To end a copy, QEMU waits for what is on its way to the other disk, without any time limit.
                with contextlib.suppress(TrialError):
                    here.unblock()
                mirror.end(completed=False)
        if moved.outcome == "completed":
            guest.arrived()
        elif moved.outcome != "paused":
            guest.stayed()
        if moved.outcome not in GONE:
            self._ask(moved, before)
        return moved

    def _abandon(self, here: End, there: End, mirror: Mirror | None) -> None:
        """Nobody follows the move of a guest of the user's any more: it continues on the source, or where it has gone.

        A guest that Partywall started ends with its QEMUs, and nobody waits for them.
        """
        if here.is_ours:
            return
        has_arrived = False
        with contextlib.suppress(TrialError):
            has_arrived = here.look().state == "completed"
            if has_arrived:
                there.resume()
            elif not self._is_handed_over:
                here.cancel()
                self._await_end(here)
        if mirror is not None:
            mirror.end(completed=has_arrived)
        # While memory still arrives, QEMU does not let its settings be changed.
        if not self._is_handed_over:
            self._guest.stayed()

    def _await_end(self, here: End) -> None:
        """Until a move that was cancelled is over, or for some seconds."""
        deadline_ns = self._clock.now_ns() + round(STAY_S * 1e9)
        while here.look().state not in (*ENDED, "none") and self._clock.now_ns() < deadline_ns:
            here.wait(LOOK_S)

    def _prepare(
        self, moved: Moved, method: Method, here: End, there: End, mirror: Mirror | None, watching: Watching
    ) -> str:
        """Sets both ends up, and copies a disk that moves along. The address that the destination listens on."""
        for side in (here, there):
            side.prepare(method, with_storage=self._guest.moves_storage)
        uri = there.listen(self._port())
        if mirror is not None:
            began_ns = self._clock.now_ns()
            moved.storage_bytes = mirror.begin(method.bandwidth, watching.give_up_ns / 1e9, watching.watch)
            moved.storage_ns = self._clock.now_ns() - began_ns
        return uri

    def _carry(
        self, moved: Moved, method: Method, uri: str, watching: Watching, here: End, there: End, mirror: Mirror | None
    ) -> None:
        """The move itself, from QEMU's command to its end."""
        list(here.announced())
        sides = {"source": here, "destination": there}
        before = {name: (side.cpu_ns(), side.link_bytes()) for name, side in sides.items()}
        moved.begin_ns = self._clock.now_ns()
        here.migrate(uri)
        try:
            self._follow(moved, method, watching, here, there, mirror)
        finally:
            for name, side in sides.items():
                (cpu_ns, sent), after_ns, after_sent = before[name], side.cpu_ns(), side.link_bytes()
                if cpu_ns is not None and after_ns is not None:
                    moved.cpu_ns[name] = after_ns - cpu_ns
                if sent is not None and after_sent is not None:
                    moved.link_bytes[name] = after_sent - sent

    def _follow(
        self, moved: Moved, method: Method, watching: Watching, here: End, there: End, mirror: Mirror | None
    ) -> None:
        """Until the move has ended, one way or the other."""
        steps = Steps(method, watching.give_up_ns, here, there)
        while True:
            look = here.look()
            self._take(moved, here, there)
            if look.progress:
                moved.progress.append(look.progress)
                watching.watch(look.progress)
            self._is_handed_over |= look.state == "postcopy-active"
            if look.state in ENDED:
                break
            if mirror is not None and look.state == "pre-switchover":
                mirror.finish()
            steps.follow(look.state, moved, self._clock.now_ns())
            if steps.is_stranded:
                return self._return(moved, here, there)
            if look.state == "postcopy-paused" and not self._recovered(moved, steps, here, there):
                moved.outcome = "paused"
                return None
            here.wait(LOOK_S)
        return self._ended(look, moved, method, steps, here, there)

    def _ended(self, look: Look, moved: Moved, method: Method, steps: Steps, here: End, there: End) -> None:
        """What became of a move that is over."""
        if look.state == "completed":
            moved.setup_ns, moved.downtime_ns, moved.total_ns = look.setup_ns, look.downtime_ns, look.total_ns
            moved.memory = look.memory
            self._arrive(moved, here, there, can_return=not steps.has_handed_over)
        elif look.state == "cancelled":
            moved.outcome = "cancelled" if method.cancel else "gave up"
        else:
            moved.reason = look.reason or "the hypervisor gives no reason"
        if moved.outcome != "completed" and steps.has_stopped:
            here.resume()
        self._take(moved, here, there)

    def _recovered(self, moved: Moved, steps: Steps, here: End, there: End) -> bool:
        """Post-copy lost its link, or paused: a new connection continues it. False if there is none for some time."""
        if pause_ns := steps.take_pause():
            here.wait(pause_ns / 1e9)
        slowness = waits.slowness()
        began_ns, patience_s = self._clock.now_ns(), RECOVER_S * slowness
        reason, again = "", Again(here, there)
        while self._clock.now_ns() - began_ns < patience_s * 1e9:
            try:
                again.connect(self._port())
            except TrialError as error:
                reason = f": {error}"
            here.wait(TRY_S * slowness)
            look = here.look()
            if look.state != "postcopy-paused":
                steps.moving(self._clock.now_ns())
                if not pause_ns:
                    moved.reason = "the link broke after the hand-over, and the move continued over a new connection"
                return True
            reason = f": {look.reason}" if look.reason else reason
        moved.reason = (
            f"the link broke after the hand-over and did not return within {patience_s:.3g} s: the guest waits on host "
            f"{there.place} for the rest of its memory, which is on host {here.place}{reason}{_remedy(here, there)}"
        )
        return False

    def _return(self, moved: Moved, here: End, there: End) -> None:
        """Of a guest that was handed over, and that the destination has not started."""
        moved.reason = (
            f"the link carried nothing for {STRANDED_NS // 10**9} s after the hand-over, and the guest has not started "
            f"on host {there.place}"
        )
        self._continue(moved, here, there)

    def _arrive(self, moved: Moved, here: End, there: End, *, can_return: bool) -> None:
        """Starts the guest on the destination, which may still be reading. If it cannot, the source continues it.

        can_return: whether the source still has all of the guest's memory, which it has not after post-copy.
        """
        try:
            there.resume()
            if self._await_state(there, ("running", "paused"), ARRIVE_S) == "paused":
                # A guest that was stopped before it moved arrives so.
                there.resume()
        except TrialError as error:
            moved.reason = f"the guest did not start on host {there.place} after its memory had arrived: {error}"
            moved.outcome = "lost"
            if can_return:
                self._continue(moved, here, there)
            return
        moved.outcome = "completed"

    def _continue(self, moved: Moved, here: End, there: End) -> None:
        """The source continues a guest that the destination did not start, and of which it has all memory."""
        try:
            # Only after its QEMU has ended for certain may another one run the guest.
            there.kill()
        except TrialError as error:
            moved.outcome = "paused" if self._is_handed_over else "lost"
            moved.reason += (
                f"; the QEMU on host {there.place} may still run it: {error}; look there before you start it"
            )
            return
        if self._is_handed_over:
            here.cancel()
        # After a hand-over, and after a move that was completed, it does not continue by itself.
        if self._await_state(here, ("running", "postmigrate"), STAY_S) == "postmigrate":
            here.resume()
        moved.outcome = "failed"
        moved.reason += f"; it continues on host {here.place}"

    def _await_state(self, side: End, wanted: Sequence[str], seconds: float) -> str:
        """The state in which a guest is found. TrialError if it is in none of these in time."""
        deadline_ns = self._clock.now_ns() + round(seconds * 1e9)
        while (state := side.state()) not in wanted:
            if self._clock.now_ns() > deadline_ns:
                raise TrialError(f"its hypervisor says {state} after {seconds:g} s")
            side.wait(LOOK_S)
        return state

    def _without_source(self, moved: Moved, here: End, there: End) -> None:
        """The source has ended. If all memory had arrived before, the guest runs on the destination."""
        moved.outcome = "lost"
        moved.reason = f"the QEMU of the source ended during the move ({here.ending() or 'it is not known how'})"
        deadline_ns = self._clock.now_ns() + round(ORPHAN_S * 1e9)
        while not there.has_ended() and self._clock.now_ns() < deadline_ns:
            with contextlib.suppress(TrialError):
                if there.look().state == "completed":
                    there.resume()
                    moved.outcome = "completed"
                    moved.reason += ", after all memory had arrived"
                    return
            there.wait(LOOK_S)

    def _cut_off(self, moved: Moved) -> None:
        """The way to the source is gone. The guest may run on either host, and its move may go on."""
        answers = self._guest.answers()
        moved.outcome = "failed" if answers else "lost"
        heard = {True: "the guest answers", False: "the guest does not answer", None: "the guest was not checked"}[
            answers
        ]
        moved.reason += f"; {heard}; look on both hosts where it runs before you start or move it"

    def _broken(self, moved: Moved, here: End, there: End, why: str) -> None:
        """QEMU on one side does not answer. The guest stays if the source still has it, or is gone."""
        moved.reason = why
        if here.has_ended(DEATH_S):
            if here.is_ours:
                self._without_source(moved, here, there)
            else:
                self._cut_off(moved)
            return
        if self._is_handed_over:
            # Nothing may be cancelled now: the guest may run on the destination, and its memory go on arriving.
            is_gone = there.is_ours and there.has_ended()
            moved.outcome = "lost" if is_gone else "paused"
            remedy = "and its QEMU there ended" if is_gone else "look there before you start it"
            moved.reason = f"{why}; the guest was handed over to host {there.place}, {remedy}"
            return
        try:
            if not here.answers():
                here.unblock()
            here.cancel()
            self._await_state(here, ("running",), STAY_S)
        except TrialError as error:
            moved.outcome = "lost"
            moved.reason = f"{why}; on the source: {error}"

    def _ask(self, moved: Moved, before: Offset | None) -> None:
        """Whether the guest answers, and how long it stood still."""
        if before is None:
            if self._guest.answers() is False:
                moved.outcome = "lost"
                moved.reason = (
                    f"{moved.reason or 'the hypervisor says that all went well'}, but the guest does not answer"
                )
            return
        try:
            after = self._offset()
        except AgentError as error:
            moved.reason = f"{moved.reason or 'QEMU says that all went well'}, but the guest does not answer: {error}"
            moved.outcome = "lost"
            return
        if after is None:
            return
        # The guest's clock stands still with the guest: afterwards more has to be added to its times to get ours.
        moved.stopped_ns = after.offset_ns - before.offset_ns
        # Both offsets are of their own time; the clocks may have drifted apart meanwhile.
        drift_ns = (moved.end_ns - moved.begin_ns) * DRIFT_PPB // 1_000_000_000
        moved.uncertainty_ns = after.bound_ns + before.bound_ns + drift_ns

    def _offset(self) -> Offset | None:
        """Of the guest's clock, now; None if the guest has no agent."""
        client = self._guest.client
        if client is None:
            return None
        alignment = Alignment(client, self._clock, timeout_s=ANSWER_S)
        alignment.ask(LOOKS)
        return alignment.best

    def _take(self, moved: Moved, here: End, there: End) -> None:
        for side, name in ((here, "source"), (there, "destination")):
            for event in side.announced():
                if event.at_ns < moved.begin_ns - 1_000_000:
                    continue
                match event.name, name:
                    case "pass", "source":
                        moved.passes.append(Pass(at_ns=event.at_ns, number=event.number))
                    case "stop", "source":
                        moved.paused_ns = event.at_ns
                    case "resume", _:
                        # On the source: a cancelled move lets the guest go on where it was.
                        moved.resumed_ns = event.at_ns

    def _port(self) -> int:
        """A new one for each move: the last connection may still be closing."""
        self._number += 1
        return FIRST_PORT + self._number % PORTS


def _is_due(after_passes: int | None, moved: Moved) -> bool:
    """Whether so many passes over the memory are over."""
    return after_passes is not None and bool(moved.progress) and moved.progress[-1].passes > after_passes


def _remedy(here: End, there: End) -> str:
    """How a guest of the user's that waits for the rest of its memory gets it; empty if it is not the user's."""
    by_hand = ""
    with contextlib.suppress(TrialError):
        by_hand = here.by_hand(there)
    if not by_hand:
        return ""
    return (
        f". End neither; once the link is back, the next partywall migrate of the plan continues the move, or {by_hand}"
    )


def _not_done(give_up_ns: int, moved: Moved) -> str:
    text = f"it was not done after {units.format_duration(give_up_ns)}"
    if not moved.progress:
        return text
    last = moved.progress[-1]
    dirty, rate = (units.format_bytes(each) for each in (last.dirty_rate, last.rate))
    return f"{text}: the guest dirtied {dirty}/s, and {rate}/s were sent"
