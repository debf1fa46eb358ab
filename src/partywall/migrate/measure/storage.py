"""A guest's disks over the network: mirrors that move along, or a server that both hosts use.

A mirror is on the destination, over NBD, and is equal to the disk at the hand-over. Of a guest that Partywall started
only the layer above the root image is sent. The root image itself is never written, and is on both hosts, as a template
is. Source of the sequence: QEMU's documentation of live block device operations, "Live storage migration".
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from partywall.errors import CapabilityError, TrialError
from partywall.host import Host, install
from partywall.host.label import Label
from partywall.migrate.document import Progress
from partywall.migrate.measure.network import STORAGE, Network
from partywall.sandbox.qemu.launch import unread
from partywall.sandbox.qemu.monitor import Monitor

DEVICE = "root"
JOB = "partywall-storage"
LOOK_S = 0.01
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
        with unread(image.parent) as (written, self._said):
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *network.enter("storage"), SERVER, *options, *where, str(image)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=written,
                env=os.environ | label.environment, process_group=0,
            )  # fmt: skip
        deadline = time.monotonic() + STARTED_S
        while not started.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                said = self._said.read().decode(errors="replace").strip()
                self.stop()
                raise TrialError(f"{SERVER} did not start: {said or 'it said nothing'}")
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """Ends it. May be called twice."""
        self._process.kill()
        self._process.wait()
        self._said.close()


@dataclass(frozen=True)
class Disk:
    """A disk that a guest can write. node: QEMU's name of its upper layer; size: bytes that the guest sees."""

    node: str
    size: int


def disks(monitor: Monitor) -> dict[str, Disk]:
    """By the name of the drive, or else of the device. TrialError if QEMU does not answer."""
    return {
        each["device"] or each["qdev"]: Disk(inserted["node-name"], inserted["image"]["virtual-size"])
        for each in monitor.execute("query-block")
        if (inserted := each.get("inserted")) and not inserted["ro"]
    }


def copies(monitor: Monitor) -> list[dict[str, Any]]:
    """The copies of disks that a QEMU makes for Partywall, as it tells them."""
    return [dict(job) for job in monitor.execute("query-jobs") if job["id"].startswith(JOB)]


def end_copies(monitor: Monitor, *, force: bool) -> None:
    """Ends what is left of copies. force: those that go on too. TrialError if they do not end."""
    deadline = time.monotonic() + FINISH_S
    while jobs := copies(monitor):
        for job in jobs:
            if job["status"] == "concluded":
                monitor.execute("job-dismiss", id=job["id"])
            elif force:
                # One that is ending already refuses.
                with contextlib.suppress(TrialError):
                    monitor.execute("block-job-cancel", device=job["id"], force=True)
        if time.monotonic() > deadline or not (force or any(job["status"] == "concluded" for job in jobs)):
            raise TrialError("a copy of the guest's disk does not end")
        monitor.wait(LOOK_S)


class Mirror:
    """Mirrors of disks, from the QEMU that has the guest to the one that it moves to.

    names: of the disks, see `disks`; None for all. sync: what is copied: "full", or "top", the upper layer of each.
    """

    def __init__(
        self, here: Monitor, there: Monitor, address: str, port: int, names: Sequence[str] | None = None,
        sync: Literal["full", "top"] = "full",
    ) -> None:  # fmt: skip
        self._here, self._there = here, there
        self._address, self._port = address, port
        self._names, self._sync = names, sync
        self._jobs: tuple[str, ...] = ()
        self._is_finished = False

    def begin(self, bandwidth: int | None, within_s: float, watch: Callable[[Progress], None]) -> int:
        """Copies the disks, and then keeps the copies equal. Returns the bytes sent.

        bandwidth: bit/s that each copy may take; None for all. watch: called with each look, of pass 0. TrialError if
        it takes longer than `within_s`, or fails.
        """
        server = {"type": "inet", "data": {"host": self._address, "port": str(self._port)}}
        own, their = disks(self._here), disks(self._there)
        self._there.execute("nbd-server-start", addr=server)
        for place, name in enumerate(own if self._names is None else self._names):
            export = f"{JOB}-{place}"
            self._there.execute(
                "block-export-add",
                **{"type": "nbd", "id": export, "node-name": their[name].node, "name": export, "writable": True},
            )
            self._here.execute(
                "drive-mirror",
                **{"job-id": export, "device": own[name].node, "sync": self._sync, "mode": "existing"},
                speed=(bandwidth or 0) // 8,
                **{
                    "format": "raw",
                    "auto-dismiss": False,
                    "copy-mode": "write-blocking",
                    "target": f"nbd:{self._address}:{self._port}:exportname={export}",
                },
            )
            self._jobs = (*self._jobs, export)
        deadline = time.monotonic() + within_s
        while True:
            jobs = self._looks()
            sent: int = sum(job["current-progress"] for job in jobs)
            every: int = sum(job["total-progress"] for job in jobs)
            if all(job["status"] == "ready" for job in jobs):
                return sent
            watch(Progress(at_ns=time.monotonic_ns(), sent=sent, left=max(0, every - sent), passes=0))
            ended = next((job for job in jobs if job["status"] == "concluded"), None)
            if ended or time.monotonic() > deadline:
                why = ended.get("error", "it ended") if ended else f"it was not done after {within_s:g} s"
                raise TrialError(f"the guest's disk was not copied to {self._address}: {why}")
            self._here.wait(LOOK_S)

    def finish(self) -> None:
        """Ends the copies, which are complete because the guest stands still, and lets the move continue.

        May be called again: QEMU does not continue at once. TrialError if a copy does not end, or has failed before.
        """
        if self._is_finished:
            return
        for job in self._looks():
            if job["status"] != "concluded":
                self._here.execute("block-job-cancel", device=job["id"])
        for job in self._concluded():
            if "error" in job:
                raise TrialError(f"the copy of the guest's disk is not complete: {job['error']}")
        self._here.execute("migrate-continue", state="pre-switchover")
        self._is_finished = True

    def end(self, *, completed: bool) -> None:
        """Ends what is left of the mirrors on both sides. Either may be gone."""
        with contextlib.suppress(TrialError):
            end_copies(self._here, force=not completed)
            self._jobs = ()
        with contextlib.suppress(TrialError):
            self._there.execute("nbd-server-stop")

    def _concluded(self) -> list[dict[str, Any]]:
        """The copies, all of which have ended. TrialError if that takes longer."""
        deadline = time.monotonic() + FINISH_S
        while True:
            jobs = self._looks()
            if all(job["status"] == "concluded" for job in jobs):
                return jobs
            if time.monotonic() > deadline:
                raise TrialError(f"the copy of the guest's disk has not ended after {FINISH_S:g} s")
            self._here.wait(LOOK_S)

    def _looks(self) -> list[dict[str, Any]]:
        """The copies as they are. TrialError if one is not there."""
        jobs = {job["id"]: job for job in copies(self._here)}
        if missing := [name for name in self._jobs if name not in jobs]:
            raise TrialError(f"the copy of the guest's disk is gone: {', '.join(missing)}")
        return [jobs[name] for name in self._jobs]
