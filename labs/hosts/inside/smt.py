"""Runs a scenario without SMT, whole and killed, and says which CPUs were online when, as one line of JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

SCENARIO = "/opt/try/scenarios/no-smt.yaml"
SYSFS = Path("/sys/devices/system/cpu")
LONGEST_S = 400.0


def main() -> int:
    before = online()
    whole = begun("whole")
    looks: Counter[str] = Counter()
    while whole.poll() is None:
        looks[online()] += 1
        time.sleep(0.1)
    during = Counter({cpus: count for cpus, count in looks.items() if cpus != before})
    after, without = online(), next((cpus for cpus, _ in during.most_common(1)), "")
    killed = begun("killed")
    ends = time.monotonic() + LONGEST_S
    # CPUs go one by one.
    while online() != without and killed.poll() is None and time.monotonic() < ends:
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    left = online()
    subprocess.run(["partywall", "reap"], check=True, stdout=subprocess.DEVNULL)
    seen = {"before": before, "without": without, "after": after, "killed": left, "reaped": online()}
    print(json.dumps(seen | {"code": whole.returncode}))
    return 0


def begun(name: str) -> subprocess.Popen[bytes]:
    """A run that has begun. Its folder is new."""
    shutil.rmtree(name, ignore_errors=True)
    return subprocess.Popen(["partywall", "run", SCENARIO, "--out", name], stdout=subprocess.DEVNULL)


def online() -> str:
    """The CPUs that are online, in the kernel's list format."""
    return (SYSFS / "online").read_text().strip()


if __name__ == "__main__":
    sys.exit(main())
