"""QEMU's end of a move, by its monitor."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from partywall.errors import TrialError
from partywall.migrate.document import Method, Place
from partywall.migrate.measure import qmp
from partywall.migrate.measure.end import LEAST_CONTENT, Announced, End, Info, Look, Memory, Usual
from partywall.migrate.measure.far_clock import Ahead
from partywall.migrate.measure.resident import Area
from partywall.migrate.measure.storage import disks
from partywall.sandbox.qemu.monitor import Monitor

LOOK_S = 0.05
QUIT_S = 10.0
LATE_LOOKS = 50
GIB = 1 << 30


def _unknown(_memory: int) -> Area | None:
    """Of a QEMU whose process is not known."""
    return None


class QemuEnd:
    """One QEMU. address: where it takes a guest that arrives. host: what messages call its host.

    ahead: the clock of its machine. resident: what its process holds of so many bytes of a guest's memory, if known.
    """

    is_ours = False

    def __init__(
        self,
        place: Place,
        monitor: Monitor,
        address: str,
        host: str = "",
        ahead: Ahead | None = None,
        resident: Callable[[int], Area | None] = _unknown,
    ) -> None:
        self.place = place
        self.monitor = monitor
        self._address = address
        self.host = host or f"host {place}"
        self.ahead = ahead
        self._resident = resident
        self._usual: dict[str, Any] | None = None
        self._switches: list[dict[str, Any]] = []

    def info(self) -> Info:
        monitor = self.monitor
        move = monitor.execute("query-migrate")
        state = self.state()
        return Info(
            host=self.host,
            version=qmp.version(monitor),
            runs=state in ("running", "paused", "inmigrate"),
            moving=move.get("status") in ("setup", "active", "pre-switchover", "device", "wait-unplug")
            or str(move.get("status", "")).startswith("postcopy"),
            blockers=tuple(move.get("blocked-reasons", ())),
            features=qmp.features(monitor),
            memory=self._size(),
            machine=qmp.machine(monitor),
            machines=qmp.machines(monitor),
            cpu=qmp.cpu(monitor),
            cpus=qmp.cpu(monitor) if state == "inmigrate" else None,
            disks={name: disk.size for name, disk in disks(monitor).items()},
            exact=True,
            emulated=not monitor.execute("query-kvm")["enabled"],
        )

    @property
    def address(self) -> str:
        """Where it takes a guest that arrives."""
        return self._address

    def in_use(self) -> Memory:
        size = self._size()
        pages = max(1, qmp.SAMPLED_PAGES * size // GIB)
        if (area := self._resident(size)) is None:
            return Memory(size, size, 0, "its QEMU's process cannot be looked at", pages)
        least = round(area.resident * LEAST_CONTENT)
        return Memory(size, area.resident, least, "resident in its QEMU's process", pages, area.file, area.layout)

    def usual(self) -> Usual:
        limits = qmp.defaults(self.monitor)
        return Usual(limits.get("max-bandwidth", 0), limits["downtime-limit"])

    def begin_sampling(self, seconds: int) -> None:
        qmp.begin_sampling(self.monitor, seconds)

    def dirty_rate(self) -> int | None:
        return qmp.sampled_rate(self.monitor)

    def _size(self) -> int:
        return int(self.monitor.execute("query-memory-size-summary")["base-memory"])

    def prepare(self, method: Method, *, with_storage: bool = False) -> None:
        if self._usual is None:
            self._usual, self._switches = qmp.defaults(self.monitor), qmp.switches(self.monitor)
        qmp.prepare(method, self.monitor, self._usual, with_storage=with_storage)

    def restore(self) -> None:
        """Parameters and capabilities are what they were before the first move."""
        if self._usual is not None:
            qmp.restore(self.monitor, self._usual, self._switches)

    def forget_switchover(self) -> None:
        """A later move does not wait before its hand-over, for copies of disks that nobody makes."""
        switch = {"capability": "pause-before-switchover", "state": False}
        self.monitor.execute("migrate-set-capabilities", capabilities=[switch])

    def listen(self, port: int) -> str:
        uri = f"tcp:{self._address}:{port}"
        self.monitor.execute("migrate-incoming", uri=uri)
        return uri

    def migrate(self, to: str) -> None:
        self.monitor.execute("migrate", uri=to)

    def look(self) -> Look:
        for _ in range(LATE_LOOKS):
            look = qmp.look(self.monitor.execute("query-migrate"))
            if look.state != "completed" or look.total_ns != 0:
                break
            # QEMU 7.2 says that a move is completed a moment before it knows how long it took.
            time.sleep(LOOK_S)
        return look

    def announced(self) -> Iterator[Announced]:
        return qmp.announced(self.monitor, self.ahead.ns if self.ahead else 0)

    def hand_over(self) -> None:
        self.monitor.execute("migrate-start-postcopy")

    def cut(self) -> None:
        # Only on the source: the destination sees the end of the connection. QEMU 7.2 crashes if it gets this there.
        self.monitor.execute("migrate-pause")

    def recover(self, port: int) -> str:
        uri = f"tcp:{self._address}:{port}"
        self.monitor.execute("migrate-recover", uri=uri)
        return uri

    def go_on(self, to: str) -> None:
        self.monitor.execute("migrate", uri=to, resume=True)

    def by_hand(self, there: End) -> str:
        if not isinstance(there, QemuEnd):
            return ""
        uri = f"tcp:{there.address}:PORT"
        recover = json.dumps({"execute": "migrate-recover", "arguments": {"uri": uri}})
        go_on = json.dumps({"execute": "migrate", "arguments": {"uri": uri, "resume": True}})
        return f"send {recover} to the monitor on {there.host}, and {go_on} to that on {self.host}"

    def cancel(self) -> None:
        self.monitor.execute("migrate_cancel")

    def pause(self) -> None:
        self.monitor.execute("stop")

    def resume(self) -> None:
        self.monitor.execute("cont")

    def state(self) -> str:
        return str(self.monitor.execute("query-status")["status"])

    def answers(self) -> bool:
        try:
            self.state()
        except TrialError:
            return False
        return True

    def unblock(self) -> None:
        self.monitor.unblock()

    def wait(self, seconds: float) -> None:
        self.monitor.wait(seconds)

    def has_ended(self, within_s: float = 0.0) -> bool:
        deadline = time.monotonic() + within_s
        while self.answers():
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_S)
        return True

    def ending(self) -> str:
        return ""

    def kill(self) -> None:
        try:
            self.monitor.execute("quit")
        except TrialError as error:
            # It has ended, or only the way to it is gone.
            raise TrialError(f"it is not known whether the QEMU on {self.host} has ended: {error}") from error
        if not self.has_ended(QUIT_S):
            raise TrialError(f"the QEMU on {self.host} does not end")

    def cpu_ns(self) -> int | None:
        return None

    def link_bytes(self) -> int | None:
        return None
