"""What intensity 1 of a stressor means, as its agent finds out by running it flat out for a moment."""

from __future__ import annotations

import math
from typing import Any

from partywall.agent.client import AgentClient
from partywall.errors import Refusal, RefusalError

# An agent waits up to 45 s for a step of a slow disk.
TIMEOUT_S = 60.0
REMEDY = "make its steps smaller (its requests, chunks or files), or what it uses faster"


def calibrate(client: AgentClient, workload: str, for_ns: int) -> float:
    """Work per second of all worker threads at full intensity.

    AgentError if some thread has no rate: a share of nothing would run flat out, and be called a share.
    """
    answer = client.call("workload.calibrate", timeout_s=TIMEOUT_S, id=workload, for_ns=for_ns)
    rates = answer["rate_max"]
    if not isinstance(rates, list) or not rates or not all(_is_rate(rate) for rate in rates):
        said = f"work per second at full intensity is {rates!r}, and a share of that means nothing; {REMEDY}"
        # A host that stands still for a moment gives none either.
        raise RefusalError(f"agent {client.name}: workload {workload!r}: {said}", refusal=Refusal.PASSING)
    return float(sum(rates))


def _is_rate(rate: Any) -> bool:
    return isinstance(rate, int | float) and math.isfinite(rate) and rate > 0
