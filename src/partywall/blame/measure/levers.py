"""Levers: files of a suspect's cgroup that throttle it for the length of a pulse, and their contents before and during.

The CPU lever sets a quota below what the suspect used of late, in periods of 10 ms, so that a pulse of 100 ms has ten
of them. The disk lever sets rates on one disk. The freezer stops it, and is used only if asked for.

Files are written where nobody else writes them: groups of no owner, and those of OCI runtimes, which write a group's
limits only when they are told to. What systemd and libvirt own is refused: they may write the old limits again at any
time, and a limit that they do not know of is lost then.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from partywall.blame.measure import watchdog
from partywall.errors import CapabilityError, Problem, TrialError
from partywall.files import kernel_text
from partywall.host.label import state_root
from partywall.host.settings import ledger
from partywall.sandbox.cgroups import Cgroups

PERIOD_US = 10_000
LEAST_QUOTA_US = 1_000
"""The kernel accepts no lower quota."""
LEAST_BPS = 65_536
PATIENCE_S = 2.0
"""After this time without a slot, the watchdog puts everything back."""


class Kind(StrEnum):
    """What a lever acts on."""

    CPU = "cpu"
    DISK = "disk"
    FREEZE = "freeze"


@dataclass(frozen=True)
class Lever:
    """One suspect's lever. before: the contents of its files, in the order in which they are written back.

    capacity: what it may use at most now: CPUs, or bytes a second; None: no limit.
    """

    kind: Kind
    folder: Path
    before: Mapping[Path, str]
    is_v2: bool = False
    device: str = ""
    capacity: float | None = None

    def pulse(self, depth: float, use: float) -> Mapping[Path, str] | None:
        """Returns the contents during a pulse, in order; None if the suspect uses too little to be held.

        use: CPUs, or bytes a second, that it used of late.
        """
        if self.kind is Kind.FREEZE:
            return dict.fromkeys(self.before, "1" if self.is_v2 else "FROZEN")
        wanted = use * (1 - depth)
        if self.kind is Kind.CPU:
            return self._cpu(wanted)
        if wanted < LEAST_BPS:
            return None
        if self.is_v2:
            return {path: f"{self.device} rbps={int(wanted)} wbps={int(wanted)}" for path in self.before}
        return {path: f"{self.device} {int(wanted)}" for path in self.before}

    def _cpu(self, cpus: float) -> Mapping[Path, str] | None:
        quota = int(cpus * PERIOD_US)
        if quota < LEAST_QUOTA_US or (self.capacity is not None and cpus >= self.capacity):
            return None
        if self.is_v2:
            return {self.folder / "cpu.max": f"{quota} {PERIOD_US}"}
        # Lower the quota first and the period then: no moment allows more than before or after, which a parent refuses.
        return {self.folder / "cpu.cfs_quota_us": str(quota), self.folder / "cpu.cfs_period_us": str(PERIOD_US)}


def owner(cgroup: str, *, has_systemd: bool) -> str:
    """The program that owns a group's limits and may write them at any time; empty if there is none. Pure."""
    if ".libvirt-qemu" in cgroup or "/libvirt/" in f"{cgroup}/" or re.search(r"machine-qemu", cgroup):
        return "libvirt"
    if has_systemd and re.search(r"\.(service|scope|slice)(/|$)", cgroup):
        return "systemd"
    return ""


def lever(kind: Kind, cgroup: str, groups: Cgroups, *, has_systemd: bool, device: str = "") -> Lever:
    """Finds a suspect's lever and reads what its files contain.

    CapabilityError if the host lacks it, if the group has an owner, or if it is the root, which has no limits.
    """
    name = f"/{cgroup.strip('/')}"
    if name == "/":
        raise _lack(name, "the root group has no limits", "start the suspect in a group of its own")
    if who := owner(name, has_systemd=has_systemd):
        raise _lack(
            name, f"{who} owns its limits and may write them at any time", "name another suspect; see docs/blame.md"
        )
    makers: dict[Kind, Callable[[str, Cgroups], Lever]] = {
        Kind.CPU: _cpu_lever,
        Kind.DISK: partial(_disk_lever, device=device),
        Kind.FREEZE: _freezer,
    }
    made = makers[kind](name, groups)
    for path in made.before:
        if not os.access(path, os.W_OK):
            raise _lack(name, f"you may not write {path}", "run it as root")
    return made


def _lack(name: str, why: str, remedy: str) -> CapabilityError:
    return CapabilityError(Problem(f"{name} cannot be held: {why}", remedy))


def _content(path: Path) -> str:
    text = kernel_text(str(path))
    if text is None:
        raise _lack(f"/{path.parent.name}", f"there is no {path}", "the group has ended, or lacks this controller")
    return text


def _cpu_lever(name: str, groups: Cgroups) -> Lever:
    folder = groups.folder("cpu", name)
    if groups.is_v2:
        text = _content(folder / "cpu.max")
        quota, _, period = text.strip().partition(" ")
        capacity = None if quota == "max" else int(quota) / int(period)
        return Lever(Kind.CPU, folder, {folder / "cpu.max": text}, is_v2=True, capacity=capacity)
    quota_us, period_us = (int(_content(folder / f"cpu.cfs_{file}_us")) for file in ("quota", "period"))
    before = {folder / "cpu.cfs_period_us": f"{period_us}", folder / "cpu.cfs_quota_us": f"{quota_us}"}
    return Lever(Kind.CPU, folder, before, capacity=None if quota_us < 0 else quota_us / period_us)


def _disk_lever(name: str, groups: Cgroups, device: str) -> Lever:
    folder = groups.folder("io", name)
    if groups.is_v2:
        lines = _content(folder / "io.max").splitlines()
        was = next((line for line in lines if line.startswith(f"{device} ")), "")
        none = f"{device} rbps=max wbps=max riops=max wiops=max"
        return Lever(Kind.DISK, folder, {folder / "io.max": was or none}, is_v2=True, device=device)
    before = {}
    for way in ("read", "write"):
        file = folder / f"blkio.throttle.{way}_bps_device"
        was = next((line for line in _content(file).splitlines() if line.startswith(f"{device} ")), "")
        before[file] = was or f"{device} 0"
    return Lever(Kind.DISK, folder, before, device=device)


def _freezer(name: str, groups: Cgroups) -> Lever:
    folder = groups.folder("freezer", name) if not groups.is_v2 else (groups.unified or Path()) / name.strip("/")
    file = folder / ("cgroup.freeze" if groups.is_v2 else "freezer.state")
    if _content(file).strip() not in ("0", "THAWED"):
        raise _lack(name, "it is frozen already", "name another suspect")
    return Lever(Kind.FREEZE, folder, {file: "0" if groups.is_v2 else "THAWED"}, is_v2=groups.is_v2)


class Held:
    """All levers of an experiment. Everything is put back when the block ends, however it ends.

    The contents are on the disk before the first change, for the next start of Partywall, and with a watchdog. It is a
    process of its own, so that a kill of this one puts them back at once. TrialError if another experiment is running.
    """

    def __init__(self, levers: Mapping[str, Lever]) -> None:
        self._levers = levers
        self._on: dict[str, Mapping[Path, str]] = {}
        self._stack = contextlib.ExitStack()
        self._dog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        before = {path: text for each in self._levers.values() for path, text in each.before.items()}
        with contextlib.ExitStack() as stack:
            stack.enter_context(ledger.changed(ledger.LEVERS, "the limits of suspects", {}, lambda: before))
            self._dog = stack.enter_context(_watchdog(before))
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
        """Tells the watchdog that the experiment goes on."""
        if self._dog is not None and self._dog.stdin is not None:
            try:
                self._dog.stdin.write(b".")
                self._dog.stdin.flush()
            except BrokenPipeError:
                raise TrialError("the watchdog of the experiment has ended; everything was put back") from None

    def hold(self, name: str, depth: float, use: float) -> bool:
        """Begins a pulse, or changes its depth. False if the suspect uses too little to be held."""
        files = self._levers[name].pulse(depth, use)
        if files is None:
            self.release(name)
            return False
        if self._on.get(name) != files:
            # Recorded first: a refused second file must not leave the first one changed.
            self._on[name] = files
            self._write(name, files)
        return True

    def release(self, name: str) -> None:
        """Ends a pulse."""
        if self._on.pop(name, None) is not None:
            self._write(name, self._levers[name].before)

    def _write(self, name: str, files: Mapping[Path, str]) -> None:
        for path, text in files.items():
            try:
                path.write_text(text)
            except (FileNotFoundError, ProcessLookupError):
                raise Ended(name) from None
            except OSError as error:
                if not self._levers[name].folder.exists():
                    raise Ended(name) from None
                raise TrialError(
                    f"{path}: the kernel refuses {text}: {error.strerror}; nothing is left changed"
                ) from None


class Ended(Exception):  # noqa: N818 - no error, but something that suspects do
    """A suspect's group has ended."""


@contextlib.contextmanager
def _watchdog(before: Mapping[Path, str]) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-I", "-S", str(Path(watchdog.__file__))]
    given = {
        "note": str(state_root() / ledger.LEVERS),
        "pid": os.getpid(),
        "before": {str(path): text for path, text in before.items()},
        "patience_s": PATIENCE_S,
    }
    # In a session of its own, Ctrl-C and the end of a terminal do not reach it.
    with subprocess.Popen(argv, stdin=subprocess.PIPE, start_new_session=True) as dog:
        if dog.stdin is None:
            raise TrialError("the watchdog has no input")
        dog.stdin.write(json.dumps(given).encode() + b"\n")
        dog.stdin.flush()
        try:
            yield dog
        finally:
            with contextlib.suppress(BrokenPipeError):
                dog.stdin.write(b"q")
                dog.stdin.flush()
            with contextlib.suppress(BrokenPipeError):
                dog.stdin.close()
