"""A guest that moves between two hosts: at most one QEMU on each, and one agent whose stream follows the guest."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from partywall.agent.client import AgentClient, Sink
from partywall.errors import CapabilityError, TrialError
from partywall.files import stat_fields
from partywall.host import Host, install
from partywall.host.label import Label
from partywall.migrate.document import Storage
from partywall.migrate.measure.end import End, Info, Look
from partywall.migrate.measure.network import LINK, LINK_PORT, Network, Place
from partywall.migrate.measure.qemu_end import QemuEnd
from partywall.migrate.measure.refusals import refusals
from partywall.migrate.measure.storage import DEVICE, Mirror, Server
from partywall.sandbox.base import Settings
from partywall.sandbox.lab import interfaces_of
from partywall.sandbox.qemu import counter
from partywall.sandbox.qemu.backend import Qemu
from partywall.sandbox.qemu.launch import launched
from partywall.sandbox.qemu.machine import Machine, Nic
from partywall.sandbox.qemu.monitor import Monitor
from partywall.sandbox.qemu.relay import Relay
from partywall.sandbox.qemu.vcpus import pin

END_S = 30.0
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 5
STARVED_NS = 3_000_000_000
"""Of the time that a question may take. A main thread that waits for a CPU for so long hangs on nothing else."""
OVERLAY = "root.qcow2"
MEMFD = "memfd:memory-backend-memfd"


def available() -> int | None:
    """Bytes of memory that this machine can still give; None if the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10
    return None


def free(folder: Path) -> int:
    """Bytes that can still be written there."""
    filesystem = os.statvfs(folder)
    return filesystem.f_bavail * filesystem.f_frsize


class Side(QemuEnd):
    """A QEMU that Partywall started. stream: Partywall's end of the agent's stream."""

    is_ours = True

    def __init__(self, place: Place, process: subprocess.Popen[bytes], monitor: Monitor, stream: socket.socket) -> None:
        super().__init__(place, monitor, LINK[place])
        self.process = process
        self.stream = stream

    def end(self) -> None:
        """Ends it at once."""
        self.kill()
        self.monitor.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_S)

    def has_ended(self, within_s: float = 0.0) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return self.process.poll() is not None

    def ending(self) -> str:
        code = self.process.poll()
        if code is None:
            return ""
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        words = b""
        if self.process.stderr:
            os.set_blocking(self.process.stderr.fileno(), False)
            words = self.process.stderr.read() or b""
        last = words.decode(errors="replace").strip().splitlines()[-1:]
        return ": ".join([how, *last])

    def look(self) -> Look:
        """A QEMU that gets no CPU does not hang: the request is repeated."""
        for _ in range(PATIENCE):
            waited_ns = self._waited_ns()
            try:
                return super().look()
            except TrialError:
                if self.has_ended() or self._waited_ns() - waited_ns < STARVED_NS:
                    raise
        return super().look()

    def by_hand(self, there: End) -> str:
        """Empty: both QEMUs end with Partywall."""
        del there
        return ""

    def cpu_ns(self) -> int | None:
        """CPU time so far; None if it is gone."""
        fields = stat_fields(f"/proc/{self.process.pid}/stat")
        return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // TICKS if fields else None

    def link_bytes(self) -> int | None:
        """By the counters of its host's own network card on the link."""
        try:
            return interfaces_of(self.process.pid)[LINK_PORT].sent_bytes
        except (OSError, KeyError):
            return None

    def _waited_ns(self) -> int:
        """For how long its main thread has waited for a CPU; 0 if the kernel does not tell."""
        try:
            return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    @property
    def memory(self) -> Path:
        """The guest's memory there, as a file. TrialError if QEMU is gone."""
        folder = Path(f"/proc/{self.process.pid}/fd")
        with contextlib.suppress(OSError):
            for each in folder.iterdir():
                with contextlib.suppress(OSError):
                    if MEMFD in str(each.readlink()):
                        return each
        raise TrialError(f"the memory of the guest on host {self.place} was not found in {folder}")


class MovableGuest(Qemu):
    """An agent in a guest that can move. It starts on host a."""

    def __init__(
        self,
        settings: Settings,
        label: Label,
        network: Network,
        storage: Storage = "shared",
        *,
        dirty_ring: bool = False,
    ) -> None:
        """dirty_ring: whether a method limits what the guest writes."""
        super().__init__(settings, label, network.port("a"))
        self._dirty_ring = dirty_ring
        self._network = network
        self._storage = storage
        self._server: Server | None = None
        self._number = 0
        self.here: Side | None = None
        self.there: Side | None = None
        self._relay: Relay | None = None

    def launch(self, sink: Sink) -> None:
        self._console.parent.mkdir(parents=True, exist_ok=True)
        # What a guest before this one wrote is not this one's.
        for overlay in self._own_work_dir().glob(f"*{OVERLAY}"):
            overlay.unlink()
        if self._storage == "network":
            self._server = Server(self._network, self._overlay(), self.label)
        self.here = self._started("a", incoming=False)
        self._monitor = self.here.monitor
        self._relay = Relay(self.here.process, self.here.stream)
        # A relay has what a client needs of a process.
        self.client = AgentClient(self.settings.name, self._relay, sink)  # type: ignore[arg-type]

    def other(self) -> Place:
        """The host that it is not on."""
        return "b" if self.current().place == "a" else "a"

    def expect(self) -> Side:
        """Starts a QEMU on the other host that waits for the guest. TrialError if there is no room for it."""
        if reasons := self._refusals():
            raise TrialError("; ".join(reasons))
        self.there = self._started(self.other(), incoming=True)
        self.there.monitor.connect()
        self._vcpus = self.there.monitor.vcpu_threads()
        with contextlib.suppress(ProcessLookupError):
            pin(self.there.process.pid, self._vcpus, self.settings.cpus, self.settings.host_cpus or self.settings.cpus)
        self._stream().listen(self.there.stream)
        return self.there

    def _refusals(self) -> list[str]:
        """What keeps it from being moved now. Both hosts are this machine, so they share its memory and disk."""
        move = self.current().monitor.execute("query-migrate")
        source = Info(
            f"host {self.current().place}",
            runs=True,
            blockers=tuple(move.get("blocked-reasons", ())),
            memory=self.settings.memory,
            disk=sum(each.stat().st_blocks for each in self._own_work_dir().glob(f"{self._number}-{OVERLAY}")) * 512,
        )
        destination = Info(f"host {self.other()}", memory_free=available(), disk_free=free(self._own_work_dir()))
        return refusals(source, destination, {}, moves_storage=self.moves_storage)

    @property
    def moves_storage(self) -> bool:
        return self._storage == "moved"

    def mirror(self, port: int) -> Mirror | None:
        """Of a disk that moves along; None if it does not. Both ends are there."""
        if not self.moves_storage or self.there is None:
            return None
        return Mirror(self.current().monitor, self.there.monitor, LINK[self.there.place], port, (DEVICE,), "top")

    def hold(self) -> None:
        """Requests to the agent wait until the guest has arrived, or the move has failed."""
        self._stream().hold()

    def answers(self) -> bool | None:
        """Unused: this guest has an agent, which answers instead."""
        return None

    def release(self) -> None:
        """What was held goes to the guest where it is."""
        self._stream().release()

    def arrived(self) -> None:
        """The guest is on the other host now; the QEMU that it left ends."""
        left, self.here, self.there = self.current(), self.there, None
        try:
            here = self.current()
            self._stream().attach(here.process, here.stream)
            self._monitor = here.monitor
            self._port = self._network.port(here.place)
        finally:
            self._end(left)

    def stayed(self) -> None:
        """Keeps the guest where it is, and ends the QEMU that waited for it."""
        if self.there is not None:
            waited, self.there = self.there, None
            self._stream().forget(waited.stream)
            self._stream().release()
            self._end(waited)

    def stop(self) -> None:
        if self._relay is not None:
            self._relay.close()
        if self.there is not None:
            self._end(self.there)
            self.there = None
        here, self.here, self._monitor = self.here, None, None
        super().stop()
        if here is not None:
            self._end(here)
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _end(self, side: Side) -> None:
        side.end()
        self._network.port(side.place).unplug()

    def current(self) -> Side:
        """The QEMU that the guest is in. TrialError if there is none."""
        if self.here is None:
            raise TrialError(f"sandbox {self.settings.name}: the guest is not up")
        return self.here

    def _stream(self) -> Relay:
        if self._relay is None:
            raise TrialError(f"sandbox {self.settings.name}: the guest was not launched")
        return self._relay

    def _started(self, place: Place, *, incoming: bool) -> Side:
        port = self._network.port(place)
        port.plug()
        self._number += 1
        pairs = [socket.socketpair() for _ in range(2)]
        (monitor, their_monitor), (stream, their_stream) = pairs
        with their_monitor, their_stream:
            machine = Machine(
                settings=self.settings,
                accel=self.settings.accel,
                kernel=self._kernel.image,
                initramfs=self._initramfs(),
                console=self._console.with_suffix(f".{self._number}.console"),
                qmp=their_monitor.fileno(),
                image=self._disk(),
                root=self._disk_of_root(),
                nic=Nic.on(port),
                tsc_khz=counter.khz() if self.settings.accel == "tcg" else None,
                movable=True,
                dirty_ring=self._dirty_ring,
                stream=their_stream.fileno(),
                incoming=incoming,
            )
            process = launched(machine, self.label)
        return Side(place, process, Monitor(self.settings.name, monitor), stream)

    def _disk_of_root(self) -> Path | str | None:
        """The file, or the URL of the server, with the root image; None if the guest has none."""
        if self._root is None:
            return None
        return self._server.url if self._server is not None else self._overlay()

    def _overlay(self) -> Path:
        """A layer over the root image that moves with the guest, so that its writes exist on the other host."""
        # Each host has a disk of its own if the content moves along.
        overlay = self._own_work_dir() / (f"{self._number}-{OVERLAY}" if self._storage == "moved" else OVERLAY)
        if not overlay.exists():
            command = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(self._root), "-F", "raw", str(overlay)]
            try:
                subprocess.run(command, capture_output=True, check=True, timeout=END_S)
            except FileNotFoundError:
                remedy = install(Host.here(), "qemu-utils")
                raise CapabilityError(f"a root image of a guest that moves needs qemu-img; {remedy}") from None
            except subprocess.TimeoutExpired:
                raise TrialError(
                    f"sandbox {self.settings.name}: qemu-img did not end within {END_S:g} s; check the disk"
                ) from None
            except subprocess.CalledProcessError as error:
                said = error.stderr.decode(errors="replace").strip()
                raise TrialError(f"sandbox {self.settings.name}: its root image: {said}") from None
        return overlay
