"""The interface of every backend, and the choice of one."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from partywall.agent.client import AgentClient, Sink
from partywall.errors import CapabilityError, TrialError
from partywall.host.block import Throttle
from partywall.host.label import Label
from partywall.sandbox.backends import BACKENDS
from partywall.sandbox.clock import Look
from partywall.sandbox.document import Disk, File, Limits

GONE_S = 1.0


@dataclass(frozen=True)
class Settings:
    """A planned sandbox. All symbolic values are resolved.

    disk_switched: whether disk limits will be changed while it runs. network: its own, or the host's, for workloads
    that must reach services on the host. command: whether it must provide the host's programs. files: whether its
    workload keeps files on a disk. vcpus, host_cpus and accel are for virtual machines: number of virtual CPUs, CPUs of
    the emulator's own threads, and accelerator. root: packages with their programs; interface: how they connect to the
    host. host: the machine's name for ssh.

    uri, domain and boot are for libvirt: the daemon, the user's domain, and the folder of kernel and initramfs on its
    host. only: the methods that its agent is limited to, if it is a process on this host or another; all if empty.
    memory_nodes: the NUMA nodes that its memory comes from; any if empty. copies: the user's files that its command
    finds in its working directory.
    """

    name: str
    backend: str
    cpus: tuple[int, ...]
    cpu_limit: float | None = None
    cpu_weight: float | None = None
    memory: int | None = None
    memory_nodes: tuple[int, ...] = ()
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
    copies: tuple[File, ...] = ()

    @property
    def agent_options(self) -> list[str]:
        """Command-line options of its agent that all backends of processes use."""
        cpus = ["--cpus", ",".join(map(str, self.cpus))] if self.cpus else []
        return [*cpus, *(["--only", ",".join(self.only)] if self.only else [])]

    @property
    def limits(self) -> Limits:
        """Its initial values of all settings that can change while it runs."""
        disk = self.disk.throttle if self.disk else None
        return Limits(cpu_limit=self.cpu_limit, cpu_weight=self.cpu_weight, memory=self.memory, disk=disk)


class Spent(NamedTuple):
    """CPU time of guests' virtual CPUs, and of the host's side of them, such as emulators."""

    guest_ns: int
    host_side_ns: int

    @classmethod
    def total(cls, parts: Iterable[Spent]) -> Spent:
        return cls(*map(sum, zip(*parts, strict=True)))


class Sandbox(ABC):
    """A place with an agent in it."""

    def __init__(self, settings: Settings, label: Label) -> None:
        self.settings = settings
        self.label = label
        self.client: AgentClient | None = None
        self._live = Limits()

    def launch(self, sink: Sink) -> None:  # noqa: B027 - most have nothing that takes long
        """Begins slow steps, so that several sandboxes start in parallel; `start` waits for them."""

    @abstractmethod
    def start(self, sink: Sink) -> AgentClient:
        """Creates the sandbox and starts its agent. TrialError or CapabilityError if the host refuses."""

    def settle(self) -> None:  # noqa: B027 - most backends have nothing to do here
        """Completes set-up that needs a quiet host.

        Called when all sandboxes of a trial are up, before workloads run.
        """

    def limit(self, limits: Limits) -> None:
        """Changes settings live. None restores the setting that the sandbox was made with.

        TrialError if that fails, CapabilityError if the backend cannot change it.
        """
        before, now = (limit.over(self.settings.limits) for limit in (self._live, limits))
        if (now.cpu_limit, now.cpu_weight) != (before.cpu_limit, before.cpu_weight):
            self._hold_cpu(now.cpu_limit, now.cpu_weight)
        if now.disk != before.disk:
            self._hold_disk(now.disk or Throttle())
        if now.memory != before.memory:
            self._hold_memory(now.memory)
        self._live = limits

    def _hold_cpu(self, limit: float | None, weight: float | None) -> None:  # noqa: ARG002 - backends that override it use them
        """Sets the limit, as a share of its CPUs' time, and the weight.

        None removes the limit, or restores the default weight.
        """
        self._cannot("cpu_limit and cpu_weight")

    def _hold_disk(self, throttle: Throttle) -> None:  # noqa: ARG002
        """Sets the limits of its disk. None removes a limit."""
        self._cannot("disk limits")

    def _hold_memory(self, size: int | None) -> None:  # noqa: ARG002
        """Sets its bytes of memory. None restores the default."""
        self._cannot("memory")

    def _cannot(self, what: str) -> NoReturn:
        raise CapabilityError(
            f"sandbox {self.settings.name}: the {self.settings.backend} backend cannot change {what} while it runs; "
            f"use backend: {'qemu' if what == 'memory' else 'container'}"
        )

    @contextlib.contextmanager
    def _changed(self, what: str) -> Iterator[None]:
        """Turns the host's errors into a failure of this sandbox. Usually it has ended, and the error says why."""
        try:
            yield
        except OSError as error:
            if self.client is not None and isinstance(error, (FileNotFoundError, ProcessLookupError)):
                # Its threads end a moment before the process does.
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
        """The folder for files, as seen by the agent."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The agent's process ID on the host."""

    @property
    def cgroup(self) -> str | None:
        """Its cgroup as a path below every hierarchy's root; None if it has none of its own."""
        return None

    @property
    def cgroup_member(self) -> int | None:
        """A process or thread in its cgroup, which leads monitors to it."""
        return self.pid if self.cgroup else None

    def spent(self) -> Spent | None:
        """CPU time of a guest so far, and of the host's side of it; None if it is not a guest of this host."""
        return None

    def peer(self, kernel: str, params: Mapping[str, Any]) -> str:  # noqa: ARG002 - backends that override it use them
        """Starts the other end of a network kernel on the host. Returns its address as seen by the sandbox."""
        raise TrialError(f"sandbox {self.settings.name}: {kernel} has no peer there: it has no network of its own")

    def look(self, for_ns: int = 0) -> Look | None:  # noqa: ARG002 - backends that override it use them
        """Reads the agent's clock and corrects it to the host's. None if it uses the host's clock.

        for_ns: the longest time until the next look. TrialError if the clock jumped.
        """
        return None

    def clock_error_ns(self, span_ns: int = 0) -> int:
        """Largest error of the agent's clock within `span_ns`, by a reading now."""
        look = self.look(span_ns)
        return look.error_ns(look.offset.at_ns + span_ns) if look else 0

    def reason_gone(self, reason: str) -> str:
        """Adds what the backend knows to the reason why the agent ended."""
        return reason

    def _own_work_dir(self) -> Path:
        path = self.label.work / self.settings.name
        path.mkdir(parents=True, exist_ok=True)
        return path


def make(settings: Settings, label: Label) -> Sandbox:
    """Creates the sandbox for `settings`, not started."""
    module, _, name = BACKENDS[settings.backend].made_by.partition(":")
    # Imported late because backends import this module.
    backend: type[Sandbox] = getattr(importlib.import_module(f"partywall.sandbox.{module}"), name)
    return backend(settings, label)
