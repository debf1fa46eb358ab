"""How soon the command line answers: `partywall --help`, `doctor` and `run demo --dry-run`, as whole processes.

The commands are taken in turn, so that a disturbance meets all of them; the figure is the median. The same Python that
starts and imports nothing is in the same rounds, for what of a figure is not Partywall's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from common import PARTYWALL
from frame import Options, Outcome, Plant, bench

COMMANDS = {
    "python": ([sys.executable, "-c", ""], None),
    "--help": ([*PARTYWALL, "--help"], 0.2),
    "doctor": ([*PARTYWALL, "doctor"], 1.0),
    "run --dry-run": ([*PARTYWALL, "run", "demo", "--dry-run"], 1.5),
}


PLANTS = {"import": Plant("an import that takes 0.15 s", python="import time; time.sleep(0.15)")}


def taken_s(argv: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.decode()[-300:]}")
    return time.perf_counter() - began


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    rounds = 7 if options.quick else 25
    for argv, _ in COMMANDS.values():
        taken_s(argv)
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, (argv, _) in COMMANDS.items():
            seconds[name].append(taken_s(argv))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    figure = ", ".join(f"{name} {median:.2f} s" for name, median in medians.items())
    met = all(bar is None or medians[name] <= bar for name, (_, bar) in COMMANDS.items())
    return Outcome(f"{figure} (medians of {rounds})", met)


if __name__ == "__main__":
    main()
