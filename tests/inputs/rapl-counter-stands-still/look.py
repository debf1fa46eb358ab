"""Reads a counter that stands still, for two seconds."""

import tempfile
import time
from pathlib import Path

from partywall.host import Host
from partywall.power.address import Address
from partywall.power.meters import MeterError, rapl
from partywall.testing.trees import read

with tempfile.TemporaryDirectory() as folder:
    read(Path("host.tree").read_text()).lay_out(Path(folder))
    meter = rapl.make(Address.parse("rapl"), Host({}, root=Path(folder)))
    try:
        for _ in range(30):
            meter.read()
            time.sleep(0.1)
    except MeterError as error:
        print(error)
