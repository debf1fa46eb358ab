"""Tests of an effect that is measured on this host, and what the host must be like for them.

    @measured
    def test_a_limit_holds(): ...

An assertion that fails while the host was as required fails the test at once. While it was not, the test is run again.
If it never holds, it is skipped as inconclusive, with what kept the host busy. So the test has to make all that it
measures, in folders of its own. It asserts what the effect decides, such as half of its size, and no interval's width.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec

import pytest

from tests.skips import INCONCLUSIVE, MEASURED

OTHERS, STOLEN = 0.05, 0.02
"""Shares of the host's CPU time that other programs, and a hypervisor, may take."""
ATTEMPTS = 3
KERNEL = 2
"""Parent of the kernel's own threads, which work for tests too."""
P = ParamSpec("P")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Program:
    """One process: CPU time until now, in seconds. Its number may be given to another one later."""

    name: str
    parent: int
    nice: int
    began: int
    spent_s: float


@dataclass(frozen=True)
class Seen:
    """The host's processes at a moment, and the CPU time that a hypervisor has taken."""

    at_s: float
    programs: dict[int, Program]
    stolen_s: float

    @classmethod
    def now(cls) -> Seen:
        stolen = Path("/proc/stat").read_text().split(maxsplit=9)[8]
        return cls(time.monotonic(), dict(_programs()), int(stolen) * _TICK_S)

    def own(self) -> set[int]:
        """This process and its descendants."""
        own = {os.getpid()}
        while more := {pid for pid, program in self.programs.items() if program.parent in own} - own:
            own |= more
        return own

    def took(self, end: Seen) -> dict[int, float]:
        """By number, the share of the host's CPU time that each program took which competes with this one.

        Those that ended are not seen.
        """
        own = self.own() | end.own()
        return {
            pid: (program.spent_s - self._before(pid, program)) / self._whole_s(end)
            for pid, program in end.programs.items()
            if pid not in own and _competes(program)
        }

    def until(self, end: Seen) -> str:
        """How the host differed from what is required; empty if it did not."""
        took, stolen = self.took(end), (end.stolen_s - self.stolen_s) / self._whole_s(end)
        others = sum(took.values())
        words = []
        if others > OTHERS:
            words.append(f"{end.programs[max(took, key=took.__getitem__)].name} and others took {others:.0%}")
        if stolen > STOLEN:
            words.append(f"a hypervisor took {stolen:.0%}")
        return " and ".join(words)

    def _whole_s(self, end: Seen) -> float:
        return (end.at_s - self.at_s) * (os.cpu_count() or 1)

    def _before(self, pid: int, program: Program) -> float:
        before = self.programs.get(pid)
        return before.spent_s if before and before.began == program.began else 0.0


def _competes(program: Program) -> bool:
    """A program with a lower priority waits for this one."""
    return program.parent != KERNEL and program.nice <= os.nice(0)


def _programs() -> Iterator[tuple[int, Program]]:
    """From proc_pid_stat(5), whose second field is a name in parentheses."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        spent = (int(fields[11]) + int(fields[12])) * _TICK_S
        yield (
            int(stat.parent.name),
            Program(head.partition("(")[2], int(fields[1]), int(fields[16]), int(fields[19]), spent),
        )


def fresh(folder: Path) -> Path:
    """An empty folder in `folder`, for each attempt of a test."""
    return Path(tempfile.mkdtemp(dir=folder))


def measured(test: Callable[P, None]) -> Callable[P, None]:
    """A test that is run again on a host that is busy with something else, up to ATTEMPTS times."""

    @functools.wraps(test)
    def attempts(*args: P.args, **kwargs: P.kwargs) -> None:
        for left in reversed(range(ATTEMPTS)):
            began = Seen.now()
            try:
                return test(*args, **kwargs)
            except (AssertionError, pytest.fail.Exception):
                if not (disturbed := began.until(Seen.now())):
                    raise
                if not left:
                    pytest.skip(f"{INCONCLUSIVE}{disturbed} of the host's CPU time while it was measured")
        return None

    # Reports of pytest carry it.
    attempts.__dict__[MEASURED] = True
    return attempts
