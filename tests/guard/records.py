"""Records of guards for tests, made without a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partywall.cli.app import command
from partywall.guard.job import GuardJob, PolicyFile
from partywall.guard.record import GuardRecord

POLICY = "partywall_guard: 1\nname: edge\nlink: {capacity: 1Gbit/s}\nvifs: {vm1: {interface: eth1}}\n"


def guard_job(text: str = POLICY, **more: int | None) -> GuardJob:
    """The job of a policy."""
    return GuardJob(policy=PolicyFile(path="edge.yaml", text=text), **more)


def guard(*words: object, host: Any = None) -> int:
    """Carries out a command of a guard, as `partywall guard` does. Returns its exit code, and raises its errors."""
    code: int = command("guard").main([str(word) for word in words], obj=host, standalone_mode=False)
    return code


def guard_record(path: Path, text: str = POLICY) -> GuardRecord:
    """A record without reports, of a host without facts."""
    return GuardRecord.create(path, guard_job(text), {})
