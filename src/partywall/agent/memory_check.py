"""The memory check: an agent waits until memory is free, touches every page of it twice, and times that (VITS, 4.1).

The host's agent checks before a run, and a guest's agent before its workload starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from partywall import units
from partywall.agent.client import AgentClient
from partywall.events import Doing, Emit, Left

WAIT_NS = 10_000_000_000
"""The longest wait for free memory, together with the check, unless the user sets a longer one."""
SPARE_S = 50.0
LEAST = 4096
"""Bytes of the smallest check: one page."""
RESULTS = {
    "time_up": "there was no time to touch all of it twice",
    "major_faults": "pages had to be read back from a disk",
    "swapped": "the host wrote pages to swap meanwhile",
    "jump": "accessing part of it again was much slower than the rest",
    "not_resident": "accessing it again was slower than the first access, as if a hypervisor had taken it away",
}
"""Descriptions of the results that make memory figures unreliable."""


def waits(wait_ns: int) -> bool:
    """True if the user set a longer wait than the usual one."""
    return wait_ns > WAIT_NS


def check(agent: AgentClient, needed: int, emit: Emit, wait_ns: int = 0, where: str = "") -> dict[str, Any]:
    """The agent's answer for so many bytes. AgentError if they are not free in time.

    wait_ns: the longest wait, if longer than usual; the time left is emitted then. where: the end of a sentence, such
    as ` on HOST`.
    """
    is_set = waits(wait_ns)
    wait_ns = max(wait_ns, WAIT_NS)
    text = f"checking that {units.format_bytes(needed)} of memory are available{where}"
    emit(Doing(f"{text}; waiting for at most {units.format_duration(wait_ns)}" if is_set else text))
    end_s = time.monotonic() + wait_ns / 1e9

    def tell() -> None:
        emit(Left(max(0.0, end_s - time.monotonic())))

    return check_within(agent, needed, wait_ns, tell if is_set else None)


def check_within(
    agent: AgentClient, needed: int, budget_ns: int, each_second: Callable[[], None] | None = None
) -> dict[str, Any]:
    """The same without events. budget_ns: for the wait and the check together."""
    answer: dict[str, Any] = agent.call(
        "memory.check",
        timeout_s=budget_ns / 1e9 + SPARE_S,
        each_second=each_second,
        bytes=needed,
        budget_ns=budget_ns,
    )
    return answer


def why_unreliable(answer: dict[str, Any]) -> str | None:
    """Why memory figures may be unreliable, according to an answer; None if they are not."""
    result = answer["doubt"]
    return None if result is None else RESULTS.get(result, str(result))
