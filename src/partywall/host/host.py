"""The host: the agent's facts, the root folder of its files, and functions for what only calls can answer.

A recorded host has its own folder and its own answers to the calls. Planning for it uses nothing of the machine that it
is planned on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from partywall.errors import CapabilityError

ROOT = Path("/")
OUTPUT_S = 60.0
"""How long a program that says something about the host may take."""


class Usage(Protocol):
    """Bytes of a file system, as returned by `shutil.disk_usage`."""

    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


def _output(argv: Sequence[str]) -> str:
    """The output of a program; empty if it cannot be started, or does not end in time."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=OUTPUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout or done.stderr


def _untried(_within_s: float) -> str:
    return "no guest was started to see"


@dataclass(frozen=True)
class Host:
    """One host.

    facts: the agent's facts, including those of other machines. root: the folder with proc, sys and dev. which, output,
    access and disk_usage: the functions of these names. try_kvm: starts a guest under KVM and returns why it did not
    answer within so many seconds; empty if it did.
    """

    facts: dict[str, Any]
    root: Path = ROOT
    euid: int = field(default_factory=os.geteuid)
    which: Callable[[str], str | None] = shutil.which
    output: Callable[[Sequence[str]], str] = _output
    access: Callable[[Path, int], bool] = os.access
    disk_usage: Callable[[Path], Usage] = shutil.disk_usage
    try_kvm: Callable[[float], str] = _untried

    @classmethod
    def here(cls) -> Host:
        """The host of this process, without the agent's facts."""
        return cls({})

    @property
    def boot(self) -> str:
        """Changes when the host restarts, after which its clock and its counters begin again; empty if unknown."""
        return self.text("/proc/sys/kernel/random/boot_id") or ""

    @property
    def cpus(self) -> tuple[int, ...]:
        """The usable CPUs. CapabilityError if they are not known."""
        return cpus_of(self.facts)

    @property
    def usable_memory(self) -> int | None:
        """Bytes that this process can use within the limits of its cgroup; None if unknown."""
        usable = self.facts.get("memory", {}).get("usable_bytes")
        return None if usable is None else int(usable)

    @property
    def most_memory(self) -> int | None:
        """Bytes that this process could use if nothing else used any; None if unknown."""
        memory = self.facts.get("memory", {})
        sizes = (memory.get("total_bytes"), (memory.get("limit") or {}).get("limit_bytes"))
        return min((int(size) for size in sizes if size is not None), default=None)

    def with_machines(self, machines: Mapping[str, Any]) -> Host:
        """The same host, with the facts of the other machines of a scenario."""
        return replace(self, facts=self.facts | {"machines": dict(machines)}) if machines else self

    def path(self, absolute: Path | str) -> Path:
        """The path of a host's file, below `root`."""
        return self.root / str(absolute).lstrip("/")

    def exists(self, absolute: Path | str) -> bool:
        """True if the host has this file and the user can see it."""
        try:
            return self.path(absolute).exists()
        except OSError:
            return False

    def text(self, absolute: Path | str) -> str | None:
        """A file's text without surrounding whitespace; None if it cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


def cpus_of(facts: Mapping[str, Any]) -> tuple[int, ...]:
    """The usable CPUs in an agent's facts. CapabilityError if it lists none."""
    listed = facts.get("cpus_allowed") or facts.get("cpu", {}).get("online")
    if not listed:
        raise CapabilityError(
            "no usable CPU is known: neither /proc/self/status nor /sys/devices/system/cpu/online lists any; "
            "mount procfs on /proc and sysfs on /sys"
        )
    return tuple(sorted(listed))
