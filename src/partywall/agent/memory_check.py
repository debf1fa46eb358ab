"""The memory check: an agent waits until memory is free, touches every page of it twice, and times that (VITS, 4.1).

The host's agent checks before anything is measured, and the agent of a guest or of another machine before its workload
starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from partywall import units
from partywall.agent.client import AgentClient
from partywall.errors import AgentError, CapabilityError, RefusalError
from partywall.events import Doing, Emit, Left, Note

WAIT_NS = 10_000_000_000
"""The longest wait for free memory, together with the check, unless the user sets a longer one."""
SPARE_S = 50.0
LEAST = 4096
"""Bytes of the smallest check: one page."""
AGAIN = "then start it again, or wait longer with --wait-for-memory"
RESULTS = {
    "time_up": "there was no time to touch all of it twice",
    "major_faults": "pages had to be read back from a disk",
    "swapped": "the host wrote pages to swap meanwhile",
    "jump": "accessing part of it again was much slower than the rest",
    "not_resident": "accessing it again was slower than the first access, as if a hypervisor had taken it away",
}
"""Descriptions of the results that make memory figures unreliable."""
WITHHELD = {
    "cost": "memory and cache figures may reflect swapping or another guest's memory pressure",
    "remedy": "set a smaller size in params, a larger sandbox.memory, or leave the host more free memory",
}


def waits(wait_ns: int) -> bool:
    """True if the user set a longer wait than the usual one."""
    return wait_ns > WAIT_NS


def check(agent: AgentClient, needed: int, emit: Emit, wait_ns: int = 0, where: str = "") -> dict[str, Any]:
    """The agent's answer for so many bytes. AgentError if they are not free in time.

    wait_ns: the longest wait, if longer than usual; the time left is emitted then. where: the end of a sentence, such
    as ` on HOST`.
    """
    is_set = waits(wait_ns)
    wait_ns = max(wait_ns, WAIT_NS)
    text = f"checking that {units.format_bytes(needed)} of memory are available{where}"
    emit(Doing(f"{text}; waiting for at most {units.format_duration(wait_ns)}" if is_set else text))
    end_s = time.monotonic() + wait_ns / 1e9

    def tell() -> None:
        emit(Left(max(0.0, end_s - time.monotonic())))

    answer: dict[str, Any] = agent.call(
        "memory.check",
        timeout_s=wait_ns / 1e9 + SPARE_S,
        each_second=tell if is_set else None,
        bytes=needed,
        budget_ns=wait_ns,
    )
    return answer


@dataclass(frozen=True)
class Checked:
    """The outcome of one check.

    what: what needs the memory; machine: another machine that it is on, guest: the guest that it is in, both empty for
    this host. answer: the agent's; None if it refused, and `refused` says why.
    """

    bytes: int
    what: str
    machine: str = ""
    guest: str = ""
    answer: Mapping[str, Any] | None = None
    refused: str = ""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Checked:
        """From a record."""
        texts = {key: str(stored.get(key, "")) for key in ("what", "machine", "guest", "refused")}
        return cls(int(stored["bytes"]), answer=stored["found"], **texts)

    @property
    def stored(self) -> dict[str, Any]:
        """The form for a record, without what is empty."""
        texts = {"what": self.what, "machine": self.machine, "guest": self.guest, "refused": self.refused}
        return {"bytes": self.bytes, "found": self.answer, **{key: text for key, text in texts.items() if text}}

    @property
    def where(self) -> str:
        """The end of a sentence; empty for this host."""
        return where(self.machine, self.guest)

    @property
    def why_unreliable(self) -> str:
        """Why figures may be unreliable; empty if they are not."""
        result = self.answer["doubt"] if self.answer is not None else None
        return self.refused if result is None else RESULTS.get(result, str(result))

    @property
    def gap(self) -> dict[str, str]:
        """The memory that may not be there, in the form of facts that an agent could not read."""
        what = f"{units.format_bytes(self.bytes)} of memory{self.where}"
        return {"what": what, "why": self.why_unreliable} | WITHHELD

    @property
    def warning(self) -> str:
        """A warning for people; empty if the memory is there."""
        if not self.why_unreliable:
            return ""
        size = units.format_bytes(self.bytes)
        return (
            f"the {size} of memory for {self.what}{self.where} may not be present: {self.why_unreliable}; figures may "
            "reflect swapping or another guest's memory pressure"
        )


@dataclass(frozen=True)
class Checks:
    """The memory checks of one execution.

    wait_ns: the longest wait for free memory, if longer than usual. keep: receives each outcome, as a record stores it.
    """

    emit: Emit
    wait_ns: int = 0
    keep: Callable[[dict[str, Any]], None] = lambda _stored: None

    def require(self, agent: AgentClient, needed: int, what: str, machine: str = "", remedy: str = AGAIN) -> None:
        """CapabilityError if a host's memory is not free in time; a warning if it may not be present.

        what: what needs the memory. remedy: what to do once it is free.
        """
        try:
            answer = check(agent, needed, self.emit, self.wait_ns, where(machine))
        except AgentError as error:
            raise CapabilityError(f"memory for {what}{where(machine)}: {error}; {remedy}") from error
        self._warn(self._kept(Checked(needed, what, machine, answer=answer)))

    def inspect(self, agent: AgentClient, needed: int, what: str, guest: str) -> None:
        """A warning if a guest lacks the memory, or if it may not be present. The rest can be measured without it."""
        self._warn(self.inside(agent, needed, what, guest))

    def inside(self, agent: AgentClient, needed: int, what: str, guest: str) -> Checked:
        """The outcome in a guest, for callers that say it themselves."""
        try:
            answer = check(agent, needed, self.emit, self.wait_ns, where(guest=guest))
        except RefusalError as error:
            return self._kept(Checked(needed, what, guest=guest, refused=str(error)))
        return self._kept(Checked(needed, what, guest=guest, answer=answer))

    def _kept(self, checked: Checked) -> Checked:
        self.keep(checked.stored)
        return checked

    def _warn(self, checked: Checked) -> None:
        if checked.warning:
            self.emit(Note(checked.warning, is_warning=True))


def where(machine: str = "", guest: str = "") -> str:
    """The end of a sentence; empty for this host."""
    return f" in the guest of {guest}" if guest else f" on {machine}" if machine else ""


def warnings(stored: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The warnings of a record's checks, each once."""
    return tuple(dict.fromkeys(filter(None, (Checked.of(each).warning for each in stored))))


def summary(stored: Iterable[Mapping[str, Any]]) -> str:
    """What was checked and where, by a record's checks; empty if nothing was."""
    sizes: dict[str, int] = {}
    for checked in map(Checked.of, stored):
        place = checked.where or " on this host"
        sizes[place] = max(sizes.get(place, 0), checked.bytes)
    return ", ".join(f"{units.format_bytes(size)}{place}" for place, size in sizes.items())
