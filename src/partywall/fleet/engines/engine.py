"""What every engine does: five verbs. It carries requests to ledgers; it decides nothing and repeats nothing.

A verb that raises `Unreachable` may have been carried out or not. All of them may be repeated, because the ledger of
the host makes each attempt begin at most once.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Protocol

from partywall.errors import Problem, TrialError, UsageError
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import State
from partywall.fleet.ledger.look import Look

GROUP = "partywall.engines"
OWN = {
    "dask": "partywall.fleet.engines.dask:Dask",
    "kubernetes": "partywall.fleet.engines.kubernetes:Kubernetes",
    "local": "partywall.fleet.engines.local:Local",
    "slurm": "partywall.fleet.engines.slurm:Slurm",
    "ssh": "partywall.fleet.engines.ssh:Ssh",
}


class Unreachable(TrialError):  # noqa: N818 - it is what a host is
    """A host gave no answer that can be understood. The message names it, why, and a remedy.

    within_s: how long it may take until it answers, if it is known to be on its way.
    """

    def __init__(self, message: str, *, is_lasting: bool = False, within_s: float = 0.0) -> None:
        super().__init__(message, is_lasting=is_lasting)
        self.within_s = within_s


class Engine(Protocol):
    """An engine. Its constructor takes the places of an inventory."""

    def __init__(self, places: Sequence[Place]) -> None: ...

    def hosts(self) -> Sequence[Place]:
        """The hosts that it reaches."""
        ...

    def ensure(self, host: str, order: Order, token: int) -> State:
        """Makes sure that an attempt has begun, and extends its lease. Raises Unreachable."""
        ...

    def state(self, host: str, run: str) -> State:
        """What is known of a run there. Raises Unreachable."""
        ...

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        """The state of a run, with what its files have beyond these offsets, by name. Raises Unreachable.

        Parts of files that only grow (`record.GROWING`) may come again. Those of others must be of this call.
        """
        ...

    def stop(self, host: str, run: str, token: int) -> State:
        """Asks a run to end. Raises Unreachable."""
        ...


def named(name: str) -> type[Engine]:
    """An engine by its name. UsageError with all names if there is none."""
    known = OWN | {entry.name: entry.value for entry in entry_points(group=GROUP) if entry.name not in OWN}
    if name not in known:
        raise UsageError(
            Problem(f"there is no engine {name!r}", f"choose one of {', '.join(sorted(known))}", key="--engine")
        )
    module, _, attribute = known[name].partition(":")
    engine: type[Engine] = getattr(importlib.import_module(module), attribute)
    return engine
