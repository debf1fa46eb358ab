"""Hosts composed from a few numbers, and hosts whose files are in a folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partywall.agent import binary
from partywall.core import here
from partywall.errors import AgentError
from partywall.host import Host

NOWHERE = Path("/nonexistent")
VERSIONS = {"qemu-system-x86_64": "QEMU emulator version 8.2.2\n", "ssh": "OpenSSH_9.6p1\n"}
"""Version output of programs."""


@dataclass(frozen=True)
class Disk:
    """Bytes of a file system."""

    total: int = 1 << 50
    free: int = 1 << 50


def fake_host(
    facts: dict[str, Any] | None = None, *, cpus: int = 2, memory: int | None = 1 << 40, **changes: Any
) -> Host:
    """A host with every program, ample memory and disk space, and no files. changes: values of fields of `Host`."""
    known: dict[str, Any] = {"cpus_allowed": list(range(cpus)), "memory": {"usable_bytes": memory}, "missing": []}
    fields: dict[str, Any] = {
        "root": NOWHERE,
        "euid": 0,
        "which": lambda name: f"/usr/bin/{name}",
        "output": said,
        "access": lambda path, _mode: path.exists(),
        "disk_usage": lambda _folder: Disk(),
    }
    return Host(known | (facts or {}), **(fields | changes))


def said(argv: Sequence[str]) -> str:
    """The output of a simulated program."""
    return VERSIONS.get(argv[0], "")


def agent_facts(root: Path) -> dict[str, Any]:
    """The agent's facts about a host whose files are below `root`. AgentError if it fails."""
    argv = [str(binary.find()), "facts", "--root", str(root)]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    if done.returncode:
        raise AgentError(f"{' '.join(argv[1:])} ended with status {done.returncode}: {done.stderr.strip()}")
    return dict(json.loads(done.stdout))


def recorded(root: Path, programs: Collection[str], *, euid: int = 0, writable: Collection[str] = ()) -> Host:
    """A host whose files are below `root`.

    programs: those on its PATH; writable: devices that an ordinary user may open.
    """
    own = {root / device.lstrip("/") for device in writable}
    host = fake_host(
        root=root,
        euid=euid,
        which=lambda name: f"/usr/bin/{name}" if name in programs else None,
        access=lambda path, _mode: path.exists() and (euid == 0 or path in own),
        try_kvm=lambda _within_s: "a recorded host starts no guest",
    )
    facts = agent_facts(root)
    return Host(**(vars(host) | {"facts": here.described(facts, host)}))
