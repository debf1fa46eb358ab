"""Calibrates a stressor: its agent runs it flat out for a moment to find the rate at intensity 1."""

from __future__ import annotations

import math
from typing import Any

from partywall.agent.client import AgentClient
from partywall.errors import Refusal, RefusalError

# An agent waits up to 45 s for a step on a slow disk.
TIMEOUT_S = 60.0
REMEDY = "make its steps smaller (its requests, chunks or files), or the resource faster"


def calibrate(client: AgentClient, workload: str, for_ns: int) -> float:
    """Work per second of all worker threads at full intensity.

    AgentError if a thread has no rate. A share of no rate would run flat out under a wrong label.
    """
    answer = client.call("workload.calibrate", timeout_s=TIMEOUT_S, id=workload, for_ns=for_ns)
    rates = answer["rate_max"]
    if not isinstance(rates, list) or not rates or not all(_is_rate(rate) for rate in rates):
        said = f"work per second at full intensity is {rates!r}, so a share of it is undefined; {REMEDY}"
        # This also happens if the host stalls for a moment.
        raise RefusalError(f"agent {client.name}: workload {workload!r}: {said}", refusal=Refusal.PASSING)
    return float(sum(rates))


def _is_rate(rate: Any) -> bool:
    return isinstance(rate, int | float) and math.isfinite(rate) and rate > 0
