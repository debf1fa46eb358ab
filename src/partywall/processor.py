"""Instruction sets of an x86-64 processor: those that libraries need, and those that only some measurements need.

Without the check for libraries, they end the process with an illegal instruction. Other architectures are not checked.
"""

from __future__ import annotations

from pathlib import Path

from partywall.errors import CapabilityError

CPU_INFO = Path("/proc/cpuinfo")
# What x86-64-v2 adds and NumPy's wheels use. Every processor since 2009 has it, QEMU's default CPU model does not.
BASELINE = ("popcnt", "sse4_1", "sse4_2", "ssse3")
EXTENSIONS = ("sse2", "avx")
"""Those that parts of studies may need. SSE2 is part of x86-64, so it stands for the architecture."""
NEWER_MODEL = "if this is a virtual machine, give it a newer CPU model, such as host"
# The flags of one CPU. Further CPUs are not read, for on a large host that takes long.
ONE_CPU_BYTES = 8192


def flags(cpu_info: Path = CPU_INFO) -> frozenset[str] | None:
    """Instruction sets by their names in /proc/cpuinfo. None where it has no such line, as on arm64."""
    try:
        with cpu_info.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(ONE_CPU_BYTES).splitlines()
    except OSError:
        return None
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), None)


def lacking(cpu_info: Path = CPU_INFO) -> dict[str, str]:
    """The extensions that this processor lacks, each with the reason."""
    present = flags(cpu_info)
    if present is None:
        return dict.fromkeys(EXTENSIONS, f"the processor is not x86-64, or {cpu_info} names no instruction sets")
    return {name: f"the processor lacks {name.upper()}" for name in EXTENSIONS if name not in present}


def check_baseline(cpu_info: Path = CPU_INFO) -> None:
    """CapabilityError on a processor that no command of Partywall runs on."""
    present = flags(cpu_info)
    missing = [name for name in BASELINE if present is not None and name not in present]
    if missing:
        raise CapabilityError(
            f"NumPy needs a processor with x86-64-v2, and this one lacks {', '.join(missing)} — {NEWER_MODEL}"
        )
