"""CPU reservations as weights: what makes a promised share hold when a neighbour on the same CPU wants all it can get.

Linux promises shares by weight alone (cpu.shares, cpu.weight), so a reservation r becomes a weight of r against 1 − r
for whoever presses without one. In a block one neighbour presses at a time; each of them gets all of the unreserved
share, by its own weight, so that the promise does not depend on how many neighbours a scenario lists. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from partywall.model.scenario import Sandbox

USUAL = 100.0
# Largest weight a cgroup of version 2 takes; version 1 takes more.
SCALE = 1000.0
WEIGHT_MAX = 10_000.0


def reserving(share: float) -> float:
    """The weight that promises a share against one neighbour of the usual weight."""
    return min(WEIGHT_MAX, USUAL * share / (1 - share)) if share < 1 else WEIGHT_MAX


def weights(sandboxes: Mapping[str, Sandbox]) -> dict[str, float | None]:
    """Weight by name for sandboxes that compete for the same CPUs.

    None where nothing was asked for and nobody reserves.
    """
    reserved = {name: s.cpu_reservation for name, s in sandboxes.items() if s.cpu_reservation is not None}
    if not reserved:
        return {name: None if s.cpu_weight is None else float(s.cpu_weight) for name, s in sandboxes.items()}
    rest = max(0.0, 1 - sum(reserved.values()))
    return {
        name: SCALE * (reserved[name] if name in reserved else rest * (s.cpu_weight or USUAL) / USUAL)
        for name, s in sandboxes.items()
    }
