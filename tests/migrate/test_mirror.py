"""The mirror of a disk that moves along, against a QEMU that is slow to do what it was told."""

from __future__ import annotations

from typing import Any, cast

import pytest

from partywall.errors import TrialError
from partywall.migrate.storage import JOB, Mirror
from partywall.sandbox.qemu.monitor import Monitor


class Source:
    """Answers as QEMU does: a copy that has ended cannot be cancelled."""

    def __init__(self, status: str = "ready", error: str = "") -> None:
        self.job: dict[str, Any] = {"id": JOB, "status": status}
        if error:
            self.job["error"] = error
        self.said: list[str] = []

    def execute(self, command: str, **_: Any) -> Any:
        self.said.append(command)
        if command == "query-jobs":
            return [self.job]
        if command == "block-job-cancel":
            if self.job["status"] == "concluded":
                raise TrialError("Job 'storage' in state 'concluded' cannot accept command verb 'cancel'")
            self.job["status"] = "concluded"
        return {}

    def wait(self, seconds: float) -> None:
        pass


def mirror(source: Source) -> Mirror:
    return Mirror(cast("Monitor", source), cast("Monitor", Source()), "192.0.2.2", 10809)


def test_a_move_that_waits_longer_for_its_hand_over_continues_once() -> None:
    source = Source()
    each = mirror(source)
    each.finish()
    each.finish()
    assert source.said.count("block-job-cancel") == 1
    assert source.said.count("migrate-continue") == 1


def test_a_copy_that_failed_before_the_hand_over_says_why() -> None:
    source = Source("concluded", "No space left on device")
    with pytest.raises(TrialError, match="not complete: No space left on device"):
        mirror(source).finish()
    assert "migrate-continue" not in source.said
