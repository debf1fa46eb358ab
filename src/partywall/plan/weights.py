"""CPU reservations as weights. Pure.

They make a promised share hold when every neighbour on the same CPUs wants all it can get. Linux promises shares by
weight alone (cpu.shares, cpu.weight), so a reservation r becomes a weight of r out of all the weights that compete. The
unreserved share is split among the others by their own weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from partywall.model.scenario import Sandbox

USUAL = 100.0
# Largest weight a cgroup of version 2 takes; version 1 takes more.
SCALE = 1000.0


def weights(sandboxes: Mapping[str, Sandbox]) -> dict[str, float | None]:
    """Weight by name for sandboxes that compete for the same CPUs.

    None where nothing was asked for and nobody reserves.
    """
    reserved = {name: s.cpu_reservation for name, s in sandboxes.items() if s.cpu_reservation is not None}
    if not reserved:
        return {name: None if s.cpu_weight is None else float(s.cpu_weight) for name, s in sandboxes.items()}
    own = {name: float(s.cpu_weight or USUAL) for name, s in sandboxes.items() if name not in reserved}
    rest = max(0.0, 1 - sum(reserved.values()))
    total = sum(own.values())
    shared = {name: SCALE * rest * weight / total for name, weight in own.items()}
    return {name: shared[name] if name in shared else SCALE * reserved[name] for name in sandboxes}
