"""Carries out an experiment: pulses along the code, the victim read tick by tick, looks, and the end.

A pulse that a suspect is too idle for counts as a pulse all the same. If only busy moments counted, what else happens
in busy moments would be taken for the suspect's effect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from partywall.blame.decide import PULSED, Look, Rule
from partywall.blame.findings import TICKS, look_at
from partywall.blame.job import BlameJob
from partywall.blame.measure import waiting
from partywall.blame.measure.groups import group_of
from partywall.blame.measure.levers import PATIENCE_S, Ended, Held
from partywall.blame.measure.suspects import Suspect
from partywall.blame.measure.using import throttled
from partywall.blame.measure.victim import Victim
from partywall.blame.record import BlameRecord, Pulse, Slot, Standings
from partywall.clock import Clock, Monotonic
from partywall.errors import TrialError
from partywall.events import Emit, Left, Note, Seen
from partywall.files import kernel_text
from partywall.host import Host
from partywall.sandbox import cgroups, tenants

RECENT = 8
"""Slots outside of pulses from which a suspect's present use is known."""
BEAT_NS, LOOK_NS = 500_000_000, 20_000_000
LATE_NS = 5_000_000_000
"""How late a victim may report."""
BEFORE = 10
"""Slots before the first pulse, which tell what suspects use."""


class Experiment:
    """One experiment. The host is as before when `run` returns, however it ends."""

    def __init__(
        self,
        job: BlameJob,
        rule: Rule,
        victim: Victim,
        suspects: Sequence[Suspect],
        record: BlameRecord,
        emit: Emit,
        host: Host,
        clock: Clock | None = None,
    ) -> None:
        self._job, self._rule, self._victim, self._suspects = job, rule, victim, suspects
        self._record, self._emit, self._clock = record, emit, clock or Monotonic()
        self._own, self._stat = _own_limit(job, victim, host), str(host.path("/proc/stat"))
        self._waits = waiting.counters(host, cgroups.read(host.root), victim.pids())
        self._names = [each.name for each in suspects]
        # What each uses outside of pulses.
        self._recent = [deque[float](maxlen=RECENT) for _ in suspects]
        self._slots: list[Slot] = []
        # Slots whose rates are not known yet, with the victim's readings; without any if the slot does not count.
        self._open = deque[tuple[Slot, list[Any]]]()
        self._lost_s = 0.0
        self._held: Held | None = None

    def run(self) -> str:
        """Runs to the end and returns why it ended. TrialError if the victim or a suspect ends meanwhile."""
        for _ in range(BEFORE):
            self._slot(np.zeros(len(self._suspects)))
        looks, named = set(self._rule.looks), set[str]()
        depths = self._rule.depths(self._rule.blocks_most)
        why: str = self._rule.ends_by
        with Held({each.name: each.lever for each in self._suspects}) as held:
            self._held = held
            for block in range(self._rule.blocks_most):
                slots = self._rule.code.block_slots
                for at in range(block * slots, (block + 1) * slots):
                    self._pulse(held, at, depths[at, :-1])
                if block + 1 in looks:
                    self._wait_for_rates()
                    look = self._look(named)
                    named |= self._tell(look, named) if look else set()
                    if look and look.enough:
                        why = "precision"
                        break
                # The rule has counted it before; but slots may last longer than planned.
                if self._lost_s >= self._job.harm * self._rule.budget_s:
                    why = "harm"
                    break
            self._wait_for_rates()
        return why

    def _look(self, named: Collection[str]) -> Look | None:
        """What is known by now; None if the victim has said too little."""
        try:
            return look_at(self._rule, self._names, self._slots, named)
        except ValueError as error:
            self._emit(Note(f"nothing can be said yet: {error}"))
            return None

    def _wait_for_rates(self) -> None:
        """Waits until the victim has reported of all slots. TrialError if it does not."""
        until_ns = self._clock.now_ns() + LATE_NS
        while self._complete() and self._clock.now_ns() < until_ns:
            self._sleep_until(min(until_ns, self._clock.now_ns() + LOOK_NS))
        if self._open:
            raise TrialError(f"the victim has reported nothing for {LATE_NS / 1e9:g} s; is this host overloaded?")

    def _sleep_until(self, at_ns: int) -> None:
        """Tells the watchdog meanwhile that the experiment goes on."""
        while (now_ns := self._clock.now_ns()) < at_ns:
            if self._held is not None:
                self._held.beat()
            self._clock.sleep_until(min(at_ns, now_ns + BEAT_NS))

    def _complete(self) -> int:
        """Keeps the slots whose rates are known by now. Returns the number of those that are not."""
        while self._open:
            slot, readings = self._open[0]
            if not self._victim.is_known(slot.start_ns + slot.length_ns):
                break
            self._open.popleft()
            rates = tuple(map(self._victim.rate, readings, readings[1:])) or (None,) * TICKS
            slot = slot.model_copy(update={"ticks": rates})
            self._slots.append(slot)
            self._record.stream.append(slot)
        return len(self._open)

    def _pulse(self, held: Held, at: int, depths: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        held.beat()
        pulsed = [self._names[n] for n in np.flatnonzero(depths)]
        # Before it begins, so that whoever asks what happened finds it whatever happens next.
        now_ns = self._clock.now_ns()
        self._record.stream.append(
            Pulse(slot=at, at_ns=now_ns, suspects=tuple(pulsed), depth=float(depths.max(initial=0.0)))
        )
        try:
            for name, depth, recent in zip(self._names, depths, self._recent, strict=True):
                if depth:
                    held.hold(name, float(depth), float(np.mean(recent)) if recent else 0.0)
                else:
                    held.release(name)
        except Ended as ended:
            raise TrialError(f"{ended} has ended, so its pulses are over; start again without it") from None
        undone = held.undone
        slot, readings = self._slot(depths)
        late_s = (slot.length_ns - self._job.pulse_ns) / 1e9
        if held.undone > undone or late_s > PATIENCE_S / 2:
            # Part of it was not held, as far as is known: it would make all effects smaller.
            readings = []
            self._emit(Note(f"this process was stopped for {late_s:.1f} s, so a pulse was undone and does not count"))
        self._open.append((slot, readings))
        self._complete()
        # All suspects are pulsed alike, so one sum tells what each may have lost at most.
        self._lost_s += float(depths.max(initial=0.0)) * PULSED * slot.length_ns / 1e9

    def _slot(self, depths: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[Slot, list[Any]]:
        """A slot without its rates, and the victim's readings at its ticks."""
        if why := self._victim.ended():
            raise TrialError(f"the victim {why} before the end of the experiment; give one that goes on for longer")
        start_ns = self._clock.now_ns()
        readings, own, stat = [self._victim.read(start_ns)], self._read_own(), _steal(self._stat)
        used, waits = [each.used() for each in self._suspects], waiting.read(self._waits)
        for tick in range(1, TICKS + 1):
            self._sleep_until(start_ns + tick * self._job.pulse_ns // TICKS)
            readings.append(self._victim.read(self._clock.now_ns()))
        length_ns = self._clock.now_ns() - start_ns
        seconds = length_ns / 1e9
        use = [max(0.0, each.used() - was) / seconds for each, was in zip(self._suspects, used, strict=True)]
        for depth, value, recent in zip(depths, use, self._recent, strict=True):
            if not depth:
                recent.append(value)
        own_now = self._read_own()
        later = _steal(self._stat)
        slot = Slot(
            start_ns=start_ns,
            length_ns=length_ns,
            depths=tuple(map(float, depths)),
            ticks=(),
            use=tuple(use),
            own=None if own is None or own_now is None else min(1.0, max(0.0, own_now - own) / seconds),
            steal=(later[0] - stat[0]) / max(1, later[1] - stat[1]),
            waits=waiting.between(waits, waiting.read(self._waits), seconds),
        )
        return slot, readings

    def _read_own(self) -> float | None:
        return None if self._own is None else self._own()

    def _tell(self, look: Look, named: Collection[str]) -> set[str]:
        rows = [(each.suspect, str(each.state), each.taken.value, each.taken.half_width) for each in look.standings]
        self._emit(Seen(Standings(seconds=look.seconds, rows=rows)))
        self._emit(Left(max(0.0, self._rule.longest_s - look.seconds)))
        guilty = {each.suspect for each in look.guilty}
        for name in sorted(guilty.difference(named)):
            self._emit(Note(f"after {look.seconds:.0f} s: {name} slows the victim down; goes on until all are judged"))
        return guilty


def _own_limit(job: BlameJob, victim: Victim, host: Host) -> Callable[[], float] | None:
    groups = cgroups.read(host.root)
    if job.group:
        return throttled(groups, group_of(job.group, host, "--group"))
    for pid in victim.pids():
        for path in tenants.cgroups_of(host.path(f"/proc/{pid}")):
            if path != "/" and groups.folder("cpu", path).is_dir():
                return throttled(groups, path)
    return None


def _steal(stat: str) -> tuple[int, int]:
    """Stolen time and all time of the host, in clock ticks."""
    first = (kernel_text(stat) or "cpu 0").partition("\n")[0].split()[1:9]
    values = [int(each) for each in first]
    return (values[7] if len(values) > 7 else 0), sum(values)
