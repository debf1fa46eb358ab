#!/usr/bin/env python3
r"""Records the files of this host that Partywall reads, as one text: see tests/hosts/README.md.

    python3 labs/hosts/record.py > tests/hosts/trees/my-host.tree

Needs no root and nothing but Python. Names, serial numbers and addresses that the host's files hold are left out or
replaced; look through the text before you pass it on.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CPU, NODE = "/sys/devices/system/cpu", "/sys/devices/system/node"
# Files by their patterns.
FILES = (
    *("/proc/cmdline", "/proc/cpuinfo", "/proc/meminfo", "/proc/filesystems", "/proc/cgroups", "/proc/schedstat"),
    *("/proc/vmstat", "/proc/pressure/*", "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/self/status"),
    *("/proc/sys/kernel/osrelease", "/proc/sys/kernel/io_uring_disabled", "/proc/sys/kernel/perf_event_paranoid"),
    "/proc/sys/kernel/random/boot_id",
    *(f"{CPU}/{name}" for name in ("online", "offline", "possible", "present", "isolated", "nohz_full")),
    *(f"{CPU}/{name}" for name in ("intel_pstate/no_turbo", "cpufreq/boost", "cpuidle/current_driver")),
    *(f"{CPU}/cpu[0-9]*/topology/{name}" for name in ("physical_package_id", "core_id")),
    *(f"{CPU}/cpu[0-9]*/topology/{name}" for name in ("core_cpus_list", "thread_siblings_list")),
    *(f"{CPU}/cpu[0-9]*/cache/index*/{name}" for name in ("level", "type", "size", "shared_cpu_list")),
    *(f"{CPU}/cpu[0-9]*/cache/index*/{name}" for name in ("coherency_line_size", "ways_of_associativity")),
    *(f"{CPU}/cpu[0-9]*/cpufreq/scaling_{name}" for name in ("driver", "governor", "available_governors")),
    *(f"{CPU}/cpu[0-9]*/cpufreq/scaling_{name}" for name in ("min_freq", "max_freq")),
    *(f"{NODE}/{name}" for name in ("online", "possible", "has_cpu", "node[0-9]*/cpulist", "node[0-9]*/meminfo")),
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    *("/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name", "/sys/hypervisor/type"),
    "/sys/fs/resctrl/schemata",
    "/etc/os-release",
)
# Folders of which the names alone are read.
LISTED = ("/sys/bus/event_source/devices", "/sys/class/powercap", "/sys/class/power_supply")
# Whether they are there is all that counts.
PRESENT = ("/dev/kvm", "/dev/cpu_dma_latency", "/usr/share/tomcat10/bin/catalina.sh", "/var/tmp")  # noqa: S108
DISK_FILES = ("dev", "size", "partition", "queue/rotational", "queue/scheduler", "queue/logical_block_size")
DISK_FILES += ("queue/write_cache", "queue/nr_requests")
CGROUP_FILES = ("cgroup.controllers", "memory.max", "memory.current", "memory.stat", "memory.limit_in_bytes")
CGROUP_FILES += ("memory.usage_in_bytes", "cpuset.cpus", "cpuset.cpus.effective", "cpu.max")
# Of a file of many lines, those that are kept; of processors all but the first keep their number alone.
KEPT = {
    "/proc/cpuinfo": r"(processor|vendor_id|model name|CPU implementer)\b",
    "/proc/meminfo": r"(Mem|Buffers|Cached|Swap|HugePages|Hugepagesize)",
    "/etc/os-release": r"(ID|ID_LIKE|VERSION_ID|VERSION_CODENAME)=",
    "/proc/self/status": r"(Name|Cpus_allowed_list|Mems_allowed_list):",
    # Mounts elsewhere may tell of their user.
    "/proc/self/mountinfo": r"\d+ \d+ \d+:\d+ \S+ /((proc|sys|dev|run|tmp|var|home|boot)\S*)? ",
    "/proc/vmstat": r"(nr_free_pages|oom_kill) ",
    "/proc/schedstat": r"(version|timestamp|cpu0) ",
}
KEPT_OF_CGROUPS = r"(anon|file|inactive_file|total_inactive_file) "
KEPT_OF_NODES = r"Node \d+ (MemTotal|MemFree):"
NO_DISKS = ("loop", "ram", "zram")
# Of the kernel's command line, what bears on what Partywall can do.
PARAMETERS = ("isolcpus", "nohz_full", "rcu_nocbs", "nosmt", "maxcpus", "mitigations", "psi", "cgroup_disable")
PARAMETERS += ("cgroup_no_v1", "systemd.unified_cgroup_hierarchy", "intel_pstate", "cpuidle.off", "idle", "rdt")
SCRUBBED = (
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "scrubbed"),
    (re.compile(r"\b(\d{1,3}\.){3}\d{1,3}\b"), "192.0.2.1"),
    (re.compile(r"(?i)(serial|hostname|password|token|key)=\S+"), r"\1=scrubbed"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("/"), help="folder that holds the host's proc and sys")
    sys.stdout.write(record(parser.parse_args().root))


def record(root: Path) -> str:
    """The text of a tree, with what may be secret replaced."""
    text = "".join(f"{line}\n" for line in lines(root))
    for secret, plain in SCRUBBED:
        text = secret.sub(plain, text)
    return f"# Recorded by labs/hosts/record.py.\n{text}"


def lines(root: Path) -> Iterator[str]:
    """Every line of the text. Files of CPUs that say the same share one."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for path in dict.fromkeys(_files(root)):
        line = _line(root, path)
        match = re.fullmatch(rf"({CPU}/cpu)(\d+)(/\S+)( .*)?", line)
        if match:
            alike.setdefault((match[1], match[3], match[4] or ""), []).append(int(match[2]))
        else:
            yield line
    for (before, after, text), cpus in sorted(alike.items(), key=lambda one: (one[0][1], one[1])):
        yield f"{before}{{{_list(sorted(cpus))}}}{after}{text}"
    for folder in LISTED:
        place = _under(root, folder)
        yield from (f"{folder}/{name}/" for name in sorted(_names(place)))
    yield from (path + ("/" if _under(root, path).is_dir() else "") for path in PRESENT if _under(root, path).exists())
    yield from _disks(root)


def _files(root: Path) -> Iterator[str]:
    for pattern in FILES:
        found = [f"/{path.relative_to(root)}" for path in sorted(root.glob(pattern.lstrip("/"))) if not path.is_dir()]
        # Patterns reach into links such as /proc/self, whose other name is not wanted.
        yield from found
        if not found and "*" not in pattern and _under(root, pattern).is_file():
            yield pattern
    yield from _cgroup_files(root)


def _cgroup_files(root: Path) -> Iterator[str]:
    """Of this process's own cgroups, and those above them."""
    paths = [line.split(":", 2)[2] for line in _text(root, "/proc/self/cgroup").splitlines() if line.count(":") >= 2]
    for mount in _text(root, "/proc/self/mountinfo").splitlines():
        if " - cgroup" not in mount:
            continue
        point = mount.split()[4].replace("\\040", " ").replace("\\043", "#")
        for path in dict.fromkeys(["/", *paths]):
            folders = [Path(point + path), *Path(point + path).parents]
            for folder in (one for one in folders if one.is_relative_to(point) and ".." not in one.parts):
                yield from (f"{folder}/{name}" for name in CGROUP_FILES if _under(root, f"{folder}/{name}").is_file())


def _line(root: Path, path: str) -> str:
    name = path.replace(" ", "\\040")
    try:
        text = _under(root, path).read_bytes().decode("utf-8", "replace")
    except OSError as error:
        return f"{name} ! {error.strerror}"
    text = _kept(path, text)
    whole = text.endswith("\n")
    body = text.removesuffix("\n")
    if not text:
        return name
    if body and "\n" not in body:
        return f"{name} {'=' if whole else ':='} {body}"
    return "\n".join([f"{name} {'|' if whole else ':|'}", *(f"| {line}".rstrip(" ") for line in body.split("\n"))])


def _kept(path: str, text: str) -> str:
    """What is kept of a file's text."""
    if path == "/proc/cmdline":
        return " ".join(word for word in text.split() if word.partition("=")[0] in PARAMETERS) + "\n"
    kept = KEPT_OF_CGROUPS if path.endswith("/memory.stat") else KEPT.get(path, "")
    kept = KEPT_OF_NODES if path.startswith(NODE) and path.endswith("/meminfo") else kept
    lines = [line for line in text.splitlines(keepends=True) if re.match(kept, line)]
    if path == "/proc/cpuinfo":
        # Flags are told once: they are long, and the same everywhere.
        lines += [line for line in text.splitlines(keepends=True) if line.startswith(("flags", "Features"))][:1]
    return "".join(lines)


def _disks(root: Path) -> Iterator[str]:
    """Block devices: the links that name them, and what they say of themselves."""
    for folder in ("/sys/block", "/sys/dev/block"):
        for name in sorted(_names(_under(root, folder))):
            link = _under(root, f"{folder}/{name}")
            if not link.is_symlink() or link.readlink().name.startswith(NO_DISKS):
                continue
            yield f"{folder}/{name} -> {link.readlink()}"
            real = os.path.normpath(f"{folder}/{link.readlink()}")
            files = (f"{real}/{file}" for file in DISK_FILES)
            yield from (
                _line(root, file) for file in files if folder == "/sys/dev/block" and _under(root, file).exists()
            )


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _text(root: Path, path: str) -> str:
    try:
        return _under(root, path).read_text(errors="replace")
    except OSError:
        return ""


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _list(numbers: list[int]) -> str:
    """As the kernel writes it: 0-3,8."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)


if __name__ == "__main__":
    main()
