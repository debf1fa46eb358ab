"""Do promises survive the guard's death? Its daemon is killed under load, again and again, and started again.

After a death every vif must fall back to its guarantee by itself, at no time pass more than the ceiling nor, from death
to restart, less than its guarantee, and after removal nothing may be left in the kernel.
"""

from __future__ import annotations

import signal
import time

from common import arguments, conclude
from partywall import guard
from partywall.guard.lab import policy
from partywall.guard.run import keep
from partywall.model.policy import Policy
from partywall.sandbox.lab import Lab, lab, sender, tc
from partywall.sandbox.label import state_root

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
    found = ""
    places = [(made.namespace(name), "eth0") for name in GUARANTEES]
    places += [(made.namespace("switch"), made.port(name)) for name in GUARANTEES]
    for space, port in places:
        found += tc(space, "qdisc", "show", "dev", port)
        found += "".join(tc(space, "filter", "show", "dev", port, way) for way in ("ingress", "egress"))
    return found


def main() -> None:
    kills = 6 if arguments(__doc__ or "").quick else 30
    vifs = {
        name: {"send": {"guarantee": f"{bps:.0f}bit/s", "ceiling": f"{CEILING_BPS:.0f}bit/s"}}
        for name, bps in GUARANTEES.items()
    }
    above, below, missed = 0.0, 1.0, 0.0
    with lab(list(vifs)) as made, sender(made, "a", 1514, 12_000), sender(made, "b", 1514, 12_000):
        bare = there(made)
        content = policy(made, vifs, "200Mbit/s", fallback_after=f"{FALLBACK_S * 1000:.0f}ms")
        asked = Policy.model_validate(content)
        flat = guard.flatten(asked, guard.resolve(asked))
        state = state_root() / f"guard-{asked.name}.json"
        for number in range(kills):
            with keep(flat, leave=True) as kept:
                time.sleep(0.3)
                kept.client.process.send_signal(signal.SIGKILL)
                kept.client.process.wait()
                # The gap until the fall-back, then the fall-back itself.
                gap = window(made, 0.2)
                time.sleep(FALLBACK_S)
                fallen = window(made, 0.5)
            with keep(flat, leave=True):
                restarted = window(made, 0.2)
            most = max(*gap.values(), *restarted.values()) / CEILING_BPS
            above = max(above, most)
            least = min(min(gap[name], restarted[name]) / bps for name, bps in GUARANTEES.items())
            below = min(below, least)
            missed = max(missed, *(abs(fallen[name] / bps - 1) for name, bps in GUARANTEES.items()))
            shown = ", ".join(f"{name} {bps / 1e6:.1f}" for name, bps in fallen.items())
            print(
                f"kill {number + 1}: fallen back to {shown} Mb/s; fullest 200 ms {most:.1%} of the ceiling, "
                f"emptiest {least:.1%} of a guarantee"
            )
        guard.remove(asked.name, flat.start["hooks"])
        remains = there(made) != bare or state.exists()
    met = above <= 1.02 * BURST and below >= 0.95 and missed <= 0.03 and not remains
    figure = (
        f"{kills} kills: never above {above:.1%} of the ceiling nor below {below:.1%} of a guarantee, "
        f"fallen back within {missed:.1%} of the guarantee, "
        f"{'nothing' if not remains else 'something'} left after removal"
    )
    conclude("guard-kill", figure, met=met)


if __name__ == "__main__":
    main()
