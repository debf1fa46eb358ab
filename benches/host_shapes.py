"""Hosts of many shapes, recorded file by file, given to everything that reads a host.

Every tree of tests/hosts/trees goes through the agent's facts, `doctor`, `scenario check`, and `run --dry-run` of every
shipped scenario, as root and as an ordinary user, and through the outline of every shipped study. CPUs, caches, nodes,
cgroups, memory and missing abilities are compared with what stands beside the tree.

Bar: no traceback, no error without a remedy, no count that is not as expected.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS.parent))

from common import arguments, conclude  # noqa: E402
from tests.hosts import judge  # noqa: E402

# With --quick: shapes that differ most, and no large one.
QUICK = (
    "debian-13-vm",
    "docker-v1",
    "hybrid-cores",
    "isolated-cpus",
    "minimal-proc",
    "numa-smt-8",
    "odd-mounts",
    "one-cpu",
)


def with_less_memory(host: judge.Recorded) -> judge.Recorded:
    text = (judge.TREES / f"{host.name}.tree").read_text("utf-8")
    less = re.sub(r"MemTotal: +(\d+)", lambda match: f"MemTotal: {int(match[1]) - 4}", text)
    return replace(host, tree=judge.read(less))


def main() -> None:
    options = arguments(__doc__ or "", plants={"memory": "hosts have 4 KiB less than is expected"})
    names = QUICK if options.quick else judge.names()
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as own:
        # Nothing of this machine's own state and cache is looked at.
        os.environ |= {"PARTYWALL_STATE": f"{own}/state", "PARTYWALL_CACHE": f"{own}/cache"}
        for name in names:
            began = time.monotonic()
            host = judge.load(name)
            if options.plant:
                host = with_less_memory(host)
            verdict = judge.judge(host)
            print(f"{name}: {len(verdict)} complaints in {time.monotonic() - began:.1f} s", flush=True)
            print("".join(f"  {complaint}\n" for complaint in verdict), end="", flush=True)
            complaints += verdict
    figure = f"{len(names)} hosts, {len(complaints)} tracebacks, wrong counts or errors without a remedy"
    conclude("host-shapes", figure, met=not complaints)


if __name__ == "__main__":
    main()
