"""Ways to enforce guarantees for the tenants of a lab (`partywall.sandbox.lab`): a guard's policy, and tc's HTB."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from partywall.sandbox.lab import Lab, tc


@dataclass(frozen=True)
class Class:
    """A class of HTB, in bit/s. priority: order of borrowing, 0 first."""

    rate: float
    ceiling: float
    priority: int = 0


@contextlib.contextmanager
def htb(made: Lab, link_bps: float, classes: Mapping[str, Class]) -> Iterator[None]:
    """HTB at the network card, as in the paper, set up as an operator would: a class for each tenant's address."""
    switch = made.namespace("switch")
    try:
        made.link("handle", "1:", "htb")
        tc(
            switch,
            *f"class add dev nic parent 1: classid 1:1 htb rate {link_bps:.0f}bit ceil {link_bps:.0f}bit".split(),
        )
        for name, leaf in classes.items():
            number = 1 + made.names.index(name)
            kind = f"htb rate {leaf.rate:.0f}bit ceil {leaf.ceiling:.0f}bit prio {leaf.priority}"
            tc(switch, *f"class add dev nic parent 1:1 classid 1:{number + 10:x} {kind}".split())
            match = f"u32 match ip src 10.9.1.{number}/32 flowid 1:{number + 10:x}"
            tc(switch, *f"filter add dev nic parent 1: protocol ip {match}".split())
        yield
    finally:
        made.relink()


def policy(made: Lab, vifs: Mapping[str, Mapping[str, Any]], capacity: str = "1Gbit/s", **more: Any) -> dict[str, Any]:
    """A policy for the lab's tenants. Each entry is a vif without its place."""
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
