"""A newcomer's first minutes: a fresh clone, `make demo`, `make test`, as the README says.

The clone is made from this repository's last commit into a temporary folder. Timed: the set-up, and the demo's own run,
which must always show what it is doing and how long is left: no gap between two lines of its output may be longer than
fifteen seconds. --quick leaves out `make test`, which runs for minutes.

Bar: both end well; the demo's own run takes at most three minutes; a report is written; no silent gap.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import arguments, conclude

ROOT = Path(__file__).parents[1]
SILENCE_S = 15.0


def watched(argv: Sequence[str], folder: Path) -> tuple[int, float, float, str]:
    """(exit code, seconds, longest silence, output) of a command."""
    # A benchmark's own interpreter and agent must not be what the clone uses.
    env = {
        key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PARTYWALL_AGENT", "PYTHONPATH")
    }
    began = last = time.monotonic()
    silence, lines = 0.0, []
    with subprocess.Popen(
        argv, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            silence, last = max(silence, time.monotonic() - last), time.monotonic()
            lines.append(line)
    return process.returncode, time.monotonic() - began, silence, "".join(lines)


def main() -> None:
    options = arguments(__doc__ or "")
    wrong = []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        clone = Path(name) / "partywall"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        code, set_up_s, _, output = watched(["make", "setup"], clone)
        wrong += [f"make setup ended with {code}: {output[-500:]}"] if code else []
        code, demo_s, silence_s, output = watched(["make", "demo"], clone)
        print(output)
        wrong += [f"make demo ended with {code}"] if code else []
        wrong += [f"the demo took {demo_s:.0f} s"] if demo_s > 180 else []
        wrong += [f"the demo was silent for {silence_s:.0f} s"] if silence_s > SILENCE_S else []
        wrong += [] if list(clone.glob("runs/*/report.html")) else ["no report was written"]
        tests = "not run (--quick)"
        if not options.quick:
            code, tests_s, _, output = watched(["make", "test"], clone)
            wrong += [f"make test ended with {code}: {output[-2000:]}"] if code else []
            tests = f"{tests_s:.0f} s"
    for problem in wrong:
        print(problem)
    figure = f"set-up {set_up_s:.0f} s, demo {demo_s:.0f} s (longest silence {silence_s:.0f} s), tests {tests}"
    conclude("first-minutes", figure, met=not wrong)


if __name__ == "__main__":
    main()
