"""Runs the short form of each benchmark, as it is and with each fault that it can plant, and records the results.

`python -m benches.planted [NAME ...]`. `--only-planted` leaves out the runs without a fault. A benchmark that takes
longer than `LIMIT_S` is ended, and has no result. Exits with 1 unless every benchmark passed as it is and failed with
each fault. docs/internals/short-forms.md is written again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from benches import results

LIMIT_S = 600
CLEAN_UP_S = 60
OUTPUT_LINES = 15


def plants(bench: str) -> list[str]:
    """The faults that a benchmark can plant, by its help."""
    said = subprocess.run(
        [sys.executable, bench, "--help"], capture_output=True, text=True, check=True, cwd=results.ROOT
    )
    match = re.search(r"--plant \[?\{([^}]*)\}", said.stdout)
    return match[1].split(",") if match else []


def run(bench: str, *options: str, wanted: int) -> bool:
    """Whether it ends with a figure and the wanted exit code; else its output is shown. It is ended in time."""
    argv = [sys.executable, bench, "--quick", "--record", *options]
    began = time.monotonic()
    with subprocess.Popen(
        argv, cwd=results.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as running:
        try:
            said, code = running.communicate(timeout=LIMIT_S)[0], running.returncode
        except subprocess.TimeoutExpired:
            said, code = _ended(running), None
        except KeyboardInterrupt:
            # Ctrl-C reaches no process of another session.
            _ended(running)
            raise
    ends = [line for line in said.splitlines() if " [bar met]" in line or " [BAR NOT MET]" in line]
    lines = [line for line in ends if ": not measured: " not in line]
    print(f"{bench} {' '.join(options)}: exit {code} after {time.monotonic() - began:.0f} s")
    print(f"  {ends[-1] if ends else 'no result'}", flush=True)
    # A benchmark that crashes or that cannot run here has found nothing.
    as_wanted = code == wanted and bool(lines)
    if not as_wanted:
        print("".join(f"  | {line}\n" for line in said.splitlines()[-OUTPUT_LINES:]), end="", flush=True)
    return as_wanted


def _ended(running: subprocess.Popen[str]) -> str:
    """The output of a benchmark that is ended, and killed if it does not clean up in time."""
    running.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.communicate(timeout=CLEAN_UP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    return running.communicate()[0]


def honest(bench: str, *, only_planted: bool) -> bool:
    faults = plants(bench)
    passes = only_planted or run(bench, wanted=0)
    return all([passes, bool(faults), *[run(bench, "--plant", fault, wanted=1) for fault in faults]])


def main(argv: Sequence[str] | None = None) -> int:
    listed = list(dict.fromkeys(claim.bench for rows in results.claims().values() for claim in rows))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as guard_kill; default: all")
    parser.add_argument("--only-planted", action="store_true", help="not as they are")
    given = parser.parse_args(argv)
    if unknown := [name for name in given.names if name not in listed]:
        parser.error(f"no benchmark is called {', '.join(unknown)}; benches/claims.yaml lists all")
    dishonest = [
        name for name in given.names or listed if not honest(f"benches/{name}.py", only_planted=given.only_planted)
    ]
    for page, fresh in results.pages():
        page.write_text(fresh, "utf-8")
    print(f"not honest: {', '.join(dishonest) or 'none'}")
    return 1 if dishonest else 0


if __name__ == "__main__":
    sys.exit(main())
