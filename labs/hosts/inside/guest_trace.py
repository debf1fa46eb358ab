"""Traces datagrams from a sender through link, bridge and tap into a guest under KVM, and says what was seen, as JSON.

The way is that of benches/trace_guest.py, without its queues: an emulated host is too slow to compare a delay with one.
"""

from __future__ import annotations

import json
import sys

from partywall.sandbox.lab import agent, ip, lab
from trace_guest import MAC, NAME, PLACES, TO, Path

RATE_PPS, SPAN_S = 50.0, 10.0


def main() -> int:
    with lab([NAME], None, accel="kvm") as made, agent(made, f"{NAME}-sink") as sender:
        ip("-n", made.namespace(f"{NAME}-sink"), "neigh", "add", TO, "lladdr", MAC, "dev", "eth0")
        path = Path(made, sender)
        before = path.dropped(path.into_guest())
        traced = path.trace(RATE_PPS, SPAN_S)
        dropped = path.dropped(path.into_guest()) - before
        steps = traced.whole.ways[0].steps
        seen = {
            "sent": traced.whole.hops[0].recorded,
            "arrived": steps[-1].packets,
            "lost": sum(step.lost + step.astray for step in steps),
            "dropped": dropped,
            "hops": len(PLACES),
            "into_guest_ns": traced.medians()[-1] * 1e9,
            "bound_ns": traced.bound_s * 1e9,
        }
        print(json.dumps(seen))
    return 0


sys.exit(main())
