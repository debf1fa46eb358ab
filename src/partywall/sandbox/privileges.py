"""Which capabilities a process has on the host: those of a user namespace's root are none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Numbers of linux/capability.h.
HOOKS: Mapping[str, int] = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
"""What hooking eBPF programs to interfaces takes: programs, tc, and entering the namespaces of others."""
_WHOLE = ["0", "0", "4294967295"]


def lacking(pid: int, wanted: Mapping[str, int] = HOOKS, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Names of the wanted capabilities that a process does not have; all of them if it is in a user namespace."""
    status = (proc / f"{pid}/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    on_host = (proc / f"{pid}/uid_map").read_text().split() == _WHOLE
    return tuple(name for name, number in wanted.items() if not on_host or not effective >> number & 1)
