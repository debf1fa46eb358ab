"""Do promises survive the guard's death? Agent or command are killed under load, again and again, and started again.

After a death every vif must fall back to its guarantee by itself, or keep its rate, as the policy says, at no time
pass more than the ceiling nor, from death to restart, less than its guarantee, and after removal nothing may be left in
the kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import PARTYWALL
from frame import Options, Outcome, bench
from guards import flat
from partywall.errors import TrialError
from partywall.guard.measure.left import owner, state
from partywall.guard.measure.run import keep, remove
from partywall.sandbox.lab import Lab, lab, sender, tc
from partywall.study.promises.lab import policy

GUARANTEES = {"a": 30e6, "b": 60e6}
CEILING_BPS = 80e6
BURST = 1 + 0.01 / 0.2  # 10 ms at the rate, in windows of 200 ms
FALLBACK_S = 0.2


def window(made: Lab, seconds: float) -> dict[str, float]:
    before = made.read()
    time.sleep(seconds)
    return {name: bps for name, (bps, _) in before.rates(made.read()).items()}


def there(made: Lab) -> str:
    """All hooks and queues on interfaces that a guard may touch: the tenants' own, and their other ends."""
    queues = ""
    places = [(made.namespace(name), "eth0") for name in GUARANTEES]
    places += [(made.namespace("switch"), made.port(name)) for name in GUARANTEES]
    for space, port in places:
        queues += tc(space, "qdisc", "show", "dev", port)
        queues += "".join(tc(space, "filter", "show", "dev", port, way) for way in ("ingress", "egress"))
    return queues


@contextlib.contextmanager
def agent_kept(content: Mapping[str, Any]) -> Iterator[int]:
    """The agent's process number, whose keeper is this process."""
    with keep(flat(content), leave=True) as kept:
        yield kept.client.process.pid
        kept.client.process.wait()


@contextlib.contextmanager
def command_kept(content: Mapping[str, Any]) -> Iterator[int]:
    """The command's process number, with whom the agent ends."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "policy.yaml"
        file.write_text(json.dumps(content))
        command = [*PARTYWALL, "guard", "run", str(file), "--leave"]
        kept = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while owner(str(content["name"])) != kept.pid:
                if time.monotonic() > deadline or kept.poll() is not None:
                    raise TrialError(f"partywall guard run (process {kept.pid}) did not begin to keep the policy")
                time.sleep(0.02)
            # Written down before anything is hooked.
            time.sleep(0.7)
            yield kept.pid
        finally:
            kept.kill()
            kept.wait()


@dataclass(frozen=True)
class Death:
    """Who is killed, and what the policy says of it."""

    who: str
    kept: Callable[[Mapping[str, Any]], contextlib.AbstractContextManager[int]]
    then: str

    def must(self, name: str) -> float:
        """Where it ends: both want more than their ceilings, which together fit the link."""
        return GUARANTEES[name] if self.then == "guarantees" else CEILING_BPS


DEATHS = (
    Death("agent", agent_kept, "guarantees"),
    Death("agent", agent_kept, "keep"),
    # What was left before would fall back to guarantees: it took the command to get more.
    Death("command", command_kept, "keep"),
)


@bench(plants={"swapped": "the kernel does the opposite of the policy after a death"})
def main(options: Options) -> Outcome:
    kills = 6 if options.quick else 30
    does = {"guarantees": "keep", "keep": "guarantees"} if options.plant else {}
    vifs = {
        name: {"send": {"guarantee": f"{bps:.0f}bit/s", "ceiling": f"{CEILING_BPS:.0f}bit/s"}}
        for name, bps in GUARANTEES.items()
    }
    above, below, missed = 0.0, 1.0, 0.0
    with lab(list(vifs)) as made, sender(made, "a", 1514, 12_000), sender(made, "b", 1514, 12_000):
        bare = there(made)
        content = policy(made, vifs, "200Mbit/s", fallback_after=f"{FALLBACK_S * 1000:.0f}ms")
        left = flat(content)
        for number in range(kills):
            death = DEATHS[number % len(DEATHS)]
            with death.kept(content | {"if_daemon_dies": does.get(death.then, death.then)}) as pid:
                time.sleep(0.3)
                os.kill(pid, signal.SIGKILL)
                # The gap until the fall-back, then the fall-back itself.
                gap = window(made, 0.2)
                time.sleep(FALLBACK_S)
                fallen = window(made, 0.5)
            with keep(left, leave=True):
                restarted = window(made, 0.2)
            most = max(*gap.values(), *restarted.values()) / CEILING_BPS
            above = max(above, most)
            least = min(min(gap[name], restarted[name]) / bps for name, bps in GUARANTEES.items())
            below = min(below, least)
            missed = max(missed, *(abs(fallen[name] / death.must(name) - 1) for name in GUARANTEES))
            shown = ", ".join(f"{name} {bps / 1e6:.1f}" for name, bps in fallen.items())
            print(
                f"kill {number + 1}, of the {death.who} ({death.then}): then {shown} Mb/s; fullest 200 ms {most:.1%} "
                f"of the ceiling, emptiest {least:.1%} of a guarantee",
                flush=True,
            )
        remove(content["name"], left.start["hooks"])
        remains = there(made) != bare or state(content["name"]).exists()
    met = above <= 1.02 * BURST and below >= 0.95 and missed <= 0.03 and not remains
    figure = (
        f"{kills} kills of agent and command: never above {above:.1%} of the ceiling nor below {below:.1%} of a "
        f"guarantee, within {missed:.1%} of the policy after a death, "
        f"{'nothing' if not remains else 'something'} left after removal"
    )
    return Outcome(figure, met)


if __name__ == "__main__":
    main()
