"""CPU reservations as weights, so that a reserved share is available even if a neighbour on the same CPU needs all.

Pure.

Linux guarantees shares by weight only (cpu.shares, cpu.weight). A reservation r becomes a weight of r against 1 − r for
any aggressor without a reservation. In a block, one neighbour runs at a time. Each gets the whole unreserved share by
its own weight, so that the guarantee does not depend on the number of neighbours in a scenario.
"""

from __future__ import annotations

from collections.abc import Mapping

from partywall.sandbox.document import Sandbox

USUAL = 100.0
# Largest weight of a cgroup in version 2; version 1 allows more.
SCALE = 1000.0
WEIGHT_MAX = 10_000.0


def reserving(share: float) -> float:
    """The weight that guarantees a share against one neighbour of default weight."""
    return min(WEIGHT_MAX, USUAL * share / (1 - share)) if share < 1 else WEIGHT_MAX


def weights(sandboxes: Mapping[str, Sandbox]) -> dict[str, float | None]:
    """Weights by name, for sandboxes that compete for the same CPUs.

    None if a sandbox requests nothing and no other reserves.
    """
    reserved = {name: s.cpu_reservation for name, s in sandboxes.items() if s.cpu_reservation is not None}
    if not reserved:
        return {name: None if s.cpu_weight is None else float(s.cpu_weight) for name, s in sandboxes.items()}
    rest = max(0.0, 1 - sum(reserved.values()))
    return {
        name: SCALE * (reserved[name] if name in reserved else rest * (s.cpu_weight or USUAL) / USUAL)
        for name, s in sandboxes.items()
    }
