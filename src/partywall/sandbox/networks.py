"""Network namespaces that a run made, and how the next start finds those that a killed run left."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from partywall.files import write_whole
from partywall.sandbox.label import Label

FILE = "networks.json"
NETNS = Path("/run/netns")


def note(label: Label, names: Iterable[str]) -> None:
    """Remembers the names of namespaces that are about to be made."""
    write_whole(label.state / FILE, json.dumps(list(names)))


def remove(label: Label) -> list[str]:
    """Removes a run's namespaces, with all interfaces in them; says which there were."""
    try:
        names = json.loads((label.state / FILE).read_text())
    except (OSError, ValueError):
        return []
    there = [name for name in names if (NETNS / name).exists()]
    for name in there:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=20)
    return [f"network namespace {name}" for name in there if not (NETNS / name).exists()]
