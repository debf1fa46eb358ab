"""What every backend can do, and the choice of one."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from partywall.agent.client import AgentClient, Sink
from partywall.errors import CapabilityError, TrialError
from partywall.model.backend import BACKENDS
from partywall.model.plan import Limits
from partywall.model.scenario import Disk, Throttle
from partywall.sandbox.clock import Look
from partywall.sandbox.label import Label

GONE_S = 1.0


@dataclass(frozen=True)
class Settings:
    """A sandbox as planned: everything symbolic is resolved.

    disk_switched: whether limits of its disk will be changed while it runs. network: own, or the host's, for workloads
    that must reach what is on it. command: whether it must hold the host's programs. files: whether its workload keeps
    files on a disk. vcpus, host_cpus and accel are of machines alone: how many virtual CPUs, where the emulator's own
    threads run, and what carries them; root: the packages their programs come from; interface: how theirs leads to the
    host. host: what ssh knows the machine by.
    uri, domain and boot are libvirt's: the daemon, the user's domain, where on its host kernel and initramfs lie.
    only: the capabilities its agent is limited to, where it is a process on this host or another; all if empty.
    """

    name: str
    backend: str
    cpus: tuple[int, ...]
    cpu_limit: float | None = None
    cpu_weight: float | None = None
    memory: int | None = None
    disk: Disk | None = None
    disk_switched: bool = False
    command: bool = False
    files: bool = True
    vcpus: int | None = None
    host_cpus: tuple[int, ...] = ()
    accel: str = "tcg"
    network: Literal["own", "host"] = "own"
    root: tuple[str, ...] | None = None
    interface: Literal["user", "bridge"] | None = None
    host: str | None = None
    uri: str | None = None
    domain: str | None = None
    boot: str | None = None
    only: tuple[str, ...] = ()

    @property
    def agent_options(self) -> list[str]:
        """Command-line options of its agent, of those that every backend of processes gives."""
        cpus = ["--cpus", ",".join(map(str, self.cpus))] if self.cpus else []
        return [*cpus, *(["--only", ",".join(self.only)] if self.only else [])]

    @property
    def limits(self) -> Limits:
        """What it is made with, of all that can be changed while it runs."""
        disk = self.disk.throttle if self.disk else None
        return Limits(cpu_limit=self.cpu_limit, cpu_weight=self.cpu_weight, memory=self.memory, disk=disk)


class Sandbox(ABC):
    """A place with an agent in it."""

    def __init__(self, settings: Settings, label: Label) -> None:
        self.settings = settings
        self.label = label
        self.client: AgentClient | None = None
        self._live = Limits()

    def launch(self, sink: Sink) -> None:  # noqa: B027 - most have nothing that takes long
        """Sets going what takes long, so that several sandboxes come up at once; `start` waits for it."""

    @abstractmethod
    def start(self, sink: Sink) -> AgentClient:
        """Makes the sandbox and starts its agent. TrialError or CapabilityError if the host refuses."""

    def settle(self) -> None:  # noqa: B027 - most are as they shall be once they have started
        """Called once all sandboxes of a trial are up and before anything runs in them: what is best done in quiet."""

    def limit(self, limits: Limits) -> None:
        """Changes settings live; what is None goes back to what the sandbox was made with.

        TrialError if that fails, CapabilityError if it cannot be.
        """
        before, now = (one.over(self.settings.limits) for one in (self._live, limits))
        if (now.cpu_limit, now.cpu_weight) != (before.cpu_limit, before.cpu_weight):
            self._hold_cpu(now.cpu_limit, now.cpu_weight)
        if now.disk != before.disk:
            self._hold_disk(now.disk or Throttle())
        if now.memory != before.memory:
            self._hold_memory(now.memory)
        self._live = limits

    def _hold_cpu(self, limit: float | None, weight: float | None) -> None:  # noqa: ARG002 - what others need of it
        """Ceiling, as a share of the time of its CPUs, and weight; None lifts the one, and makes the other usual."""
        self._cannot("cpu_limit and cpu_weight")

    def _hold_disk(self, throttle: Throttle) -> None:  # noqa: ARG002
        """Limits of its disk; those that are None are lifted."""
        self._cannot("disk limits")

    def _hold_memory(self, size: int | None) -> None:  # noqa: ARG002
        """Bytes it may have; None is what it has by itself."""
        self._cannot("memory")

    def _cannot(self, what: str) -> NoReturn:
        raise CapabilityError(
            f"sandbox {self.settings.name}: the {self.settings.backend} backend cannot change {what} while it runs; "
            f"use backend: {'qemu' if what == 'memory' else 'container'}"
        )

    @contextlib.contextmanager
    def _changed(self, what: str) -> Iterator[None]:
        """What the host refuses of it is this sandbox's failure; mostly it is gone, and says why."""
        try:
            yield
        except OSError as error:
            if self.client is not None and isinstance(error, (FileNotFoundError, ProcessLookupError)):
                # Its threads go a moment before the process does.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.client.process.wait(GONE_S)
            where = f" ({error.filename})" if error.filename else ""
            reason = self.reason_gone(f"{error.strerror or error}{where}")
            raise TrialError(f"sandbox {self.settings.name}: {what}: {reason}") from error

    @abstractmethod
    def stop(self) -> None:
        """Ends the agent and removes the sandbox. May be called twice."""

    @property
    @abstractmethod
    def work_dir(self) -> str:
        """The folder for files, as the agent sees it."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The agent's process number on the host."""

    @property
    def cgroup(self) -> str | None:
        """Its cgroup, a path below every hierarchy's root; None if it has none of its own."""
        return None

    @property
    def cgroup_member(self) -> int | None:
        """A process or thread that is in its cgroup, by which monitors find it."""
        return self.pid if self.cgroup else None

    def peer(self, kernel: str, params: Mapping[str, Any]) -> str:  # noqa: ARG002 - what others need of it
        """Starts the other end of a network kernel, on the host; its address, as the sandbox sees it."""
        raise TrialError(f"sandbox {self.settings.name}: {kernel} has no peer there, for it has no network of its own")

    def look(self, for_ns: int = 0) -> Look | None:  # noqa: ARG002 - what others need of it
        """Looks at the agent's clock, and keeps it on the host's; None if that is its clock, as on the same machine.

        for_ns: how long it may be until the next look. TrialError if the clock jumped.
        """
        return None

    def clock_error_ns(self, span_ns: int = 0) -> int:
        """How far the agent's clock may be off the host's, by a look now, for as long as `span_ns`."""
        look = self.look(span_ns)
        return look.error_ns(look.offset.at_ns + span_ns) if look else 0

    def reason_gone(self, reason: str) -> str:
        """Adds to the reason why the agent went what the backend knows of it."""
        return reason

    def _own_work_dir(self) -> Path:
        path = self.label.work / self.settings.name
        path.mkdir(parents=True, exist_ok=True)
        return path


def make(settings: Settings, label: Label) -> Sandbox:
    """The sandbox for `settings`, not started."""
    module, _, name = BACKENDS[settings.backend].made_by.partition(":")
    # Backends import this module.
    backend: type[Sandbox] = getattr(importlib.import_module(f"partywall.sandbox.{module}"), name)
    return backend(settings, label)
