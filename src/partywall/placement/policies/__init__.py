"""Policies by name. Each is in its own file; a new one is one file and one entry."""

from __future__ import annotations

from collections.abc import Callable

from partywall.placement.policies import beloglazov
from partywall.placement.policies.own import Partywall
from partywall.placement.policies.static import Static
from partywall.placement.policy import Policy

POLICIES: dict[str, Callable[[], Policy]] = {
    "partywall": Partywall,
    "mad-mmt": lambda: beloglazov.Published("mad-mmt", beloglazov.mad),
    "iqr-mmt": lambda: beloglazov.Published("iqr-mmt", beloglazov.iqr),
    "lr-mmt": lambda: beloglazov.Published("lr-mmt", beloglazov.local_regression),
    "static": Static,
}
PUBLISHED = ("mad-mmt", "iqr-mmt", "lr-mmt")
