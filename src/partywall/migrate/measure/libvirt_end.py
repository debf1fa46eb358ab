"""A libvirt daemon's end of a move of a domain.

libvirt does more of a move itself than QEMU does: it starts the destination, lets the guest continue there, ends it on
the source, and puts it back if a step fails. So some of the steps do nothing here. It tells of a move: its phase, the
bytes sent and left, passes, dirty rate, throttling, downtime and set-up time, by its job statistics. It does not tell
the start of a pass, QEMU's own counters of pages by kind, or CPU times, and its events have no time of their own: they
get the time at which they arrive here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import xml.etree.ElementTree as ET  # what is read comes from the user's own libvirt daemon
from collections import deque
from collections.abc import Iterator
from typing import Any

from partywall.errors import TrialError
from partywall.migrate.document import Method, Place, Progress
from partywall.migrate.measure.end import LEAST_CONTENT, Announced, End, Info, Look, Memory, State, Usual
from partywall.sandbox.libvirt.library import connect, dotted, library, libvirt_errors

STATES = {1: "running", 3: "paused", 4: "shutdown", 5: "shut off", 6: "crashed"}
FEATURES = frozenset(
    {
        *("max-bandwidth", "downtime-limit", "postcopy-ram", "multifd", "multifd-channels", "xbzrle"),
        *("xbzrle-cache-size", "auto-converge", "cpu-throttle-increment"),
    }
)
"""What methods may use, by QEMU's names."""
COMPRESSION = frozenset({"multifd-compression zlib", "multifd-compression zstd"})
COMPRESSION_SINCE = 9_004_000
UNMOVABLE = ("hostdev", "filesystem", "shmem", "tpm")
"""Devices that keep a domain from moving, unless they say otherwise."""
KIB = 1024
SAMPLED_PAGES = 512
"""Pages of each GiB that QEMU looks at to tell a dirty rate, where libvirt asks it."""
MEASURED = 2
"""libvirt's VIR_DOMAIN_DIRTYRATE_MEASURED."""
RESULT_S = 30.0
TRY_S, LOOK_S = 10.0, 0.1
TRIES_ITSELF, TRIES_S = "actively monitored by another thread", 140.0
"""What libvirt says while a try of its own goes on, which ends when TCP gives up connecting."""
RECOVERS_SINCE = 8_005_000
"""The first libvirt that breaks the connection of a post-copy on request, and continues one that is broken."""


@functools.cache
def events_run() -> None:
    """Starts the thread that carries libvirt's events. It has to be there before a connection is made."""
    module = library()
    module.virEventRegisterDefaultImpl()

    def carry() -> None:
        while True:
            # An error of one round must not end the events and signs of life of all connections.
            try:
                module.virEventRunDefaultImpl()
            except module.libvirtError:
                time.sleep(LOOK_S)

    threading.Thread(target=carry, name="libvirt-events", daemon=True).start()


class LibvirtEnd:
    """A domain on one host.

    uri: of the daemon. address: where QEMU takes the guest, if libvirt would choose another. peer: the daemon of the
    source talks to that of the destination itself, so that a move goes on if we end.
    """

    is_ours = False

    def __init__(self, place: Place, uri: str, domain: str, *, address: str | None = None, peer: bool = True) -> None:
        events_run()
        self.place = place
        self.uri = uri
        self._name = domain
        self.address = address
        self._peer = peer
        self._connection = connect(uri)
        self._method = Method()
        self._storage = False
        self._moving: threading.Thread | None = None
        self._result: tuple[State, str] | None = None
        self._there: LibvirtEnd | None = None
        self._arrived: deque[Announced] = deque(maxlen=10_000)
        self._bell = threading.Event()
        module = library()
        for kind, take in (
            (module.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._lifecycle),
            (module.VIR_DOMAIN_EVENT_ID_MIGRATION_ITERATION, self._iteration),
        ):
            self._connection.domainEventRegisterAny(None, kind, take, None)

    def close(self) -> None:
        with contextlib.suppress(library().libvirtError):
            self._connection.close()

    def has_domain(self) -> bool:
        """Whether the domain is active there, and not only about to arrive."""
        try:
            return bool(self.domain().isActive())
        except TrialError:
            return False

    def other(self, there: LibvirtEnd) -> None:
        """Where it will move, for what only that end knows afterwards."""
        self._there = there

    def info(self) -> Info:
        module, connection = library(), self._connection
        with libvirt_errors(f"libvirt {self.uri}"):
            version = connection.getVersion()
            compressed = COMPRESSION if connection.getLibVersion() >= COMPRESSION_SINCE else frozenset[str]()
            free = connection.getMemoryStats(module.VIR_NODE_MEMORY_STATS_ALL_CELLS)
            info = Info(
                host=self.uri,
                version=dotted(version),
                features=FEATURES | compressed,
                memory_free=(free["free"] + free.get("cached", 0) + free.get("buffers", 0)) * KIB,
                machines=self._machines(),
            )
            if not self.has_domain():
                return info
            domain = self.domain()
            root = _parsed(domain.XMLDesc(0))
            return Info(
                **{
                    **vars(info),
                    "runs": True,
                    "moving": domain.jobStats().get("type", 0) != module.VIR_DOMAIN_JOB_NONE,
                    "blockers": tuple(blockers(root)),
                    "memory": domain.maxMemory() * KIB,
                    "emulated": root.get("type") == "qemu",
                    "machine": kind.get("machine") if (kind := root.find("os/type")) is not None else None,
                }
            )

    def cpu_refusal(self, source: LibvirtEnd) -> str:
        """Why the guest's CPU cannot be had here; empty if it can, or if this libvirt cannot tell (emulated guests)."""
        module = library()
        root = _parsed(source.domain().XMLDesc(module.VIR_DOMAIN_XML_MIGRATABLE))
        cpu = root.find("cpu")
        if cpu is None or root.get("type") != "kvm":
            return ""
        flags = module.VIR_CONNECT_COMPARE_CPU_FAIL_INCOMPATIBLE
        try:
            self._connection.compareHypervisorCPU(
                None, None, None, root.get("type"), ET.tostring(cpu, encoding="unicode"), flags
            )
        except module.libvirtError as error:
            return str(error).partition(": ")[2] or str(error)
        return ""

    def in_use(self) -> Memory:
        with libvirt_errors(f"domain {self._name}: its memory"):
            domain = self.domain()
            size, stats = domain.maxMemory() * KIB, domain.memoryStats()
            huge = _parsed(domain.XMLDesc(0)).find("memoryBacking/hugepages") is not None
        pages = max(1, SAMPLED_PAGES * size // (1 << 30))
        # Huge pages do not count as resident.
        resident = min(size, stats["rss"] * KIB) if "rss" in stats and not huge else size
        if "available" in stats and "unused" in stats:
            used = max(0, stats["available"] - stats["unused"]) * KIB
            return Memory(size, max(used, resident), round(used * LEAST_CONTENT), "by its balloon and its QEMU", pages)
        # The process also holds QEMU's own memory.
        return Memory(size, resident, 0, "of its QEMU's process, QEMU's own memory included", pages)

    def usual(self) -> Usual:
        with libvirt_errors(f"domain {self._name}: the limits of its moves"):
            domain = self.domain()
            return Usual(domain.migrateGetMaxSpeed() << 20, domain.migrateGetMaxDowntime())

    def begin_sampling(self, seconds: int) -> None:
        with libvirt_errors(f"domain {self._name}: its dirty rate"):
            self.domain().startDirtyRateCalc(seconds, 0)

    def dirty_rate(self) -> int | None:
        wanted = library().VIR_DOMAIN_STATS_DIRTYRATE
        with libvirt_errors(f"domain {self._name}: its dirty rate"):
            ((_, stats),) = self._connection.domainListGetStats([self.domain()], wanted)
        if stats.get("dirtyrate.calc_status") != MEASURED:
            return None
        return int(stats["dirtyrate.megabytes_per_second"])

    def prepare(self, method: Method, *, with_storage: bool = False) -> None:
        self._method, self._storage = method, with_storage
        self._result = None
        if self.has_domain() and method.downtime is not None:
            with libvirt_errors(f"domain {self._name}: the downtime limit"):
                self.domain().migrateSetMaxDowntime(max(1, method.downtime // 1_000_000))

    def listen(self, port: int) -> str:
        del port  # libvirt chooses one
        return self.uri

    def migrate(self, to: str) -> None:
        self._begin(to, self._flags())

    def _begin(self, to: str, flags: int) -> None:
        domain, parameters = self.domain(), self._parameters()
        self._result = None

        def move() -> None:
            try:
                self._carry(domain, to, flags, parameters)
            except (TrialError, library().libvirtError) as error:
                said = next(iter(str(error).strip().splitlines()), repr(error))
                cancelled = "canceled by client" in said or "cancelled" in said.lower()
                self._result = ("cancelled" if cancelled else "failed", said)
            except Exception as error:  # noqa: BLE001 - without a result, the move would be waited for in vain
                self._result = ("failed", f"this is a bug: {error!r}")
            else:
                self._result = ("completed", "")
            self._bell.set()

        self._moving = threading.Thread(target=move, name=f"move-{self._name}", daemon=True)
        self._moving.start()

    def look(self) -> Look:
        if self._result is not None:
            return self._look_at_end(*self._result)
        module = library()
        try:
            domain = self.domain()
            stats = domain.jobStats()
            where = domain.state()
        except (TrialError, module.libvirtError):
            # At the end of a move the source has no domain any more, and the result comes a little later.
            if self._moving is None:
                raise
            self._moving.join(RESULT_S)
            if self._result is None:
                raise
            return self.look()
        if where == _broken():
            return Look("postcopy-paused", progress=progress(stats))
        if self._moving is None:
            return Look("none" if stats.get("type", 0) == module.VIR_DOMAIN_JOB_NONE else "active")
        handed = where == [module.VIR_DOMAIN_PAUSED, module.VIR_DOMAIN_PAUSED_POSTCOPY]
        return Look("postcopy-active" if handed else "active", progress=progress(stats))

    def _look_at_end(self, state: State, reason: str) -> Look:
        """When libvirt has ended its own part of a move."""
        if state != "completed" and self._is_broken():
            return Look("postcopy-paused", reason=reason)
        if state != "completed" or self._there is None:
            return Look(state, reason=reason)
        with libvirt_errors(f"domain {self._name}: statistics of the move"):
            stats = self._there.domain().jobStats(library().VIR_DOMAIN_JOB_STATS_COMPLETED)
        return ended(stats)

    def announced(self) -> Iterator[Announced]:
        while self._arrived:
            yield self._arrived.popleft()

    def hand_over(self) -> None:
        with libvirt_errors(f"domain {self._name}: the hand-over"):
            self.domain().migrateStartPostCopy()

    def cut(self) -> None:
        self._require_recovery()
        with libvirt_errors(f"domain {self._name}: its move cannot be interrupted"):
            self.domain().abortJobFlags(library().VIR_DOMAIN_ABORT_JOB_POSTCOPY)

    def recover(self, port: int) -> str:
        del port  # libvirt lets the destination listen again itself
        self._require_recovery()
        return self.uri

    def go_on(self, to: str) -> None:
        """Returns when the rest is being sent, when the try has failed, or after some time. A running try is kept."""
        self._require_recovery()
        module = library()
        if not self._tries():
            self._begin(to, self._flags() | module.VIR_MIGRATE_POSTCOPY | module.VIR_MIGRATE_POSTCOPY_RESUME)
        deadline = time.monotonic() + TRY_S
        while self._tries() and self._is_broken() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _tries(self) -> bool:
        """Whether libvirt still carries out a request to move the domain."""
        return self._moving is not None and self._moving.is_alive()

    def by_hand(self, there: End) -> str:
        """The command of libvirt's own shell."""
        wanted = {
            "--p2p": self._peer,
            "--persistent --undefinesource": self.has_domain() and bool(self.domain().isPersistent()),
            "--copy-storage-all": self._storage,
            f"--migrateuri tcp:{self._there.address if self._there else ''}": bool(self._there and self._there.address),
        }
        options = " ".join(
            ["--live --postcopy --postcopy-resume", *(text for text, is_set in wanted.items() if is_set)]
        )
        to = there.uri if isinstance(there, LibvirtEnd) else ""
        unless = ", unless libvirt's last try still succeeds" if self._tries() else ""
        return f"run{unless}: virsh -c '{self.uri}' migrate {options} {self._name} '{to}'"

    def _require_recovery(self) -> None:
        """TrialError if this libvirt, or its library, is too old to continue a post-copy whose connection broke."""
        module = library()
        with libvirt_errors(f"libvirt {self.uri}"):
            daemon = self._connection.getLibVersion()
        for what, version in (("the libvirt library", module.getVersion()), (f"libvirt {self.uri}", daemon)):
            if version < RECOVERS_SINCE:
                needed = dotted(RECOVERS_SINCE)
                raise TrialError(
                    f"{what} is {dotted(version)}, and a broken post-copy can be continued from {needed} on"
                )

    def _is_broken(self) -> bool:
        """Whether a move by post-copy has lost its connection, so that libvirt keeps what is left of the guest here."""
        with contextlib.suppress(TrialError, library().libvirtError):
            return list(self.domain().state()) == _broken()
        return False

    def cancel(self) -> None:
        with libvirt_errors(f"domain {self._name}: the move cannot be cancelled"):
            self.domain().abortJob()

    def pause(self) -> None:
        with libvirt_errors(f"domain {self._name}"):
            self.domain().suspend()

    def resume(self) -> None:
        # libvirt lets a guest continue that has arrived; one that was paused before the move stays so.
        if self.state() == "paused":
            with libvirt_errors(f"domain {self._name}"):
                self.domain().resume()

    def state(self) -> str:
        with libvirt_errors(f"domain {self._name} at {self.uri}"):
            state, reason = self.domain().state()
        if state == library().VIR_DOMAIN_PAUSED and reason == library().VIR_DOMAIN_PAUSED_MIGRATION:
            return "inmigrate"
        return STATES.get(state, "unknown")

    def answers(self) -> bool:
        return not self.has_ended()

    def unblock(self) -> None:
        """Does nothing: libvirt has time limits of its own."""

    def wait(self, seconds: float) -> None:
        self._bell.wait(seconds)
        self._bell.clear()

    def ending(self) -> str:
        return ""

    def has_ended(self, within_s: float = 0.0) -> bool:
        deadline = time.monotonic() + within_s
        while True:
            try:
                if self._connection.isAlive() != 1:
                    return True
                self._connection.getLibVersion()
            except library().libvirtError:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)

    def kill(self) -> None:
        raise TrialError(f"domain {self._name}: libvirt itself ends what is left of a move there")

    def cpu_ns(self) -> int | None:
        return None

    def link_bytes(self) -> int | None:
        return None

    def domain(self) -> Any:
        """TrialError if there is none."""
        with libvirt_errors(f"domain {self._name} at {self.uri}"):
            return self._connection.lookupByName(self._name)

    def _machines(self) -> frozenset[str]:
        root = _parsed(self._connection.getCapabilities())
        return frozenset(each.text or "" for each in root.iterfind("guest/arch/machine")) | frozenset(
            each.get("canonical", "") for each in root.iterfind("guest/arch/machine")
        )

    def _flags(self) -> int:
        module, method = library(), self._method
        flags = module.VIR_MIGRATE_LIVE
        wanted = {
            module.VIR_MIGRATE_PEER2PEER: self._peer,
            module.VIR_MIGRATE_AUTO_CONVERGE: method.auto_converge,
            module.VIR_MIGRATE_POSTCOPY: method.postcopy is not None,
            module.VIR_MIGRATE_PARALLEL: method.multifd is not None,
            module.VIR_MIGRATE_COMPRESSED: method.xbzrle,
            module.VIR_MIGRATE_NON_SHARED_DISK: self._storage,
        }
        if self.domain().isPersistent():
            # It stays defined on exactly one host.
            flags |= module.VIR_MIGRATE_PERSIST_DEST | module.VIR_MIGRATE_UNDEFINE_SOURCE
        return int(flags | functools.reduce(int.__or__, (flag for flag, on in wanted.items() if on), 0))

    def _parameters(self) -> dict[str, Any]:
        module, method = library(), self._method
        wanted = {
            # In MiB/s.
            module.VIR_MIGRATE_PARAM_BANDWIDTH: None if method.bandwidth is None else max(1, method.bandwidth >> 23),
            module.VIR_MIGRATE_PARAM_PARALLEL_CONNECTIONS: method.multifd,
            module.VIR_MIGRATE_PARAM_COMPRESSION: "xbzrle" if method.xbzrle else method.compression,
            module.VIR_MIGRATE_PARAM_COMPRESSION_XBZRLE_CACHE: method.xbzrle_cache,
            module.VIR_MIGRATE_PARAM_AUTO_CONVERGE_INCREMENT: method.throttle_step,
            module.VIR_MIGRATE_PARAM_URI: f"tcp:{there}" if (there := self._there and self._there.address) else None,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def _carry(self, domain: Any, to: str, flags: int, parameters: dict[str, Any]) -> None:
        if self._peer:
            domain.migrateToURI3(to, parameters, flags)
            return
        there = connect(to)
        try:
            domain.migrate3(there, parameters, flags)
        finally:
            there.close()

    def _lifecycle(self, _connection: Any, domain: Any, event: int, _detail: int, _: Any) -> None:
        module = library()
        if domain.name() != self._name:
            return
        at_ns = time.monotonic_ns()
        if event == module.VIR_DOMAIN_EVENT_SUSPENDED:
            self._arrived.append(Announced(at_ns, "stop"))
        elif event == module.VIR_DOMAIN_EVENT_RESUMED:
            self._arrived.append(Announced(at_ns, "resume"))
        self._bell.set()

    def _iteration(self, _connection: Any, domain: Any, number: int, _: Any) -> None:
        if domain.name() == self._name:
            self._arrived.append(Announced(time.monotonic_ns(), "pass", number))


def _broken() -> list[int]:
    """State of a domain, and its reason, on the source of a post-copy that has lost its connection."""
    module = library()
    return [module.VIR_DOMAIN_PAUSED, module.VIR_DOMAIN_PAUSED_POSTCOPY_FAILED]


def _parsed(xml: str) -> ET.Element:
    return ET.fromstring(xml)  # noqa: S314 - written by the user's own daemon


def progress(stats: dict[str, Any]) -> Progress | None:
    """A look at a move, from libvirt's job statistics. Pure."""
    if not stats.get("memory_total"):
        return None
    page = stats.get("memory_page_size", 4096)
    return Progress(
        at_ns=time.monotonic_ns(),
        sent=stats.get("memory_processed", 0),
        left=stats.get("memory_remaining", 0),
        passes=stats.get("memory_iteration", 0),
        dirty_rate=stats.get("memory_dirty_rate", 0) * page,
        rate=float(stats.get("memory_bps", 0)),
        throttle=stats.get("auto_converge_throttle", 0),
    )


def ended(stats: dict[str, Any]) -> Look:
    """A completed move, from libvirt's job statistics. Pure."""
    names = {
        "transferred": "memory_processed",
        "normal-bytes": "memory_normal_bytes",
        "duplicate": "memory_constant",
        "dirty-sync-count": "memory_iteration",
        "postcopy-requests": "memory_postcopy_requests",
        "page-size": "memory_page_size",
    }
    times = {
        f"{name}_ns": stats[key] * 1_000_000
        for name, key in (("setup", "setup_time"), ("downtime", "downtime"), ("total", "time_elapsed"))
        if key in stats
    }
    return Look("completed", memory={name: stats[key] for name, key in names.items() if key in stats}, **times)


def blockers(root: ET.Element) -> Iterator[str]:
    """Devices of a domain that cannot move with it."""
    for kind in UNMOVABLE:
        for device in root.iterfind(f"devices/{kind}"):
            if kind == "tpm" and device.find("backend[@type='emulator']") is not None:
                continue
            if kind == "hostdev" and device.get("type") not in ("pci", "usb", "mdev", "scsi"):
                continue
            what = device.get("type") or device.get("model") or device.get("name") or "of this host"
            yield f"its device {kind} ({what}) is tied to this host"
    for disk in root.iterfind("devices/disk"):
        if disk.find("transient") is not None:
            yield "a disk of it is transient"
