"""Whether CPU limits deliver what they say: efficiency q at 10, 25, 50 and 75 %, in a container and in a guest.

q is the rate under the limit over the unlimited rate of the same blocks and the limit (Rzecki et al., equation 1).
Where q differs from 1 in a guest the reason is measured, not guessed: what the limit let the virtual CPU's thread use
(from its cgroup), and what work the guest made of that time. A guest's own timer ticks and an emulator's exits cost the
same whatever the limit is, so they take a larger part of a smaller share.

Bar: q within 0.97 to 1.03 in the container at every limit; in the guest the same, or the kernel's count of
the CPU time its threads had splits what is missing into time that they were not let have and work not done in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common import arguments, conclude, measure
from guests import needed
from partywall.model.evidence import Evidence

LIMITS = (0.1, 0.25, 0.5, 0.75)
QUICK_LIMITS = (0.1, 0.5)
BACKENDS = {"container": "container", "guest": "qemu"}
LOW, HIGH = 0.97, 1.03
USED = "victim.cgroup_cpu_usage_ns"


def scenario(backend: str, limits: Sequence[float], seconds: int) -> dict[str, Any]:
    return {
        "name": f"limits-{backend}",
        "victims": {backend: {"probe": "integer", "sandbox": {"backend": backend}}},
        "factors": {"victim.sandbox.cpu_limit": list(limits)},
        "min_blocks": 8,
        "precision": 0.002,
        "budget": f"{seconds}s",
    }


def used_share(evidence: Evidence, limit: float) -> float | None:
    """Of what the limit promises, what the workload's cgroup used by the kernel's count; None if it does not count."""
    mine = (o.counters for o in evidence.observations if _is(o.treatment, limit))
    told = [counters[USED] / 1e9 for counters in mine if USED in counters]
    return sum(told) / len(told) / limit if told else None


def _is(treatment: str, limit: float) -> bool:
    name, _, value = treatment.partition("=")
    return name == "cpu_limit" and "," not in value and math.isclose(float(value), limit)


@dataclass(frozen=True)
class Held:
    """Efficiency at a limit, and the share of the promised CPU time that was used, if it was counted."""

    q: float
    used: float | None

    @property
    def as_promised(self) -> bool:
        return LOW <= self.q <= HIGH


def show(backend: str, limits: Sequence[float], seconds: int) -> dict[float, Held]:
    """Efficiency by limit, as measured; each is printed with its reason."""
    evidence, findings = measure(scenario(BACKENDS[backend], limits, seconds))
    found = {}
    for limit in limits:
        cell = next((c for c in findings.cells if c.role == "limit" and _is(c.treatment, limit)), None)
        if cell is None or cell.efficiency is None:
            print(f"{backend} at {limit:.0%}: not measured")
            continue
        q, used = cell.efficiency, used_share(evidence, limit)
        why = "CPU time not counted here"
        if used is not None:
            why = f"its threads used {used:.3f} of the limit, and did {q.value / used:.3f} of what this time is worth"
        print(f"{backend} at {limit:.0%}: q {q.value:.3f} ({q.low:.3f} to {q.high:.3f}); {why}", flush=True)
        found[limit] = Held(q.value, used)
    return found


def main() -> None:
    options = arguments(__doc__ or "")
    needed("vm-limits")
    limits, seconds = (QUICK_LIMITS, 16) if options.quick else (LIMITS, 90)
    container, guest = (show(name, limits, seconds) for name in BACKENDS)
    limited = all(limit in container and container[limit].as_promised for limit in limits)
    explained = all(limit in guest and (guest[limit].as_promised or guest[limit].used is not None) for limit in limits)
    texts = [", ".join(f"{held.q:.3f} at {limit:.0%}" for limit, held in found.items()) for found in (container, guest)]
    conclude("vm-limits", f"q in a container {texts[0]}; in a guest {texts[1]}", met=limited and explained)


if __name__ == "__main__":
    main()
