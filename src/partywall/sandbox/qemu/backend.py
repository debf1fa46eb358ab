"""A sandbox that is a virtual machine: QEMU with the agent inside, and limits on the vCPU threads."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from partywall.agent import binary
from partywall.agent.client import AgentClient, Sink
from partywall.clock import Monotonic
from partywall.errors import AgentError, CapabilityError, PartywallError, TrialError
from partywall.files import write_whole
from partywall.host import Host, waits
from partywall.host.block import Throttle
from partywall.host.label import Label
from partywall.sandbox import cgroups, delegation, own_files, vif
from partywall.sandbox.base import Sandbox, Settings, Spent
from partywall.sandbox.clock import GuestClock, Look
from partywall.sandbox.document import Disk
from partywall.sandbox.peer import Peer
from partywall.sandbox.qemu import accelerator, balloon, counter, disk, root
from partywall.sandbox.qemu.initramfs import initramfs, loaded
from partywall.sandbox.qemu.kernel import GuestKernel
from partywall.sandbox.qemu.launch import launched
from partywall.sandbox.qemu.machine import DISK, MEMORY, Machine, Nic, throttles
from partywall.sandbox.qemu.monitor import Monitor
from partywall.sandbox.qemu.vcpus import VcpuGroup, pin, spent
from partywall.sandbox.switch import Port, Switch

WORK = "/work"
# On an idle host. One emulated guest starts in three seconds, but several share this host's CPUs.
HELLO_S = 90.0
CONSOLE_LINES = 8
# Where the agent as first process mounts the root image, see agent/crates/init.
ROOT_FOLDER = "/root-disk"
UNPLACED = "its virtual CPUs could not be pinned or limited"
CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_c])")
"""Sequences that control a terminal (ECMA-48), of firmware and kernels."""
# Messages with which a kernel or our first process gives up. Only what follows them matters.
TELLING = ("Kernel panic", "Out of memory", "partywall-init")


class Qemu(Sandbox):
    """An agent in a guest."""

    def __init__(self, settings: Settings, label: Label, port: Port | None = None) -> None:
        """port: on another bridge than the run's own."""
        super().__init__(settings, label)
        accelerator.qemu_version(Host.here())
        self._kernel = GuestKernel.prepared()
        self._root = _root_image(settings)
        bridged = port is None and settings.interface == "bridge"
        self._port = Switch(label).port(settings.name) if bridged else port
        self._peers: list[Peer] = []
        self._console = label.state / "guests" / f"{settings.name}.console"
        self._monitor: Monitor | None = None
        self._clock: GuestClock | None = None
        self._vcpus: list[int] = []
        self._device: disk.Device | None = None
        mounted = cgroups.read()
        # Without a scope, a guest without limits still works.
        self._scope = None if os.geteuid() == 0 else delegation.find(mounted, Host.here())
        path = f"{self._scope.path if self._scope else ''}{label.cgroup}/{settings.name}"
        grouped = os.geteuid() == 0 or (self._scope is not None and "cpu" in self._scope.controllers)
        self._group = VcpuGroup(mounted, path, handed_down=self._scope is not None) if grouped else None
        self._ungrouped = ""

    def launch(self, sink: Sink) -> None:
        self._console.parent.mkdir(parents=True, exist_ok=True)
        if self._port is not None:
            self._port.plug()
            vif.note(self.label, self.settings.name, self._port.namespace, self._port.interface)
        ours, theirs = socket.socketpair()
        with theirs:
            machine = Machine(
                settings=self.settings,
                accel=self.settings.accel,
                kernel=self._kernel.image,
                initramfs=self._initramfs(),
                console=self._console,
                qmp=theirs.fileno(),
                image=self._disk(),
                root=self._root,
                nic=self._nic(),
                tsc_khz=counter.khz() if self.settings.accel == "tcg" else None,
            )
            process = launched(machine, self.label)
        self._monitor = Monitor(self.settings.name, ours)
        self.client = AgentClient(self.settings.name, process, sink)

    def start(self, sink: Sink, within_s: float | None = None) -> AgentClient:
        """within_s: how long the agent may take to answer, if the caller knows better than this host shows."""
        if self.client is None:
            self.launch(sink)
        client, monitor = self.client, self._monitor
        if client is None or monitor is None:
            raise TrialError(f"sandbox {self.settings.name}: the guest was not launched")
        try:
            client.greet(within_s or waits.start_s(HELLO_S, Host.here()))
        except AgentError as error:
            self.stop()
            reason = str(error).partition("; ")[0]
            details = f"{reason}{self._about_root()}{self._last_lines()}"
            raise TrialError(f"sandbox {self.settings.name}: the guest did not come up: {details}") from error
        monitor.connect()
        self._vcpus = monitor.vcpu_threads()
        return client

    def settle(self) -> None:
        """Limits are applied late: a guest limited to a twentieth of a CPU would take a minute to boot."""
        client = self.client
        if client is None:
            return
        with self._changed(UNPLACED):
            pin(client.process.pid, self._vcpus, self.settings.cpus, self.settings.host_cpus or self.settings.cpus)
        # Before any limit, because a limited guest answers late.
        self._clock = GuestClock(client.call, Monotonic().now_ns)
        self._clock.shift()
        self._group_vcpus(client.process.pid)

    def stop(self) -> None:
        if self.client is not None:
            # Nothing in a guest outlives its run, so it is switched off instead of shut down.
            self.client.close(kill=True)
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        if self._device is not None:
            self._device.release()
            self._device = None
        while self._peers:
            self._peers.pop().stop()
        if self._port is not None:
            vif.forget(self.label, self.settings.name)
            self._port.unplug()

    def peer(self, kernel: str, params: Mapping[str, Any]) -> str:
        if self._port is None and self.settings.interface != "user":
            return super().peer(kernel, params)
        at, enter = ("127.0.0.1", ()) if self._port is None else (self._port.gateway, self._port.enter)
        peer = Peer.start(self.settings, self.label, kernel, params, at, enter)
        self._peers.append(peer)
        return f"{Nic.user().gateway if self._port is None else at}:{peer.port}"

    def look(self, for_ns: int = 0) -> Look | None:
        return self._clock.keep(for_ns) if self._clock else None

    def reason_gone(self, reason: str) -> str:
        if self.client is not None and self.client.process.poll() is None:
            return reason
        return f"the guest is gone ({reason}){self._last_lines()}"

    @property
    def work_dir(self) -> str:
        return WORK

    @property
    def pid(self) -> int | None:
        return self.client.process.pid if self.client else None

    def spent(self) -> Spent | None:
        return None if self.pid is None else spent(self.pid, self._vcpus, emulated=self.settings.accel == "tcg")

    @property
    def cgroup(self) -> str | None:
        return self._group.path if self._group else None

    @property
    def cgroup_member(self) -> int | None:
        return self._vcpus[0] if self._group and self._vcpus else None

    def _group_vcpus(self, pid: int) -> None:
        settings = self.settings
        requested = settings.cpu_limit is not None or settings.cpu_weight is not None
        if self._group is not None:
            try:
                if self._scope is not None:
                    self._scope.enter(self.label)
                with self._changed(UNPLACED):
                    self._group.create(pid, self._vcpus)
                self._hold_cpu(settings.cpu_limit, settings.cpu_weight)
            except PartywallError as error:
                # Inside a container, root may not write there. A guest without limits still works.
                if requested or not _is_refusal(error):
                    raise
                self._group, self._ungrouped = None, str(error)
        elif requested:
            self._refuse()

    def _hold_cpu(self, limit: float | None, weight: float | None) -> None:
        if self._group is None:
            self._refuse()
        else:
            with self._changed(UNPLACED):
                self._group.set(self.settings.cpus, limit, weight)

    def _hold_disk(self, throttle: Throttle) -> None:
        monitor = self._connected("its disk cannot be limited")
        monitor.execute("block_set_io_throttle", id=DISK, **throttles(throttle))

    def _hold_memory(self, size: int | None) -> None:
        """Inflates the balloon until the guest has `size` bytes left, or deflates it completely."""
        balloon.resize(self._connected("its memory cannot be changed"), size or MEMORY, self.settings.name)

    def _connected(self, what: str) -> Monitor:
        if self._monitor is None:
            raise TrialError(f"sandbox {self.settings.name}: {what}: the guest is not up")
        return self._monitor

    def _refuse(self) -> None:
        raise CapabilityError(
            self._ungrouped
            or f"sandbox {self.settings.name}: CPU limits and weights of a guest need root or a delegated cgroup; "
            "run with sudo"
        )

    def _initramfs(self) -> Path:
        """The initramfs for all guests of a run."""
        path = self._console.parent / "initramfs"
        if not path.exists():
            # Other guests of the run start at the same time.
            write_whole(path, initramfs(loaded(binary.find().read_bytes()), self._kernel.module_contents()))
        return path

    def _nic(self) -> Nic | None:
        if self._port is not None:
            return Nic.on(self._port)
        return Nic.user() if self.settings.interface == "user" else None

    def _disk(self) -> Path | None:
        if not (self.settings.files or self.settings.disk_switched) and self.settings.disk is None:
            return None
        requested = self.settings.disk or Disk()
        if requested.device is not None:
            device = Path(requested.device)
            self._device = disk.Device(device, overwrite=requested.overwrite, content=self._content())
            return self._device.path
        image = self._own_work_dir() / "disk.img"
        image.unlink(missing_ok=True)
        disk.create(image, requested.size or disk.SIZE, self._content())
        return image

    def _content(self) -> Path | None:
        """The folder with the files that its disk has from the start; None if there are none."""
        if not self.settings.copies:
            return None
        folder = self._own_work_dir() / "files"
        own_files.place(self.settings.copies, folder)
        return folder

    def _about_root(self) -> str:
        """The remedy for a root image that the guest's first process could not use."""
        if self._root is None or ROOT_FOLDER not in self._last_lines():
            return ""
        return f"; its root image is unusable; to have it built again: rm -r {self._root.parent}"

    def _last_lines(self) -> str:
        """The end of the guest's console, where a kernel reports why it stopped."""
        try:
            text = self._console.read_text(errors="replace")
        except OSError:
            return ""
        shown = last_lines(text)
        return "; its console ended with:\n" + "\n".join(f"  {line}" for line in shown) if shown else ""


def last_lines(text: str) -> list[str]:
    """Of a console, the lines from where a kernel or a guest's first process says why it stopped, else the last."""
    # What stands before a line on the same one, as firmware clears the screen, is no part of it.
    every = [line.rstrip() for line in CONTROL.sub("", text).splitlines()]
    lines = [line for line in every if line.strip() and line.isprintable()]
    start = next((n for n, line in enumerate(lines) if any(w in line for w in TELLING)), None)
    return lines[-CONSOLE_LINES:] if start is None else lines[start : start + CONSOLE_LINES]


def _root_image(settings: Settings) -> Path | None:
    if settings.root is None:
        return None
    image = root.cached(root.Recipe.of(settings.root, Host.here()))
    if image is None:
        packages = ",".join(settings.root)
        raise CapabilityError(
            f"sandbox {settings.name}: the root image of {packages or 'no packages'} was not built; "
            f"build it with: partywall vm prepare --root '{packages}'"
        )
    return image.file


def _is_refusal(error: PartywallError) -> bool:
    """True if cgroups are unavailable here, as opposed to the guest's threads having ended."""
    cause = error.__cause__
    refused = isinstance(cause, OSError) and cause.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    return isinstance(error, CapabilityError) or refused
