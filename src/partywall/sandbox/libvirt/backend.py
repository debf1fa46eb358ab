"""A sandbox that is a libvirt domain: one created with the agent as its first process, or the user's own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from partywall.agent import binary
from partywall.agent.client import AgentClient, Sink
from partywall.clock import Monotonic
from partywall.errors import AgentError, CapabilityError, TrialError
from partywall.files import write_whole
from partywall.host import Host, waits
from partywall.host.block import Throttle
from partywall.host.label import Label
from partywall.sandbox.base import Sandbox, Settings
from partywall.sandbox.clock import GuestClock, Look
from partywall.sandbox.libvirt import leftovers
from partywall.sandbox.libvirt.domain import Boot, definition, is_local, throttles
from partywall.sandbox.libvirt.library import URI, connect, library, libvirt_errors
from partywall.sandbox.libvirt.owned import lacking
from partywall.sandbox.libvirt.tuning import Before, Tuner
from partywall.sandbox.qemu import balloon, disk
from partywall.sandbox.qemu.initramfs import initramfs, loaded
from partywall.sandbox.qemu.kernel import GuestKernel
from partywall.sandbox.qemu.machine import MEMORY
from partywall.sandbox.ssh import Ssh

# On an idle host. A domain of the user's may still be booting, with little of a CPU: a command before a part makes and
# limits it. Or no agent runs there, which is said sooner.
HELLO_S, THEIR_HELLO_S = 120.0, 60.0
WORK = "/work"


class Libvirt(Sandbox):
    """An agent in a domain."""

    def __init__(self, settings: Settings, label: Label) -> None:
        super().__init__(settings, label)
        self._uri = settings.uri or URI
        self._ours = settings.domain is None
        self._name = settings.domain or leftovers.domain_name(label, settings.name)
        self._connection = connect(self._uri)
        self._domain: Any = None
        self._tuner: Tuner | None = None
        self._usual: dict[str, int] | None = None
        self._before: Before | None = None
        self._inner = _by_ssh(settings, label)
        self._clock: GuestClock | None = None

    def launch(self, sink: Sink) -> None:
        self._domain = self._made() if self._ours else self._users_domain()
        self._tuner = Tuner(self._connection, self._domain, f"sandbox {self.settings.name}: domain {self._name}")
        if self._inner is not None:
            self._inner.launch(sink)
            return
        self.client = AgentClient(self.settings.name, self._bridge(), sink)

    def start(self, sink: Sink) -> AgentClient:
        if self._domain is None:
            self.launch(sink)
        if self._inner is not None:
            self.client = self._inner.start(sink)
            return self.client
        client = self.client
        if client is None:
            raise TrialError(f"sandbox {self.settings.name}: the domain was not launched")
        try:
            client.greet(waits.start_s(HELLO_S if self._ours else THEIR_HELLO_S, Host.here()))
        except AgentError as error:
            self.stop()
            theirs = "no agent answers in the domain (does partywall-agent run there?)"
            what = "the guest did not come up" if self._ours else theirs
            why = str(error).partition("; is this Partywall")[0]
            raise TrialError(f"sandbox {self.settings.name}: {what}: {why}") from error
        return client

    def settle(self) -> None:
        """Limits are applied late: a guest limited to a twentieth of a CPU would take a minute to boot."""
        if self._inner is not None:
            self._inner.settle()
        elif self.client is not None:
            self._clock = GuestClock(self.client.call, Monotonic().now_ns)
            self._clock.shift()
        if self._tuner is not None:
            self._hold_first(self._tuner)

    def _hold_cpu(self, limit: float | None, weight: float | None) -> None:
        if self._tuner is not None:
            self._tuner.hold(self.settings, limit, weight, self._usual)

    def _hold_disk(self, throttle: Throttle) -> None:
        if self._tuner is not None:
            before = self._before.disk_tune if self._before is not None else {}
            self._tuner.throttle(throttles(throttle, before))

    def _hold_memory(self, size: int | None) -> None:
        """Inflates the guest's balloon until it has `size` bytes left, or deflates it to the default."""
        if self._tuner is None:
            return
        own = self._before.memory_kib * 1024 if self._before is not None else MEMORY
        self._tuner.give_memory((size or own) // 1024)
        balloon.settle(self._tuner.memory, size or own, self.settings.name)

    def stop(self) -> None:
        if self._inner is not None:
            self._inner.stop()
        elif self.client is not None:
            self.client.close()
        self._leave()

    def look(self, for_ns: int = 0) -> Look | None:
        if self._inner is not None:
            return self._inner.look(for_ns)
        return self._clock.keep(for_ns) if self._clock else None

    def reason_gone(self, reason: str) -> str:
        return f"domain {self._name} or the connection to it is gone: {reason}"

    @property
    def work_dir(self) -> str:
        return self._inner.work_dir if self._inner is not None else WORK

    @property
    def pid(self) -> int | None:
        """The process ID of QEMU, for a domain on this host."""
        return _emulator(self._name) if is_local(self._uri) else None

    # Domains created by Partywall

    def _made(self) -> Any:
        kind = self._kind()
        with libvirt_errors(f"libvirt {self._uri}"):
            image = self._image(kind)
            xml = definition(self.settings, self._name, kind, self._boot(), image)
        # Xen's driver cannot tie a domain to a connection. The bridge destroys it at its end.
        flags = 0 if kind == "xen" else library().VIR_DOMAIN_START_AUTODESTROY
        leftovers.note(self.label, self._uri, self._name)
        try:
            with libvirt_errors(f"sandbox {self.settings.name}: the domain could not be started"):
                return self._connection.createXML(xml, flags)
        except TrialError as error:
            if "Permission denied" in str(error) and is_local(self._uri):
                remedy = f"QEMU's user must be able to enter {self.label.work}; give another folder by --work-dir"
                raise TrialError(f"{error}; {remedy}") from error
            raise

    def _kind(self) -> str:
        if self._connection.getType() == "Xen":
            return "xen"
        if self.settings.accel != "auto":
            return "kvm" if self.settings.accel == "kvm" else "qemu"
        return "kvm" if "<domain type='kvm'" in self._connection.getCapabilities() else "qemu"

    def _boot(self) -> Boot:
        """Boot files on the daemon's host: those in a folder there, or ours if it is this host."""
        if self.settings.boot is not None:
            folder = PurePath(self.settings.boot)
            return Boot(folder / "vmlinuz", folder / "initramfs")
        if not is_local(self._uri):
            raise CapabilityError(
                f"sandbox {self.settings.name}: {self._uri} is another host, which cannot read this one's files; write "
                "kernel and initramfs with 'partywall vm export FOLDER', copy the folder there, and name it by boot:"
            )
        kernel = GuestKernel.prepared()
        folder = self._open_folder()
        # A copy of the kernel, shared by all runs: QEMU's own user may not be able to enter the home folder of the
        # cache.
        _put(folder / "vmlinuz", kernel.image.read_bytes)
        _put(folder / "initramfs", lambda: initramfs(loaded(binary.find().read_bytes()), kernel.module_contents()))
        return Boot(folder / "vmlinuz", folder / "initramfs")

    def _image(self, kind: str) -> Path | None:
        needs_disk = self.settings.disk is not None or self.settings.disk_switched
        cannot = kind == "xen" or not is_local(self._uri)
        if not needs_disk and (not self.settings.files or cannot):
            return None
        if cannot:
            raise CapabilityError(
                f"sandbox {self.settings.name}: a domain of {self._uri} cannot have a disk made for the run; leave "
                "out sandbox.disk"
            )
        image = self._open_folder() / f"{self.settings.name}.img"
        image.unlink(missing_ok=True)
        disk.create(image, (self.settings.disk and self.settings.disk.size) or disk.SIZE)
        return image

    def _open_folder(self) -> Path:
        """A folder that the daemon's own user may enter. The daemon takes ownership of the files while it uses them."""
        folder = self.label.work / "domains"
        folder.mkdir(parents=True, exist_ok=True)
        for place in (self.label.work, folder):
            place.chmod(0o711)
        return folder

    # The user's own domains

    def _users_domain(self) -> Any:
        with libvirt_errors(f"sandbox {self.settings.name}: domain {self._name}"):
            if why := lacking(self._connection, self._uri, self._name, by_ssh=self._inner is not None):
                raise TrialError(f"sandbox {self.settings.name}: {why}")
            return self._connection.lookupByName(self._name)

    def _hold_first(self, tuner: Tuner) -> None:
        settings = self.settings
        if not self._ours:
            now = tuner.before()
            self._before = leftovers.note_before(self.label, self._uri, self._name, now)
            if now != self._before:
                # An earlier turn could not restore it, so its current state is not its original one.
                tuner.restore(self._before)
            tuner.pin(settings)
            if settings.limits.disk is not None or settings.disk_switched:
                tuner.throttle(throttles(settings.limits.disk or Throttle(), self._before.disk_tune))
            if settings.memory is not None:
                tuner.give_memory(settings.memory // 1024)
        self._usual = self._before.scheduler if self._before else tuner.scheduler()
        if settings.cpu_limit is not None or settings.cpu_weight is not None:
            tuner.hold(settings, settings.cpu_limit, settings.cpu_weight, self._usual)

    def _leave(self) -> None:
        """Removes a domain created by Partywall, or restores the user's."""
        if self._domain is None:
            return
        domain, self._domain = self._domain, None
        try:
            if self._ours:
                leftovers.destroy(domain)
            elif self._before is not None and self._tuner is not None:
                self._tuner.restore(self._before)
        except TrialError:
            # Its note remains, so that the end of the run or the next start tries again.
            return
        finally:
            # A domain that could not be destroyed may still end with its connection. A broken connection cannot be
            # closed.
            with contextlib.suppress(library().libvirtError):
                self._connection.close()
        leftovers.forget(self.label, self._uri, self._name)

    def _bridge(self) -> subprocess.Popen[bytes]:
        kind = "console" if self._tuner is not None and self._tuner.is_xen else "port"
        own = ["--own"] if self._ours else []
        pipe = subprocess.PIPE
        # -P: no module in the current folder may shadow a library.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "partywall.sandbox.libvirt.bridge", self._uri, self._name, kind, *own],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=os.environ | self.label.environment,
            process_group=0,
        )


def _put(path: Path, content: Callable[[], bytes]) -> None:
    """Writes a file for all of a run's domains, readable by any user."""
    if not path.exists():
        write_whole(path, content(), mode=0o644)


def _by_ssh(settings: Settings, label: Label) -> Ssh | None:
    """The connection to the agent in a domain with an address. It uses all of the domain's CPUs."""
    if settings.host is None:
        return None
    return Ssh(dataclasses.replace(settings, backend="ssh", cpus=()), label)


def _emulator(name: str) -> int | None:
    """The process of a domain's emulator on this host."""
    wanted = re.compile(rb"guest=" + re.escape(name.encode()) + rb"(,|\0)")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted.search((folder / "cmdline").read_bytes()):
                return int(folder.name)
        except OSError:
            continue
    return None
