"""What a waiting frame costs where the guard's packets wait in `fq`, beside HTB, on a stock host.

Boots Debian 13 in QEMU (`make hosts` builds the image), whose kernel has `fq`. There, `benches/guard_cost.py` limits
frames of 1514 bytes to 5000 a second: the guard sets the time at which a frame departs, and `fq` at the interface holds
it until then. The figure is the core's time for each delivered frame; `tbf`, which sets a timer for each frame as HTB
does, is measured too. An emulated core delivers no 20,000 frames a second, the rate of `guard_cost.py` elsewhere.

Bar: in the median below HTB. An emulated processor inflates all figures and their spread.
"""

from __future__ import annotations

from frame import Options, Outcome, bench
from stock import PLANTS, on_host


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    check = "guard-cost-short" if options.quick else "guard-cost"
    result = on_host("debian-13", check, plant=options.plant)[check]
    return Outcome(f"{result['text']} (emulated)", result["status"] == "works")


if __name__ == "__main__":
    main()
