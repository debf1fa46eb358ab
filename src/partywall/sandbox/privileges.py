"""The capabilities of a process on the host. Capabilities in a user namespace do not count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Numbers in linux/capability.h.
HOOKS: Mapping[str, int] = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
"""Capabilities needed to attach eBPF programs to interfaces: programs, tc, and entering other namespaces."""
_WHOLE = ["0", "0", "4294967295"]


def lacking(pid: int, wanted: Mapping[str, int] = HOOKS, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Names of the wanted capabilities that a process lacks; all of them if it is in a user namespace."""
    # A process may give itself a name of any bytes.
    status = (proc / f"{pid}/status").read_text(encoding="utf-8", errors="replace")
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    outside = is_namespaced((proc / f"{pid}/uid_map").read_text())
    return tuple(name for name, number in wanted.items() if outside or not effective >> number & 1)


def is_namespaced(uid_map: str | None) -> bool:
    """Whether a process with this map of users is in a user namespace; False if it is not known."""
    return (uid_map or "").split() not in ([], _WHOLE)
