"""Changes the frequency governor of the processor's clock for the time of a measurement.

Frequencies are not set, and hosts whose clock the kernel does not control are not supported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from partywall.host import Host
from partywall.host.settings import ledger

SYSFS = "/sys/devices/system/cpu"
KINDS = {"saving": ("ondemand", "schedutil", "powersave"), "performance": ("performance",)}
"""Governors that lower the clock under low load, in order of preference, and those that never do.

With some drivers, `powersave` is the only one that does; with others it holds the lowest clock, and `ondemand` is used.
"""


def chosen(kind: str, host: Host) -> str | None:
    """The governor of a kind that every CPU offers; None if there is none."""
    offered = _offered(host)
    return next((name for name in KINDS[kind] if offered and all(name in names for names in offered)), None)


def why_not(kind: str, host: Host) -> str:
    """Why a governor of a kind is not available on a host; empty if it is."""
    offered = _offered(host)
    if not offered:
        return "this host's kernel does not govern the processor's frequency (a guest, or no cpufreq driver)"
    if chosen(kind, host) is None:
        only = f", only {', '.join(offered[0])}" if offered[0] else ""
        return f"there is no frequency governor {' or '.join(KINDS[kind])}{only}"
    return "" if host.euid == 0 else "changing the frequency governor needs root"


def refused(host: Host) -> dict[str, str]:
    """Why governors are not available, by their kind; without available ones."""
    return {kind: why for kind in KINDS if (why := why_not(kind, host))}


def _offered(host: Host) -> list[list[str]]:
    """Offered governors by CPU. An offline CPU has none."""
    files = sorted(host.path(SYSFS).glob("cpu[0-9]*/cpufreq/scaling_available_governors"))
    return [text.split() for file in files if (text := host.text(file.relative_to(host.root))) is not None]


@contextlib.contextmanager
def held(kind: str | None, host: Host) -> Iterator[None]:
    """Sets every CPU to a governor of a kind while the block runs. No change for None, or if there is none."""
    governor = None if kind is None or why_not(kind, host) else chosen(kind, host)
    if governor is None:
        yield
        return
    files = sorted(host.path(SYSFS).glob("cpu[0-9]*/cpufreq/scaling_governor"))

    def before() -> dict[Path, str]:
        return {file: file.read_text(encoding="utf-8", errors="replace").strip() for file in files}

    with ledger.changed(ledger.GOVERNOR, "the frequency governor", dict.fromkeys(files, governor), before):
        yield
