"""A cluster of files, to practise with: `hypervisor: practice`. It has no real hosts or guests. Tests use it too.

Its state is a folder, so it outlives a manager that is killed, as real hosts do. A move is a file with the time at
which it ends; whoever looks after that time completes it. A host that dies takes its guests and the moves to it along.
Every change is a line of a log, from which a test can check each state that the cluster was ever in.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from partywall.consolidate.measure.seams import Observed
from partywall.errors import TrialError
from partywall.files import write_whole

LIES = ("says off, is on", "says on, is off")


class PracticeCluster:
    """Hypervisor of all hosts; `power` is the power control of one.

    known: hosts and guests that the cluster file names; None for all of the folder.
    """

    def __init__(
        self, folder: Path, *, move_s: float = 0.2, known: tuple[Collection[str], Collection[str]] | None = None
    ) -> None:
        self.folder = folder
        self._move_s, self._known = move_s, known

    @classmethod
    def create(
        cls, folder: Path, hosts: dict[str, bool], guests: dict[str, str], *, move_s: float = 0.2
    ) -> PracticeCluster:
        """hosts: whether each is on; guests: the host of each."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder, move_s=move_s)
        state = {"on": hosts, "at": guests, "moves": {}, "lies": {}, "dies": None, "log": [], "cpu": {}}
        made._save(state)
        return made

    @staticmethod
    def exists(folder: Path) -> bool:
        return (folder / "state.json").exists()

    # What a test does to it

    def lie(self, host: str, lie: str) -> None:
        """The power control of a host lies from now on: one of LIES."""
        with self._changed() as state:
            state["lies"][host] = lie

    def die_during_move_to(self, host: str) -> None:
        """The next move to this host ends with the host's death."""
        with self._changed() as state:
            state["dies"] = host

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every state, in order: {"at": …, "on": …, "why": …}."""
        with self._changed() as state:
            return list(state["log"])

    # Hypervisor

    def observe(self) -> Observed:
        with self._changed() as state:
            hosts, guests = self._known or (state["on"], state["at"])
            up = {host: state["on"][host] for host in hosts}
            at = {guest: host for guest, host in state["at"].items() if up.get(host)}
            places = {guest: frozenset([at[guest]] if guest in at else []) for guest in guests}
            unknown: dict[str, frozenset[str]] = {}
            for guest, host in at.items():
                if guest not in places:
                    unknown[host] = unknown.get(host, frozenset()) | {guest}
            return Observed(places, up, unknown)

    def lacks(self) -> tuple[list[str], list[str]]:
        """Hosts and guests that the cluster file names, but that were not in it when the folder was made."""
        with self._changed() as state:
            hosts, guests = self._known or ((), ())
            return [each for each in hosts if each not in state["on"]], [
                each for each in guests if each not in state["at"]
            ]

    def active(self, host: str) -> frozenset[str]:
        with self._changed() as state:
            if not state["on"][host]:
                raise TrialError(f"{host} does not answer")
            arriving = {guest for guest, move in state["moves"].items() if move["to"] == host}
            return frozenset(arriving | {guest for guest, at in state["at"].items() if at == host})

    def use(self, guest: str, seconds: float) -> None:
        """A guest uses CPU time."""
        with self._changed() as state:
            state["cpu"][guest] = state["cpu"].get(guest, 0.0) + seconds

    def cpu_s(self) -> dict[str, float]:
        with self._changed() as state:
            return {guest: state["cpu"].get(guest, 0.0) for guest in state["at"]}

    def is_moving(self, guest: str) -> bool:
        with self._changed() as state:
            return guest in state["moves"]

    def move(self, guest: str, source: str, destination: str, limit_ms: int) -> None:
        del limit_ms
        with self._changed() as state:
            if not state["on"][destination]:
                raise TrialError(f"{destination} does not answer")
            if state["at"][guest] != source:
                raise TrialError(f"{guest} is not on {source}")
            state["moves"][guest] = {"to": destination, "ends": time.time() + self._move_s}
        while self.is_moving(guest):
            time.sleep(0.01)
        if self.observe().places[guest] != {destination}:
            raise TrialError(f"the move of {guest} to {destination} failed")

    def power(self, host: str) -> PracticePower:
        return PracticePower(self, host)

    def switch(self, host: str, *, on: bool) -> None:
        with self._changed() as state:
            lie = state["lies"].get(host)
            if (lie == LIES[0] and not on) or (lie == LIES[1] and on):
                return
            state["on"][host] = on
            state["log"].append(_entry(state, f"{host} {'on' if on else 'off'}"))

    def says_on(self, host: str) -> bool:
        with self._changed() as state:
            lie = state["lies"].get(host)
            return bool(state["on"][host]) if lie is None else lie == LIES[1]

    # Files

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """The state, locked; written back afterwards. Moves whose time is over are completed first."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads((self.folder / "state.json").read_text())
            before = json.dumps(state)
            _settle(state)
            yield state
            if json.dumps(state) != before:
                self._save(state)

    def _save(self, state: dict[str, Any]) -> None:
        write_whole(self.folder / "state.json", json.dumps(state))


class PracticePower:
    """The power control of one host."""

    def __init__(self, cluster: PracticeCluster, host: str) -> None:
        self._cluster, self._host = cluster, host

    def switch_on(self) -> None:
        self._cluster.switch(self._host, on=True)

    def switch_off(self) -> None:
        self._cluster.switch(self._host, on=False)

    def is_on(self) -> bool:
        return self._cluster.says_on(self._host)


def _settle(state: dict[str, Any]) -> None:
    for guest, move in list(state["moves"].items()):
        if time.time() < move["ends"]:
            continue
        del state["moves"][guest]
        if state["dies"] == move["to"]:
            # Pre-copy: the guest stays whole on the source.
            state["on"][move["to"]] = False
            state["dies"] = None
            state["log"].append(_entry(state, f"{move['to']} died"))
        elif state["on"][move["to"]] and state["on"][state["at"][guest]]:
            state["at"][guest] = move["to"]
            state["log"].append(_entry(state, f"{guest} to {move['to']}"))


def _entry(state: dict[str, Any], why: str) -> dict[str, Any]:
    return {"at": dict(state["at"]), "on": dict(state["on"]), "why": why}
