"""How soon does a new allocation hold after a step in demand, at the default period of 50 ms?

One tenant uses the whole link; another, promised most of it, begins at once. Settled: both are within 5 % of what they
must get over the next 100 ms.
"""

from __future__ import annotations

import statistics
import time

from common import arguments, conclude
from partywall import guard
from partywall.guard.lab import Counted, Lab, lab, policy, sender
from partywall.model.policy import Policy

MUST = {"patient": 60e6, "eager": 140e6}
WINDOW_NS, BAR_NS = 100_000_000, 100_000_000


def step(made: Lab) -> list[Counted]:
    """Readings from before the step until well after it."""
    time.sleep(0.4)
    readings = [made.read()]
    with sender(made, "eager", 1514, 20_000):
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            readings.append(made.read())
            time.sleep(0.004)
    return readings


def settled_ns(readings: list[Counted]) -> int | None:
    """Time from the first packet after the step until the allocation holds."""
    idle = readings[0].packets["eager"]
    begun = next((reading.at_ns for reading in readings if reading.packets["eager"] > idle), None)
    for at, start in enumerate(readings):
        end = next((later for later in readings[at + 1 :] if later.at_ns - start.at_ns >= WINDOW_NS), None)
        if begun is None or end is None:
            return None
        rates = start.rates(end)
        if start.at_ns >= begun and all(abs(rates[name][0] / must - 1) <= 0.05 for name, must in MUST.items()):
            return start.at_ns - begun
    return None


def main() -> None:
    steps = 8 if arguments(__doc__ or "").quick else 40
    vifs = {
        "patient": {"send": {"guarantee": "60Mbit/s"}},
        "eager": {"service_class": "gold", "send": {"guarantee": "140Mbit/s", "ceiling": "140Mbit/s"}},
    }
    found = []
    with lab(list(vifs), "220mbit") as made, sender(made, "patient", 1514, 20_000):
        asked = Policy.model_validate(policy(made, vifs, "200Mbit/s"))
        with guard.keep(guard.flatten(asked, guard.resolve(asked))):
            found = [settled_ns(step(made)) for _ in range(steps)]
    told = [ns / 1e6 for ns in found if ns is not None]
    print("settled after: " + ", ".join("never" if ns is None else f"{ns / 1e6:.0f} ms" for ns in found))
    median, most = (statistics.median(told), max(told)) if told else (float("nan"), float("nan"))
    figure = (
        f"settled within 5 % after {median:.0f} ms in the median, {most:.0f} ms at most of {steps} steps (bar 100 ms)"
    )
    conclude("guard-reaction", figure, met=len(told) == steps and most * 1e6 <= BAR_NS)


if __name__ == "__main__":
    main()
