"""Looks up again where a vif is that is named by what may be started anew: a libvirt domain, or a sandbox of a run.

Asks the host, changes nothing there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from partywall.errors import CapabilityError, UsageError
from partywall.guard.flatten import vif_of
from partywall.guard.resolve import Found, identity, locate
from partywall.guard.run import Report
from partywall.model.policy import Policy

AGAIN_S = 1.0


class Follower:
    """Hears of whom nobody knows where he is, and says where."""

    def __init__(self, policy: Policy, found: Mapping[str, Found]) -> None:
        self._policy = policy
        self._found = {name: found[name] for name, vif in policy.vifs.items() if vif.domain or vif.sandbox}
        self._others = {_place(place) for name, place in found.items() if name not in self._found}
        self._lost: set[str] = set()
        # In turn: asking takes a moment, and somebody waits for it.
        self._doubtful: list[str] = []
        self._asked_s = float("-inf")

    def hear(self, report: Report) -> None:
        for about, kind, _ in report.notes:
            vif = vif_of(about)
            if vif not in self._found or kind not in ("lost", "repaired"):
                continue
            # An interface of the same name that is there again may be another's by now.
            if vif not in self._doubtful:
                self._doubtful.append(vif)
            if kind == "lost":
                self._lost.add(vif)
            else:
                self._lost.discard(vif)

    def moved(self) -> Mapping[str, Found]:
        """A vif that is at another place now than was known; nothing most of the time."""
        if not self._doubtful or time.monotonic() - self._asked_s < AGAIN_S:
            return {}
        self._asked_s = time.monotonic()
        name = self._doubtful.pop(0)
        place = self._now(name)
        is_known = place == self._found[name]
        if name in self._lost or not is_known:
            self._doubtful.append(name)
        return {} if place is None or is_known or self._is_held(place, name) else {name: place}

    def went(self, moved: Mapping[str, Found]) -> None:
        """The guard was told; else the next look says it again."""
        self._found |= moved

    def _now(self, name: str) -> Found | None:
        """None if what stands for it is not back yet, or is another kind of thing now, which is for a new start."""
        # What a run writes down of its sandboxes goes while it is looked at.
        with contextlib.suppress(UsageError, CapabilityError, OSError, ValueError):
            place = locate(self._policy.vifs[name])
            if place.inside == self._found[name].inside:
                return place
        return None

    def _is_held(self, place: Found, name: str) -> bool:
        """Whether another vif is there, and nobody doubts it."""
        sure = {_place(at) for other, at in self._found.items() if other != name and other not in self._doubtful}
        return _place(place) in sure | self._others


def _place(found: Found) -> tuple[object, str]:
    return (identity(found.namespace), found.interface)
