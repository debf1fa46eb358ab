"""No management: guests stay where they are, and hosts without guests are off from the start."""

from __future__ import annotations

from partywall.consolidate.placement.policy import Decisions
from partywall.consolidate.placement.state import Floats, State


class Static:
    name = "static"

    def decide(self, state: State, history: Floats) -> Decisions:
        del state, history
        return Decisions()
