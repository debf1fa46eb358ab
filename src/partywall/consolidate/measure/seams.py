"""What the manager needs of the world: a hypervisor and a power control. Both have doubles in `partywall.testing`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Observed:
    """A cluster as it is. places: the hosts that each guest runs on, normally one; up: whether each host answers.

    unknown: guests that the cluster file does not name, by host.
    """

    places: Mapping[str, frozenset[str]]
    up: Mapping[str, bool]
    unknown: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Hypervisor(Protocol):
    """Guests of all hosts of a cluster. Every method raises TrialError if what it needs does not answer."""

    def observe(self) -> Observed:
        """Where guests run, and which hosts answer."""
        ...

    def active(self, host: str) -> frozenset[str]:
        """All guests on a host, also those that are paused, arrive, or are not in the cluster file."""
        ...

    def cpu_s(self) -> Mapping[str, float]:
        """CPU time of each guest so far, in seconds; guests whose host does not answer are missing."""
        ...

    def is_moving(self, guest: str) -> bool:
        """True while a move of the guest goes on, also one that another manager began."""
        ...

    def move(self, guest: str, source: str, destination: str, limit_ms: int) -> None:
        """Moves a guest, and returns when the move has ended. TrialError if it failed."""
        ...


class Power(Protocol):
    """The power control of one host. It may be wrong, so the manager also looks at the host itself."""

    def switch_on(self) -> None: ...

    def switch_off(self) -> None: ...

    def is_on(self) -> bool: ...
