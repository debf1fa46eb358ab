"""The policy that the manager uses (`partywall.consolidate.placement.policy`), with its forecast."""

from __future__ import annotations

from partywall.consolidate.placement.forecast import forecast
from partywall.consolidate.placement.policy import Decisions, Rules, decide
from partywall.consolidate.placement.state import Floats, State


class Partywall:
    name = "partywall"

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def decide(self, state: State, history: Floats) -> Decisions:
        return decide(state, forecast(history, state.guests.cpus), self._rules)
