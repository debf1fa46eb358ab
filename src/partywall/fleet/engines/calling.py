"""What all engines here share: a look is a shell script, and a request is one short Python program on the host."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from partywall import __version__
from partywall.fleet.engines.engine import Unreachable
from partywall.fleet.engines.package import Package, answer
from partywall.fleet.inventory import Place
from partywall.fleet.ledger import look
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import State
from partywall.fleet.ledger.look import Look

TIMEOUT_S = 60.0
SLOWEST_BPS = 100_000
"""Bytes a second of the slowest link over which Partywall is brought."""
MODULE = "partywall.fleet.ledger"


class Calling(ABC):
    """An engine that starts a program for each request."""

    OWN_WORDS: ClassVar[re.Pattern[str] | None] = None
    """What that program says of a command that it has carried out and that failed, beside the command's own words."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = {place.name: place for place in places}
        self._brought: dict[str, str] = {}

    def hosts(self) -> Sequence[Place]:
        return tuple(self._places.values())

    def ensure(self, host: str, order: Order, token: int) -> State:
        return self._requested(host, {"verb": "ensure", "order": dataclasses.asdict(order), "token": token})

    def stop(self, host: str, run: str, token: int) -> State:
        return self._requested(host, {"verb": "stop", "run": run, "token": token})

    def state(self, host: str, run: str) -> State:
        return self.fetch(host, run, {}).state

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        place = self._places[host]
        said = self._output(place, look.words(place.variables.get("partywall_ledger", ""), run, since))
        try:
            return look.parsed(said, run)
        except (ValueError, KeyError) as error:
            raise Unreachable(f"{host}: the look at its ledger was not answered as expected: {error}") from None

    @abstractmethod
    def argv(
        self, place: Place, words: Sequence[str], *, begins: bool = False, seconds: float = TIMEOUT_S
    ) -> list[str]:
        """The command line that runs a command on a host.

        begins: whether it starts what goes on after it. seconds: after this time, nobody waits for it any more.
        """

    def python(self, place: Place) -> str:
        """Python on a host, with what Partywall needs."""
        variables = place.variables
        return variables.get("partywall_python") or variables.get("ansible_python_interpreter") or "python3"

    def explained(self, place: Place, said: str, code: int) -> str:
        """What went wrong there; or on the way there, as a sentence with a remedy."""
        del place
        return f"the command there ended with {code}: {said.rpartition(chr(10))[2] or 'it said nothing'}"

    def environment(self) -> Mapping[str, str]:
        """Of the programs that reach hosts."""
        return os.environ

    def lasts(self, done: subprocess.CompletedProcess[bytes]) -> bool:
        """Whether a command would fail again, because it reached the host, and Python could not carry it out."""
        return done.returncode in (1, 2, 126, 127)

    def _requested(self, host: str, request: Mapping[str, Any]) -> State:
        """Asks the ledger of a host. Partywall is brought there if it has none, or another version."""
        place = self._places[host]
        content = self._answered(place, request)
        if content is None:
            self._brought[host] = self._bring(place)
            content = self._answered(place, request)
        if content is None:
            raise Unreachable(f"{host}: Partywall was brought there, and Python does not find it", is_lasting=True)
        if "error" in content:
            raise Unreachable(f"{host}: {content['error']}", is_lasting=True)
        return State.of(content)

    def _answered(self, place: Place, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer of a ledger. None if this version of Partywall is not there."""
        words = [self.python(place), "-P", "-m", MODULE, place.variables.get("partywall_ledger", "")]
        done = self._done(place, words, json.dumps(request).encode(), begins=request["verb"] == "ensure")
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode != 0:
            if re.search(r"No module named '?partywall", said):
                return None
            raise Unreachable(
                f"{place.name}: {self._meaning(place, said, done.returncode)}", is_lasting=self.lasts(done)
            )
        last = done.stdout.strip().rpartition(b"\n")[2].decode(errors="replace")
        try:
            content: dict[str, Any] = json.loads(last)
            return content if content.pop("partywall") == __version__ else None
        except (ValueError, KeyError, AttributeError):
            raise Unreachable(f"{place.name}: its ledger did not answer; it said: {last[:200]}") from None

    def _bring(self, place: Place) -> str:
        """Brings Partywall to a host. Returns its folder there."""
        packed, root = Package.packed(), place.variables.get("partywall_ledger", "")
        word, rest = answer(self._output(place, packed.words(root, bring=False)))
        if word == "want":
            word, rest = answer(self._output(place, packed.words(root, bring=True), packed.content))
        if word == "have":
            return rest
        why = {
            "machine": f"its processor is {rest}, and this Partywall is for {platform.machine()}; install one there",
            "no": f"Partywall could not be brought there: {rest}; free some space, or set partywall_ledger",
        }
        said = why.get(word, "it did not say whether it has Partywall")
        raise Unreachable(f"{place.name}: {said}", is_lasting=word in why)

    def _output(self, place: Place, words: Sequence[str], given: bytes = b"") -> bytes:
        done = self._done(place, words, given)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise Unreachable(
                f"{place.name}: {self._meaning(place, said, done.returncode)}", is_lasting=self.lasts(done)
            )
        return done.stdout

    def _done(
        self, place: Place, words: Sequence[str], given: bytes, *, begins: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        timeout_s = TIMEOUT_S + len(given) / SLOWEST_BPS
        wrapped = shell(words, place, self._brought.get(place.name, ""))
        argv = self.argv(place, wrapped, begins=begins, seconds=timeout_s)
        try:
            done = subprocess.run(
                argv, input=given, capture_output=True, timeout=timeout_s, check=False, env=self.environment()
            )
        except subprocess.TimeoutExpired:
            why = f"no answer within {timeout_s:.0f} s; check its load and the network"
            raise Unreachable(f"{place.name}: {why}") from None
        except OSError as error:
            raise Unreachable(f"{place.name}: {argv[0]}: {error.strerror}", is_lasting=True) from None
        if self.OWN_WORDS is not None:
            lines = done.stderr.decode(errors="replace").split("\n")
            done.stderr = "\n".join(line for line in lines if not self.OWN_WORDS.match(line)).encode()
        return done

    def _meaning(self, place: Place, said: str, code: int) -> str:
        last = said.rpartition("\n")[2]
        if (lacks := re.search(r"No module named '?([\w.]+)", last)) is not None:
            python = self.python(place)
            return f"{python} there lacks {lacks[1]}; install Partywall there, and set partywall_python (docs/fleet.md)"
        if "Unknown option: -P" in said:
            return f"{self.python(place)} there is older than 3.11; set partywall_python"
        if code in (126, 127):
            return f"{self.python(place)} cannot be run there ({last}); set partywall_python"
        return self.explained(place, said, code)


def shell(words: Sequence[str], place: Place, package: str = "") -> list[str]:
    """Words with what the inventory says of the environment and of another user (`ansible_become`).

    package: the folder to which Partywall was brought.
    """
    become = place.variables.get("ansible_become", "").lower() in ("true", "yes", "1")
    user = place.variables.get("ansible_become_user", "root")
    state = place.variables.get("partywall_state", "")
    path = ":".join(filter(None, (package, place.variables.get("partywall_path", ""))))
    environment = [f"{name}={value}" for name, value in (("PARTYWALL_STATE", state), ("PYTHONPATH", path)) if value]
    before = ["sudo", "-n", "-u", user] if become else []
    return [*before, *(["env", *environment] if environment else []), *words]
