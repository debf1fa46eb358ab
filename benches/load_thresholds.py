"""Whether a plan's expected response time decides its load: it holds for few users, and is violated by many.

A service answers one request after the other, each in 50 ms, so its response time follows from the number of users:
50 ms for one who pauses between requests, and 50 ms times the users, 2 s, for 40 who do not. The same plan expects
500 ms at the 95th percentile. It is carried out by `partywall load`, as a person would, with 1 user and with 40, and
its exit code is read.

One good second is enough for the plans (`good_seconds: 1%`), because the expected time is ten times as long as few
users need, and a quarter of the time that many need. Whether a generator detects that it is starved is measured by
load_health.py.

Bar: exit code 0 with few users and 1 with many, and the report names the measured percentile with each verdict. A load
without a good second (exit code 3) is repeated, up to five times.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from common import PARTYWALL, served
from frame import Options, Outcome, bench
from partywall import units
from partywall.errors import Exit

SERVICE_S, EXPECTED_MS = 0.05, 500
FEW, MANY = 1, 40
TRIES = 5


def plan(url: str, users: int, seconds: int, expected_ms: int) -> str:
    """A JSON document is a YAML one. Few users pause, so that none waits for another."""
    pause = [{"think": "100ms"}] if users == FEW else []
    return json.dumps(
        {
            "partywall_load": 1,
            "name": f"expected-{users}",
            "base": url,
            "users": {"visitor": {"actions": [{"http": "/"}, *pause]}},
            "closed": {"users": users, "hold": f"{seconds}s"},
            "good_seconds": "1%",
            "thresholds": [{"p95": f"{expected_ms}ms"}],
        }
    )


def carried_out(url: str, users: int, seconds: int, expected_ms: int) -> tuple[int, str]:
    """The exit code of a load, and the line of its report about the threshold."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        file, out = Path(folder) / "plan.yaml", Path(folder) / "run"
        file.write_text(plan(url, users, seconds, expected_ms))
        command = [*PARTYWALL, "load", str(file), "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = [line.strip() for line in done.stdout.splitlines() if "p95 at most" in line]
        return done.returncode, said[0] if said else (done.stderr or done.stdout).strip()[-300:]


def judged(url: str, users: int, seconds: int, expected_ms: int, wanted: Exit) -> bool:
    for _ in range(TRIES):
        code, said = carried_out(url, users, seconds, expected_ms)
        print(f"{units.counted(users, 'user')}: exit code {code}; {said}", flush=True)
        if code != Exit.INCONCLUSIVE:
            return code == wanted and "p95 at most" in said
    return False


@bench(plants={"slack": "a plan that expects a minute in place of 500 ms"})
def main(options: Options) -> Outcome:
    seconds = 10 if options.quick else 20
    expected_ms = 60_000 if options.plant else EXPECTED_MS
    lock = threading.Lock()

    def one_by_one() -> None:
        with lock:
            time.sleep(SERVICE_S)

    with served(one_by_one) as url:
        kept = judged(url, FEW, seconds, expected_ms, Exit.HOLDS)
        violated = judged(url, MANY, seconds, expected_ms, Exit.VIOLATED)
    return Outcome(
        f"{expected_ms} ms expected: {'held' if kept else 'not held'} for {FEW} user, "
        f"{'violated' if violated else 'not violated'} by {MANY}",
        kept and violated,
    )


if __name__ == "__main__":
    main()
