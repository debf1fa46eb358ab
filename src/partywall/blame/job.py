"""What an experiment is asked to do, and what of it is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from partywall.errors import Problem, UsageError

NEVER = (
    "init.scope",
    "sshd",
    "ssh",
    "kubelet",
    "containerd",
    "dockerd",
    "docker",
    "crio",
    "podman",
    "libvirtd",
    "systemd-journald",
    "systemd-logind",
    "systemd-udevd",
    "dbus",
)
"""Groups that are never touched, by the name of any part of their path without `.service`."""


@dataclass(frozen=True)
class BlameJob:
    """An experiment. Exactly one of command, pid, group and log says what the victim is.

    command: started by the experiment; each line that it prints is one unit of work. log: a file to follow, each line
    is one request; latency: a regular expression whose group is its latency. suspects: as `sandbox.tenants` reads them;
    all if empty. lever: cpu, disk or freeze. device: of the disk lever, such as 8:0. depth, deepest: shares of its use
    that a suspect loses in a pulse. harm: the share of its work that a suspect may lose, over the budget. least: the
    smallest effect that matters. most: suspects.
    """

    command: str = ""
    pid: int | None = None
    group: str = ""
    log: str = ""
    latency: str = ""
    suspects: tuple[str, ...] = ()
    never: tuple[str, ...] = NEVER
    lever: str = "cpu"
    device: str = ""
    pulse_ns: int = 100_000_000
    depth: float = 0.3
    deepest: float = 0.6
    budget_ns: int = 300_000_000_000
    harm: float = 0.02
    least: float = 0.05
    most: int = 15
    seed: int = 1

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Self:
        """The job of a record."""
        known = {name: about[name] for name in cls.__dataclass_fields__ if name in about}
        return cls(**known | {name: tuple(known[name]) for name in ("suspects", "never") if name in known})

    def facts(self) -> dict[str, Any]:
        """The job as plain values."""
        return asdict(self)

    def check(self) -> None:
        """UsageError with every value that cannot be used."""
        if problems := list(self._problems()):
            raise UsageError(*problems)

    def _problems(self) -> Iterator[Problem]:
        given = [name for name in ("command", "pid", "group", "log") if getattr(self, name)]
        if len(given) != 1:
            said = "no victim is given" if not given else "more than one victim is given"
            yield Problem(said, "give one of --victim COMMAND, --pid NUMBER, --group CGROUP and --log FILE")
        if self.lever not in ("cpu", "disk", "freeze"):
            yield Problem(f"there is no lever {self.lever!r}", "choose cpu, disk or freeze", key="--lever")
        if self.lever == "disk" and not self.device:
            yield Problem("the disk lever needs a disk", "give its number, such as --device 8:0", key="--device")
        if self.device and not re.fullmatch(r"\d+:\d+", self.device):
            yield Problem(f"{self.device!r} is not the number of a disk", "give for example 8:0", key="--device")
        if self.latency and not self.log:
            yield Problem("only lines of a log have a latency", "give --log FILE too", key="--latency")
        if self.pulse_ns < 20_000_000:
            yield Problem("must be at least 20ms", "shorter pulses do not reach programs; give 100ms", key="--pulse")
        for name in ("depth", "deepest", "harm", "least"):
            if not 0 < getattr(self, name) <= 1:
                key = f"--{name}"
                yield Problem(f"must be above 0 and at most 100%, not {getattr(self, name):.0%}", "", key=key)
        if self.depth > self.deepest:
            yield Problem("must not be above --deepest", "give for example 30%", key="--depth")
