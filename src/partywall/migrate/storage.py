"""A guest's disk that moves along: a mirror on the destination, over NBD, which is equal to the disk at the hand-over.

Only the layer above the root image is sent. The root image itself is never written, and is on both hosts, as a template
is. Source of the sequence: QEMU's documentation of live block device operations, "Live storage migration".
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from partywall.errors import TrialError
from partywall.sandbox.qemu.monitor import Monitor

DEVICE = "root"
JOB = "storage"
LOOK_S = 0.01
READY_S = 600.0
FINISH_S = 30.0


class Mirror:
    """The mirror of one disk, from the QEMU that has the guest to the one that it moves to."""

    def __init__(self, here: Monitor, there: Monitor, address: str, port: int) -> None:
        self._here, self._there = here, there
        self._address, self._port = address, port

    def begin(self) -> int:
        """Copies the disk, and then keeps the copy equal. Returns the bytes sent. TrialError if it cannot."""
        server = {"type": "inet", "data": {"host": self._address, "port": str(self._port)}}
        self._there.execute("nbd-server-start", addr=server)
        export = {"type": "nbd", "id": DEVICE, "node-name": _node(self._there), "name": DEVICE, "writable": True}
        self._there.execute("block-export-add", **export)
        self._here.execute(
            "drive-mirror",
            **{"job-id": JOB, "device": DEVICE, "sync": "top", "mode": "existing", "format": "raw"},
            **{
                "auto-dismiss": False,
                "copy-mode": "write-blocking",
                "target": f"nbd:{self._address}:{self._port}:exportname={DEVICE}",
            },
        )
        deadline = time.monotonic() + READY_S
        while (job := self._job())["status"] != "ready":
            if job["status"] == "concluded" or time.monotonic() > deadline:
                raise TrialError(f"the guest's disk was not copied to {self._address}: {job.get('error', 'too slow')}")
            self._here.wait(LOOK_S)
        sent: int = job["current-progress"]
        return sent

    def finish(self) -> None:
        """Ends the copy, which is complete because the guest stands still, and lets the move continue.

        TrialError if the copy does not end.
        """
        self._here.execute("block-job-cancel", device=JOB)
        job = self._await("concluded", FINISH_S)
        if "error" in job:
            raise TrialError(f"the copy of the guest's disk is not complete: {job['error']}")
        self._here.execute("migrate-continue", state="pre-switchover")

    def end(self, *, completed: bool) -> None:
        """Ends what is left of the mirror on both sides. Either may be gone."""
        with contextlib.suppress(TrialError):
            if not completed and self._job()["status"] != "concluded":
                self._here.execute("block-job-cancel", device=JOB, force=True)
                self._await("concluded", FINISH_S)
            self._here.execute("job-dismiss", id=JOB)
        with contextlib.suppress(TrialError):
            self._there.execute("nbd-server-stop")

    def _await(self, status: str, seconds: float) -> dict[str, Any]:
        """The copy in a state, or concluded. TrialError if it takes longer."""
        deadline = time.monotonic() + seconds
        while (job := self._job())["status"] not in (status, "concluded"):
            if time.monotonic() > deadline:
                raise TrialError(f"the copy of the guest's disk is not {status} after {seconds:g} s")
            self._here.wait(LOOK_S)
        return job

    def _job(self) -> dict[str, Any]:
        """TrialError if there is none."""
        for job in self._here.execute("query-jobs"):
            if job["id"] == JOB:
                return dict(job)
        raise TrialError("the copy of the guest's disk has not begun")


def _node(monitor: Monitor) -> str:
    """The name of the disk's node."""
    name: str = next(
        each["inserted"]["node-name"] for each in monitor.execute("query-block") if each["device"] == DEVICE
    )
    return name
