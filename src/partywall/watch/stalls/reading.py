"""Reads what groups of the host wait for and use, from counters of the kernel. Changes nothing.

How long a group waits is PSI's, of its own cgroup. Where there is no PSI, it is the longest time that one of its tasks
waited in a run queue. How long its limit stopped it, and what it used, are in files of version 2 or of version 1.

A quiet host is cheap: three files say whether anybody waits. Files stay open, because opening one takes several times
as long as reading it. Sources: accounting/psi.rst, cgroup-v2.rst, scheduler/sched-bwc.rst, sched-stats.rst.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from partywall import units
from partywall.errors import CapabilityError
from partywall.files import kernel_text
from partywall.sandbox import cgroups, tenants
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.group_counts import V1_POLICIES, disk_work, field, pressure_ns, throttled_ns, v1_counts
from partywall.sandbox.group_names import known_names
from partywall.watch.stalls.rule import Amounts, Share

CPU, MEMORY, DISK = "cpu", "memory", "disk"
RESOURCES = (CPU, MEMORY, DISK)
PRESSURES = {CPU: "cpu", MEMORY: "memory", DISK: "io"}
GROUPS_MAX = 1000
TASKS_MAX = 4000
"""The most tasks whose waits are read one by one, where there is no PSI."""
ASKED = 0.01
"""A resource is looked at if some task of the host waited for it for this share of the time."""
LOOK_NS, SOON_NS = 120_000_000_000, 5_000_000_000
"""How often groups are looked for, which costs as much as several readings; and how soon if their number changes."""
OPERATION = 65536
"""A request of a disk counts as these bytes, beside its own: small requests take time too."""
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
BUFFER = 16384
ALL = ""
"""The place of memory, and of CPUs where no group is bound to some of them."""


class Count(NamedTuple):
    """A group's counters of one resource, since some fixed moment. own_ns, used: see `Share`.

    limit_hits: how often its memory limit made it reclaim.
    """

    stalled_ns: int
    all_ns: int = 0
    own_ns: int = 0
    used: dict[str, int] | None = None
    is_limited: bool = False
    limit_hits: int = 0


class HostCount(NamedTuple):
    """Counters of the whole host, since its start. Times in ns. reclaimed: pages that were scanned to free memory."""

    busy_ns: int = 0
    steal_ns: int = 0
    softirq_ns: int = 0
    reclaimed: int = 0
    allocation_stalls: int = 0
    major_faults: int = 0
    packets_dropped: int = 0
    softnet_squeezed: int = 0


class Snapshot(NamedTuple):
    """All counters at one moment. counts: by resource and group; without resources that nobody waits for."""

    time_ns: int
    counts: Mapping[str, Mapping[str, Count]]
    host: HostCount


class Interval(NamedTuple):
    """What happened between two snapshots. shares: by resource and group; others: what no watched group used."""

    begin_ns: int
    length_ns: int
    shares: Mapping[str, Mapping[str, Share]]
    others: Mapping[str, Amounts]


class Lack(NamedTuple):
    """Something that is not seen, or not written. what: its kind, one of few; text: what it costs, and the remedy."""

    what: str
    text: str


class Differences:
    """Makes intervals of snapshots. Pure.

    A resource that was left out for some time keeps its last counters, so no waiting is lost. Who used it in between is
    not known then.
    """

    def __init__(self, cells: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._last: dict[str, tuple[int, Mapping[str, Count]]] = {}
        self._before: Snapshot | None = None
        self.cells = cells or {}

    def take(self, after: Snapshot) -> Interval | None:
        """The interval that ends with a snapshot; None for the first one."""
        before, self._before = self._before, after
        shares = {name: self._shares(name, counts, before, after) for name, counts in after.counts.items()}
        self._last |= {name: (after.time_ns, counts) for name, counts in after.counts.items()}
        if before is None:
            return None
        others: dict[str, Amounts] = {}
        if CPU in shares:
            others[CPU] = self._idle_groups(shares[CPU], after.host.busy_ns - before.host.busy_ns)
        return Interval(before.time_ns, after.time_ns - before.time_ns, shares, others)

    def _shares(
        self, name: str, counts: Mapping[str, Count], before: Snapshot | None, after: Snapshot
    ) -> dict[str, Share]:
        read_ns, last = self._last.get(name, (None, {}))
        if before is None or not last:
            return {}
        is_next = read_ns == before.time_ns
        has_reclaimed = after.host.reclaimed > before.host.reclaimed or not is_next
        return {
            group: self._share(name, last[group], now, is_next=is_next, has_reclaimed=has_reclaimed)
            for group, now in counts.items()
            if group in last
        }

    def _share(self, name: str, last: Count, now: Count, *, is_next: bool, has_reclaimed: bool) -> Share:
        stalled_ns = now.stalled_ns - last.stalled_ns
        if stalled_ns < 0:
            # A group of the same name that was made again.
            return Share(0)
        own_ns = max(0, now.own_ns - last.own_ns)
        if name == MEMORY and (now.limit_hits > last.limit_hits or not has_reclaimed):
            # Only the host's own reclaim takes memory from one group for another.
            own_ns = stalled_ns
        used = None
        if is_next and now.used is not None and last.used is not None:
            used = self._used(name, last.used, now.used)
        return Share(stalled_ns, max(0, now.all_ns - last.all_ns), own_ns, used, now.is_limited)

    def _used(self, name: str, last: Mapping[str, int], now: Mapping[str, int]) -> Amounts:
        if len(now) == 1 and not self.cells and name != DISK:
            # The most frequent case, for all groups.
            ((whole, used),) = now.items()
            return {whole: max(0, used - last.get(whole, 0))}
        amounts = {place: float(max(0, amount - last.get(place, 0))) for place, amount in now.items()}
        if name != CPU:
            return {place: amount for place, amount in amounts.items() if amount} if name == DISK else amounts
        spread: dict[str, float] = {}
        for cpus, amount in amounts.items():
            for cell, share in self.cells.get(cpus, {cpus: 1.0}).items():
                spread[cell] = spread.get(cell, 0.0) + amount * share
        return spread

    def _idle_groups(self, shares: Mapping[str, Share], busy_ns: int) -> Amounts:
        """CPU time of nobody who is watched, supposed to be spread evenly."""
        known = sum(sum(share.used.values()) for share in shares.values() if share.used)
        rest = max(0.0, busy_ns - known)
        whole = self.cells.get(ALL, {ALL: 1.0})
        return {cell: rest * share for cell, share in whole.items()}


def cells(sets: Iterable[str]) -> dict[str, dict[str, float]]:
    """Parts of the CPUs that no set divides further: by set, the parts in it, each with its share of the set.

    sets: lists of CPUs as the kernel writes them; the empty one stands for the union of all. Pure.
    """
    members = {text: frozenset(units.parse_cpus(text)) for text in sets if text}
    members[ALL] = frozenset().union(*members.values())
    in_sets: dict[frozenset[str], int] = {}
    of_cpu = {cpu: frozenset(text for text, cpus in members.items() if cpu in cpus) for cpu in members[ALL]}
    for within in of_cpu.values():
        in_sets[within] = in_sets.get(within, 0) + 1
    names = {within: str(number) for number, within in enumerate(in_sets)}
    return {
        text: {names[within]: count / len(cpus) for within, count in in_sets.items() if text in within}
        for text, cpus in members.items()
        if cpus
    }


class _Group:
    """A tenant: its name, the CPUs that it may use, and its open files.

    is_limited: a limit of its own on a disk is set.
    """

    __slots__ = ("_files", "count", "cpus", "is_limited", "longest_ns", "name", "path", "waited_ns")

    def __init__(self, path: str) -> None:
        self.path, self.name, self.cpus, self.is_limited = path, path, "", False
        self._files: dict[str, int] = {}
        self.waited_ns: dict[int, int] = {}
        self.longest_ns = 0
        self.count: Count | None = None

    def read(self, top: str | None, name: str) -> bytes:
        """A file of its folder in a hierarchy, from its beginning; empty if there is none. It stays open."""
        return b"" if top is None else self.read_path(f"{top}/{self.path}/{name}")

    def read_path(self, path: str) -> bytes:
        """A file by its path."""
        descriptor = self._files.get(path)
        if descriptor is None:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                descriptor = -1
            self._files[path] = descriptor
        return _read(descriptor)

    def text_of(self, path: str) -> str | None:
        """A file's text, as `kernel_text` returns it."""
        return self.read_path(path).decode("utf-8", "replace") if self.has(path) else None

    def has(self, path: str) -> bool:
        """True if a file can be opened."""
        self.read_path(path)
        return self._files[path] >= 0

    def close(self, *, absent: bool = False) -> None:
        """Closes its files. absent: forgets only those that did not exist."""
        for path, descriptor in list(self._files.items()):
            if descriptor >= 0 and not absent:
                os.close(descriptor)
            if descriptor < 0 or not absent:
                del self._files[path]


class Reader:
    """Reads a host's counters. root: the folder of /proc and /sys. CapabilityError if the host has no cgroups."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._proc = root, f"{str(root).rstrip('/')}/proc"
        mounted = cgroups.read(root)
        self._tops = _tops(mounted)
        if not self._tops:
            raise CapabilityError("this host has no cgroups, so its groups are unknown; mount cgroup version 2")
        _more_files()
        self._is_v2, self._counts_disks = mounted.is_v2, "io" in mounted.unified_controllers
        self._pressure = _text(mounted.unified)
        self._v1 = {name: str(top) for name, top in mounted.v1.items()}
        self._cpu_top = self._pressure if self._is_v2 else self._v1.get("cpu")
        self._disk_top = self._pressure if self._counts_disks else self._v1.get("blkio")
        self._policies: list[str] = []
        self._groups: dict[str, _Group] = {}
        self._files: dict[str, int] = {}
        self._parents: list[tuple[str, int]] = []
        self._looked_ns = -LOOK_NS
        self._pressed = {name: self._host_waited(name) for name in RESOURCES}
        self._pressed_ns = 0
        self._uses_tasks = False
        self.left_out = 0
        self.cells: dict[str, dict[str, float]] = {}

    @property
    def names(self) -> frozenset[str]:
        """The names of all groups that are watched."""
        return frozenset(group.name for group in self._groups.values())

    def lacks(self) -> Iterator[Lack]:
        """What this host does not show, what that costs, and the remedy."""
        for name, file in PRESSURES.items():
            if self._host_waited(name) is None:
                how = "boot with psi=1"
                if name == CPU and self._has_run_delay():
                    text = f"no PSI: a wait for a CPU is that of one task, the longest; {how}"
                else:
                    text = f"no /proc/pressure/{file}: no wait for {file} is seen; {how}"
                yield Lack(f"psi_{name}", text)
        groups = self._groups.values()
        if self._host_waited(CPU) is not None:
            without = [group.name for group in groups if not group.read(self._pressure, "cpu.pressure")]
            if without:
                yield Lack(
                    "psi_of_groups",
                    f"no PSI of {_listed(without)}: waits for memory and disks are not seen, and a wait for a CPU is "
                    "that of one task; boot with cgroup version 2, or put their processes into it too",
                )
        if blind := [group.name for group in groups if self._cpu_ns(group, self._stat(group)) is None]:
            text = f"CPU time of {_listed(blind)} is not counted, so it is the host's; enable the cpu controller"
            yield Lack("cpu_time_of_groups", text)
        if self.left_out:
            yield Lack("groups", f"{self.left_out} groups are not watched: {GROUPS_MAX} are the most")

    def _has_run_delay(self) -> bool:
        return len((kernel_text(f"{self._proc}/self/schedstat") or "").split()) == 3

    def asked(self, now_ns: int) -> frozenset[str]:
        """The resources that somebody of the host has waited for since the last call; those that are unknown too."""
        now = {name: self._host_waited(name) for name in RESOURCES}
        length_ns = max(1, now_ns - self._pressed_ns)
        found = {
            name
            for name, value in now.items()
            if value is None or value - (self._pressed[name] or 0) >= ASKED * length_ns
        }
        if now[CPU] is None and not self._uses_tasks:
            found.discard(CPU)
        self._pressed, self._pressed_ns = now, now_ns
        return frozenset(name for name in found if now[name] is not None or name == CPU)

    def _host_waited(self, name: str) -> int | None:
        text = self._host_text(f"pressure/{PRESSURES[name]}")
        return pressure_ns(text)[0] if text else None

    def look(self, now_ns: int) -> bool:
        """Looks for groups, if it is time. True if the groups may be others than before."""
        since_ns = now_ns - self._looked_ns
        if since_ns < SOON_NS or (since_ns < LOOK_NS and self._parents == self._links()):
            return False
        self._looked_ns = now_ns
        paths = self._paths()
        self.left_out = max(0, len(paths) - GROUPS_MAX)
        names = known_names(paths[:GROUPS_MAX], self._root)
        for gone in self._groups.keys() - names.keys():
            self._groups.pop(gone).close()
        for path, name in names.items():
            group = self._groups.setdefault(path, _Group(path))
            group.close(absent=True)
            group.name, group.cpus, group.is_limited = name, self._cpus(group), self._has_disk_limit(group)
        self._policies = [
            each for each in V1_POLICIES if self._disk_top and v1_counts(self._disk_top, each, "io_serviced")
        ]
        self._parents = self._links(paths)
        sets = {group.cpus for group in self._groups.values()} | {self._all_cpus()}
        self.cells = cells(sets) if len(sets - {""}) > 1 else {}
        self._uses_tasks = self._has_run_delay()
        return True

    def _paths(self) -> list[str]:
        """Groups of the first hierarchy that has any."""
        for top in self._tops:
            if paths := [str(folder.relative_to(top)) for folder in tenants.groups(top, empty=True)]:
                return paths
        return []

    def _links(self, paths: Iterable[str] = ()) -> list[tuple[str, int]]:
        """The number of groups in each group that has tenants. If it changes, there may be new ones."""
        known = [place for place, _ in self._parents]
        places = sorted(
            {*map(str, self._tops), *(f"{top}/{path.rpartition('/')[0]}" for top in self._tops for path in paths)}
        )
        found = []
        for place in places if paths or not known else known:
            with contextlib.suppress(OSError):
                found.append((place, Path(place).stat().st_nlink))
        return found

    def _all_cpus(self) -> str:
        return (kernel_text(str(self._root / "sys/devices/system/cpu/online")) or "").strip()

    def _cpus(self, group: _Group) -> str:
        """The CPUs that a group may use, as the kernel lists them."""
        own = group.read(self._pressure, "cpuset.cpus.effective") or group.read(self._v1.get("cpuset"), "cpuset.cpus")
        return own.decode().strip() or self._all_cpus()

    def _has_disk_limit(self, group: _Group) -> bool:
        tops = (self._v1.get("blkio"), BLKIO_LIMITS), (self._pressure, ("io.max",))
        return any(group.read(top, file).strip() for top, files in tops for file in files)

    def close(self) -> None:
        """Closes all files."""
        for group in self._groups.values():
            group.close()
        for descriptor in self._files.values():
            os.close(descriptor)
        self._groups.clear()
        self._files.clear()

    def read(self, now_ns: int, asked: Iterable[str] = RESOURCES) -> Snapshot:
        """All counters now. asked: the resources that somebody waits for; a CPU always is."""
        how = {CPU: self._cpu, MEMORY: self._memory, DISK: self._disk}
        counts = {}
        for name in {CPU, *asked}:
            found = {group.name: count for group in self._groups.values() if (count := how[name](group)) is not None}
            if found:
                counts[name] = found
        return Snapshot(now_ns, counts, self._host())

    def _cpu(self, group: _Group) -> Count | None:
        if text := group.read(self._pressure, "cpu.pressure"):
            some_ns, full_ns = pressure_ns(text)
        elif self._uses_tasks:
            some_ns, full_ns = self._longest(group), 0
        else:
            return None
        before, stat, own_ns = group.count, b"", 0
        if before is not None and before.stalled_ns == some_ns:
            # A group that did not wait was not stopped either.
            own_ns = before.own_ns
        else:
            # Also has the time in which limits of groups around it stopped it, since Linux 6.5.
            local = group.read(self._cpu_top, "cpu.stat.local")
            stat = b"" if local else self._stat(group)
            own_ns = throttled_ns(local or stat)
        used = self._cpu_ns(group, stat)
        place = group.cpus if self.cells else ALL
        group.count = Count(some_ns, full_ns, own_ns, None if used is None else {place: used})
        return group.count

    def _stat(self, group: _Group) -> bytes:
        return group.read(self._cpu_top, "cpu.stat")

    def _cpu_ns(self, group: _Group, stat: bytes) -> int | None:
        """CPU time of a group. stat: its cpu.stat, if that was read."""
        if self._is_v2:
            return field(stat or self._stat(group), b"usage_usec ", 1000)
        usage = group.read(self._v1.get("cpuacct"), "cpuacct.usage")
        return int(usage) if usage else None

    def _longest(self, group: _Group) -> int:
        """The longest wait of one task in a run queue, added up reading by reading."""
        now: dict[int, int] = {}
        for top in self._tops:
            for pid in tenants.all_processes(top / group.path):
                with contextlib.suppress(OSError):
                    for task in itertools.islice(Path(f"{self._proc}/{pid}/task").iterdir(), TASKS_MAX - len(now)):
                        words = (kernel_text(f"{task}/schedstat") or "").split()
                        if len(words) == 3:
                            now[int(task.name)] = int(words[1])
            if now:
                break
        changes = (waited - group.waited_ns[task] for task, waited in now.items() if task in group.waited_ns)
        group.longest_ns += max(0, max(changes, default=0))
        group.waited_ns = now
        return group.longest_ns

    def _memory(self, group: _Group) -> Count | None:
        text = group.read(self._pressure, "memory.pressure")
        if not text:
            return None
        top = self._v1.get("memory", self._pressure)
        stat = group.read(top, "memory.stat")
        if "memory" in self._v1:
            taken = field(stat, b"total_pgpgin ", PAGE)
            hits = int(group.read(top, "memory.failcnt") or 0)
        else:
            # What it holds, and what was taken from it, is what it has taken.
            held = group.read(top, "memory.current")
            taken = int(held) + (field(stat, b"pgsteal ", PAGE) or 0) if held else None
            events = group.read(top, "memory.events")
            hits = sum(field(events, word) or 0 for word in (b"high ", b"max ", b"oom "))
        return Count(pressure_ns(text)[0], used=None if taken is None else {ALL: taken}, limit_hits=hits)

    def _disk(self, group: _Group) -> Count | None:
        text = group.read(self._pressure, "io.pressure")
        if not text:
            return None
        used = None
        if self._counts_disks or self._policies:
            folder = f"{self._disk_top}/{group.path}"
            work = disk_work(folder, is_v2=self._counts_disks, policies=self._policies, text_of=group.text_of)
            used = {disk: count * OPERATION + read + written for disk, (count, read, written) in (work or {}).items()}
        return Count(pressure_ns(text)[0], used=used, is_limited=group.is_limited)

    def _host(self) -> HostCount:
        times = [int(word) * TICK_NS for word in self._host_text("stat").partition(b"\n")[0].split()[1:9]]
        user, nice, system, _, _, irq, softirq, steal = [*times, *[0] * (8 - len(times))]
        memory = self._host_text("vmstat", has_rows=True)
        softnet = [line.split() for line in self._host_text("net/softnet_stat", has_rows=True).splitlines()]
        return HostCount(
            busy_ns=user + nice + system + irq + softirq + steal,
            steal_ns=steal,
            softirq_ns=softirq,
            reclaimed=sum(field(memory, word) or 0 for word in (b"pgscan_kswapd ", b"pgscan_direct ")),
            allocation_stalls=sum(
                int(line.split()[1]) for line in memory.splitlines() if line.startswith(b"allocstall")
            ),
            major_faults=field(memory, b"pgmajfault ") or 0,
            packets_dropped=sum(int(words[1], 16) for words in softnet if len(words) > 2),
            softnet_squeezed=sum(int(words[2], 16) for words in softnet if len(words) > 2),
        )

    def _host_text(self, name: str, *, has_rows: bool = False) -> bytes:
        if name not in self._files:
            try:
                self._files[name] = os.open(f"{self._proc}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return b""
        return _read(self._files[name], has_rows=has_rows)


BLKIO_LIMITS = tuple(f"blkio.throttle.{each}_device" for each in ("read_bps", "write_bps", "read_iops", "write_iops"))


def _tops(mounted: Cgroups) -> list[Path]:
    """The hierarchies that may have tenants, those that show most first."""
    found = [mounted.unified] if mounted.unified is not None else []
    found += [mounted.v1[name] for name in ("cpu", "cpuacct", "memory", "pids") if name in mounted.v1]
    return list(dict.fromkeys(found))


def _more_files() -> None:
    """As many open files as may be: some for each group."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8 * GROUPS_MAX
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        # Where a unit forbids it, fewer groups are seen, and those without files are named.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _read(descriptor: int, *, has_rows: bool = False) -> bytes:
    """A whole file; empty if it is not open or its group has ended.

    has_rows: the kernel makes it row by row, and each read returns some rows, at most a page. Other files are made as a
    whole (seq_file.rst), so a read that does not fill its buffer is their end; that saves a call for each of them.
    """
    try:
        text = part = os.pread(descriptor, BUFFER, 0)
        while part and (has_rows or len(part) == BUFFER):
            part = os.pread(descriptor, BUFFER, len(text))
            text += part
    except OSError:
        return b""
    return text


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
