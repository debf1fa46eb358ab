"""Looks up again what is lost of vifs named by what may be started anew: a libvirt domain, or a sandbox of a run.

Asks the host, changes nothing there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from partywall.errors import CapabilityError, UsageError
from partywall.guard.flatten import vif_of
from partywall.guard.resolve import Found, resolve_again
from partywall.guard.run import Report
from partywall.model.policy import Policy

AGAIN_S = 1.0


class Follower:
    """Hears what is lost, and says where it is now."""

    def __init__(self, policy: Policy, found: Mapping[str, Found]) -> None:
        self._policy = policy
        self._found = dict(found)
        self._lost: set[str] = set()
        self._asked_s = float("-inf")

    def hear(self, report: Report) -> None:
        for about, kind, _ in report.notes:
            if kind == "lost" and (vif := vif_of(about)) in self._found:
                self._lost.add(vif)
            elif kind == "repaired":
                self._lost.discard(vif_of(about))

    def moved(self) -> Mapping[str, Found]:
        """Lost vifs that are at another place now; the host is asked once in a while, for asking takes a moment."""
        if not self._lost or time.monotonic() - self._asked_s < AGAIN_S:
            return {}
        moved = {}
        for name in sorted(self._lost):
            # What stood for it may not be back yet, or be back as another kind of thing, which is for a new start.
            with contextlib.suppress(UsageError, CapabilityError):
                place = resolve_again(self._policy.vifs[name])
                if place and place != (before := self._found[name]) and place.inside == before.inside:
                    moved[name] = self._found[name] = place
        self._asked_s = time.monotonic()
        return moved
