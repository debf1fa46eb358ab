"""Reads the energy of two packages and memory, each of which counts 10 J on."""

import tempfile
from pathlib import Path

from partywall.host import Host
from partywall.power.address import Address
from partywall.power.meters import rapl
from partywall.testing.trees import read

with tempfile.TemporaryDirectory() as folder:
    root = Path(folder)
    read(Path("host.tree").read_text()).lay_out(root)
    meter = rapl.make(Address.parse("rapl"), Host({}, root=root))
    before = meter.read().joules
    for counter in root.glob("sys/class/powercap/*/energy_uj"):
        counter.write_text(str(int(counter.read_text()) + 10_000_000))
    print(meter.facts.about, f"{meter.read().joules - before:.1f} J")
