#!/usr/bin/env python3
r"""Records the files of this host that Partywall reads, as one text: see tests/hosts/README.md.

    python3 labs/hosts/record.py > tests/hosts/trees/my-host.tree

Needs no root and nothing but Python. Only names that kernels and distributions give are kept. All others (of users,
hosts, cgroups, folders, disks, volumes, shares) become name-1, name-2 and so on, the same name always the same word.
Serial numbers and addresses are left out or replaced. Look through the text before you pass it on.
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
    "/proc/self/uid_map",
    *("/proc/sys/kernel/osrelease", "/proc/sys/kernel/io_uring_disabled", "/proc/sys/kernel/perf_event_paranoid"),
    *("/proc/sys/kernel/unprivileged_userns_clone", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
    *("/proc/sys/user/max_user_namespaces", "/etc/apparmor.d/crun", "/etc/apparmor.d/runc"),
    "/proc/sys/kernel/random/boot_id",
    *(f"{CPU}/{name}" for name in ("online", "offline", "possible", "present", "isolated", "nohz_full")),
    *(f"{CPU}/{name}" for name in ("intel_pstate/no_turbo", "cpufreq/boost", "cpuidle/current_driver")),
    *(f"{CPU}/smt/{name}" for name in ("control", "active")),
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
LISTED = ("/sys/bus/event_source/devices", "/sys/class/powercap")
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
    "/etc/apparmor.d/crun": r"(profile crun /usr/s?bin/crun |\s+userns,)",
    "/etc/apparmor.d/runc": r"(profile runc /usr/s?bin/runc |\s+userns,)",
    "/etc/os-release": r"(ID|ID_LIKE|VERSION_ID|VERSION_CODENAME)=",
    "/proc/self/status": r"(Cpus_allowed_list|Mems_allowed_list):",
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
# Names of folders, cgroups and disks that say nothing of who uses the host.
KNOWN_WORDS = """
    . .. proc sys dev run tmp var home boot fs cgroup unified pts shm mqueue hugepages kernel debug tracing security bpf
    pstore fuse connections config selinux efi efivars firmware acpi devices virtual powercap lock user netns secrets
    docker lxc containers containerd service kubepods burstable besteffort machine lib log cache mnt srv opt usr local
    etc root host data bus irq keys null resctrl binfmt_misc overlay2 diff work l u w inner scrubbed
    hugetlb memory cpu cpuset cpuacct cpu,cpuacct cpuacct,cpu blkio freezer perf_event net_cls net_prio
    net_cls,net_prio net_prio,net_cls pids rdma misc
    user.slice system.slice machine.slice init.scope app.slice background.slice session.slice user-1000.slice
    user@1000.service kubepods.slice kubepods-burstable.slice kubepods-besteffort.slice docker.service
    containerd.service ssh.service sshd.service cron.service dbus.service systemd systemd-1
"""
KNOWN_NAMES = frozenset(KNOWN_WORDS.split())
# Disks and their partitions as drivers name them; people name volumes, arrays and pools.
DISK_NAME = (
    r"((s|v|xv|h)d[a-z]{1,3}|dasd[a-z]{1,3}|nvme\d+(c\d+)?n\d+|mmcblk\d+|(md|dm-|sr|fd|nbd|rbd|zd|pmem|bcache|drbd|loop)\d+)"
    r"(p?\d{1,3})?"
)
KNOWN_NAME = re.compile(rf"session-\w{{1,3}}\.scope|net:\[\d+\]|{DISK_NAME}")
OF_USER = re.compile(r"user(-|@)\d+\.(slice|service)")
UNIT = re.compile(r"(.+?)(\.(?:slice|scope|service|mount|socket|payload))?", re.DOTALL)
# What mounts say of themselves. Of the other options none is kept: they may hold names, addresses and passwords.
SOURCE_WORDS = "none proc sysfs tmpfs udev devtmpfs devpts cgroup cgroup2 overlay shm mqueue nsfs bpf /dev/root"
SOURCES = frozenset(SOURCE_WORDS.split())
FUSE = re.compile(r"\w+|fuse\.(sshfs|lxcfs|portal|gvfsd-fuse|snapfuse)")
OPTION = re.compile(
    r"[a-z][a-z0-9_]{0,30}"
    r"|(size|nr_inodes|mode|ptmxmode|subvolid|msize|commit)=\d{1,12}[kKmMgG%]?"
    r"|errors=(remount-ro|continue|panic)|data=(ordered|writeback|journal)|compress=(zstd|lzo|zlib)(:\d+)?"
    r"|space_cache=v2|name=systemd"
)
FOLDERS_OF_OPTIONS = ("upperdir", "lowerdir", "workdir", "subvol", "name")
# Parts of a kernel's release that distributions give. Numbers are kept, other words may be an owner's.
FLAVOURS = (
    "amd64 arm64 armmp x86_64 aarch64 i686 ppc64le s390x riscv64 generic cloud server virtual lowlatency rt preempt "
    "aws azure gcp oracle ibm kvm gke raspi rpi pve default lts zen hardened arch edge virt microsoft standard WSL2"
)
KNOWN_FLAVOUR = re.compile(rf"[-+.~]|\d+|{FLAVOURS.replace(' ', '|')}|(deb|el|fc|amzn|bpo|rc|v)\d+(_\d+)?")
# What may stand in any file: identifiers and addresses.
HEX = "[0-9a-fA-F]"
UUID = re.compile(rf"\b{HEX}{{8}}(-{HEX}{{4}}){{3}}-{HEX}{{12}}\b")
NO_UUID = "00000000-0000-0000-0000-{:012}"
SCRUBBED = (
    (re.compile(rf"\b{HEX}{{32,64}}\b"), "scrubbed"),
    (re.compile(rf"\b{HEX}{{2}}([:-]{HEX}{{2}}){{5}}\b"), "00:00:5e:00:53:00"),
    (re.compile(rf"\b{HEX}{{1,4}}(:{HEX}{{1,4}}){{7}}\b"), "2001:db8::1"),
    (re.compile(rf"(?<![\w:])({HEX}{{1,4}}(:{HEX}{{1,4}})*)?::{HEX}{{1,4}}(:{HEX}{{1,4}})*(?![\w:])"), "2001:db8::1"),
    (re.compile(r"\b(\d{1,3}\.){3}\d{1,3}\b(?!-)"), "192.0.2.1"),
    (re.compile(r"(?i)(serial|hostname|password|token|key)=\S+"), r"\1=scrubbed"),
)


class Names:
    """Other words for the names that people chose: the same name is always replaced by the same word."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._uuids: dict[str, str] = {}

    def of(self, name: str) -> str:
        """One part of a path. Blanks and marks that have to be escaped stay, and so does the kind of a unit."""
        if not name or name in KNOWN_NAMES or KNOWN_NAME.fullmatch(name):
            return name
        if OF_USER.fullmatch(name):
            return re.sub(r"\d+", "1000", name)
        match = UNIT.fullmatch(name)
        stem, kind = (match[1], match[2] or "") if match else (name, "")
        number = self._words.setdefault(stem, f"name-{len(self._words) + 1}")
        return number + "".join(mark for mark in stem if mark in " #") + kind

    def path(self, path: str) -> str:
        return "/".join(map(self.of, path.split("/")))

    def uuid(self, match: re.Match[str]) -> str:
        uuid = match[0].lower()
        return self._uuids.setdefault(uuid, NO_UUID.format(0 if set(uuid) == {"0", "-"} else len(self._uuids) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("/"), help="folder that holds the host's proc and sys")
    sys.stdout.write(record(parser.parse_args().root))


def record(root: Path) -> str:
    """The text of a tree, with what may be secret replaced."""
    names = Names()
    text = UUID.sub(names.uuid, "".join(f"{line}\n" for line in lines(root, names)))
    for secret, plain in SCRUBBED:
        text = secret.sub(plain, text)
    return f"# Recorded by labs/hosts/record.py.\n{text}"


def lines(root: Path, names: Names) -> Iterator[str]:
    """Every line of the text. Files of CPUs that say the same share one."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for path in dict.fromkeys(_files(root)):
        line = _line(root, path, names)
        match = re.fullmatch(rf"({CPU}/cpu)(\d+)(/\S+)( .*)?", line)
        if match:
            alike.setdefault((match[1], match[3], match[4] or ""), []).append(int(match[2]))
        else:
            yield line
    for (before, after, text), cpus in sorted(alike.items(), key=lambda row: (row[0][1], row[1])):
        yield f"{before}{{{_list(sorted(cpus))}}}{after}{text}"
    for folder in LISTED:
        place = _under(root, folder)
        yield from (f"{folder}/{name}/" for name in sorted(_names(place)))
    yield from (path + ("/" if _under(root, path).is_dir() else "") for path in PRESENT if _under(root, path).exists())
    yield from _disks(root, names)


def _files(root: Path) -> Iterator[str]:
    for pattern in FILES:
        files = [f"/{path.relative_to(root)}" for path in sorted(root.glob(pattern.lstrip("/"))) if not path.is_dir()]
        # Patterns reach into links such as /proc/self, whose other name is not wanted.
        yield from files
        if not files and "*" not in pattern and _under(root, pattern).is_file():
            yield pattern
    yield from _cgroup_files(root)


def _cgroup_files(root: Path) -> Iterator[str]:
    """Of this process's own cgroups, and those above them."""
    paths = [line.split(":", 2)[2] for line in _text(root, "/proc/self/cgroup").splitlines() if line.count(":") >= 2]
    for mount in _text(root, "/proc/self/mountinfo").splitlines():
        if " - cgroup" not in mount:
            continue
        point = _plain(mount.split()[4])
        for path in dict.fromkeys(["/", *paths]):
            folders = [Path(point + path), *Path(point + path).parents]
            for folder in (inside for inside in folders if inside.is_relative_to(point) and ".." not in inside.parts):
                yield from (f"{folder}/{name}" for name in CGROUP_FILES if _under(root, f"{folder}/{name}").is_file())


def _line(root: Path, path: str, names: Names) -> str:
    is_cgroups = path.rpartition("/")[2] in CGROUP_FILES
    name = f"{names.path(path.rpartition('/')[0])}/{path.rpartition('/')[2]}" if is_cgroups else path
    name = name.replace(" ", "\\040")
    try:
        text = _under(root, path).read_bytes().decode("utf-8", "replace")
    except OSError as error:
        return f"{name} ! {error.strerror}"
    text = _kept(path, text, names)
    whole = text.endswith("\n")
    body = text.removesuffix("\n")
    if not text:
        return name
    if body and "\n" not in body:
        return f"{name} {'=' if whole else ':='} {body}"
    return "\n".join([f"{name} {'|' if whole else ':|'}", *(f"| {line}".rstrip(" ") for line in body.split("\n"))])


def _kept(path: str, text: str, names: Names) -> str:
    """What is kept of a file's text."""
    if path == "/proc/cmdline":
        return " ".join(word for word in text.split() if word.partition("=")[0] in PARAMETERS) + "\n"
    if path == "/proc/sys/kernel/osrelease":
        return _release(text)
    kept = KEPT_OF_CGROUPS if path.endswith("/memory.stat") else KEPT.get(path, "")
    kept = KEPT_OF_NODES if path.startswith(NODE) and path.endswith("/meminfo") else kept
    lines = [line for line in text.splitlines(keepends=True) if re.match(kept, line)]
    if path == "/proc/cpuinfo":
        # Flags are listed once: they are long, and the same everywhere.
        lines += [line for line in text.splitlines(keepends=True) if line.startswith(("flags", "Features"))][:1]
    if path == "/proc/self/cgroup":
        lines = [_membership(line, names) for line in lines]
    if path == "/proc/self/mountinfo":
        lines = [mount for line in lines if (mount := _mount(line, names))]
    return "".join(lines)


def _release(text: str) -> str:
    """A kernel's release without words of its builder: 6.1.0-40-amd64."""
    parts = re.split(r"([-+.~])", text.strip())
    known = [part if KNOWN_FLAVOUR.fullmatch(part) else "" for part in parts]
    return re.sub(r"[-+.~]+(?=[-+.~]|$)", "", "".join(known)) + "\n"


def _membership(line: str, names: Names) -> str:
    number, controllers, path = (*line.rstrip("\n").split(":", 2), "", "")[:3]
    if controllers.startswith("name="):
        controllers = f"name={names.of(controllers.removeprefix('name='))}"
    return f"{number}:{controllers}:{names.path(path)}\n"


def _mount(line: str, names: Names) -> str:
    """A line of the table of mounts; empty if it is none."""
    place, dash, kind = line.rstrip("\n").partition(" - ")
    fields, of_kind = place.split(" "), kind.split(" ")
    if not dash or len(fields) < 6 or len(of_kind) < 3:
        return ""
    fields[3:5] = (_escaped(names.path(_plain(field))) for field in fields[3:5])
    fields[5] = ",".join(_options(fields[5], names))
    fields[6:] = [field for field in fields[6:] if re.fullmatch(r"\w+:\d+", field)]
    type_, source, options = of_kind[:3]
    if not FUSE.fullmatch(type_):
        type_ = f"fuse.{names.of(type_.partition('.')[2])}"
    return f"{' '.join(fields)} - {type_} {_source(source, names)} {','.join(_options(options, names))}\n"


def _source(source: str, names: Names) -> str:
    """A device, or a word of the kernel's. Labels, pools, shares and folders get another name."""
    if source in SOURCES or not source:
        return source
    folder, _, name = _plain(source).rpartition("/")
    if folder == "/dev" or folder.startswith("/dev/"):
        return _escaped(f"/dev/{names.of(name)}")
    return names.of(source.replace("/", "_").replace("\\", "_"))


def _options(options: str, names: Names) -> Iterator[str]:
    for option in options.split(","):
        key, _, value = option.partition("=")
        if OPTION.fullmatch(option):
            yield option
        elif key in FOLDERS_OF_OPTIONS:
            yield f"{key}={':'.join(_escaped(names.path(_plain(folder))) for folder in value.split(':'))}"


def _plain(text: str) -> str:
    """Blanks and the like are written as octal numbers."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), text)


def _escaped(text: str) -> str:
    return text.replace(" ", "\\040").replace("#", "\\043")


def _disks(root: Path, names: Names) -> Iterator[str]:
    """Block devices: the links that name them, and what they say of themselves."""
    for folder in ("/sys/block", "/sys/dev/block"):
        for name in sorted(_names(_under(root, folder))):
            link = _under(root, f"{folder}/{name}")
            if not link.is_symlink() or link.readlink().name.startswith(NO_DISKS):
                continue
            shown = name if ":" in name else names.of(name)
            yield f"{folder}/{shown} -> {_disk_path(str(link.readlink()), names)}"
            real = os.path.normpath(f"{folder}/{link.readlink()}")
            files = (f"{real}/{file}" for file in DISK_FILES if folder == "/sys/dev/block")
            for file in files:
                if _under(root, file).exists():
                    line = _line(root, file, names)
                    yield _disk_path(real, names) + line.removeprefix(real.replace(" ", "\\040"))


def _disk_path(path: str, names: Names) -> str:
    """What follows `block/` are names of disks; before it the kernel counts buses and devices."""
    before, mark, disk = path.rpartition("/block/")
    return f"{before}{mark}{names.path(disk)}"


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
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges)


if __name__ == "__main__":
    main()
