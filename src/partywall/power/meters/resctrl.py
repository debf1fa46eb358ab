"""resctrl: energy of the cores by resource group, from processors with telemetry of energy (Linux 7.0 and later).

`resctrl` is the whole host, `resctrl:GROUP` one group. The counters are joules with a fraction, in
`mon_data/mon_PERF_PKG_*/core_energy`.
"""

from __future__ import annotations

from pathlib import Path

from partywall.host import Host
from partywall.power.address import Address, unusable
from partywall.power.meters.base import Counter, Place, now_ns, number, text_of
from partywall.power.values import MeterFacts, Reading

SCHEMES = ("resctrl",)
FOLDER = "/sys/fs/resctrl"
PATTERN = "mon_data/mon_PERF_PKG_*/core_energy"


class Resctrl:
    """The sum over packages."""

    def __init__(self, address: Address, files: list[Path]) -> None:
        # The tasks of a group may all sleep; the host's never do.
        self._counters = [(file, Counter(wrap=None, moves=not address.path)) for file in files]
        about = ", ".join(str(file) for file in files)
        self.facts = MeterFacts(
            meter=address.text, quantity="joules", step=1e-6, covers="cores", is_whole=False, about=about
        )

    def read(self) -> Reading:
        begin_ns = now_ns()
        total = 0.0
        for file, counter in self._counters:
            total += counter.add(now_ns(), number(text_of(file, "core_energy"), str(file), most=1e15))
        end_ns = now_ns()
        middle = (begin_ns + end_ns) // 2
        return Reading(meter=self.facts.meter, time_ns=middle, joules=total, took_ns=end_ns - begin_ns)

    def close(self) -> None:
        pass


def check(address: Address) -> None:
    """Any group may be named."""
    del address


def make(address: Address, host: Host) -> Resctrl:
    files = sorted((host.path(FOLDER) / address.path).glob(PATTERN))
    if not files:
        raise unusable(address.text, f"{FOLDER}/{address.path} has no {PATTERN}", "mount -t resctrl resctrl " + FOLDER)
    return Resctrl(address, files)


def find(host: Host) -> list[Place]:
    if sorted(host.path(FOLDER).glob(PATTERN)):
        return [Place("resctrl", "energy of the cores by group")]
    missing = f"{FOLDER} has no energy counters"
    remedy = "needs Linux 7.0, a processor with this telemetry, and a mount of resctrl"
    return [Place("resctrl", "energy of the cores by group", missing, remedy)]
