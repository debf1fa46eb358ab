"""Whether reservations and weights hold between guests that want all of one CPU.

A guest that computes shares its CPU with another that does the same. What it keeps of its rate without the neighbour is
held against the promise: the reservation, or its weight over the sum of both. On the cgroup version that this host has;
the other one is said to be unmeasured.

Bar: within 3 points of the promise, for a reservation and for a weight, known to 4 points. --quick: within 5 points,
known to 20, for a sixth of the time.
"""

from __future__ import annotations

from typing import Any

from common import measure
from frame import Options, Outcome, bench
from guests import lacking
from partywall.sandbox import cgroups

POINTS, POINTS_QUICK = 0.03, 0.05
# An interval much wider than what is allowed would say nothing.
KNOWN, KNOWN_QUICK = 0.04, 0.2
CASES: dict[str, tuple[float, dict[str, Any], dict[str, Any]]] = {
    "reservation 70%": (0.7, {"cpu_reservation": "70%"}, {}),
    "weight 300 to 100": (0.75, {"cpu_weight": 300}, {"cpu_weight": 100}),
}

LESS: dict[str, dict[str, Any]] = {
    "reservation 70%": {"cpu_reservation": "50%"},
    "weight 300 to 100": {"cpu_weight": 150},
}


def share(own: dict[str, Any], other: dict[str, Any], seconds: int) -> tuple[float, float, float] | None:
    """What the victim keeps beside the neighbour, with its interval."""
    content = {
        "name": "shares",
        "victims": {"own": {"probe": "integer", "sandbox": {"backend": "qemu"} | own}},
        "aggressors": {"other": {"stressor": "integer", "sandbox": {"backend": "qemu", "cpus": "same"} | other}},
        "min_blocks": 8,
        "precision": 0.01,
        "budget": f"{seconds}s",
        "timing": {"slot": "400ms", "guard": "100ms"},
    }
    _, findings = measure(content)
    cell = next((c for c in findings.cells if c.aggressor == "other"), None)
    return (cell.isolation.value, cell.isolation.low, cell.isolation.high) if cell else None


@bench(plants={"less": "a reservation of 50 %, and a weight of 150"}, lacking=lacking)
def main(options: Options) -> Outcome:
    given = LESS if options.plant else {}
    version = "version 2" if cgroups.read().is_v2 else "version 1"
    held, lines = 0, []
    points, known = (POINTS_QUICK, KNOWN_QUICK) if options.quick else (POINTS, KNOWN)
    for name, (promise, own, other) in CASES.items():
        measured = share(own | given.get(name, {}), other, 14 if options.quick else 90)
        if measured is None:
            print(f"{name}: not measured")
            continue
        value, low, high = measured
        print(f"{name}: promised {promise:.1%}, kept {value:.1%} ({low:.1%} to {high:.1%})", flush=True)
        held += abs(value - promise) <= points and (high - low) / 2 <= known
        lines.append(f"{name} kept {value:.1%}")
    print(f"measured on cgroup {version}; the other version is not mounted here and was not measured")
    return Outcome(f"{'; '.join(lines)} (cgroup {version})", held == len(CASES))


if __name__ == "__main__":
    main()
