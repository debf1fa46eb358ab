"""The form for the common case: this victim, these neighbours, these limits.

Fields have the names and units of the scenario's keys. The form becomes the text of a scenario, the usual checks read
that text, and each mistake returns to the field that it came from. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from partywall.agent.catalogue import shipped
from partywall.errors import Problem, ProblemsError
from partywall.run.check import loads

LIMITS = ("cpu_limit", "cpu_weight", "memory")
DISK = ("read_bps", "write_bps", "read_iops", "write_iops")
BACKENDS = ("process", "container", "qemu")
NEIGHBOUR = "neighbour_"
"""Begins the names of fields about neighbours."""
COPIES_MAX = 8
PLAIN = r"[A-Za-z0-9.]+ ?[A-Za-z/%]*"
"""Text that YAML reads as it is written."""
WHOLE = ("victim", "neighbour", "copies", "budget", "precision", "backend", f"{NEIGHBOUR}backend")


@dataclass(frozen=True)
class Simple:
    """What a person filled in. fields: by name, empty if not given. neighbours: names of stressors."""

    fields: Mapping[str, str] = field(
        default_factory=lambda: {"victim": "memory-copy", "budget": "1min", "precision": "1%", "copies": "1"}
    )
    neighbours: Sequence[str] = ("memory-copy", "cache", "syscall")

    def get(self, name: str) -> str:
        return self.fields.get(name, "")

    @property
    def text(self) -> str:
        """The scenario."""
        victim = self._quoted("victim")
        lines = ["partywall: 1", "name: simple", "", "victims:"]
        lines += [f"  {victim}: {{probe: {victim}{self._sandbox('')}}}", "", "aggressors:"]
        sandbox = self._sandbox(NEIGHBOUR)
        for name in self.neighbours:
            others = [f"{name}-{number}" for number in range(2, self._copies + 1)]
            together = f", together: [{', '.join(others)}]" if others else ""
            lines.append(f"  {name}: {{stressor: {name}{together}{sandbox}}}")
            lines += [f"  {other}: {{stressor: {name}{sandbox}}}" for other in others]
        bounds = [f"{key}: {self._quoted(key)}" for key in ("precision", "budget") if self.get(key)]
        return "\n".join([*lines, "", *bounds]) + "\n"

    @property
    def _copies(self) -> int:
        text = self.get("copies") or "1"
        return int(text) if re.fullmatch(r"[1-9]", text) and int(text) <= COPIES_MAX else 0

    def _quoted(self, name: str) -> str:
        value = self.get(name)
        return value if re.fullmatch(PLAIN, value) or name == "victim" else json.dumps(value)

    def _sandbox(self, prefix: str) -> str:
        """The sandbox of the victim or of each neighbour. A container if it has limits and no backend was chosen."""
        limits = [f"{key}: {self._quoted(prefix + key)}" for key in LIMITS if self.get(prefix + key)]
        disk = [f"{key}: {self._quoted(prefix + key)}" for key in DISK if self.get(prefix + key)]
        if disk:
            limits.append(f"disk: {{{', '.join(disk)}}}")
        backend = self.get(f"{prefix}backend") or ("container" if limits else "")
        keys = [*([f"backend: {backend}"] if backend else []), *limits]
        return f", sandbox: {{{', '.join(keys)}}}" if keys else ""

    def problems(self) -> dict[str, list[Problem]]:
        """All mistakes by the field that each is in. Those that belong to no field are at the empty name."""
        by_field: dict[str, list[Problem]] = {}
        own = list(self._own())
        for name, problem in own or self._of_scenario():
            place = by_field.setdefault(name, [])
            # Neighbours share their limits, so each of them has the same mistake.
            if all(problem.message != known.message for known in place):
                place.append(problem)
        return by_field

    def _own(self) -> Iterator[tuple[str, Problem]]:
        """Mistakes without which there is a scenario to check."""
        kernels = shipped()
        if self.get("victim") not in kernels.names("probe"):
            yield "victim", Problem("`victim` is missing", "choose one from the list")
        if not self.neighbours or set(self.neighbours) - set(kernels.names("stressor")):
            yield "neighbour", Problem("`neighbour` is missing", "choose at least one")
        if not self._copies:
            yield "copies", Problem(f"{self.get('copies')[:40]!r} is not a number of neighbours", "give 1 to 8")
        for name in ("backend", f"{NEIGHBOUR}backend"):
            if self.get(name) not in ("", *BACKENDS):
                yield name, Problem(f"{self.get(name)[:40]!r} is not offered here", f"choose {', '.join(BACKENDS)}")

    def _of_scenario(self) -> Iterator[tuple[str, Problem]]:
        try:
            loads(self.text)
        except ProblemsError as error:
            for problem in error.problems:
                yield self._field(problem.key), problem

    def _field(self, key: str) -> str:
        """The field of a scenario's key; empty if there is none."""
        first, _, rest = key.partition(".")
        last = rest.rpartition(".")[2]
        if first in ("budget", "precision"):
            return first
        name = {"victims": last, "aggressors": f"{NEIGHBOUR}{last}"}.get(first, "")
        return name if name in FIELDS else ""


FIELDS = (*WHOLE, *(prefix + key for prefix in ("", NEIGHBOUR) for key in (*LIMITS, *DISK)))
