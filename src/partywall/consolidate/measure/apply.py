"""Carries a plan out, step by step, with a journal. A killed manager goes on where it was, or stops and says why.

The journal has a line before a step begins and one after it has ended, but the hypervisor decides what is true. Before
and after each step the manager queries it for the hosts of each guest, and for the hosts that answer. A guest must run
on exactly one host. A host is only switched off if it answers and has no guest, also none that the cluster file does
not name. It counts as off only if its power control says so and it does not answer. If a step fails, the steps that
were done are undone in reverse order, up to one that cannot be undone: after each step every host has room for its
guests, but not if steps are left out. A host that was requested to switch off and still answers may do so later, so no
guest returns to it. If a guest is lost, runs twice, or was moved by somebody else, everything stops, and nothing is
undone.

A guest that is seen nowhere may run on a host whose daemon does not answer, such as one that restarts. The manager
waits for such hosts before it calls the guest lost.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from partywall.consolidate.document import Cluster
from partywall.consolidate.measure.seams import Hypervisor, Observed, Power
from partywall.consolidate.values import ConsolidationPlan, Journal, Step
from partywall.errors import PartywallError, Problem, TrialError, UsageError
from partywall.events import Broken, Doing, Emit, Left, Note


class Written(Protocol):
    """Where journal lines go, such as a record."""

    def add_journal(self, entry: Journal) -> None: ...


@dataclass(frozen=True)
class Timing:
    """How long the manager waits. settle_s: for a host to boot or to end; moving_s: for a move of another manager."""

    settle_s: float = 300.0
    moving_s: float = 900.0
    look_s: float = 1.0


class StoppedError(TrialError):
    """The manager does not go on: a guest is lost, runs on two hosts, or was moved by somebody else."""


def as_observed(cluster: Cluster, seen: Observed) -> Cluster:
    """The cluster file with the state that was observed.

    UsageError if a guest does not run on exactly one host, or is not in the file: its memory would not be counted.
    """
    down = [host for host, up in seen.up.items() if not up]
    wrong: list[str | Problem] = [
        _not_one(guest, places, down) for guest, places in seen.places.items() if len(places) != 1
    ]
    wrong += [
        Problem(
            f"host {host} runs {', '.join(sorted(guests))}, which the cluster file does not name",
            "add it to guests, with pinned: true if it must stay",
        )
        for host, guests in seen.unknown.items()
    ]
    if wrong:
        raise UsageError(*wrong)
    guests = {
        name: spec.model_copy(update={"host": next(iter(seen.places[name]))}) for name, spec in cluster.guests.items()
    }
    hosts = {
        name: spec.model_copy(update={"state": "on" if seen.up[name] else "off"})
        for name, spec in cluster.hosts.items()
    }
    return cluster.model_copy(update={"guests": guests, "hosts": hosts})


def _not_one(guest: str, places: frozenset[str], down: Sequence[str]) -> str:
    """down: hosts that do not answer."""
    if not places and down:
        hosts = f"{' and '.join(sorted(down))} {'does' if len(down) == 1 else 'do'} not answer"
        return f"guest {guest} runs on no host that answers, and {hosts}; start it only if it does not run there"
    if not places:
        return f"guest {guest} runs on no host; start it before you consolidate"
    return f"guest {guest} runs on {' and '.join(sorted(places))}; stop all but one"


class Applying:
    """One plan, while it is carried out.

    at: the host of each guest when the plan was made, from which moves of other managers are noticed.
    """

    def __init__(
        self,
        plan: ConsolidationPlan,
        hypervisor: Hypervisor,
        powers: Mapping[str, Power],
        journal: Sequence[Journal],
        record: Written,
        emit: Emit,
        timing: Timing | None = None,
        at: Mapping[str, str] | None = None,
    ) -> None:
        self._plan, self._hypervisor, self._powers = plan, hypervisor, powers
        self._record, self._emit = record, emit
        self._timing = timing or Timing()
        self._at_first = at or {}
        self._writing, self._switching = threading.Lock(), threading.Lock()
        self._off: frozenset[str] = frozenset()
        self._last = {entry.number: entry.outcome for entry in journal}
        self._failed = next((entry.reason for entry in journal if entry.outcome == "failed"), "")
        # Of a manager that was killed it is not known whether it sent its request.
        self._requested = {
            step.host for step in plan.steps if step.action == "sleep" and self._last.get(step.number, "done") != "done"
        }

    def carry_out(self) -> bool:
        """Goes on from the journal. True if all steps are done; False if one failed and the others were undone.

        StoppedError if a guest is lost, runs twice, or was moved by somebody else.
        """
        self._off = frozenset(host for host, up in self._hypervisor.observe().up.items() if not up)
        self._expect_all_guests()
        if not self._failed:
            self._forward()
        if self._failed:
            self._emit(Broken(f"a step failed: {self._failed}; undoing what can be undone"))
            self._backward()
        return not self._failed

    def _forward(self) -> None:
        batches = sorted({step.batch for step in self._plan.steps})
        for place, batch in enumerate(batches):
            steps = [step for step in self._plan.steps if step.batch == batch and self._last.get(step.number) != "done"]
            left = [step for step in self._plan.steps if step.batch >= batch and step.time_s is not None]
            if left:
                self._emit(Left(sum(step.time_s.value for step in left if step.time_s)))
            if steps:
                self._emit(Doing(f"batch {place + 1} of {len(batches)}: {', '.join(step.title for step in steps)}"))
            self._batch(steps)
            self._expect_all_guests()
            if self._failed:
                return

    def _batch(self, steps: Sequence[Step]) -> None:
        """The steps of a batch at the same time."""
        if not steps:
            return
        with ThreadPoolExecutor(len(steps)) as pool:
            list(pool.map(self._step, steps))

    def _step(self, step: Step) -> None:
        self._write(step, "begun")
        begun = time.monotonic()
        try:
            self._do(step)
        except StoppedError:
            raise
        except PartywallError as error:
            self._failed = self._failed or f"{step.title}: {error}"
            self._write(step, "failed", reason=str(error))
            return
        self._write(step, "done", seconds=time.monotonic() - begun)
        self._emit(Note(f"done: {step.title}"))

    def _do(self, step: Step) -> None:
        if step.action == "wake":
            self._wake(step.host)
        elif step.action == "sleep":
            self._sleep(step.host)
        else:
            self._move(step.guest or "", step.source or "", step.host, step.limit_ms or 300)

    def _wake(self, host: str) -> None:
        self._powers[host].switch_on()
        self._await(lambda: self._hypervisor.observe().up[host], f"{host} was switched on but does not answer")
        self._note(host, off=False)

    def _note(self, host: str, *, off: bool, requested: bool = False) -> None:
        """Hosts are switched by several threads at once."""
        with self._switching:
            self._off = self._off | {host} if off else self._off - {host}
            if requested:
                self._requested |= {host}

    def _sleep(self, host: str) -> None:
        """A host that does not answer gets no request: what runs on it is not known. It may be off already."""
        said = f"{host} does not answer, so it is not known what runs on it"
        if self._hypervisor.observe().up[host]:
            if guests := sorted(self._hypervisor.active(host)):
                raise TrialError(f"{host} is not switched off, because it runs {', '.join(guests)}")
            self._note(host, off=True, requested=True)
            self._powers[host].switch_off()
            said = f"{host} was switched off"
        self._note(host, off=True)
        self._await(lambda: not self._powers[host].is_on(), f"{said} but is on by its power control")
        self._await(
            lambda: not self._hypervisor.observe().up[host],
            f"{host} is off by its power control but still answers",
        )

    def _move(self, guest: str, source: str, destination: str, limit_ms: int) -> None:
        """Moves a guest unless it is there. What a killed manager began is waited for."""
        self._await(
            lambda: not self._hypervisor.is_moving(guest), f"a move of {guest} does not end", self._timing.moving_s
        )
        if self._at(guest) == destination:
            return
        if self._at(guest) != source:
            raise TrialError(f"{guest} is on {self._at(guest)}, not on {source}: somebody else has moved it")
        try:
            self._hypervisor.move(guest, source, destination, limit_ms)
        finally:
            # Whatever the hypervisor says, the guest must run on exactly one host.
            place = self._at(guest)
        if place != destination:
            raise TrialError(f"{guest} is still on {place}")

    def _at(self, guest: str) -> str:
        """The host of a guest. StoppedError if it runs on none or on several."""
        seen = self._observe([guest])
        places = seen.places.get(guest, frozenset())
        if len(places) != 1:
            raise StoppedError(_not_one(guest, places, self._silent(seen)))
        return next(iter(places))

    def _expect_all_guests(self) -> None:
        moving = {step.guest for step in self._plan.steps if step.guest and self._hypervisor.is_moving(step.guest)}
        seen = self._observe([guest for guest in self._hypervisor.observe().places if guest not in moving])
        for guest, places in seen.places.items():
            if guest not in moving and len(places) != 1:
                raise StoppedError(_not_one(guest, places, self._silent(seen)))
        self._expect_own_moves({guest: places for guest, places in seen.places.items() if guest not in moving})

    def _expect_own_moves(self, places: Mapping[str, frozenset[str]]) -> None:
        """StoppedError if a guest is where this plan has not put it: what the plan knows of room is then outdated."""
        expected = {guest: {host} for guest, host in self._at_first.items()}
        for step in self._plan.moves:
            outcome = self._last.get(step.number, "undone")
            if step.guest in expected and outcome != "undone":
                # A move that was begun may have ended or not; so may the way back.
                only = {step.host} if outcome == "done" and not self._failed else {step.host, step.source or ""}
                expected[step.guest] = only
        for guest, own in expected.items():
            if not places.get(guest, frozenset()) <= own:
                said = f"guest {guest} is on {' and '.join(sorted(places[guest]))}, where this plan has not put it"
                raise StoppedError(f"{said}; end the other manager, and make a new plan")

    def _observe(self, guests: Sequence[str]) -> Observed:
        """The cluster as it is. Waits for hosts that should be on, as long as one of the guests is not seen."""
        deadline = time.monotonic() + self._timing.settle_s
        while True:
            seen = self._hypervisor.observe()
            lacks = any(not seen.places.get(guest) for guest in guests)
            if not lacks or not self._silent(seen) or time.monotonic() > deadline:
                return seen
            time.sleep(self._timing.look_s)

    def _silent(self, seen: Observed) -> list[str]:
        """Hosts that do not answer, although this plan has not switched them off."""
        return [host for host, up in seen.up.items() if not up and host not in self._off]

    def _backward(self) -> None:
        """Undoes every step that was begun, the last first, up to one that cannot be undone."""
        for step in reversed(self._plan.steps):
            if self._last.get(step.number) not in ("begun", "done", "failed"):
                continue
            try:
                self._undo(step)
            except StoppedError:
                raise
            except PartywallError as error:
                self._emit(Broken(f"cannot undo: {step.title}: {error}; it stays, and so do the steps before it"))
                return
            self._write(step, "undone", reason=self._failed)

    def _undo(self, step: Step) -> None:
        if step.action == "sleep":
            if not self._hypervisor.observe().up[step.host]:
                self._wake(step.host)
            elif step.host in self._requested and self._last.get(step.number) != "done":
                raise TrialError(f"{step.host} may still switch off, so no guest returns to it")
        elif step.action == "wake":
            self._sleep(step.host)
        else:
            self._expect_all_guests()
            self._move(step.guest or "", step.host, step.source or "", step.limit_ms or 300)

    def _await(self, is_so: Callable[[], bool], otherwise: str, seconds: float | None = None) -> None:
        deadline = time.monotonic() + (self._timing.settle_s if seconds is None else seconds)
        while not is_so():
            if time.monotonic() > deadline:
                raise TrialError(otherwise)
            time.sleep(self._timing.look_s)

    def _write(self, step: Step, outcome: str, *, seconds: float | None = None, reason: str = "") -> None:
        now = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        entry = {"number": step.number, "outcome": outcome, "at": now, "seconds": seconds, "reason": reason}
        line = Journal.model_validate(entry)
        with self._writing:
            self._record.add_journal(line)
            self._last[step.number] = line.outcome
