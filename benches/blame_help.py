"""Does a limit help as much as the experiment predicts? On this host.

A victim shares a CPU with a neighbour that uses all of it; a second neighbour uses another CPU. `partywall blame` names
the guilty one, and predicts what 30 % and 60 % less of it would bring. Then each limit is tried: switched on and off by
turns, with the victim measured each time.

Bar: the guilty one is named, and each gain differs from its prediction by at most 5 points.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from blamed import expect_host, experiment, lines_per_s, neighbours, victim
from frame import Options, Outcome, bench
from partywall.blame.measure.levers import lever
from partywall.blame.measure.owners import Kind
from partywall.sandbox import cgroups

TURNS, QUICK, TURN_S, SETTLE_S = 12, 5, 1.5, 0.3
BAR = 0.05
PLANTS = {"other": "the limit is set for the innocent neighbour"}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    cpus = expect_host()
    with neighbours({"guilty": cpus[0], "innocent": cpus[1]}) as groups, tempfile.TemporaryDirectory() as folder:
        budget = "40s" if options.quick else "2min"
        found = experiment(Path(folder), cpus[0], list(groups.values()), "--budget", budget, "--harm", "50%")
        guilty = [each["suspect"] for each in found["suspects"] if each["state"] == "guilty"]
        held = groups["innocent" if options.plant else "guilty"]
        turns = QUICK if options.quick else TURNS
        pairs = [(each["less"], each["gain"], _tried(held, each["use"], cpus[0], turns)) for each in found["helps"]]
    worst = max((abs(predicted - tried) for _, predicted, tried in pairs), default=1.0)
    said = "; ".join(f"{less:.0%} less: predicted {gain:+.1%}, tried {tried:+.1%}" for less, gain, tried in pairs)
    return Outcome(said or "nobody was named", guilty == [groups["guilty"]] and worst <= BAR)


def _tried(group: str, use: float, cpu: int, turns: int) -> float:
    """The victim's gain with a limit, by turns with and without it."""
    one = lever(Kind.CPU, group, cgroups.read(), has_systemd=False)
    free, limited = [], []
    with subprocess.Popen(victim(cpu), stdout=subprocess.PIPE) as process:
        try:
            for _ in range(turns):
                free.append(_rate(process))
                # No watchdog: the turns are longer than its patience, and the group is ours.
                one.owner.hold(use)
                limited.append(_rate(process))
                one.owner.release()
        finally:
            process.kill()
    return statistics.mean(limited) / statistics.mean(free) - 1


def _rate(process: subprocess.Popen[bytes]) -> float:
    time.sleep(SETTLE_S)
    return lines_per_s(process, TURN_S)


if __name__ == "__main__":
    main()
