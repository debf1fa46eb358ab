"""Creates an OCI bundle's config.json from a sandbox's settings. Pure.

Source: the OCI runtime specification 1.0, config-linux.md. Settings for cgroup version 2 are under `unified` where
possible, because the runtimes do not convert version 1 shares to weights proportionally.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from partywall.host.quota import PERIOD_US, quota_us
from partywall.sandbox.base import Settings
from partywall.sandbox.document import Disk

AGENT = "/partywall-agent"
WORK = "/work"
# The default of other groups: 1024 shares in version 1, a weight of 100 in version 2.
_SHARES_PER_WEIGHT = 1024 / 100
# Keys of `cpu` that belong to another controller.
_OF_CPUSET = ("cpus", "mems")
_HOST_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "opt")


def cpu(cpus: Sequence[int], limit: float | None, weight: float | None, *, v2: bool) -> dict[str, Any]:
    """Resources of the cpu controller. limit: share of the time of `cpus`; None removes it."""
    # To remove a limit live, a quota above the available time, because crun accepts no negative quota.
    share = 2.0 if limit is None else limit
    quota = quota_us(share * len(cpus))
    resources: dict[str, Any] = {"cpu": {"quota": quota, "period": PERIOD_US, "cpus": ",".join(map(str, cpus))}}
    weight = 100 if weight is None else weight
    if v2:
        resources["unified"] = {"cpu.weight": str(min(10_000, max(1, round(weight))))}
    else:
        resources["cpu"]["shares"] = min(262_144, max(2, round(weight * _SHARES_PER_WEIGHT)))
    return resources


def block_io(disk: Disk | None, device: tuple[int, int] | None) -> dict[str, Any]:
    """Resources of the blkio or io controller, for the disk with the sandbox's files."""
    if disk is None or device is None:
        return {}
    names = {
        "throttleReadBpsDevice": disk.read_bps,
        "throttleWriteBpsDevice": disk.write_bps,
        "throttleReadIOPSDevice": disk.read_iops,
        "throttleWriteIOPSDevice": disk.write_iops,
    }
    entry = {"major": device[0], "minor": device[1]}
    return {"blockIO": {name: [entry | {"rate": rate}] for name, rate in names.items() if rate is not None}}


def config(
    settings: Settings,
    *,
    cgroup: str,
    agent: Path,
    work: Path,
    env: dict[str, str],
    device: tuple[int, int] | None,
    v2: bool,
    delegated: frozenset[str] | None = None,
) -> dict[str, Any]:
    """The whole config.json.

    The root contains only the agent, or also the host's programs if a command is to run. delegated: the controllers of
    an unprivileged user's containers, which have a user namespace with this user as root; None for root's containers.
    """
    resources = _resources(settings, device, v2=v2)
    if delegated is not None:
        resources = _within(resources, delegated)
    capabilities = ["CAP_KILL"]
    # Raising it above our own would need a capability that a container's first process lacks.
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": WORK, "TMPDIR": WORK} | env
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            # Affinity is inherited, and a cpuset only narrows it.
            "args": [AGENT, "serve", "--cpus", ",".join(map(str, settings.cpus))],
            "env": [f"{key}={value}" for key, value in environment.items()],
            "cwd": WORK,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": files_max, "soft": files_max}],
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": settings.name[:60],
        "mounts": _mounts(agent, work, settings.command, own_sys=delegated is None or settings.network == "own"),
        "linux": {
            "cgroupsPath": cgroup,
            "resources": resources,
            "namespaces": [{"type": kind} for kind in _namespaces(settings, own_user=delegated is not None)],
            **(_mappings() if delegated is not None else {}),
        },
    }


def _resources(settings: Settings, device: tuple[int, int] | None, *, v2: bool) -> dict[str, Any]:
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    resources |= cpu(settings.cpus, settings.cpu_limit, settings.cpu_weight, v2=v2)
    resources |= block_io(settings.disk, device)
    if settings.memory_nodes:
        resources["cpu"]["mems"] = ",".join(map(str, settings.memory_nodes))
    if settings.memory is not None:
        resources["memory"] = {"limit": settings.memory}
    return resources


def _within(resources: dict[str, Any], controllers: frozenset[str]) -> dict[str, Any]:
    """Removes settings whose controllers the cgroup lacks.

    None of them was requested; otherwise the run was refused.
    """
    kept = {key: value for key, value in resources.items() if key not in ("cpu", "unified")}
    of_cpu = {
        key: value
        for key, value in resources["cpu"].items()
        if ("cpuset" if key in _OF_CPUSET else "cpu") in controllers
    }
    kept |= {"cpu": of_cpu} if of_cpu else {}
    return kept | ({"unified": resources["unified"]} if "cpu" in controllers else {})


def _namespaces(settings: Settings, *, own_user: bool) -> tuple[str, ...]:
    user = ("user",) if own_user else ()
    own = ("network",) if settings.network == "own" else ()
    return (*user, "pid", *own, "ipc", "uts", "mount")


def _mappings() -> dict[str, Any]:
    """The one user and group that may be mapped without privileges: our own, as root of the namespace."""
    return {
        "uidMappings": [{"containerID": 0, "hostID": os.geteuid(), "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": os.getegid(), "size": 1}],
    }


def _bind(source: Path, to: str, mode: str) -> dict[str, Any]:
    return {"destination": to, "type": "bind", "source": str(source), "options": ["rbind", mode]}


def _sys(own: bool) -> list[dict[str, Any]]:
    """Mounts for /sys.

    own: a new sysfs, which only the owner of the network namespace may mount; else the host's, without its cgroups.
    """
    options = ["nosuid", "noexec", "nodev", "ro"]
    if own:
        return [{"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": options}]
    cover = {"destination": "/sys/fs/cgroup", "type": "tmpfs", "source": "tmpfs", "options": [*options, "size=4k"]}
    return [{"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", *options]}, cover]


def _mounts(agent: Path, work: Path, command: bool, *, own_sys: bool) -> list[dict[str, Any]]:
    # /dev/shm and /tmp are the container's own.
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]},  # noqa: S108
        *_sys(own_sys),
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]},  # noqa: S108
    ]
    folders = [Path("/") / name for name in _HOST_FOLDERS] if command else []
    mounts += [_bind(folder.resolve(), str(folder), "ro") for folder in folders if folder.is_dir()]
    return [*mounts, _bind(agent, AGENT, "ro"), _bind(work, WORK, "rw")]
