"""The mirror of a disk that moves along, against a QEMU that is slow to do what it was told."""

from __future__ import annotations

from typing import Any, cast

import pytest

from partywall.errors import TrialError
from partywall.migrate.document import Progress
from partywall.migrate.measure.storage import Disk, Mirror, disks
from partywall.sandbox.qemu.monitor import Monitor

NAMES = ("root", "/machine/peripheral/data")
QCOW2, RAW = 10 << 30, 1 << 30


class Source:
    """Answers as QEMU does: a copy that has ended cannot be cancelled. It has two disks and a CD."""

    def __init__(self, status: str = "ready", error: str = "") -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.status, self.error = status, error
        self.said: list[str] = []

    def execute(self, command: str, **given: Any) -> Any:
        self.said.append(command)
        match command:
            case "query-block":
                image = {"virtual-size": QCOW2}
                return [
                    {"device": "root", "inserted": {"node-name": "#block1", "ro": False, "image": image}},
                    {
                        "device": "",
                        "qdev": NAMES[1],
                        "inserted": {"node-name": "data", "ro": False, "image": {"virtual-size": RAW}},
                    },
                    {"device": "cd", "inserted": {"node-name": "cd", "ro": True, "image": image}},
                    {"device": "floppy"},
                ]
            case "drive-mirror":
                self.speed = given["speed"]
                job = {"id": given["job-id"], "status": self.status, "current-progress": 7, "total-progress": 100}
                self.jobs[job["id"]] = job | ({"error": self.error} if self.error else {})
            case "query-jobs":
                return list(self.jobs.values())
            case "block-job-cancel":
                job = self.jobs[given["device"]]
                if job["status"] == "concluded":
                    raise TrialError("Job in state 'concluded' cannot accept command verb 'cancel'")
                job["status"] = "concluded"
            case "job-dismiss":
                del self.jobs[given["id"]]
        return {}

    def wait(self, seconds: float) -> None:
        pass


looks: list[Progress] = []


def mirror(source: Source) -> Mirror:
    return Mirror(cast("Monitor", source), cast("Monitor", Source()), "192.0.2.2", 10809)


def begun(source: Source) -> Mirror:
    each = mirror(source)
    assert each.begin(800_000_000, 5.0, looks.append) == 2 * 7
    return each


def test_the_disks_that_a_guest_writes_are_named_by_drive_or_device() -> None:
    assert disks(cast("Monitor", Source())) == dict(
        zip(NAMES, [Disk("#block1", QCOW2), Disk("data", RAW)], strict=True)
    )


def test_all_disks_are_copied_and_nothing_is_left_of_the_copies() -> None:
    source = Source()
    each = begun(source)
    assert source.said.count("drive-mirror") == 2
    assert source.speed == 100_000_000, "bytes/s, of the method's limit in bit/s"
    each.finish()
    each.end(completed=True)
    each.end(completed=True)
    assert not source.jobs


def test_a_copy_that_cannot_be_made_says_why_and_ends() -> None:
    source = Source("concluded", "Connection refused")
    each = mirror(source)
    with pytest.raises(TrialError, match=r"was not copied to 192\.0\.2\.2: Connection refused"):
        each.begin(None, 5.0, looks.append)
    each.end(completed=False)
    assert not source.jobs


def test_a_copy_that_takes_longer_than_the_move_may_is_given_up() -> None:
    source = Source("running")
    each = mirror(source)
    with pytest.raises(TrialError, match=r"was not done after 0\.01 s"):
        each.begin(None, 0.01, looks.append)
    assert (looks[-1].passes, looks[-1].sent, looks[-1].left) == (0, 14, 2 * 93)
    source.jobs["somebody-else-s"] = {"id": "somebody-else-s", "status": "running"}
    each.end(completed=False)
    assert list(source.jobs) == ["somebody-else-s"]


def test_a_move_that_waits_longer_for_its_hand_over_continues_once() -> None:
    source = Source()
    each = begun(source)
    each.finish()
    each.finish()
    assert source.said.count("block-job-cancel") == 2
    assert source.said.count("migrate-continue") == 1


def test_a_copy_that_failed_before_the_hand_over_says_why() -> None:
    source = Source()
    each = begun(source)
    source.jobs["partywall-storage-1"] |= {"status": "concluded", "error": "No space left on device"}
    with pytest.raises(TrialError, match="not complete: No space left on device"):
        each.finish()
    assert "migrate-continue" not in source.said
