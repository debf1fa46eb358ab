"""Whether `partywall-watch` tells the truth: sums, limits of a group's own, and how soon a stall is said.

Sum: a victim and neighbours want more CPU time than there is, for some seconds. Afterwards the seconds of all pairs of
the victim are compared with the kernel's own sum of its waiting (PSI). Simulated: victims that their own limit stops
most of the time, beside neighbours in bursts (`throttled.py`); one is blamed on a neighbour if more than half of its
waiting is. As a check of the check, crowded victims without a limit must be blamed on neighbours. Real: groups that
want a whole CPU and may have a twenty-fifth of one, beside a busy neighbour; one is blamed on others if its own part is
less than 95 % of what the kernel says that its limit stopped it. What it waits besides depends on the host's load.
Soon: the time from the start of a crowd until the line that says so.

Bars: sums within 1 %; 0 of 1,000 simulated and 0 of 20 real victims blamed; lines within 5 s.

--quick: 100 simulated and 5 real victims, one crowd.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import stalled
from common import program
from frame import NotMeasured, Options, Outcome, Plant, bench
from partywall.watch.stalls.rule import ITSELF

SUM_MAX, OWN_LEAST, SOON_MAX_S = 0.01, 0.95, 5.0
CROWD, CROWD_S = 3 * (os.cpu_count() or 1), 8.0
ALONE = 0.04
"""CPUs that a victim with a limit may have."""
PLANTS = {
    "limit": Plant(
        "time in which a group's own limit stopped it is ignored",
        python="import partywall.watch.stalls.rule as rule\nparts = rule._parts\n"
        "rule._parts = lambda victim, share, field: parts(victim, share._replace(own_ns=0), field)\n",
    ),
    "lost": Plant(
        "every twentieth pair is lost",
        python="import itertools, partywall.watch.stalls.totals as totals\n"
        "add, number = totals.Totals.add, itertools.count()\n"
        "totals.Totals.add = lambda *rest: add(*rest) if next(number) % 20 else None\n",
    ),
    "late": Plant(
        "a stall begins after eight seconds",
        python="import partywall.watch.stalls.detect as detect\ndetect.BEGIN_NS = 8 * 10**9\n",
    ),
}


@contextlib.contextmanager
def spinning(made: stalled.Groups, names: Sequence[str]) -> Iterator[None]:
    """A task in each named group that wants a whole CPU; a name may be given again."""
    with contextlib.ExitStack() as stack:
        for name in names:
            made.enter(stack.enter_context(program("sh", "-c", stalled.SPIN)).pid, name)
        yield


def victim_pairs(running: stalled.Watch, victim: str) -> dict[str, float]:
    """Seconds by suspect."""
    return {key[1]: value for key, value in running.pairs().items() if key[0] == victim and key[2] == "cpu"}


def settled(running: stalled.Watch, victim: str) -> dict[str, float]:
    """The pairs of a victim that waits no more, once two readings found nothing new."""
    before, same = victim_pairs(running, victim), 0
    while same < 3:
        time.sleep(5)
        now = victim_pairs(running, victim)
        same, before = (same + 1 if now == before and now else 0), now
    return before


def crowded() -> tuple[float, float]:
    """(seconds until a crowd was said, by how much the pairs differ from the kernel's sum as a share)."""
    with stalled.groups(["victim", "one", "two"]) as made, stalled.watch(time.monotonic) as running:
        victim = made.known_as("victim")
        began = time.monotonic()
        with spinning(made, ["victim", *["one", "two"] * (CROWD // 2)]):
            said_s = said(running, victim, began) - began
            time.sleep(max(0.0, CROWD_S - (time.monotonic() - began)))
        parts, waited_s = settled(running, victim), made.waited_s("victim")
        listed = ", ".join(f"{name} {part:.2f}" for name, part in sorted(parts.items(), key=lambda part: -part[1]))
        print(f"said after {said_s:.1f} s; waited {waited_s:.3f} s, pairs {sum(parts.values()):.3f} s: {listed}")
        if waited_s < 1:
            raise NotMeasured(f"the victim waited {waited_s:.2f} s only, although {CROWD} tasks crowd it")
        return said_s, abs(sum(parts.values()) - waited_s) / waited_s


def said(running: stalled.Watch, victim: str, began: float) -> float:
    """When the line came that says that the victim waits. Three times the bar, if it never came."""
    while (left_s := began + 3 * SOON_MAX_S - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            at, line = running.lines.get(timeout=left_s)
            if f"{victim} waits for a CPU" in line and at >= began:
                return at
    return began + 3 * SOON_MAX_S


def simulated(victims: int) -> tuple[int, int]:
    """(self-throttled victims that are blamed on a neighbour, of 20 crowded ones those that are)."""
    argv = [sys.executable, str(Path(__file__).with_name("throttled.py")), str(victims)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    wrong, right = map(int, done.stdout.split())
    return wrong, right


def real(victims: int) -> int:
    """Victims stopped by their own limit that are blamed on a neighbour."""
    names = [f"v{number}" for number in range(victims)]
    with stalled.groups([*names, "neighbour"]) as made, stalled.watch(time.monotonic) as running:
        for name in names:
            made.limit(name, ALONE)
        with spinning(made, [*names, "neighbour"]):
            time.sleep(CROWD_S)
        settled(running, made.known_as(names[-1]))
        wrong = 0
        for name in names:
            parts = victim_pairs(running, made.known_as(name))
            if not parts:
                raise NotMeasured(f"{name} did not wait, although it may have {ALONE} CPUs only")
            wrong += parts.get(ITSELF, 0.0) < OWN_LEAST * min(made.stopped_s(name), made.waited_s(name))
        own = sum(victim_pairs(running, made.known_as(name)).get("itself", 0.0) for name in names)
        waited = sum(made.waited_s(name) for name in names)
        print(f"{victims} victims waited {waited:.1f} s, {own:.1f} s by own limits; {wrong} blamed on others")
        return wrong


@bench(plants=PLANTS, lacking=stalled.lacking)
def main(given: Options) -> Outcome:
    crowds = [crowded() for _ in range(1 if given.quick else 5)]
    number = 100 if given.quick else 1000
    wrong, right = simulated(number)
    victims = 5 if given.quick else 20
    blamed = real(victims)
    soon_s, off = max(each[0] for each in crowds), max(each[1] for each in crowds)
    figure = (
        f"pairs differ from the stalled time by {off:.2%} (at most 1 %); {wrong} of {number} simulated and {blamed} of "
        f"{victims} real self-throttled victims blamed on others, {right} of 20 crowded ones; said within "
        f"{soon_s:.1f} s"
    )
    return Outcome(figure, off <= SUM_MAX and wrong == 0 and right == 20 and blamed == 0 and soon_s <= SOON_MAX_S)


if __name__ == "__main__":
    main()
