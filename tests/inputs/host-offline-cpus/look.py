"""Reads the CPU time of a host with two CPUs of eight."""

import tempfile
from pathlib import Path

from partywall.host import Host
from partywall.power.activity import HostCpus
from partywall.testing.trees import read

with tempfile.TemporaryDirectory() as folder:
    read(Path("host.tree").read_text()).lay_out(Path(folder))
    busy = HostCpus(Host({}, root=Path(folder)))()
print(f"{len(busy)} CPUs: {busy}")
