"""Hooks inside guests, where excess packets stop before they are copied out of the guest.

The hook at the vif enforces the policy. A hook inside the guest only saves work: it follows what the vif is granted,
and lets a little more through. A guest that removes it gains nothing, because its packets are then dropped at the vif.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partywall.agent.client import AgentClient
from partywall.errors import AgentError
from partywall.guard.measure.flatten import Flat

MARGIN = 1 / 64
"""What passes the guest beyond the grant. The vif then sees whether the guest uses all of it, and so may want more."""
STEP = 1 / 128
"""Smaller changes of a rate are not passed on."""
PERIOD_NS = 50_000_000
"""Of the guest's own rounds, which only tend its queue: rates change whenever the vif's do."""
NEVER_NS = 3_600_000_000_000
ANSWER_S = 10.0

Rate = tuple[int, int | None]
"""(bit/s, packets/s or None) of a leaf."""


@dataclass(frozen=True)
class AtSource:
    """A vif's interface inside its guest. agent: in the guest; its name with its command, or one that runs already."""

    interface: str
    agent: AgentClient | tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Inside:
    """The leaves of a vif's sent packets, by their numbers on the host, and what its guest's agent is to start."""

    numbers: tuple[int, ...]
    start: Mapping[str, Any]

    @classmethod
    def of(cls, flat: Flat, vif: str, interface: str) -> Inside:
        """The same flow classes as at the vif, at an interface of the guest."""
        hook = flat.start["hooks"][flat.hooks.index(vif)]
        numbers = (hook["leaf"], *(rule["leaf"] for rule in hook["rules"]))
        leaves = [
            {**flat.start["leaves"][number], "pool": 0, "totals": [], "guarantee_pps": 0, "held_at_source": False}
            for number in numbers
        ]
        rules = [{**rule, "leaf": at} for at, rule in enumerate(hook["rules"], start=1)]
        place = {"namespace": None, "interface": interface, "direction": "egress", "backstop": False}
        start = {
            "id": flat.start["id"],
            "pools": [{"name": "guest", "capacity_bps": 0, "capacity_pps": None, "link": None}],
            "leaves": leaves,
            "hooks": [{**place, "leaf": 0, "rules": rules, "hold": hook["hold"]}],
            "period_ns": PERIOD_NS,
            "report_ns": NEVER_NS,
            "check_ns": 20 * PERIOD_NS,
            "transient": True,
        }
        return cls(numbers, start)

    def at(self, rates: Sequence[Rate]) -> dict[str, Any]:
        """The parameters of `guard.start` and `guard.adjust` for these rates of its leaves."""
        wide = [(_more(bps), None if pps is None else _more(pps)) for bps, pps in rates]
        leaves = [
            {**leaf, "guarantee_bps": bps, "ceiling_bps": bps, "ceiling_pps": pps}
            for leaf, (bps, pps) in zip(self.start["leaves"], wide, strict=True)
        ]
        capacity = sum(bps for bps, _ in wide)
        return {**self.start, "leaves": leaves, "pools": [{**self.start["pools"][0], "capacity_bps": capacity}]}


def _more(rate: int) -> int:
    return round(rate * (1 + MARGIN)) + 1


def differs(rates: Sequence[Rate], last: Sequence[Rate]) -> bool:
    """Whether rates have changed by more than `STEP`."""

    def far(new: int | None, old: int | None) -> bool:
        if new is None or old is None:
            return new is not old
        return abs(new - old) > STEP * max(new, old)

    return any(far(new[0], old[0]) or far(new[1], old[1]) for new, old in zip(rates, last, strict=True))


def _started(vif: str, answer: object) -> tuple[str, str]:
    """(excess, queue) of an answer to `guard.start`. AgentError for any other: a guest may send what it likes."""
    match answer:
        case {"excess": [("held" | "tcp_held" | "dropped") as excess], "queue": ("fq" | "tbf") as queue}:
            return excess, queue
    raise AgentError(f"{vif}: its guest's agent gave no answer that starts a hook; leave `source` out, or replace it")


class Source:
    """The hook inside one guest. It follows the grants of its vif in a thread of its own, until it is closed."""

    def __init__(self, vif: str, client: AgentClient, inside: Inside, guard: AgentClient, period_ns: int) -> None:
        """client: the agent in the guest. guard: the one that divides the link. period_ns: of reading its grants."""
        self.vif, self.agent = vif, client.name
        self.excess = self.queue = ""
        """How the guest treats excess packets, as `guard.start` says."""
        self._client, self._inside, self._guard = client, inside, guard
        self._period_s = period_ns / 1e9
        self._last: tuple[Rate, ...] = ()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"source-{vif}", daemon=True)
        self._notes: list[str] = []

    def start(self) -> None:
        """Attaches the hook. AgentError if the guest's agent refuses."""
        self._last = self._rates()
        started = self._client.call("guard.start", timeout_s=60, **self._inside.at(self._last))
        self.excess, self.queue = _started(self.vif, started)
        self._thread.start()

    def close(self) -> None:
        """Removes the hook, if the guest still answers. May be called twice."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(ANSWER_S)
        name = self._inside.start["id"]
        for method, params in (
            ("guard.stop", {"id": name}),
            ("guard.remove", {"hooks": self._inside.start["hooks"]}),
        ):
            try:
                self._client.call(method, timeout_s=ANSWER_S, **params)
            except AgentError:
                return

    def take_notes(self) -> list[str]:
        """What happened since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def lost(self, why: str) -> None:
        """Notes that the guest no longer holds packets back, and stops to follow. Later calls change nothing."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        self._notes.append(
            f"its guest no longer holds packets back ({why}); excess packets are dropped at the vif from now on"
        )

    def _rates(self) -> tuple[Rate, ...]:
        grants = self._guard.call("guard.grants", id=self._inside.start["id"], timeout_s=ANSWER_S)["grants"]
        return tuple((grants[number]["bps"], grants[number]["pps"]) for number in self._inside.numbers)

    def _run(self) -> None:
        try:
            while not self._ended.wait(self._period_s):
                self._follow()
        except Exception as error:  # noqa: BLE001 - the guard goes on, and its report says so
            self.lost(str(error))

    def _follow(self) -> None:
        """Passes on the grants of now, if they differ."""
        try:
            rates = self._rates()
        except AgentError:
            # It may be busy. If its agent has ended, the guard's own loop reports that, and closes this.
            return
        if differs(rates, self._last):
            self._client.call("guard.adjust", timeout_s=ANSWER_S, **self._inside.at(rates))
            self._last = rates
