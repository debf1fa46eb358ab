"""What a guest does, done on the host itself: the figure that a guest is compared with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from partywall.agent.agents import Agents
from partywall.errors import TrialError
from partywall.migrate.document import Activity

ID = "bare"
SLICE_NS = 20_000_000


def rate_of(activity: Activity | None, for_ns: int, agent: Sequence[str], work_dir: Path) -> float:
    """Work a second of a kernel, by an agent of its own that runs for some time. agent: its program."""
    if activity is None or activity.kernel is None:
        raise TrialError("a workload without `kernel` cannot be measured on the host itself")
    with Agents() as agents:
        client = agents.attach(ID, [*agent, "serve", "--die-with-parent", "--only", "probe"])
        work = {"kernel": {"name": activity.kernel, "params": activity.params}}
        client.call(
            "workload.start",
            id=ID, work=work, pace="flat_out", threads=activity.threads, slice_ns=SLICE_NS, work_dir=str(work_dir),
        )  # fmt: skip
        time.sleep(for_ns / 1e9)
        client.call("workload.stop", id=ID)
        slices = [each for _, method, params in agents.take(0) if method == "slices" for each in params["slices"]]
    if not slices:
        raise TrialError(f"{activity.kernel} did nothing on the host within {for_ns / 1e9:g} s")
    length_ns = max(each["end_ns"] for each in slices) - min(each["start_ns"] for each in slices)
    return float(sum(each["work"] for each in slices) / length_ns * 1e9)
