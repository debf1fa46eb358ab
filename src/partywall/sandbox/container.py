"""A sandbox that is an OCI container: the agent in an empty root, with limits that change live."""

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
from partywall.model.plan import Limits
from partywall.sandbox import cgroups, oci
from partywall.sandbox.base import Sandbox, Settings
from partywall.sandbox.label import Label
from partywall.sandbox.runtime import Runtime


def disk_of(path: Path, sys_dev_block: Path = Path("/sys/dev/block")) -> tuple[int, int] | None:
    """Major and minor number of the whole disk that holds `path`.

    None if no block device does (tmpfs, overlay, network).
    """
    device = path.stat().st_dev
    entry = sys_dev_block / f"{os.major(device)}:{os.minor(device)}"
    if not entry.exists():
        return None
    folder = entry.resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    major, minor = (folder / "dev").read_text().split(":")
    return int(major), int(minor)


def _wait_for_pid(file: Path, timeout_s: float = 5) -> int | None:
    """The runtime writes the file about when the agent speaks, before or after."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if file.exists() and (text := file.read_text()):
            return int(text)
        time.sleep(0.005)
    return None


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Processes the kernel has killed for want of memory since boot. A container's own count goes with its cgroup."""
    counts = dict(line.split() for line in vmstat.read_text().splitlines())
    return int(counts.get("oom_kill", 0))


class Container(Sandbox):
    """An agent as the first process of a container."""

    def __init__(self, settings: Settings, label: Label) -> None:
        super().__init__(settings, label)
        if os.geteuid() != 0:
            raise CapabilityError(
                f"sandbox {settings.name}: backend: container needs root; run with sudo or use backend: process"
            )
        self._cgroups = cgroups.read()
        self._runtime = Runtime.choose(label.state, self._cgroups, prefer=os.environ.get("PARTYWALL_RUNTIME"))
        self._id = f"{label.run}-{settings.name}"
        self._pid: int | None = None
        self._live = Limits()
        self._oom_kills_before = oom_kills()

    def start(self, sink: Sink) -> AgentClient:
        bundle = self.label.state / "bundles" / self.settings.name
        (bundle / "rootfs").mkdir(parents=True, exist_ok=True)
        work = self._own_work_dir()
        device = disk_of(work)
        if self.settings.disk is not None and device is None:
            raise CapabilityError(
                f"sandbox {self.settings.name}: disk limits need a block device, and {work} is on none; "
                "set --work-dir to a folder on a disk"
            )
        config = oci.config(
            self.settings,
            cgroup=self.cgroup,
            agent=binary.find(),
            work=work,
            env=self.label.environment,
            device=device,
            v2=self._cgroups.is_v2,
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

    def limit(self, limits: Limits) -> None:
        if limits == self._live:
            return
        limit = self.settings.cpu_limit if limits.cpu_limit is None else limits.cpu_limit
        weight = self.settings.cpu_weight if limits.cpu_weight is None else limits.cpu_weight
        resources = oci.cpu(self.settings.cpus, limit, weight, v2=self._cgroups.is_v2)
        del resources["cpu"]["cpus"]
        self._runtime.run("update", "--resources", "-", self._id, given=json.dumps(resources))
        self._live = limits

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
        return f"{self.label.cgroup}/{self.settings.name}"
