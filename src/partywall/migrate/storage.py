"""A guest's disk over the network: a mirror that moves along, or a server that both hosts use.

The mirror is on the destination, over NBD, and is equal to the disk at the hand-over. Only the layer above the root
image is sent. The root image itself is never written, and is on both hosts, as a template is. Source of the sequence:
QEMU's documentation of live block device operations, "Live storage migration".
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from partywall.errors import CapabilityError, TrialError
from partywall.host import Host, install
from partywall.migrate.network import STORAGE, Network
from partywall.sandbox.label import Label
from partywall.sandbox.qemu.monitor import Monitor

DEVICE = "root"
JOB = "storage"
LOOK_S = 0.01
READY_S = 600.0
FINISH_S = 30.0


SERVER, PORT = "qemu-nbd", 10809
STARTED_S = 20.0


class Server:
    """A host of its own with a guest's disk, which it serves by NBD: `url` is the disk on both hosts."""

    url = f"nbd://{STORAGE['server']}:{PORT}/{DEVICE}"

    def __init__(self, network: Network, image: Path, label: Label) -> None:
        """image: in QEMU's format qcow2. CapabilityError if there is no server; TrialError if it does not start."""
        if not shutil.which(SERVER):
            raise CapabilityError(f"a disk on the network needs {SERVER}; {install(Host.here(), 'qemu-utils')}")
        started = image.with_suffix(".served")
        started.unlink(missing_ok=True)
        # It must not outlive the process that started it. Both hosts have it open during a move.
        options = ["--persistent", "--shared=0", "--cache=none", "--aio=threads", "--format=qcow2"]
        where = [f"--bind={STORAGE['server']}", f"--port={PORT}", f"--export-name={DEVICE}", f"--pid-file={started}"]
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *network.enter("storage"), SERVER, *options, *where, str(image)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=os.environ | label.environment, process_group=0,
        )  # fmt: skip
        deadline = time.monotonic() + STARTED_S
        while not started.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                said = self._process.stderr.read().decode(errors="replace").strip() if self._process.stderr else ""
                raise TrialError(f"{SERVER} did not start: {said or 'it said nothing'}")
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """Ends it. May be called twice."""
        self._process.kill()
        self._process.wait()


class Mirror:
    """The mirror of one disk, from the QEMU that has the guest to the one that it moves to."""

    def __init__(self, here: Monitor, there: Monitor, address: str, port: int) -> None:
        self._here, self._there = here, there
        self._address, self._port = address, port
        self._is_finished = False

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

        May be called again: QEMU does not continue at once. TrialError if the copy does not end, or has failed before.
        """
        if self._is_finished:
            return
        if self._job()["status"] != "concluded":
            self._here.execute("block-job-cancel", device=JOB)
        job = self._await("concluded", FINISH_S)
        if "error" in job:
            raise TrialError(f"the copy of the guest's disk is not complete: {job['error']}")
        self._here.execute("migrate-continue", state="pre-switchover")
        self._is_finished = True

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
