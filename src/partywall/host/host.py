"""The value itself: the agent's facts, the folder that holds the host's files, and what only calls can tell.

A recorded host has a folder of its own and answers of its own to the calls, so planning for it takes nothing of the
machine that it is planned on.
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


class Usage(Protocol):
    """Bytes of a file system, as `shutil.disk_usage` gives them."""

    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


def _output(argv: Sequence[str]) -> str:
    """What a program says; empty if it cannot be started."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return ""
    return done.stdout or done.stderr


def _untried() -> str:
    return "no guest was started to see"


@dataclass(frozen=True)
class Host:
    """One host.

    facts: as the agent tells them, of other machines too. root: holds proc, sys and dev. which, output, access and
    disk_usage: the calls of these names. try_kvm: starts a guest under KVM and tells why it does not come up, or
    nothing.
    """

    facts: dict[str, Any]
    root: Path = ROOT
    euid: int = field(default_factory=os.geteuid)
    which: Callable[[str], str | None] = shutil.which
    output: Callable[[Sequence[str]], str] = _output
    access: Callable[[Path, int], bool] = os.access
    disk_usage: Callable[[Path], Usage] = shutil.disk_usage
    try_kvm: Callable[[], str] = _untried

    @classmethod
    def here(cls) -> Host:
        """The host of this process, for questions that take none of the agent's facts."""
        return cls({})

    @property
    def cpus(self) -> tuple[int, ...]:
        """CPUs that may be used; CapabilityError if they are not known."""
        return cpus_of(self.facts)

    @property
    def usable_memory(self) -> int | None:
        """Bytes that this process could have, within the limits of its cgroup; None if the host does not tell."""
        found = self.facts.get("memory", {}).get("usable_bytes")
        return None if found is None else int(found)

    def with_machines(self, machines: Mapping[str, Any]) -> Host:
        """The same host, with the facts of the other machines of a scenario."""
        return replace(self, facts=self.facts | {"machines": dict(machines)}) if machines else self

    def path(self, absolute: Path | str) -> Path:
        """Where a file of the host lies."""
        return self.root / str(absolute).lstrip("/")

    def exists(self, absolute: Path | str) -> bool:
        """Whether the host has a file, as far as this user can see it."""
        try:
            return self.path(absolute).exists()
        except OSError:
            return False

    def text(self, absolute: Path | str) -> str | None:
        """A file's text without blanks around it; None if it cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


def cpus_of(facts: Mapping[str, Any]) -> tuple[int, ...]:
    """CPUs that may be used on the host that an agent tells of; CapabilityError if it tells of none."""
    found = facts.get("cpus_allowed") or facts.get("cpu", {}).get("online")
    if not found:
        raise CapabilityError(
            "no CPU is known that may be used: neither /proc/self/status nor /sys/devices/system/cpu/online lists any; "
            "mount procfs on /proc and sysfs on /sys"
        )
    return tuple(sorted(found))
