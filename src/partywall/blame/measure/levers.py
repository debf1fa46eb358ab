"""Levers: what throttles a suspect for the length of a pulse, and puts its limit back.

The CPU lever sets a quota below what the suspect used of late, the disk lever rates on one disk, the network lever a
rate for what it sends. Others know no depth: the cpuset lever moves it off the victim's CPUs, and the freezer, which is
used only if asked for, stops it. How a limit is changed is up to the group's owner (`owners`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from partywall.blame.job import WHOLE
from partywall.blame.measure.domains import domain_of
from partywall.blame.measure.files import Files, files_of
from partywall.blame.measure.interfaces import interface_of
from partywall.blame.measure.owners import PERIOD_US, Kind, Owner, Refused, lack, owner_of
from partywall.blame.measure.units import unit_of
from partywall.errors import TrialError
from partywall.host.label import state_root
from partywall.host.quota import LEAST_QUOTA_US
from partywall.host.settings import ledger, watchdog
from partywall.sandbox.cgroups import Cgroups

LEAST = {Kind.CPU: LEAST_QUOTA_US / PERIOD_US, Kind.DISK: 65_536, Kind.NETWORK: 125_000}
"""The lowest limits: CPUs, or bytes a second. A pulse at a lower one would hold only a few packets."""
PATIENCE_S = 2.0
"""After this time without a slot, the watchdog puts everything back."""


@dataclass(frozen=True)
class Lever:
    """One suspect's lever. capacity: what it may use at most now: CPUs, or bytes a second; None: no limit.

    cpus: those to which it moves the suspect; empty if it moves none, or while the victim's CPUs are unknown.
    """

    kind: Kind
    owner: Owner
    capacity: float | None = None
    cpus: tuple[int, ...] = ()

    def limit(self, depth: float, use: float) -> float | None:
        """The limit during a pulse: CPUs, or bytes a second; None if the suspect uses too little to be held.

        use: what it used of late.
        """
        if self.kind in WHOLE:
            return 0.0
        wanted = use * (1 - depth)
        if wanted < LEAST[self.kind]:
            return None
        return None if self.capacity is not None and wanted >= self.capacity else wanted


def lever(
    kind: Kind,
    cgroup: str,
    groups: Cgroups,
    *,
    has_systemd: bool,
    device: str = "",
    victims: Collection[int] = frozenset(),
) -> Lever:
    """Finds a suspect's lever, and what its limit is now. victims: the victim's CPUs, as far as they are known.

    CapabilityError if the host lacks it, if the owner refuses, or if it is the root, which has no limits.
    """
    name = f"/{cgroup.strip('/')}"
    if name == "/":
        raise lack(name, "the root group has no limits", "start the suspect in a group of its own")
    if kind is Kind.NETWORK:
        return Lever(kind, interface_of(name, groups))
    files = files_of(kind, name, groups, device, victims)
    for path in files.before:
        if not os.access(path, os.W_OK):
            raise lack(name, f"you may not write {path}", "run it as root")
    return Lever(kind, _owner(name, files, has_systemd=has_systemd), _capacity(files), files.cpus)


def _owner(name: str, files: Files, *, has_systemd: bool) -> Owner:
    # With version 1, systemd leaves CPUs alone.
    is_of_systemd = has_systemd and (files.is_v2 or files.kind is not Kind.CPUSET)
    who, known_as = owner_of(name, has_systemd=is_of_systemd)
    if who == "libvirt" and shutil.which("virsh") is None:
        # Without it, nobody could undo what a killed experiment left.
        raise lack(name, "libvirt owns its limits, and there is no virsh", "install libvirt-clients")
    if who == "another systemd":
        raise lack(name, "a user's own systemd owns its limits", "name the user's slice, such as /user.slice/…")
    if who == "libvirt":
        return domain_of(int(known_as), files)
    return unit_of(known_as, files) if who == "systemd" else files


def _capacity(files: Files) -> float | None:
    if files.kind is not Kind.CPU:
        return None
    if files.is_v2:
        quota, period = next(iter(files.before.values())).split()
    else:
        period, quota = files.before.values()
    return None if quota.strip() in ("max", "-1") else int(quota) / int(period)


class Held:
    """All levers of an experiment. Everything is put back when the block ends, however it ends.

    The contents are on the disk before the first change, for the next start of Partywall, and with a watchdog. It is a
    process of its own, so that a kill of this one puts them back at once. undone: how often it has done so because this
    process was late; the limits are then set again. TrialError if another experiment is running.
    """

    def __init__(self, levers: Mapping[str, Lever]) -> None:
        self._levers = levers
        self._on: dict[str, float] = {}
        self.undone = 0
        self._stack = contextlib.ExitStack()
        self._dog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        undo = sum((each.owner.undo for each in self._levers.values()), ledger.Undo())
        with contextlib.ExitStack() as stack:
            stack.enter_context(ledger.changed(ledger.LEVERS, "the limits of suspects", {}, dict, undo))
            self._dog = stack.enter_context(_watchdog(undo))
            for name, each in self._levers.items():
                if each.kind is Kind.NETWORK:
                    # To put a queue in place takes longer than to change it, and a pulse is short.
                    with self._refusals(name):
                        each.owner.release()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for name in list(self._on):
                self.release(name)
        finally:
            self._stack.__exit__(kind, error, trace)

    def beat(self) -> None:
        """Tells the watchdog that the experiment goes on, and sets limits again that it has put back meanwhile."""
        if self._dog is not None:
            try:
                _say(self._dog, b".")
            except BrokenPipeError:
                raise TrialError("the watchdog of the experiment has ended; everything was put back") from None
            if _has_undone(self._dog):
                self.undone += 1
                for name, limit in self._on.items():
                    with self._refusals(name):
                        self._levers[name].owner.hold(limit)

    def hold(self, name: str, depth: float, use: float) -> bool:
        """Begins a pulse, or changes its depth. False if the suspect uses too little to be held."""
        limit = self._levers[name].limit(depth, use)
        if limit is None:
            self.release(name)
            return False
        if self._on.get(name) != limit:
            # Recorded first: what is changed only in part must be put back as well.
            self._on[name] = limit
            with self._refusals(name):
                self._levers[name].owner.hold(limit)
        return True

    def release(self, name: str) -> None:
        """Ends a pulse."""
        if self._on.pop(name, None) is not None:
            with self._refusals(name):
                self._levers[name].owner.release()

    @contextlib.contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            if not self._levers[name].owner.folder.exists():
                raise Ended(name) from None
            raise TrialError(f"{name}: {refused}; nothing is left changed") from None


class Ended(Exception):  # noqa: N818 - no error, but something that suspects do
    """A suspect's group has ended."""


@contextlib.contextmanager
def _watchdog(undo: ledger.Undo) -> Iterator[subprocess.Popen[bytes]]:
    note = {"note": str(state_root() / ledger.LEVERS), "pid": os.getpid(), "patience_s": PATIENCE_S}
    with launch_watchdog(subprocess.PIPE) as dog:
        tell(dog, note | undo.noted)
        try:
            yield dog
        finally:
            with contextlib.suppress(BrokenPipeError):
                _say(dog, b"q")
            if dog.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    dog.stdin.close()


def launch_watchdog(output: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Starts a watchdog, which waits to be told what it has to undo. output: where it says that it has."""
    argv, nowhere = [sys.executable, "-I", "-S", str(Path(watchdog.__file__))], subprocess.DEVNULL
    # In a session of its own, Ctrl-C and the end of a terminal do not reach it. It may outlive who reads our output.
    # It inherits that signals wait, so that none ends it before it looks at them.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watchdog.ENDS)
    try:
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=output, stderr=nowhere, start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def tell(dog: subprocess.Popen[bytes], given: Mapping[str, object]) -> None:
    """Tells a watchdog what it has to undo, and when."""
    _say(dog, json.dumps(given).encode() + b"\n")


def _has_undone(dog: subprocess.Popen[bytes]) -> bool:
    """True if a watchdog has put everything back since the last question."""
    if dog.stdout is None or not select.select([dog.stdout], [], [], 0)[0]:
        return False
    return bool(os.read(dog.stdout.fileno(), 64))


def _say(dog: subprocess.Popen[bytes], data: bytes) -> None:
    if dog.stdin is None:
        raise TrialError("the watchdog has no input")
    dog.stdin.write(data)
    dog.stdin.flush()
