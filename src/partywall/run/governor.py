"""The frequency governor of the processor's clock, for as long as something is measured under another one.

What was in force is written down before it is changed, so that the next start puts it back if this process is killed.
Deliberately not here: frequencies themselves, and hosts whose clock the kernel does not govern.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from partywall.errors import CapabilityError
from partywall.sandbox.label import start_ticks, state_root

SYSFS = Path("/sys/devices/system/cpu")
STATE = "governor.json"


def why_not(governor: str, sysfs: Path = SYSFS) -> str:
    """Why it cannot be had on this host; empty if it can."""
    offered = [file.read_text().split() for file in sysfs.glob("cpu[0-9]*/cpufreq/scaling_available_governors")]
    if not offered:
        return "this host's kernel does not govern the processor's frequency (a guest, or no cpufreq driver)"
    if not all(governor in names for names in offered):
        return f"there is no governor {governor}, only {', '.join(offered[0])}"
    return "" if os.geteuid() == 0 else "changing the frequency governor needs root"


@contextlib.contextmanager
def held(governor: str | None, sysfs: Path = SYSFS) -> Iterator[None]:
    """Every CPU under this governor while the block runs; None changes nothing. CapabilityError if it cannot be."""
    if governor is None:
        yield
        return
    if why := why_not(governor, sysfs):
        raise CapabilityError(f"frequency governor {governor}: {why}")
    files = sorted(sysfs.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    before = {str(file): file.read_text().strip() for file in files}
    state = state_root() / STATE
    state.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "before": before}
    state.write_text(json.dumps(own))
    try:
        for file in files:
            file.write_text(governor)
        yield
    finally:
        _put_back(state, before)


def put_back() -> bool:
    """Puts back what a killed process left changed; whether there was anything."""
    state = state_root() / STATE
    try:
        left = json.loads(state.read_text())
    except (OSError, ValueError):
        return False
    if start_ticks(left["pid"]) == left["start_ticks"]:
        return False
    _put_back(state, left["before"])
    return True


def _put_back(state: Path, before: dict[str, str]) -> None:
    for file, governor in before.items():
        with contextlib.suppress(OSError):
            Path(file).write_text(governor)
    state.unlink(missing_ok=True)
