"""A sandbox that is an OCI container: the agent in an empty root, with limits that can change live."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from partywall import units
from partywall.agent import binary
from partywall.agent.client import AgentClient, Sink
from partywall.errors import CapabilityError, TrialError
from partywall.host import block
from partywall.host.block import Throttle
from partywall.host.label import Label
from partywall.sandbox import cgroups, delegation, oci, own_files
from partywall.sandbox.base import Sandbox, Settings
from partywall.sandbox.runtime import Runtime


def _wait_for_pid(file: Path, timeout_s: float = 5) -> int | None:
    """Waits for the file, which the runtime writes shortly before or after the agent's first message."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text()):
            return int(text)
        time.sleep(0.005)
    return None


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Processes that the kernel has killed for lack of memory since boot.

    A container's own counter disappears with its cgroup.
    """
    try:
        lines = vmstat.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    # Kernels before 4.13 do not count them.
    counts = (line.split() for line in lines if line.startswith("oom_kill "))
    return next((int(words[1]) for words in counts if len(words) > 1 and words[1].isdecimal()), 0)


class Container(Sandbox):
    """An agent as the first process of a container."""

    def __init__(self, settings: Settings, label: Label) -> None:
        super().__init__(settings, label)
        self._cgroups = cgroups.read()
        self._scope = delegation.scope_for(self._cgroups)
        self._runtime = Runtime.choose(label.state, self._cgroups, prefer=os.environ.get("PARTYWALL_RUNTIME"))
        self._id = f"{label.run}-{settings.name}"
        self._pid: int | None = None
        self._device: block.Device | None = None
        self._oom_kills_before = oom_kills()

    def start(self, sink: Sink) -> AgentClient:
        bundle = self.label.state / "bundles" / self.settings.name
        (bundle / "rootfs").mkdir(parents=True, exist_ok=True)
        work = self._own_work_dir()
        if self.settings.command:
            own_files.place(self.settings.copies, work)
        if self.settings.limits.disk is not None or self.settings.disk_switched:
            self._device = self._limited_device(work)
        if self._scope is not None:
            self._scope.enter(self.label)
        config = oci.config(
            self.settings,
            cgroup=self.cgroup,
            agent=binary.find(),
            work=work,
            env=self.label.environment,
            device=self._device,
            v2=self._cgroups.is_v2,
            delegated=None if self._scope is None else frozenset(self._scope.handed_down),
        )
        (bundle / "config.json").write_text(json.dumps(config))
        process = subprocess.Popen(
            self._runtime.argv("run", "--bundle", str(bundle), "--pid-file", str(bundle / "pid"), self._id),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | self.label.environment,
            process_group=0,
        )
        self.client = AgentClient(self.settings.name, process, sink)
        try:
            self.client.greet()
        except Exception as error:
            self.stop()
            raise TrialError(f"sandbox {self.settings.name}: the container did not start: {error}") from error
        self._pid = _wait_for_pid(bundle / "pid")
        return self.client

    def _hold_cpu(self, limit: float | None, weight: float | None) -> None:
        v2 = self._cgroups.is_v2
        self._write("cpu", cgroups.cpu_files(self.settings.cpus, limit, weight, v2=v2))

    def _hold_disk(self, throttle: Throttle) -> None:
        if self._device is None:
            self._device = self._limited_device(self._own_work_dir())
        self._write("io", cgroups.disk_files(self._device, throttle, v2=self._cgroups.is_v2))

    def _write(self, controller: str, files: cgroups.Files) -> None:
        with self._changed("its limits could not be changed"):
            cgroups.write(self._cgroups.folder(controller, self.cgroup), files)

    def _limited_device(self, work: Path) -> block.Device:
        device = block.device_of(work)
        if device is None:
            raise CapabilityError(f"sandbox {self.settings.name}: {block.lacking(work)}")
        return device

    def stop(self) -> None:
        if self.client is not None:
            self.client.close()
        if self._runtime.state(self._id) is not None:
            self._runtime.run("delete", "--force", self._id)

    def reason_gone(self, reason: str) -> str:
        if self.settings.memory is None or oom_kills() == self._oom_kills_before:
            return reason
        size = units.format_bytes(self.settings.memory)
        return f"it hit its memory limit of {size} and was killed; raise sandbox.memory or lower what it allocates"

    @property
    def work_dir(self) -> str:
        return oci.WORK

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def cgroup(self) -> str:
        above = self._scope.path.rstrip("/") if self._scope else ""
        return f"{above}{self.label.cgroup}/{self.settings.name}"
