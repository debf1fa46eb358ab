"""QEMU's migration as requests and answers: which features there are, what is set, and what it says of a move."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from partywall.clock import realtime_offset_ns
from partywall.errors import CapabilityError
from partywall.model.migration import Method, Progress
from partywall.sandbox.qemu.monitor import Monitor

ENDED = ("completed", "failed", "cancelled")
PAGE_BYTES = 4096


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
        "multifd-compression": method.compression,
        "xbzrle-cache-size": method.xbzrle_cache,
        "cpu-throttle-increment": method.throttle_step,
        # In MiB/s.
        "vcpu-dirty-limit": None if method.dirty_limit is None else max(1, method.dirty_limit >> 20),
    }
    return {name: value for name, value in wanted.items() if value is not None}


def lacking(methods: Mapping[str, Method], monitor: Monitor) -> list[str]:
    """What this QEMU lacks for some methods, one sentence each."""
    known = {each["capability"] for each in monitor.execute("query-migrate-capabilities")}
    settable = set(monitor.execute("query-migrate-parameters"))
    version = monitor.execute("query-version")["qemu"]
    qemu = "QEMU {major}.{minor}.{micro}".format(**version)
    return [
        f"method {name}: this {qemu} has no {feature}; leave it out, or use a QEMU that has it"
        for name, method in methods.items()
        for feature in sorted((capabilities(method) - known) | (set(parameters(method)) - settable))
    ]


def defaults(monitor: Monitor) -> dict[str, Any]:
    """The default values of the parameters that methods may set, from a fresh QEMU."""
    parameters = monitor.execute("query-migrate-parameters")
    return {name: parameters[name] for name in MANAGED if name in parameters}


def prepare(method: Method, monitor: Monitor, usual: Mapping[str, Any], *, with_storage: bool = False) -> None:
    """Sets one end up. TrialError if QEMU refuses. with_storage: the disk is moved along, and finished before the end.

    Every capability and parameter is set, usual or not, so that nothing of the move before stays: the source of a move
    is the QEMU to which the last one went.
    """
    wanted = capabilities(method) | {"events"} | ({"pause-before-switchover"} if with_storage else set())
    known = [each["capability"] for each in monitor.execute("query-migrate-capabilities")]
    switched = [{"capability": name, "state": name in wanted} for name in known if name in SWITCHED]
    monitor.execute("migrate-set-capabilities", capabilities=switched)
    monitor.execute("migrate-set-parameters", **{**usual, **parameters(method)})


MANAGED = (
    "max-bandwidth",
    "downtime-limit",
    "multifd-channels",
    "multifd-compression",
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


def announced(monitor: Monitor) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(monotonic ns, name, content) of QEMU's events since the last call. QEMU stamps them with the real-time clock."""
    offset_ns = realtime_offset_ns()
    for event in monitor.events():
        at = event["timestamp"]
        at_ns = at["seconds"] * 1_000_000_000 + at["microseconds"] * 1000 + offset_ns
        yield at_ns, event["event"], event.get("data", {})


def require(methods: Mapping[str, Method], monitor: Monitor) -> None:
    """CapabilityError with everything that this QEMU lacks."""
    if reasons := lacking(methods, monitor):
        raise CapabilityError(*reasons)
