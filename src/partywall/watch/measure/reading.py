"""Reads the kernel's counters of disks, and of the work that tenants do on them. Changes nothing on the host.

Of cgroups the kernel counts requests of each disk: in `io.stat` (version 2) or in files of the blkio controller
(version 1), and there only for some disks. Of processes it counts bytes of all disks together: see `processes`.
Sources: iostats.rst, cgroup-v2.rst, cgroup-v1/blkio-controller.rst, accounting/psi.rst, proc_pid_io(5).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partywall.errors import CapabilityError, Problem, UsageError
from partywall.files import kernel_text
from partywall.host import Host
from partywall.host.label import start_ticks
from partywall.sandbox import cgroups, tenants
from partywall.sandbox.group_counts import V1_POLICIES, Counts, device_row, disk_work, v1_counts, waited_ns
from partywall.sandbox.tenants import Tenant
from partywall.watch.measure.processes import Processes
from partywall.watch.record import HOST, REST, UNKNOWN, Disk, Span, Use

SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk's own are."""
OTHERS = (11, 15)
"""Places of completed discards (since Linux 4.18) and flushes (since 5.5) among a disk's counters."""
TIMES, TIME_WRAP = (3, 7, 9, 10, 14, 16), 2**32
"""Places of times in ms, which the kernel prints as 32-bit numbers that wrap."""
IN_FLIGHT, IN_FLIGHT_MAX = 8, 2**31
"""The only place that is no sum. Some kernels print -1, also as an unsigned number."""
COUNTERS = (11, 15, 17)
"""How many a disk has: before Linux 4.18, since then, and since 5.5. Old kernels print 4 of a partition."""
NO_DEVICE = "(unknown)"
"""What the kernel prints for a device without a name, such as a path of an NVMe disk with several."""
LOOK_NS = 5_000_000_000
"""How often new tenants, processes and disks are looked for, which costs as much as several periods."""
SOON_NS = 2_000_000_000
"""How often at most, if the number of groups has changed; and how often processes are read, of which there are many."""
LOOKS_MAX = 3


@dataclass(frozen=True)
class Snapshot:
    """All counters at one moment. counted: the disks that the kernel counts for each group.

    uses: by tenant and disk; waited_ns: by tenant; tenants: all that are known. unread: disks that processes may have
    used, whose bytes are still those of an earlier moment.
    """

    time_ns: int
    disks: Mapping[str, Sequence[int]]
    counted: frozenset[str] = frozenset()
    uses: Mapping[tuple[str, str], Counts] = field(default_factory=dict)
    waited_ns: Mapping[str, int] = field(default_factory=dict)
    tenants: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()


class Reader:
    """Reads a host's counters. disks, chosen: names of disks, and texts of tenants; all of them if empty.

    UsageError for a disk or tenant that does not exist, and for tenants that overlap; CapabilityError if the host has
    no disks or cgroups.
    """

    def __init__(self, host: Host, disks: Sequence[str] = (), chosen: Sequence[str] = ()) -> None:
        self._host = host
        self._proc = str(host.path("/proc"))
        self._psi = f"{self._proc}/pressure/io"
        self._is_chosen = bool(chosen)
        self._disks = _disks(host)
        if not self._disks:
            raise CapabilityError(
                "this host has no disk in /proc/diskstats and /sys/block; run it on the machine that has the disks"
            )
        self._only = frozenset(_disk(name, self._disks) for name in disks)
        self._io = _Groups.of(cgroups.read(host.root))
        self._tenants: dict[str, Tenant] = {}
        self._uncounted: set[str] = set()
        self._processes = Processes(self._proc)
        self._counts: dict[tuple[str, str], Counts] = {}
        self._links: list[int] = []
        self._with_counters: set[str] = set()
        self._counted: frozenset[str] = frozenset()
        self._looks: dict[int, int] = {}
        self._starts: dict[str, int | None] = {}
        self._gone: dict[str, bool] = {}
        self._looked_ns = self._summed_ns = -LOOK_NS
        named = [tenants.named(text, host) for text in chosen]
        tenants.expect_apart(named, host)
        for tenant in named:
            self._add(tenant)

    def _add(self, tenant: Tenant) -> None:
        if tenant.cgroup is not None and self._io.folder(tenant.cgroup) is None:
            raise tenants.no_cgroup(tenant)
        self._tenants[tenant.name] = tenant
        self._starts[tenant.name] = self._start(tenant)

    def _start(self, tenant: Tenant) -> int | None:
        """When a tenant's process started, which tells it from a later one with the same number."""
        return None if tenant.pid is None else start_ticks(tenant.pid, self._proc)

    def _has_ended(self, tenant: Tenant) -> bool:
        if tenant.pid is None:
            return False
        start = self._start(tenant)
        return start is None or start != self._starts[tenant.name]

    @property
    def disks(self) -> tuple[str, ...]:
        return tuple(name for name in self._disks.values() if not self._only or name in self._only)

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self._tenants)

    def lacks(self) -> Iterator[str]:
        """What this host does not count, what that costs, and the remedy."""
        rows = self._diskstats()
        if unseen := [name for name in self.disks if name not in rows]:
            yield (
                f"{', '.join(unseen)}: /proc/diskstats does not have it, so it is not watched; "
                "in a container, run it on the host, or wait until the disk is used"
            )
        if self._io.has_unnamed(self._tenants.values()):
            yield (
                "requests of a device that the kernel does not name (such as a path of an NVMe disk with several) "
                "are left out; if it is a path, they are also counted for its disk"
            )
        missing = {n: name for n, name in self._disks.items() if name in self.disks and name not in self._counted}
        bytes_only = "of its tenants only bytes on all disks together are known, from /proc/PID/io"
        remedy = "mount its blkio controller"
        for number, name in missing.items():
            if self._io.counting is not None:
                file = self._io.counting / "blkio.throttle.read_bps_device"
                remedy = f"it counts from the first limit on: echo '{number} 0' > {file} (sets no limit)"
            yield f"{name}: cgroup version 1 does not count its requests; {bytes_only}; {remedy}"
        if without := [n for n, t in self._tenants.items() if t.cgroup is not None and not self._io.has_counters(t)]:
            off = (
                f"echo +io > {self._io.counting}/cgroup.subtree_control, then the same in each group from there down "
                "to the tenant's parent; with systemd: systemctl set-property UNIT IOAccounting=yes"
            )
            remedy = off if self._io.is_v2 else f"start its processes in a group of {self._io.counting}"
            yield f"{', '.join(without[:3])}: no io controller; {bytes_only}; {remedy}"
        if not self._io.is_v2:
            yield "cgroup version 1 counts most buffered writes as those of no tenant; boot with cgroup version 2"
        if self._host.euid and self._uncounted:
            yield "bytes of processes of other users are unknown to an ordinary user; run it as root"
        if kernel_text(self._psi) is None:
            yield "the kernel does not say how long tasks wait for disks (PSI); boot with psi=1"

    def gone(self) -> Iterator[str]:
        """Named tenants and disks that are gone, as was noticed since the last call. Each is said once."""
        for text, is_new in list(self._gone.items()):
            self._gone[text] = False
            if is_new:
                yield text

    def _find_gone(self) -> None:
        lost = [f"there is no disk {name} any more" for name in sorted(self._only - set(self._disks.values()))]
        for name, tenant in self._tenants.items() if self._is_chosen else ():
            if tenant.cgroup is not None and self._io.folder(tenant.cgroup) is None:
                lost.append(f"{name}: its cgroup does not exist any more")
            elif self._has_ended(tenant):
                lost.append(f"{name}: process {tenant.pid} has ended; nothing more is counted for it")
        for text in lost:
            self._gone.setdefault(text, True)

    def look(self, now_ns: int) -> None:
        """Looks for new tenants, processes and disks, if it is time or the number of groups has changed."""
        since_ns = now_ns - self._looked_ns
        if since_ns < SOON_NS or (since_ns < LOOK_NS and self._io.links() == self._links):
            return
        self._looked_ns = now_ns
        self._disks = _disks(self._host)
        self._counted = self._io.counted(self._disks)
        if not self._is_chosen:
            groups = [Tenant(f"/{path}", cgroup=path) for path in self._io.paths()]
            self._tenants = {tenant.name: tenant for tenant in groups}
            for pid in self._guests_outside():
                with contextlib.suppress(UsageError):
                    guest = tenants.named(f"pid:{pid}", self._host)
                    self._tenants[guest.name] = guest
                    self._starts[guest.name] = self._start(guest)
        self._links = self._io.links()
        self._with_counters = {name for name, tenant in self._tenants.items() if self._io.has_counters(tenant)}
        counted = self._with_counters if self._counted.issuperset(self.disks) else set()
        self._uncounted = self._tenants.keys() - counted
        self._counts = {key: counts for key, counts in self._counts.items() if key[0] in self._tenants}
        if self._uncounted:
            self._find_processes()
        self._find_gone()

    def _find_processes(self) -> None:
        groups: dict[int, str] = {}
        alone: dict[int, str] = {}
        for name in sorted(self._uncounted):
            tenant = self._tenants[name]
            if tenant.pid is not None:
                alone |= {} if self._has_ended(tenant) else {tenant.pid: name}
            elif tenant.cgroup is not None and (folder := self._io.folder(tenant.cgroup)) is not None:
                groups |= dict.fromkeys(tenants.all_processes(folder), name)
        self._processes.look(groups, alone)

    def _guests_outside(self) -> Iterator[int]:
        """Processes of virtual machines that no tenant's cgroup contains."""
        looks, self._looks = self._looks, {}
        for name in [entry.name for entry in os.scandir(self._proc)]:
            if name.isdecimal():
                pid = int(name)
                # A process gets its name and its cgroup soon after its start, and keeps them.
                self._looks[pid] = seen = looks.get(pid, 0)
                if seen < LOOKS_MAX:
                    is_one = self._is_guest_outside(f"{self._proc}/{name}")
                    self._looks[pid] = 0 if is_one else seen + 1
                    if is_one:
                        yield pid

    def _is_guest_outside(self, folder: str) -> bool:
        if not tenants.is_guest(kernel_text(f"{folder}/comm") or "") or not (paths := tenants.cgroups_of(folder)):
            return False
        inside = [f"/{tenant.cgroup}" for tenant in self._tenants.values() if tenant.cgroup is not None]
        return not any(tenants.is_below(path, name) for path in paths for name in inside)

    def read(self, now_ns: int) -> Snapshot:
        """All counters now."""
        self.look(now_ns)
        is_due = now_ns - self._summed_ns >= SOON_NS
        self._summed_ns = now_ns if is_due else self._summed_ns
        # Before the disks, which count a request when it is completed: later than its process.
        if is_due and self._uncounted:
            self._processes.read()
        disks = self._diskstats()
        uses: dict[tuple[str, str], Counts] = {}
        waited = {HOST: value} if (value := waited_ns(self._psi)) is not None else {}
        for name, tenant in self._tenants.items():
            if name in self._with_counters and tenant.cgroup is not None:
                uses |= self._of_group(name, tenant.cgroup, disks)
            if (value := waited_ns(self._io.pressure(tenant))) is not None:
                waited[name] = value
        for name in (*self._uncounted, UNKNOWN) if self._uncounted else ():
            place = REST if name in self._with_counters else HOST
            uses[name, place] = (0, *self._processes.bytes_of(name))
        unread = frozenset() if is_due else self._of_processes()
        return Snapshot(now_ns, disks, self._counted, uses, waited, frozenset({*self._tenants, UNKNOWN}), unread)

    def _of_group(self, name: str, cgroup: str, disks: Mapping[str, object]) -> dict[tuple[str, str], Counts]:
        """A group's counters by tenant and disk. Those that the kernel leaves out for a moment are as before."""
        by_disk = self._io.counts(cgroup, self._disks)
        self._counts |= {(name, disk): counts for disk, counts in (by_disk or {}).items()}
        known = ((name, disk) for disk in disks)
        return {key: self._counts[key] for key in known if key in self._counts}

    def _diskstats(self) -> dict[str, list[int]]:
        """The counters of the watched disks. By number, because names have other letters in /sys, and even spaces."""
        every, watched = {}, set(self.disks)
        for words in (line.split() for line in (kernel_text(f"{self._proc}/diskstats") or "").split("\n")):
            name = self._disks.get(":".join(words[:2]))
            if name in watched and (counters := _counters(words[2:], name)):
                every[name] = counters
        return every

    def _of_processes(self) -> frozenset[str]:
        """The disks of which some tenant's bytes are known from its processes only."""
        if not self._uncounted:
            return frozenset()
        are_counted = self._with_counters >= self._uncounted
        return frozenset(self.disks) - (self._counted if are_counted else frozenset())


def _counters(words: Sequence[str], name: str) -> list[int]:
    """The counters after a disk's name; none if there are too few. Words of a name may be numbers."""
    own = name.split()
    if list(words[: len(own)]) == own:
        numbers = _last_numbers(words[len(own) :])
    else:
        # Of another name: as many as some kernel prints.
        found = _last_numbers(words[1:])
        numbers = found[len(found) - max((count for count in COUNTERS if count <= len(found)), default=0) :]
    return numbers if len(numbers) >= COUNTERS[0] else []


def _last_numbers(words: Sequence[str]) -> list[int]:
    first = next((at for at in range(len(words), 0, -1) if not words[at - 1].lstrip("-").isdecimal()), 0)
    return [int(word) for word in words[first:]]


@dataclass
class _Groups:
    """The hierarchies whose groups are tenants. counting: the one that counts requests of disks, if there is one.

    policies: those of version 1 that count any disk. parents: groups with tenants in them.
    """

    counting: Path | None
    others: tuple[Path, ...]
    unified: Path | None
    is_v2: bool
    policies: Sequence[str] = ()
    parents: Sequence[str] = ()

    @staticmethod
    def of(groups: cgroups.Cgroups) -> _Groups:
        """CapabilityError if the host has no cgroups."""
        if groups.unified is not None and "io" in groups.unified_controllers:
            return _Groups(groups.unified, (), groups.unified, is_v2=True)
        others = [groups.v1[name] for name in ("memory", "cpuacct", "pids") if name in groups.v1]
        others += [groups.unified] if groups.unified else []
        if "blkio" not in groups.v1 and not others:
            raise CapabilityError("this host has no cgroups, so its tenants are unknown; mount cgroup version 2")
        return _Groups(groups.v1.get("blkio"), tuple(others), groups.unified, is_v2=False)

    def paths(self) -> list[str]:
        """The groups that are tenants: those whose requests are counted, and those of the first other hierarchy."""
        counted = self._below(self.counting) if self.counting else []
        others = next((paths for top in self.others if (paths := self._below(top))), [])
        tops = [str(top) for top in (self.counting, *self.others[:1]) if top]
        parents = {f"{top}/{path}".rpartition("/")[0] for top in tops for path in counted + others}
        self.parents = sorted({*tops, *parents})
        return self._apart(counted, others)

    def _apart(self, counted: Sequence[str], others: Sequence[str]) -> list[str]:
        """Groups of two hierarchies, without those whose work would count for another too.

        Those whose requests are counted are kept, unless they have no process and others have groups in them.
        """
        around = {outer for path in others for outer in _outer(path)}
        top = Path(str(self.counting))
        kept = [path for path in counted if path not in around or tenants.all_processes(top / path)]
        known = set(kept)
        taken = known | {outer for path in kept for outer in _outer(path)}
        return kept + [path for path in others if path not in taken and known.isdisjoint(_outer(path))]

    def _below(self, top: Path) -> list[str]:
        return [str(folder.relative_to(top)) for folder in tenants.groups(top, empty=True)]

    def links(self) -> list[int]:
        """The number of groups in each group that has tenants. If it changes, there may be new ones."""
        every = []
        for place in map(Path, self.parents):
            with contextlib.suppress(OSError):
                every.append(place.stat().st_nlink)
        return every

    def folder(self, cgroup: str) -> Path | None:
        """The group in the first hierarchy that has it."""
        tops = ([self.counting] if self.counting else []) + list(self.others)
        return next((top / cgroup for top in tops if (top / cgroup).is_dir()), None)

    def pressure(self, tenant: Tenant) -> str:
        return "" if tenant.cgroup is None else f"{self.unified}/{tenant.cgroup}/io.pressure"

    def has_counters(self, tenant: Tenant) -> bool:
        if None in (tenant.cgroup, self.counting):
            return False
        files = ["io.stat"] if self.is_v2 else [f"blkio.{policy}io_serviced" for policy in V1_POLICIES]
        return any(
            Path(f"{self.counting}/{tenant.cgroup}/{file}{suffix}").exists()
            for file in files
            for suffix in ("", "_recursive")
        )

    def has_unnamed(self, every: Iterable[Tenant]) -> bool:
        """True if some group has requests of a device without a name."""
        folders = [f"{self.counting}/{tenant.cgroup or ''}" for tenant in every] if self.counting else []
        if self.is_v2:
            texts = (kernel_text(f"{folder}/io.stat") or "" for folder in folders)
            rows = (device_row(line) for text in texts for line in text.splitlines())
            return any(number == NO_DEVICE and any(row.values()) for number, row in rows)
        counts = (v1_counts(folder, policy, "io_serviced") for folder in folders for policy in self.policies)
        return any(any(row.get(NO_DEVICE, ())) for row in counts)

    def counted(self, disks: Mapping[str, str]) -> frozenset[str]:
        """The disks whose requests are counted for each group. Also finds the policies that count any."""
        if self.is_v2:
            return frozenset(disks.values())
        known = {policy: v1_counts(str(self.counting), policy, "io_serviced") for policy in V1_POLICIES}
        self.policies = [policy for policy, rows in known.items() if rows]
        return frozenset(disks[number] for rows in known.values() for number in rows if number in disks)

    def counts(self, cgroup: str | None, disks: Mapping[str, str]) -> dict[str, Counts] | None:
        """By disk; None if nothing is counted for this group, or it has ended."""
        every = disk_work(f"{self.counting}/{cgroup}", is_v2=self.is_v2, policies=self.policies)
        return None if every is None else {disks[number]: row for number, row in every.items() if number in disks}


def _outer(path: str) -> list[str]:
    """The groups that a group is in, without the root."""
    return [path[:at] for at, letter in enumerate(path) if letter == "/"]


def _disks(host: Host) -> dict[str, str]:
    """Names of whole disks with a size, by 'major:minor'."""
    every = {}
    with contextlib.suppress(OSError):
        for folder in sorted(host.path("/sys/block").iterdir()):
            size, number = (host.text(f"/sys/block/{folder.name}/{name}") for name in ("size", "dev"))
            if size and number and size != "0":
                every[number] = _slashed(folder.name)
    return every


def _slashed(name: str) -> str:
    """A disk's name as /dev has it. In /sys, `!` stands for a slash: cciss!c0d0."""
    return name.replace("!", "/")


def _disk(text: str, disks: Mapping[str, str]) -> str:
    name = _slashed(text.removeprefix("/dev/"))
    if name not in disks.values():
        part = next((disk for disk in disks.values() if re.fullmatch(rf"{re.escape(disk)}p?\d+", name)), None)
        remedy = f"give the whole disk, {part}" if part else f"there are {', '.join(sorted(disks.values()))}"
        raise UsageError(Problem(f"there is no disk {text!r}", remedy, key="--device"))
    return name


def span(before: Snapshot, after: Snapshot, at_ns: int, late: int = 0) -> Span:
    """What happened between two snapshots. at_ns: the time of the second, in ns since the epoch. Pure."""
    disks = tuple(
        _difference(name, before.disks[name], now) for name, now in after.disks.items() if name in before.disks
    )
    waited = {
        name: max(0, now - before.waited_ns[name]) for name, now in after.waited_ns.items() if name in before.waited_ns
    }
    return Span(
        at_ns=at_ns,
        length_ns=after.time_ns - before.time_ns,
        disks=disks,
        uses=tuple(_used(before, after)),
        counted=tuple(sorted(after.counted)),
        waited_ns={name: ns for name, ns in waited.items() if ns},
        late=late,
        unread=tuple(sorted(after.unread)),
    )


def _difference(name: str, before: Sequence[int], now: Sequence[int]) -> Disk:
    # Whoever prints them may change, as in a container, and print more of them.
    pairs = list(zip(before, now, strict=False))
    changes = [_change(*pair, is_time=n in TIMES) for n, pair in enumerate(pairs)]
    if any(n not in TIMES and n != IN_FLIGHT and b > a for n, (b, a) in enumerate(pairs)):
        # Another disk of the same name.
        changes = [0] * len(pairs)
    reads, _, read_sectors, read_ms, writes, _, write_sectors, write_ms, _, busy_ms = changes[:10]
    return Disk(
        disk=name,
        reads=reads,
        writes=writes,
        read_bytes=SECTOR * read_sectors,
        write_bytes=SECTOR * write_sectors,
        read_ns=10**6 * read_ms,
        write_ns=10**6 * write_ms,
        busy_ns=10**6 * busy_ms,
        in_flight=now[IN_FLIGHT] if 0 <= now[IN_FLIGHT] < IN_FLIGHT_MAX else 0,
        others=sum(changes[place] for place in OTHERS if place < len(changes)),
        read_peak_ns=round(10**6 * read_ms / reads) if reads else None,
        write_peak_ns=round(10**6 * write_ms / writes) if writes else None,
    )


def _change(before: int, now: int, *, is_time: bool) -> int:
    """How far a counter went; 0 if a time went back."""
    if not is_time:
        return now - before
    change = (now - before) % TIME_WRAP
    return change if change < TIME_WRAP // 2 else 0


def _used(before: Snapshot, after: Snapshot) -> Iterator[Use]:
    for (tenant, disk), now in after.uses.items():
        of_processes = disk in (HOST, REST)
        old = before.uses.get((tenant, disk), now if of_processes else (0, 0, 0))
        # What it did before it was found, or before its disk was, cannot be said to be of this time.
        if tenant not in before.tenants or not (of_processes or disk in before.disks):
            continue
        # A group of the same name that was created again counts from 0.
        is_same = all(n >= o for n, o in zip(now, old, strict=True))
        operations, read, written = (n - o if is_same else n for n, o in zip(now, old, strict=True))
        if operations > 0 or read or written:
            yield Use(
                tenant=tenant,
                disk=disk,
                operations=None if of_processes else operations,
                read_bytes=read,
                write_bytes=written,
            )
