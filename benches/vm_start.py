"""How soon a guest's agent answers, alone and four at a time, and what a KVM that carries nothing costs.

Time runs from starting QEMU to the agent's hello, firmware and control channel included, which is more than the bar
asks for (from the guest kernel's start). One guest and four in parallel are measured in turn.

Bar: one guest in 3 s at the median; four in parallel within 2.5 times one; finding that KVM is dead within 10 s, once.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time

from common import arguments, conclude
from guests import come_up, guests, needed
from partywall import pipeline


def seconds(count: int) -> float:
    with guests(count) as made:
        return come_up(made)


def falling_back() -> tuple[float, str, float]:
    """What the first and the second `accel: auto` cost on a host of which nothing is remembered."""
    before = os.environ.get("PARTYWALL_STATE")
    with tempfile.TemporaryDirectory() as state:
        os.environ["PARTYWALL_STATE"] = state
        began = time.monotonic()
        chosen = pipeline.choose_accelerator("auto")
        first = time.monotonic() - began
        began = time.monotonic()
        pipeline.choose_accelerator("auto")
        second = time.monotonic() - began
    if before is None:
        del os.environ["PARTYWALL_STATE"]
    else:
        os.environ["PARTYWALL_STATE"] = before
    return first, chosen.name, second


def main() -> None:
    options = arguments(__doc__ or "")
    needed("vm-start")
    rounds = 2 if options.quick else 8
    alone, four = [], []
    for number in range(rounds):
        alone.append(seconds(1))
        four.append(seconds(4))
        print(f"round {number}: one {alone[-1]:.2f} s, four {four[-1]:.2f} s", flush=True)
    first, name, second = falling_back()
    print(f"accel: auto chose {name} in {first:.1f} s the first time, {second:.2f} s the second", flush=True)
    one, ratio = statistics.median(alone), statistics.median(f / a for f, a in zip(four, alone, strict=True))
    figure = f"one guest {one:.2f} s, four {ratio:.2f} times one, accel: auto {first:.1f} s once"
    conclude("vm-start", figure, met=one <= 3 and ratio <= 2.5 and first <= 10 and second < 1)


if __name__ == "__main__":
    main()
