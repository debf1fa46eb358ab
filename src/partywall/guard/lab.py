"""A policy for the tenants of a lab (`partywall.sandbox.lab`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partywall.sandbox.lab import Lab


def policy(made: Lab, vifs: Mapping[str, Mapping[str, Any]], capacity: str = "1Gbit/s", **more: Any) -> dict[str, Any]:
    """A policy for the lab's tenants; each entry is a vif without its place."""
    placed = {name: {**_place(made, name), "service_class": "silver", **vif} for name, vif in vifs.items()}
    return {
        "partywall_guard": 1,
        "name": f"lab-{made.label.run}",
        "link": {"interface": "nic", "namespace": made.namespace("switch"), "capacity": capacity},
        "service_classes": {"gold": 2, "silver": 1},
        "vifs": placed,
        **more,
    }


def _place(made: Lab, name: str) -> dict[str, str]:
    """A guest's tap, or a tenant's own end of its veth."""
    if name in made.guests:
        return {"interface": made.port(name), "namespace": made.namespace("switch"), "side": "outside"}
    return {"interface": "eth0", "namespace": made.namespace(name)}
