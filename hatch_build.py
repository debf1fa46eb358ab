"""Puts the agent into the wheel, and gives the wheel the tag of the machines that this agent runs on.

It does not build the agent: Cargo does, and `make wheel` runs both in order.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

INSIDE = "partywall/_bin/partywall-agent"
OTHER = "PARTYWALL_WHEEL_AGENT"
"""Variable that names another agent than the one in the source tree, such as one for another machine."""
# elf(5): where a 64-bit header has its machine and its program headers, and what we look for there.
MACHINES = {62: "x86_64", 183: "aarch64"}
PT_INTERP = 3
EM_BPF = 247
MAGIC = b"\x7fELF\x02\x01"


class AgentHook(BuildHookInterface[Any]):
    """Adds the agent. An editable install uses the one in the source tree, built before or after."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds; version: "standard" or "editable"."""
        if version == "editable":
            return
        agent = Path(os.environ.get(OTHER, Path(self.root, "src", INSIDE)))
        try:
            executable = agent.read_bytes()
            machine = static_machine(executable)
        except OSError:
            self.app.abort(f"{agent} is missing, and a wheel must hold the agent: run 'make wheel', which builds both")
        except ValueError as error:
            self.app.abort(f"{agent} {error}: run 'make wheel', which builds the agent anew")
        if not holds_ebpf(executable):
            self.app.abort(
                f"{agent} holds no eBPF programs, so guard and trace would be missing: "
                "apt-get install clang libbpf-dev, remove agent/target, and run 'make wheel'"
            )
        build_data["pure_python"] = False
        # A static executable needs no C library; manylinux2014 is the oldest tag that all pips in use know.
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.manylinux2014_{machine}"
        build_data["force_include"][str(self._stripped(agent))] = INSIDE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Called by hatchling when the wheel is written."""
        if folder := getattr(self, "_folder", None):
            folder.cleanup()

    def _stripped(self, agent: Path) -> Path:
        """A copy without line numbers, a quarter of the size; the names of functions stay for backtraces."""
        self._folder = tempfile.TemporaryDirectory()
        copy = Path(self._folder.name, agent.name)
        shutil.copy(agent, copy)
        if strip := shutil.which("strip"):
            # One that does not know the agent's machine leaves the copy as it is.
            subprocess.run([strip, "--strip-debug", copy], check=False)
        return copy


def static_machine(executable: bytes) -> str:
    """The machine of a static 64-bit little-endian ELF executable, as platform tags call it; ValueError for others."""
    if executable[:6] != MAGIC:
        raise ValueError("is no 64-bit Linux executable")
    (number,) = struct.unpack_from("<H", executable, 18)
    (headers,) = struct.unpack_from("<Q", executable, 32)
    size, count = struct.unpack_from("<HH", executable, 54)
    if number not in MACHINES:
        raise ValueError(f"is for a machine (ELF number {number}) that Partywall has no wheels for")
    kinds = [struct.unpack_from("<I", executable, headers + size * index)[0] for index in range(count)]
    if PT_INTERP in kinds:
        raise ValueError("is linked dynamically, so it would not start in containers and guests")
    return MACHINES[number]


def holds_ebpf(executable: bytes) -> bool:
    """Whether eBPF programs, each an ELF file of its own, were compiled in."""
    at = executable.find(MAGIC, 1)
    while at >= 0:
        if executable[at + 18 : at + 20] == struct.pack("<H", EM_BPF):
            return True
        at = executable.find(MAGIC, at + 1)
    return False
