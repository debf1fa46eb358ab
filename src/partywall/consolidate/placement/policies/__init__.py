"""Policies by name, made for the limits of a cluster. Each is in its own file; a new one is one file and one entry."""

from __future__ import annotations

from collections.abc import Callable

from partywall.consolidate.placement.policies import beloglazov
from partywall.consolidate.placement.policies.own import Partywall
from partywall.consolidate.placement.policies.static import Static
from partywall.consolidate.placement.policy import Policy, Rules

POLICIES: dict[str, Callable[[Rules], Policy]] = {
    "partywall": Partywall,
    "mad-mmt": lambda _: beloglazov.Published("mad-mmt", beloglazov.mad),
    "iqr-mmt": lambda _: beloglazov.Published("iqr-mmt", beloglazov.iqr),
    "lr-mmt": lambda _: beloglazov.Published("lr-mmt", beloglazov.local_regression),
    "static": lambda _: Static(),
}
PUBLISHED = ("mad-mmt", "iqr-mmt", "lr-mmt")
