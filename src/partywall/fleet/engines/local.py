"""The engine for this host alone: requests are programs on it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from partywall.fleet.engines.calling import TIMEOUT_S, Calling
from partywall.fleet.inventory import Place


class Local(Calling):
    """The places of an inventory as this host. They share its ledger unless `partywall_ledger` names another."""

    def argv(
        self, place: Place, words: Sequence[str], *, begins: bool = False, seconds: float = TIMEOUT_S
    ) -> list[str]:
        del place, begins, seconds
        return list(words)

    def python(self, place: Place) -> str:
        return place.variables.get("partywall_python", sys.executable)

    def explained(self, place: Place, said: str, code: int) -> str:
        del place
        return f"it ended with {code}: {said.rpartition(chr(10))[2] or 'it said nothing'}"
