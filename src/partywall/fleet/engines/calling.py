"""What `local` and `ssh` share: a look is a shell script, and a request is one short Python program on the host."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from partywall import __version__
from partywall.fleet.engines.engine import Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.ledger import look
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import State
from partywall.fleet.ledger.look import Look

TIMEOUT_S = 60.0
MODULE = "partywall.fleet.ledger"


class Calling(ABC):
    """An engine that starts a program for each request."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = {place.name: place for place in places}

    def hosts(self) -> Sequence[Place]:
        return tuple(self._places.values())

    def ensure(self, host: str, order: Order, token: int) -> State:
        return self._asked(host, {"verb": "ensure", "order": dataclasses.asdict(order), "token": token})

    def stop(self, host: str, run: str, token: int) -> State:
        return self._asked(host, {"verb": "stop", "run": run, "token": token})

    def state(self, host: str, run: str) -> State:
        return self.fetch(host, run, {}).state

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        place = self._places[host]
        answer = self._output(place, look.words(place.variables.get("partywall_ledger", ""), run, since))
        try:
            return look.parsed(answer, run)
        except (ValueError, KeyError) as error:
            raise Unreachable(f"{host}: the look at its ledger was not answered as expected: {error}") from None

    @abstractmethod
    def argv(self, place: Place, words: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host."""

    @abstractmethod
    def python(self, place: Place) -> str:
        """Python on a host, which can import this version of Partywall."""

    @abstractmethod
    def explained(self, place: Place, said: str, code: int) -> str:
        """An error of the way to a host as a sentence with a remedy."""

    def _asked(self, host: str, request: Mapping[str, Any]) -> State:
        place = self._places[host]
        words = [self.python(place), "-P", "-m", MODULE, place.variables.get("partywall_ledger", "")]
        answer = self._output(place, words, json.dumps(request).encode())
        last = answer.strip().rpartition(b"\n")[2]
        try:
            content = json.loads(last)
            version = content.pop("partywall")
        except (ValueError, KeyError, AttributeError):
            raise Unreachable(
                f"{host}: its ledger did not answer; it said: {last[:200].decode(errors='replace')}"
            ) from None
        if version != __version__:
            why = f"it has Partywall {version}, and this is {__version__}"
            raise Unreachable(f"{host}: {why}; install the same version there", is_lasting=True)
        if "error" in content:
            raise Unreachable(f"{host}: {content['error']}", is_lasting=True)
        return State.of(content)

    def _output(self, place: Place, words: Sequence[str], given: bytes = b"") -> bytes:
        argv = self.argv(place, words)
        try:
            done = subprocess.run(argv, input=given, capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(
                f"{place.name}: no answer within {TIMEOUT_S:g} s; check its load and the network"
            ) from None
        except OSError as error:
            raise Unreachable(f"{place.name}: {argv[0]}: {error.strerror}", is_lasting=True) from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise Unreachable(f"{place.name}: {self._meaning(place, said, done.returncode)}")
        return done.stdout

    def _meaning(self, place: Place, said: str, code: int) -> str:
        last = said.rpartition("\n")[2]
        if "No module named partywall" in last or "No module named 'partywall'" in last:
            return f"{self.python(place)} there has no Partywall; install it there, or set partywall_python"
        if code in (126, 127):
            return f"{self.python(place)} cannot be run there ({last}); set partywall_python"
        return self.explained(place, said, code)


def shell(words: Sequence[str], place: Place) -> list[str]:
    """Words with what the inventory says of the environment and of another user (`ansible_become`)."""
    become = place.variables.get("ansible_become", "").lower() in ("true", "yes", "1")
    user = place.variables.get("ansible_become_user", "root")
    state = place.variables.get("partywall_state", "")
    path = place.variables.get("partywall_path", "")
    environment = [f"{name}={value}" for name, value in (("PARTYWALL_STATE", state), ("PYTHONPATH", path)) if value]
    before = ["sudo", "-n", "-u", user] if become else []
    return [*before, *(["env", *environment] if environment else []), *words]
