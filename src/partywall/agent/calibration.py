"""Calibrates a stressor: its agent runs it flat out for a moment to find the rate at intensity 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from partywall.agent.client import AgentClient
from partywall.errors import Refusal, RefusalError

# An agent waits up to 45 s for a step on a slow disk.
TIMEOUT_S = 60.0
REMEDY = "make its steps smaller (its requests, chunks or files), or the resource faster"


DISTURBED = 0.1
"""The agent repeats a calibration in which other processes had more than this share of the CPU, a few times."""


@dataclass(frozen=True)
class Calibration:
    """Work per second of all worker threads at full intensity, as if no other process had used their CPUs.

    disturbed: share of the time that other processes used the CPU of the most disturbed thread.
    """

    rate: float
    disturbed: float

    @property
    def warning(self) -> str:
        """Why intensities may be off; empty if they are not."""
        if self.disturbed <= DISTURBED:
            return ""
        return (
            f"other processes used its CPU for {self.disturbed:.0%} of its calibration, so its intensities may be off; "
            "keep that CPU free, or pin it to another one"
        )


def calibrate(client: AgentClient, workload: str, for_ns: int, cpus_limit: float | None = None) -> Calibration:
    """What a stressor reaches at full intensity. cpus_limit: CPUs whose time the limit of its sandbox leaves, if any.

    AgentError if a thread has no rate. A share of no rate would run flat out under a wrong label.
    """
    limit: dict[str, Any] = {} if cpus_limit is None else {"cpus_limit": cpus_limit}
    answer = client.call("workload.calibrate", timeout_s=TIMEOUT_S, id=workload, for_ns=for_ns, **limit)
    rates, disturbed = answer["rate_max"], answer["disturbed"]
    if not isinstance(rates, list) or not rates or not all(_is_rate(rate) for rate in rates):
        said = f"work per second at full intensity is {rates!r}, so a share of it is undefined; {REMEDY}"
        # This also happens if the host stalls for a moment.
        raise RefusalError(f"agent {client.name}: workload {workload!r}: {said}", refusal=Refusal.PASSING)
    return Calibration(float(sum(rates)), float(disturbed))


def _is_rate(rate: Any) -> bool:
    return isinstance(rate, int | float) and math.isfinite(rate) and rate > 0
