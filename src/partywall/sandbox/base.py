"""What every backend can do, and the choice of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from partywall.agent.client import AgentClient, Sink
from partywall.model.plan import Limits
from partywall.model.scenario import Disk
from partywall.sandbox.label import Label


@dataclass(frozen=True)
class Settings:
    """A sandbox as planned: everything symbolic is resolved. command: whether it must hold the host's programs."""

    name: str
    backend: str
    cpus: tuple[int, ...]
    cpu_limit: float | None = None
    cpu_weight: float | None = None
    memory: int | None = None
    disk: Disk | None = None
    command: bool = False


class Sandbox(ABC):
    """A place with an agent in it."""

    def __init__(self, settings: Settings, label: Label) -> None:
        self.settings = settings
        self.label = label
        self.client: AgentClient | None = None

    @abstractmethod
    def start(self, sink: Sink) -> AgentClient:
        """Makes the sandbox and starts its agent. TrialError or CapabilityError if the host refuses."""

    @abstractmethod
    def limit(self, limits: Limits) -> None:
        """Changes settings live; what is None goes back to what the sandbox was made with."""

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

    def reason_gone(self, reason: str) -> str:
        """Adds to the reason why the agent went what the backend knows of it."""
        return reason

    def _own_work_dir(self) -> Path:
        path = self.label.work / self.settings.name
        path.mkdir(parents=True, exist_ok=True)
        return path


def make(settings: Settings, label: Label) -> Sandbox:
    """The sandbox for `settings`, not started."""
    from partywall.sandbox.container import Container  # noqa: PLC0415 - backends import this module
    from partywall.sandbox.process import Process  # noqa: PLC0415

    backends: dict[str, type[Sandbox]] = {"process": Process, "container": Container}
    return backends[settings.backend](settings, label)
