"""The label with which an owner agrees to pulses. Only reads.

Who names no suspect may not know what depends on it. A unit carries the label in a section that systemd leaves to
others: `[X-Partywall]` with `Blame=yes`, in its file or a drop-in. The labels of pods are the cluster's, and are not
read here.
"""

from __future__ import annotations

import configparser
import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from partywall.blame.measure.owners import owner_of
from partywall.host.systemd import Systemd, SystemdError

SECTION, KEY = "X-Partywall", "Blame"
ASKED = "name it, or use --any"


def lacking(cgroup: str, *, has_systemd: bool) -> str:
    """Why a group must not be pulsed unless it is named; empty if it may be."""
    if "kubepods" in cgroup:
        return f"is a pod; {ASKED}"
    who, unit = owner_of(cgroup, has_systemd=has_systemd)
    if who != "systemd":
        return ""
    with contextlib.suppress(SystemdError), Systemd() as manager:
        files = [manager.get(unit, "FragmentPath", "Unit"), *manager.get(unit, "DropInPaths", "Unit")]
        if is_labelled(text for file in files for text in _content(file)):
            return ""
    return f"has no [{SECTION}] {KEY}=yes in its unit; {ASKED}"


def _content(file: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield Path(file).read_text(encoding="utf-8", errors="replace")


def is_labelled(texts: Iterable[str]) -> bool:
    """True if the files of a unit carry the label. A later file overrides earlier ones. Pure."""
    found = False
    for text in texts:
        unit = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        with contextlib.suppress(configparser.Error, ValueError):
            unit.read_string(text)
            found = unit.getboolean(SECTION, KEY, fallback=found)
    return found
