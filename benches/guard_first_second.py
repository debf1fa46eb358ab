"""Does a new vif keep its ceiling from its first packet on? At most 102 % and one burst in any 100 ms.

A guard is started, then a sender flat out; the sink's port is read every few milliseconds, and every pair of readings
at least 100 ms apart is a window.
"""

from __future__ import annotations

import time

from common import arguments, conclude
from partywall import guard
from partywall.guard.lab import Counted, lab, policy, sender
from partywall.model.policy import Policy

CEILING_BPS, BURST_NS, PACKET_BYTES = 50e6, 10_000_000, 1514
WINDOW_NS = 100_000_000


def first_second() -> list[Counted]:
    with lab(["new", "other"]) as made:
        asked = Policy.model_validate(policy(made, {"new": {"send": {"ceiling": "50Mbit/s"}}}))
        with guard.keep(guard.flatten(asked, guard.resolve(asked))):
            idle = made.read()
            with sender(made, "new", PACKET_BYTES, None):
                readings = [idle]
                deadline = time.monotonic() + 1.2
                while time.monotonic() < deadline:
                    readings.append(made.read())
                    time.sleep(0.004)
    return readings


def worst(readings: list[Counted]) -> float:
    """The most that passed in a window, over what may."""
    burst_bits = CEILING_BPS * BURST_NS / 1e9 + PACKET_BYTES * 8
    most = 0.0
    for at, begun in enumerate(readings):
        ended = next((later for later in readings[at + 1 :] if later.at_ns - begun.at_ns >= WINDOW_NS), None)
        if ended is None:
            break
        bits = (ended.bytes["new"] - begun.bytes["new"]) * 8
        allowed = 1.02 * CEILING_BPS * (ended.at_ns - begun.at_ns) / 1e9 + burst_bits
        most = max(most, bits / allowed)
    return most


def main() -> None:
    rounds = 5 if arguments(__doc__ or "").quick else 30
    found = []
    for number in range(rounds):
        readings = first_second()
        sent = (readings[-1].bytes["new"] - readings[0].bytes["new"]) * 8 / 1e6
        found.append(worst(readings))
        print(f"start {number + 1}: {sent:.1f} Mb passed in all, fullest window {found[-1]:.1%} of what may")
    figure = f"fullest 100 ms window {max(found):.1%} of 102 % of the ceiling and one burst, over {rounds} starts"
    # A window that stays far below would mean that nothing was tried.
    conclude("guard-first-second", figure, met=max(found) <= 1 and min(found) > 0.5)


if __name__ == "__main__":
    main()
