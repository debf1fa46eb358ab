"""Finds vifs again that move: those named by a libvirt domain or by a sandbox of a run, which can restart.

Reads the host and changes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from partywall.errors import CapabilityError, UsageError
from partywall.guard.document import Policy
from partywall.guard.measure.flatten import vif_of
from partywall.guard.measure.resolve import VifPlace, identity, locate
from partywall.guard.record import GuardInterval

AGAIN_S = 1.0


class Follower:
    """Collects reports of vifs that have disappeared, and finds their new place."""

    def __init__(self, policy: Policy, located: Mapping[str, VifPlace]) -> None:
        self._policy = policy
        self._located = {name: located[name] for name, vif in policy.vifs.items() if vif.domain or vif.sandbox}
        self._others = {_place(place) for name, place in located.items() if name not in self._located}
        self._lost: set[str] = set()
        # One vif at a time, because a lookup takes a moment and the caller waits for it.
        self._doubtful: list[str] = []
        self._looked_up_s = float("-inf")

    def hear(self, report: GuardInterval) -> None:
        for about, kind, _ in report.notes:
            vif = vif_of(about)
            if vif not in self._located or kind not in ("lost", "repaired"):
                continue
            # A new interface with the same name may belong to another vif.
            if vif not in self._doubtful:
                self._doubtful.append(vif)
            if kind == "lost":
                self._lost.add(vif)
            else:
                self._lost.discard(vif)

    def moved(self) -> Mapping[str, VifPlace]:
        """Vifs that have moved to another place; usually none."""
        if not self._doubtful or time.monotonic() - self._looked_up_s < AGAIN_S:
            return {}
        self._looked_up_s = time.monotonic()
        name = self._doubtful.pop(0)
        place = self._now(name)
        is_known = place == self._located[name]
        if name in self._lost or not is_known:
            self._doubtful.append(name)
        return {} if place is None or is_known or self._is_held(place, name) else {name: place}

    def went(self, moved: Mapping[str, VifPlace]) -> None:
        """Confirms that the guard was informed. Otherwise the next look reports the move again."""
        self._located |= moved

    def _now(self, name: str) -> VifPlace | None:
        """The current place; None if it is not back yet, or is of another kind, which needs a restart of the guard."""
        # Files that a run writes about its sandboxes may disappear during the lookup.
        with contextlib.suppress(UsageError, CapabilityError, OSError, ValueError):
            place = locate(self._policy.vifs[name])
            if place.inside == self._located[name].inside:
                return place
        return None

    def _is_held(self, place: VifPlace, name: str) -> bool:
        """True if another vif is known to be at this place."""
        sure = {_place(at) for other, at in self._located.items() if other != name and other not in self._doubtful}
        return _place(place) in sure | self._others


def _place(located: VifPlace) -> tuple[object, str]:
    return (identity(located.namespace), located.interface)
