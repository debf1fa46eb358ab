"""RAPL: energy counters of Intel and AMD processors, through the kernel's powercap files.

A package includes its cores and its graphics; memory (dram) is counted apart. `psys`, the whole platform, includes all
of them and is a meter of its own. Counters wrap at `max_energy_range_uj`. They are readable by root only since Linux
5.10. Kernel documentation: power/powercap/powercap.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters.base import Counter, MeterError, Place, listed, now_ns, number, text_of
from partywall.power.values import MeterFacts, Reading

SCHEMES = ("rapl",)
FOLDER = "/sys/class/powercap"
MOST_WATTS = 2000.0
"""More than any package draws: a counter that could have wrapped at this power is not trusted."""


@dataclass
class Zone:
    """One counter. name: as the kernel calls it, such as package-0 or dram."""

    name: str
    file: Path
    counter: Counter


class Rapl:
    """The sum of all packages and their memory, or `psys` alone."""

    def __init__(self, address: Address, zones: list[Zone]) -> None:
        self._zones = zones
        names = ", ".join(zone.name for zone in zones)
        is_whole = zones[0].name == "psys"
        covers = "the whole platform" if is_whole else "processors and memory, without disks and fans"
        self.facts = MeterFacts(
            meter=address.text, quantity="joules", step=61e-6, covers=covers, is_whole=is_whole, about=names
        )

    def read(self) -> Reading:
        begin_ns, faults, total = now_ns(), [], 0.0
        for zone in self._zones:
            microjoules = number(text_of(zone.file, zone.name), zone.name, most=1e18)
            try:
                total += zone.counter.add(now_ns(), microjoules / 1e6)
            except MeterError as error:
                faults.append(MeterError(error.kind, f"{zone.name}: {error}"))
        if faults:
            raise faults[0]
        end_ns = now_ns()
        return Reading(
            meter=self.facts.meter, time_ns=(begin_ns + end_ns) // 2, joules=total, took_ns=end_ns - begin_ns
        )

    def close(self) -> None:
        pass


def check(address: Address) -> None:
    if address.path not in ("", "psys"):
        raise unusable(address.text, f"it has no part {address.path!r}", "give rapl, or rapl:psys")


def make(address: Address, host: Host) -> Rapl:
    zones = zones_of(host)
    wanted = [zone for zone in zones if (zone.name == "psys") == (address.path == "psys")]
    if not wanted:
        raise unusable(address.text, f"{FOLDER} has no such counter", "partywall power meters lists what there is")
    return Rapl(address, wanted)


def zones_of(host: Host) -> list[Zone]:
    """Counters whose sum is the energy: packages, their memory, and psys. Not the cores, which packages include."""
    zones = []
    for folder in listed(host, FOLDER, "*-rapl:*"):
        name = _text(folder / "name")
        if name.startswith(("package", "dram", "psys")):
            most = _text(folder / "max_energy_range_uj")
            wrap = float(most) / 1e6 if most.isdigit() else None
            # Many processors show a counter of memory that they do not have, and it stays 0.
            counter = Counter(wrap, wrap / MOST_WATTS if wrap else None, moves=not name.startswith("dram"))
            zones.append(Zone(name, folder / "energy_uj", counter))
    return zones


def find(host: Host) -> list[Place]:
    zones = zones_of(host)
    if not zones:
        remedy = "load intel_rapl_common (bare metal only; hypervisors hide it)"
        return [Place("rapl", "energy counters of processors", f"{FOLDER} has no counters", remedy)]
    unreadable = [zone for zone in zones if not _text(zone.file)]
    missing = f"{unreadable[0].file} cannot be read" if unreadable else ""
    names = dict.fromkeys("rapl:psys" if zone.name == "psys" else "rapl" for zone in zones)
    return [Place(name, "energy counters of processors", missing, "run as root" if missing else "") for name in names]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
