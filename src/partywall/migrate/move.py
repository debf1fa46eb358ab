"""One move of a guest, watched from its start until the guest has answered on the other host, or stays.

A move is never believed: QEMU was seen to call guests completed and running that were dead. So the guest is asked
afterwards. A guest whose move was cancelled or failed is let go on by its QEMU; the one that waited for it is ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
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
from partywall.model.migration import Method, Outcome, Pass, Progress

GONE: tuple[Outcome, ...] = ("paused", "lost")
"""Outcomes after which the guest does not run: it is ended, and another started."""
LOOK_S = 0.02
RECOVER_S = 20.0
ORPHAN_S = 2.0
ARRIVE_S = 15.0
ANSWER_S = 10.0
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
    cpu_ns: dict[str, int] = field(default_factory=dict)


class Mover:
    """Moves one guest, back and forth."""

    def __init__(self, guest: MovableGuest, clock: Clock) -> None:
        self._guest = guest
        self._clock = clock
        self._number = 0
        self._usual = qmp.defaults(guest.current().monitor)

    def move(self, method: Method, give_up_ns: int, watch: Watch = lambda _: None) -> Moved:
        """Moves the guest to the other host, or says why it stayed.

        TrialError if the guest is gone: it is then on neither host.
        """
        guest = self._guest
        here, there = guest.current(), guest.expect()
        for side in (here, there):
            qmp.prepare(method, side.monitor, self._usual)
        uri = f"tcp:{LINK[there.place]}:{self._port()}"
        there.monitor.execute("migrate-incoming", uri=uri)
        before = self._offset()
        # Nothing is sent to the guest while it moves: what a QEMU has not read when the guest leaves it would be lost.
        guest.hold()
        list(qmp.announced(here.monitor))
        cpu_ns = {"source": _cpu_ns(here), "destination": _cpu_ns(there)}
        moved = Moved(begin_ns=self._clock.now_ns(), offset_ns=before.offset_ns)
        try:
            here.monitor.execute("migrate", uri=uri)
            self._follow(moved, method, give_up_ns, watch, here, there)
        except TrialError as error:
            self._broken(moved, here, there, str(error))
        except BaseException:
            guest.release()
            raise
        moved.end_ns = self._clock.now_ns()
        moved.cpu_ns = {
            name: max(0, _cpu_ns(side) - cpu_ns[name]) for name, side in (("source", here), ("destination", there))
        }
        if moved.outcome == "completed":
            guest.arrived()
        elif moved.outcome != "paused":
            guest.stayed()
        if moved.outcome not in GONE:
            self._ask(moved, before)
        return moved

    def _follow(self, moved: Moved, method: Method, give_up_ns: int, watch: Watch, here: Side, there: Side) -> None:
        """Until the move has ended, one way or the other."""
        handed_over = cancelled = False
        while True:
            status = here.monitor.execute("query-migrate")
            self._take(moved, here, there)
            if look := qmp.progress(status):
                moved.progress.append(look)
                watch(look)
            state = status.get("status")
            if state in qmp.ENDED:
                break
            if state == "postcopy-paused" and not self._recovered(moved, here, there):
                moved.outcome = "paused"
                return
            if state == "active" and not handed_over and _is_due(method, moved):
                here.monitor.execute("migrate-start-postcopy")
                handed_over = True
            late = self._clock.now_ns() - moved.begin_ns > give_up_ns
            if (method.cancel or late) and not cancelled and not handed_over and state == "active":
                here.monitor.execute("migrate_cancel")
                cancelled, moved.reason = True, "" if method.cancel else _not_done(give_up_ns, moved)
            here.monitor.wait(LOOK_S)
        self._end(moved, method, status, here, there)

    def _recovered(self, moved: Moved, here: Side, there: Side) -> bool:
        """Post-copy lost its link: a new connection continues it. False if there is none for some time."""
        deadline_ns = self._clock.now_ns() + round(RECOVER_S * 1e9)
        while self._clock.now_ns() < deadline_ns:
            uri = f"tcp:{LINK[there.place]}:{self._port()}"
            try:
                there.monitor.execute("migrate-recover", uri=uri)
                here.monitor.execute("migrate", uri=uri, resume=True)
            except TrialError as error:
                moved.reason = f"the link broke after the hand-over: {error}"
            here.monitor.wait(1.0)
            if here.monitor.execute("query-migrate").get("status") != "postcopy-paused":
                moved.reason = "the link broke after the hand-over, and the move was continued over a new connection"
                return True
        moved.reason = (
            f"the link broke after the hand-over and did not come back within {RECOVER_S:g} s: the guest waits on host "
            f"{there.place} for the rest of its memory, which is on host {here.place}"
        )
        return False

    def _end(self, moved: Moved, method: Method, status: dict[str, Any], here: Side, there: Side) -> None:
        if status["status"] == "completed":
            self._arrive(moved, here, there)
            moved.outcome = "completed"
            moved.total_ns, moved.downtime_ns, moved.setup_ns = (
                status[key] * 1_000_000 for key in ("total-time", "downtime", "setup-time")
            )
            moved.memory = {key: value for key, value in status["ram"].items() if isinstance(value, int | float)}
        elif status["status"] == "cancelled":
            moved.outcome = "cancelled" if method.cancel else "gave up"
        else:
            moved.reason = status.get("error-desc") or "QEMU does not say why"
        self._take(moved, here, there)

    def _arrive(self, moved: Moved, here: Side, there: Side) -> None:
        """Waits until the destination says that the guest runs there: the source is done some time before."""
        deadline_ns = self._clock.now_ns() + round(ARRIVE_S * 1e9)
        while there.monitor.execute("query-status")["status"] != "running":
            if self._clock.now_ns() > deadline_ns:
                raise TrialError(f"the guest did not go on within {ARRIVE_S:g} s after its memory had arrived")
            there.monitor.wait(LOOK_S)
        self._take(moved, here, there)

    def _without_source(self, moved: Moved, there: Side) -> None:
        """The source has ended. If all memory had arrived before, the guest runs on the destination."""
        moved.outcome = "lost"
        moved.reason = "the QEMU of the source ended during the move"
        deadline_ns = self._clock.now_ns() + round(ORPHAN_S * 1e9)
        while there.process.poll() is None and self._clock.now_ns() < deadline_ns:
            with contextlib.suppress(TrialError):
                if there.monitor.execute("query-migrate").get("status") == "completed":
                    moved.outcome = "completed"
                    moved.reason += ", after all memory had arrived"
                    return
            there.monitor.wait(LOOK_S)

    def _broken(self, moved: Moved, here: Side, there: Side, why: str) -> None:
        """QEMU on one side does not answer. The guest stays if the source still has it, or is gone."""
        moved.reason = why
        if here.process.poll() is not None:
            self._without_source(moved, there)
            return
        try:
            state = here.monitor.execute("query-status")["status"]
        except TrialError:
            state = "without an answer"
        if state != "running":
            moved.outcome = "lost"
            moved.reason = f"{why}; the source is {state}"

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
            raise AgentError("the guest has no agent")
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

    def _port(self) -> int:
        """A new one for each move: the last connection may still be closing."""
        self._number += 1
        return FIRST_PORT + self._number % PORTS


def _is_due(method: Method, moved: Moved) -> bool:
    """Whether post-copy is to begin now."""
    passes = moved.progress[-1].passes if moved.progress else 0
    return method.postcopy is not None and passes > method.postcopy.after_passes


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
