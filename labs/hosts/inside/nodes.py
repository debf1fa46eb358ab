"""Makes a container whose memory comes from one NUMA node, and says where its pages are, as one line of JSON.

The argument is the node.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Settings, make, reaper

# Far more than the agent itself holds.
BLOCK_BYTES = 64 << 20


def main() -> int:
    node = int(sys.argv[1])
    label = Label.create(f"nodes-{os.getpid()}", WORK_ROOT)
    try:
        sandbox = make(Settings(name="bound", backend="container", cpus=(0,), memory_nodes=(node,)), label)
        client = sandbox.start(lambda _method, _params: None)
        work = {"kernel": {"name": "memory-copy", "params": {"block_bytes": BLOCK_BYTES}}}
        client.call("workload.start", timeout_s=120, id="w", work=work, pace="flat_out", work_dir=sandbox.work_dir)
        by_node = pages(Path(f"/proc/{sandbox.pid}/numa_maps").read_text())
        sandbox.stop()
    finally:
        reaper.clean(label)
    print(json.dumps({"pages": by_node}))
    return 0


def pages(numa_maps: str) -> dict[int, int]:
    """Pages by node, without those of files, which other processes may have read first. Source: numa(7)."""
    counted: Counter[int] = Counter()
    for line in numa_maps.splitlines():
        if " file=" not in line:
            counted.update({int(node): int(count) for node, count in re.findall(r" N(\d+)=(\d+)", line)})
    return dict(counted)


if __name__ == "__main__":
    sys.exit(main())
