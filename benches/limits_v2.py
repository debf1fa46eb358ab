"""What containers' limits keep on a stock host with cgroup version 2: ceilings, weights, disk ceilings, memory.

Boots Debian 13 in QEMU (`make hosts` builds the image) and runs labs/hosts/scenarios there. CPU ceilings of 10 to 75 %,
weights of 50, 100 and 300 against 100 and ceilings of a disk are switched live; a command that wants more memory than
its container may have is killed, with the reason reported.

Bar: each is kept within 3 points of its promise, by the victim's rate or, where emulation keeps the rate away from it,
by the CPU time that the kernel accounted to the container; the text says which. --quick leaves out disk and memory.
"""

from __future__ import annotations

from frame import Options, Outcome, bench
from stock import PLANTS, on_host


@bench(plants=PLANTS, unjudged="disk and memory")
def main(options: Options) -> Outcome:
    check = "limits-short" if options.quick else "limits-full"
    results = on_host("debian-13", check, plant=options.plant)
    result = results[check]
    return Outcome(f"{result['text']} (emulated)", result["status"] == "works")


if __name__ == "__main__":
    main()
