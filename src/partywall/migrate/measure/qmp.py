"""QEMU's migration over QMP: available features, settings, and the progress and result of a move."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from partywall.clock import realtime_offset_ns
from partywall.errors import CapabilityError, TrialError
from partywall.migrate.document import Method, Progress
from partywall.migrate.measure.end import Announced, Look
from partywall.sandbox.qemu.monitor import Monitor

PAGE_BYTES = 4096
COMPRESSION = "multifd-compression"


def capabilities(method: Method) -> set[str]:
    """QEMU's migration capabilities that a method needs."""
    wanted = {
        "postcopy-ram": method.postcopy is not None,
        "multifd": method.multifd is not None,
        "xbzrle": method.xbzrle,
        "auto-converge": method.auto_converge,
        "dirty-limit": method.dirty_limit is not None,
    }
    return {name for name, needed in wanted.items() if needed}


def parameters(method: Method) -> dict[str, Any]:
    """QEMU's migration parameters that a method sets; both ends get them."""
    wanted = {
        "max-bandwidth": None if method.bandwidth is None else method.bandwidth // 8,
        "downtime-limit": None if method.downtime is None else method.downtime // 1_000_000,
        "multifd-channels": method.multifd,
        COMPRESSION: method.compression,
        "xbzrle-cache-size": method.xbzrle_cache,
        "cpu-throttle-increment": method.throttle_step,
        # In MiB/s.
        "vcpu-dirty-limit": None if method.dirty_limit is None else max(1, method.dirty_limit >> 20),
    }
    return {name: value for name, value in wanted.items() if value is not None}


def lacking(methods: Mapping[str, Method], known: frozenset[str], what: str) -> list[str]:
    """What a hypervisor lacks for some methods, one sentence each. known: its features; what: its name and version."""
    return [
        f"method {name}: this {what} has no {feature}; leave it out, or use a QEMU that has it"
        for name, method in methods.items()
        for feature in sorted(needed(method) - known)
    ]


def needed(method: Method) -> set[str]:
    """Features that a method needs, by the names of `features`."""
    plain = capabilities(method) | set(parameters(method)) - {COMPRESSION}
    return plain | ({f"{COMPRESSION} {method.compression}"} if method.compression else set())


def defaults(monitor: Monitor) -> dict[str, Any]:
    """The default values of the parameters that methods may set, from a fresh QEMU."""
    parameters = monitor.execute("query-migrate-parameters")
    return {name: parameters[name] for name in MANAGED if name in parameters}


def restore(monitor: Monitor, usual: Mapping[str, Any], switched: Sequence[Mapping[str, Any]]) -> None:
    """Sets parameters and capabilities to what they were. TrialError if QEMU refuses."""
    monitor.execute("migrate-set-capabilities", capabilities=list(switched))
    monitor.execute("migrate-set-parameters", **usual)


def switches(monitor: Monitor) -> list[dict[str, Any]]:
    """The capabilities that methods may switch, as they are."""
    return [each for each in monitor.execute("query-migrate-capabilities") if each["capability"] in SWITCHED]


def _switched(wanted: Collection[str], known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All capabilities that methods may switch, with those that are wanted on."""
    return [{"capability": each["capability"], "state": each["capability"] in wanted} for each in known]


def prepare(method: Method, monitor: Monitor, usual: Mapping[str, Any], *, with_storage: bool = False) -> None:
    """Sets one end up. TrialError if QEMU refuses. with_storage: the disk is moved along, and finished before the end.

    Every capability and parameter is set, usual or not, so that nothing of the move before stays: the source of a move
    is the QEMU to which the last one went.
    """
    wanted = capabilities(method) | {"events"} | ({"pause-before-switchover"} if with_storage else set())
    monitor.execute("migrate-set-capabilities", capabilities=_switched(wanted, switches(monitor)))
    monitor.execute("migrate-set-parameters", **{**usual, **parameters(method)})


MANAGED = (
    "max-bandwidth",
    "downtime-limit",
    "multifd-channels",
    COMPRESSION,
    "xbzrle-cache-size",
    "cpu-throttle-increment",
    "vcpu-dirty-limit",
)
SWITCHED = (
    "events",
    "postcopy-ram",
    "multifd",
    "xbzrle",
    "auto-converge",
    "dirty-limit",
    "pause-before-switchover",
)


def progress(status: Mapping[str, Any]) -> Progress | None:
    """A look at a move that goes on; None if QEMU does not say how far it is."""
    ram = status.get("ram")
    if not ram:
        return None
    return Progress(
        at_ns=time.monotonic_ns(),
        sent=ram["transferred"],
        left=ram["remaining"],
        passes=ram["dirty-sync-count"],
        dirty_rate=ram.get("dirty-pages-rate", 0) * ram.get("page-size", PAGE_BYTES),
        rate=ram.get("mbps", 0.0) * 1e6 / 8,
        throttle=status.get("cpu-throttle-percentage", 0),
    )


def look(status: Mapping[str, Any]) -> Look:
    """What `query-migrate` answered."""
    state = status.get("status", "none")
    times = {
        f"{name}_ns": status[key] * 1_000_000
        for name, key in (("setup", "setup-time"), ("downtime", "downtime"), ("total", "total-time"))
        if key in status
    }
    memory = {key: value for key, value in status.get("ram", {}).items() if isinstance(value, int | float)}
    reason = status.get("error-desc", "")
    return Look(state, progress=progress(status), reason=reason, memory=memory, **times)


NAMES: Mapping[str, Literal["pass", "stop", "resume"]] = {"MIGRATION_PASS": "pass", "STOP": "stop", "RESUME": "resume"}


def announced(monitor: Monitor, ahead_ns: int = 0) -> Iterator[Announced]:
    """QEMU's events since the last call. QEMU stamps them with its machine's real-time clock.

    ahead_ns: by how much that clock is ahead of this machine's.
    """
    offset_ns = realtime_offset_ns() - ahead_ns
    for event in monitor.events():
        if name := NAMES.get(event["event"]):
            at = event["timestamp"]
            at_ns = at["seconds"] * 1_000_000_000 + at["microseconds"] * 1000 + offset_ns
            yield Announced(at_ns, name, event.get("data", {}).get("pass", 0))


def version(monitor: Monitor) -> str:
    """QEMU's own, such as 7.2.0."""
    return "{major}.{minor}.{micro}".format(**monitor.execute("query-version")["qemu"])


def features(monitor: Monitor) -> frozenset[str]:
    """Capabilities and parameters of migration that a QEMU has, and each way of compression that it was built with.

    By its own description of its commands, which a QEMU without zstd, for example, tells without it.
    """
    schema = Schema(monitor.execute("query-qmp-schema"))
    switched = schema.values("migrate-set-capabilities", "capabilities", "capability")
    ways = schema.values("migrate-set-parameters", COMPRESSION)
    return switched | schema.members("migrate-set-parameters") | {f"{COMPRESSION} {way}" for way in ways}


class Schema:
    """A QEMU's description of its commands (docs/devel/qapi-code-gen of QEMU, "Client introspection of a schema")."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = {each["name"]: each for each in entries}

    def members(self, command: str) -> frozenset[str]:
        """Names of a command's arguments; none if there is no such command."""
        return frozenset(self._types(self._entries.get(command, {}).get("arg-type", "")))

    def values(self, command: str, *path: str) -> frozenset[str]:
        """What an argument of a command may be. path: its name, and then that of each member on the way to it."""
        name = self._entries.get(command, {}).get("arg-type", "")
        for member in path:
            name = self._types(name).get(member, "")
            # A list counts as its elements.
            name = self._entries.get(name, {}).get("element-type", name)
        return frozenset(self._entries.get(name, {}).get("values", ()))

    def _types(self, name: str) -> dict[str, str]:
        return {each["name"]: each["type"] for each in self._entries.get(name, {}).get("members", ())}


def machine(monitor: Monitor) -> str:
    """The type of the guest's machine, with its version."""
    return str(monitor.execute("qom-get", path="/machine", property="type")).removesuffix("-machine")


def machines(monitor: Monitor) -> frozenset[str]:
    """The types of machine that a QEMU knows."""
    return frozenset(each["name"] for each in monitor.execute("query-machines"))


def cpu(monitor: Monitor) -> frozenset[str]:
    """Features of the guest's first CPU, by QEMU's names."""
    path = monitor.execute("query-cpus-fast")[0]["qom-path"]
    listed = monitor.execute("qom-list-properties", typename=_cpu_type(monitor, path))
    names = [each["name"] for each in listed if each["type"] == "bool"]
    return frozenset(name for name in names if monitor.execute("qom-get", path=path, property=name))


def _cpu_type(monitor: Monitor, path: str) -> str:
    return str(monitor.execute("qom-get", path=path, property="type"))


SAMPLED_PAGES = 16384
"""Pages of each GiB that QEMU looks at to tell a dirty rate: the most that it takes."""


def begin_sampling(monitor: Monitor, seconds: int) -> None:
    """Lets QEMU watch how much memory its guest changes. TrialError if it refuses.

    Only by sampling pages: QEMU 7.2 ends with its guest if an emulated one is watched in another way.
    """
    monitor.execute("calc-dirty-rate", **{"calc-time": seconds, "sample-pages": SAMPLED_PAGES, "mode": "page-sampling"})


def sampled_rate(monitor: Monitor) -> int | None:
    """Whole MiB/s that the guest changed meanwhile; None while QEMU watches."""
    answer = monitor.execute("query-dirty-rate")
    return int(answer["dirty-rate"]) if answer["status"] == "measured" else None


def require(methods: Mapping[str, Method], monitor: Monitor) -> None:
    """CapabilityError with everything that this QEMU lacks, or refuses for this guest."""
    what = f"QEMU {version(monitor)}"
    reasons = lacking(methods, features(monitor), what) or list(_refused(methods, monitor, what))
    if reasons:
        raise CapabilityError(*reasons)


def _refused(methods: Mapping[str, Method], monitor: Monitor, what: str) -> Iterator[str]:
    """Methods whose capabilities QEMU has and does not allow for this guest, such as dirty-limit without KVM."""
    switched = switches(monitor)
    for name, method in methods.items():
        try:
            monitor.execute("migrate-set-capabilities", capabilities=_switched(capabilities(method), switched))
        except TrialError as error:
            yield f"method {name}: this {what} refuses it for this guest ({error}); leave it out, or use KVM"
    monitor.execute("migrate-set-capabilities", capabilities=switched)
