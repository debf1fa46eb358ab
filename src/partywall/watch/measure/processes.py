"""Bytes of the processes of tenants, each counted once: from /proc/PID/io, which counts some twice.

When a process waits for a child that has ended, the kernel adds all that the child ever did to the process itself
(`wait_task_zombie`): bytes that were counted while the child ran, and bytes from before the watch. So what was known of
the child is a debt, which is subtracted from the jump of the process that waited. `Ledger` is pure.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from partywall.files import kernel_text, stat_fields
from partywall.watch.record import UNKNOWN

INIT = 1
"""Adopts orphans of any tenant, so what it takes over from children is of no known tenant."""
WAYS = (0, 1)


class Reading(NamedTuple):
    """What a process and all children that it waited for have read and written.

    tenant: None for a process of no watched tenant, whose bytes may come to one of a tenant. is_new: it has started
    since processes were last looked for. bytes: read, written.
    """

    pid: int
    start: int
    parent: int
    tenant: str | None
    bytes: tuple[int, int]
    is_new: bool = False

    def goes_on_as(self, later: Reading | None) -> bool:
        """False if the process has ended, or another one has its number."""
        if later is None or later.start != self.start:
            return False
        return self.bytes[0] <= later.bytes[0] and self.bytes[1] <= later.bytes[1]


@dataclass
class _Jump:
    """What a process's counters grew by. tenant: whose bytes these are; None if of no watched one."""

    tenant: str | None
    bytes: list[int]


@dataclass
class _Debt:
    """What was known of an ended process, and which processes may have taken it over."""

    of: Reading
    payers: tuple[int, ...]
    bytes: list[int]

    def pay(self, jumps: Mapping[int, _Jump]) -> None:
        """Subtracts from the payers' jumps. If they are of another tenant, what is left of a jump is not known."""
        for payer in self.payers:
            if (jump := jumps.get(payer)) is None:
                continue
            paid = [min(jump.bytes[way], self.bytes[way]) for way in WAYS]
            for way in WAYS:
                jump.bytes[way] -= paid[way]
                self.bytes[way] -= paid[way]
            if jump.tenant not in (None, self.of.tenant) and (any(paid) or len(self.payers) == 1):
                jump.tenant = UNKNOWN


class Ledger:
    """Takes the readings of all processes, pass by pass. No byte is booked twice, and none to two tenants.

    Bytes that belong to one of several tenants are booked to UNKNOWN: those of a process that has moved to another
    tenant since it was last read, or that has waited for a child of another one.
    """

    def __init__(self) -> None:
        self._known: dict[int, Reading] = {}
        self._ended: dict[int, Reading] = {}
        self._debts: list[_Debt] = []

    def take(
        self, readings: Iterable[Reading], takes_over: Callable[[int], bool] = lambda _: True
    ) -> dict[str, list[int]]:
        """Bytes read and written by tenant since the pass before.

        readings: parents before their children, so that a child that is read has not yet been added to its parent.
        takes_over: whether a process takes over the counters of its children.
        """
        now = {reading.pid: reading for reading in readings}
        ended = {pid: was for pid, was in self._known.items() if not was.goes_on_as(now.get(pid))}
        jumps = {
            pid: self._jump(reading, None if pid in ended else self._known.get(pid)) for pid, reading in now.items()
        }
        before, self._known = self._ended | self._known, now
        fresh = [_Debt(was, self._payers(was, before, takes_over), list(was.bytes)) for was in ended.values()]
        # A payer that has ended too passes everything on. Its own debt is only what was known of it.
        for debt in self._debts:
            if lost := next((ended[payer] for payer in debt.payers if payer in ended), None):
                fresh.append(_Debt(debt.of, self._payers(lost, before, takes_over), debt.bytes))
            else:
                debt.pay(jumps)
        for debt in fresh:
            debt.pay(jumps)
        # A child may have ended after its parent was read: then its bytes come with the parent's next reading.
        self._debts, self._ended = [debt for debt in fresh if debt.payers], ended
        booked: dict[str, list[int]] = {}
        for jump in jumps.values():
            if jump.tenant is not None:
                sums = booked.setdefault(jump.tenant, [0, 0])
                for way in WAYS:
                    sums[way] += jump.bytes[way]
        return booked

    def _jump(self, reading: Reading, before: Reading | None) -> _Jump:
        if before is not None:
            grown = [reading.bytes[way] - before.bytes[way] for way in WAYS]
            return _Jump(reading.tenant if reading.tenant == before.tenant else UNKNOWN, grown)
        if not reading.is_new:
            # What it did before is of an unknown time.
            return _Jump(reading.tenant, [0, 0])
        parent = None if reading.parent == INIT else self._known.get(reading.parent)
        has_moved = parent is not None and reading.tenant not in (None, parent.tenant)
        return _Jump(UNKNOWN if has_moved else reading.tenant, list(reading.bytes))

    def _payers(
        self, was: Reading, before: Mapping[int, Reading], takes_over: Callable[[int], bool]
    ) -> tuple[int, ...]:
        """The parent; if it has ended too, any living process above may have adopted the child."""
        payers, seen, place = [], {was.pid}, was.parent
        while place not in seen:
            seen.add(place)
            if place in self._known:
                payers.append(place)
                if place == was.parent:
                    break
            above = self._known.get(place) or before.get(place)
            place = was.pid if above is None else above.parent
        return tuple(payer for payer in payers if takes_over(payer))


@dataclass
class _Process:
    """A process of the host. start, parent: as in its /proc/PID/stat."""

    start: int
    parent: int
    is_new: bool


class Processes:
    """The processes of tenants: finds and reads them, and sums their bytes by tenant. proc: the path of /proc."""

    def __init__(self, proc: str) -> None:
        self._proc, self._ledger = proc, Ledger()
        self._all: dict[int, _Process] = {}
        self._tenants: dict[int, str | None] = {}
        self._sums: dict[str, list[int]] = {}

    def look(self, members: Mapping[int, str], alone: Mapping[int, str]) -> None:
        """Finds processes. members: tenants of processes by number; alone: of those that are a tenant by themselves.

        A process of no other tenant that one of `alone` has started belongs to it too.
        """
        self._all = dict(self._found(alone))
        given, single = {**members, **alone}, set(alone.values())
        known, self._tenants = self._tenants, {}
        for pid, process in sorted(self._all.items(), key=lambda each: (each[1].start, each[0])):
            above = self._tenants.get(process.parent)
            was = known.get(pid)
            if pid in given:
                self._tenants[pid] = given[pid]
            elif was is not None and (was in single or self._has_ended(pid)):
                # Groups do not list a process that has ended and that nobody has waited for.
                self._tenants[pid] = was
            elif process.parent in self._tenants and process.parent != INIT:
                self._tenants[pid] = above if above in single else None
        self._sums = {name: self._sums.get(name, [0, 0]) for name in {*given.values(), UNKNOWN}}

    def _found(self, alone: Iterable[int]) -> Iterator[tuple[int, _Process]]:
        """All processes. Files of known ones are only read again if in `alone`, or if their parent has ended."""
        is_first, pids = not self._all, {int(entry.name) for entry in os.scandir(self._proc) if entry.name.isdecimal()}
        for pid in pids:
            known = self._all.get(pid)
            if known is None:
                known = self._stat(pid, is_new=not is_first)
            elif pid in alone or (known.parent and known.parent not in pids):
                known = self._stat(pid, is_new=known.is_new, known=known) or known
            if known is not None:
                known.is_new &= pid not in self._all or pid in self._tenants
                yield pid, known

    def _stat(self, pid: int, *, is_new: bool, known: _Process | None = None) -> _Process | None:
        """None if it has ended. It is new if `known` is another one with the same number."""
        if len(fields := self._fields(pid)) < 20:
            return None
        start = int(fields[19])
        return _Process(start, int(fields[1]), is_new or (known is not None and known.start != start))

    def _has_ended(self, pid: int) -> bool:
        return self._fields(pid)[:1] in (["Z"], ["X"])

    def _fields(self, pid: int) -> list[str]:
        return stat_fields(f"{self._proc}/{pid}/stat")

    def read(self) -> None:
        """Reads all of them, parents first."""
        readings = list(self._readings())
        for name, values in self._ledger.take(readings, self._takes_over).items():
            sums = self._sums.setdefault(name, [0, 0])
            for way in WAYS:
                sums[way] += values[way]
        ended = self._tenants.keys() - {reading.pid for reading in readings}
        for pid in [pid for pid in self._tenants if self._all[pid].parent in ended]:
            # Somebody has adopted it.
            known = self._all[pid]
            self._all[pid] = self._stat(pid, is_new=known.is_new, known=known) or known

    def bytes_of(self, tenant: str) -> tuple[int, int]:
        """What was read and written since the tenant was found."""
        read, written = self._sums.get(tenant, (0, 0))
        return read, written

    def _readings(self) -> Iterator[Reading]:
        for pid, tenant in self._tenants.items():
            process = self._all[pid]
            if (now := self._io(pid)) is not None:
                yield Reading(pid, process.start, process.parent, tenant, now, process.is_new)
                process.is_new = False

    def _io(self, pid: int) -> tuple[int, int] | None:
        """None if it has ended, or is not ours to read."""
        # A thread's own file has nothing of children.
        text = kernel_text(f"{self._proc}/{pid}/task/{pid}/io" if pid == INIT else f"{self._proc}/{pid}/io")
        read, _, more = (text or "").partition("\nread_bytes: ")[2].partition("\nwrite_bytes: ")
        written = more.partition("\n")[0]
        return (int(read), int(written)) if read.isdecimal() and written.isdecimal() else None

    def _takes_over(self, pid: int) -> bool:
        """False if a process ignores its children's ends: the kernel then forgets what they did."""
        if pid == INIT:
            return False
        text = kernel_text(f"{self._proc}/{pid}/status") or ""
        ignored = next((line.split()[1] for line in text.splitlines() if line.startswith("SigIgn:")), "0")
        return not int(ignored, 16) >> (signal.SIGCHLD - 1) & 1
