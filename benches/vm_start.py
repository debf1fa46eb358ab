"""How soon a guest's agent answers, alone and four at a time, and what a KVM that carries nothing costs.

For one guest two times are told: what a user waits, from starting QEMU on, firmware and control channel included; and
what the guest's own clock, which begins with its kernel, shows once the agent has said hello. One guest and four in
parallel are measured in turn, these by what a user waits.

Bar: from the guest kernel's start to the hello 3 s at the median; four in parallel within 2.5 times one; finding that
KVM is dead within 10 s, once.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time

from common import arguments, conclude
from guests import client, come_up, guests, needed
from partywall import pipeline


def seconds(count: int) -> tuple[float, float]:
    """What a user waits, and the time since the first guest's kernel started."""
    with guests(count) as made:
        waited = come_up(made)
        return waited, client(made[0]).call("clock")["monotonic_ns"] / 1e9


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
        (one, kernel), (all_four, _) = alone[-1], four[-1]
        print(f"round {number}: one {one:.2f} s, of it {kernel:.2f} s its kernel's; four {all_four:.2f} s", flush=True)
    first, name, second = falling_back()
    print(f"accel: auto chose {name} in {first:.1f} s the first time, {second:.2f} s the second", flush=True)
    one, kernel = (statistics.median(times) for times in zip(*alone, strict=True))
    ratio = statistics.median(all_four / one for (all_four, _), (one, _) in zip(four, alone, strict=True))
    figure = f"one guest {kernel:.2f} s from its kernel's start ({one:.2f} s from QEMU's), four {ratio:.2f} times one"
    figure += f", accel: auto {first:.1f} s once"
    conclude("vm-start", figure, met=kernel <= 3 and ratio <= 2.5 and first <= 10 and second < 1)


if __name__ == "__main__":
    main()
