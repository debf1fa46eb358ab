"""Messages from the agents of a series: slices of work, response times, checked pages, and unexpected ends.

It collects and judges nothing else. It starts nothing and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from partywall.agent.metric import Extractor, Metric
from partywall.core.stats.histogram import bucket_bounds
from partywall.errors import TrialError
from partywall.migrate.record import COLUMNS, Table

WORK_ID, BYSTANDER, USERS = "work", "bystander", "users"
"""Workloads that have a table of their own."""
PEER, SERVICE, DIGEST = "peer", "service", "digest"
VERIFY = {"verify-memory": 4 << 20, "verify-disk": 1 << 20}
"""Commands that check pages in the guest, and how many bytes a second."""
ENDLESS = {
    PEER: "the program that answers the clients",
    SERVICE: "the service",
    WORK_ID: "the workload",
    **dict.fromkeys(VERIFY, "the program that checks pages"),
}


class Messages:
    """Messages of the guest's agent, of the users' agent, and of the agent beside the guest.

    listens: whether the guest answers clients. digest: the last checksum, empty if there is none yet. verified:
    (checked, wrong) pages by command.
    """

    def __init__(self) -> None:
        self.listens = False
        self.digest = ""
        self.verified: dict[str, tuple[int, int]] = {}
        self._rows: dict[str, list[tuple[float, ...]]] = {WORK_ID: [], BYSTANDER: [], USERS: []}
        self._extractor: Extractor | None = None

    def read(self, metric: Metric | None) -> None:
        """From now on the workload's output is read so."""
        self._extractor = Extractor(metric) if metric else None

    def forget(self, workload: str) -> None:
        """Restarts a table."""
        self._rows[workload] = []

    def tables(self) -> dict[str, Table]:
        """See `migrate.record.COLUMNS`. The table restarts."""
        tables = {name: np.array(rows, np.float64).reshape(-1, len(COLUMNS[name])) for name, rows in self._rows.items()}
        self._rows = {name: [] for name in self._rows}
        return tables

    def pages(self) -> tuple[int, int] | None:
        """(checked, wrong) pages so far; None if nothing checks them."""
        if not self.verified:
            return None
        checked, wrong = zip(*self.verified.values(), strict=True)
        return sum(checked), sum(wrong)

    def take(self, sender: str, kind: str, params: Mapping[str, Any]) -> None:
        """One message. TrialError if something has ended that should not."""
        workload = params.get("id", sender)
        match kind:
            case "load":
                self._rows[USERS] += [row for second in params["seconds"] for row in _responses(second)]
            case "slices":
                self._rows[workload] += [(each["start_ns"], each["end_ns"], each["work"]) for each in params["slices"]]
            case "output":
                self._output(workload, params["lines"])
            case "ended" if workload in ENDLESS:
                raise TrialError(f"{ENDLESS[workload]} in the guest has ended: {params['reason']}")
            case "gone" if sender in (USERS, BYSTANDER):
                raise TrialError(f"the agent of {sender} has ended: {params['reason']}")

    def _output(self, workload: str, lines: Sequence[Mapping[str, Any]]) -> None:
        match workload:
            case _ if workload == PEER:
                self.listens = True
            case _ if workload == DIGEST:
                self.digest = lines[0]["text"]
            case _ if workload in VERIFY:
                _, checked, _, wrong = lines[-1]["text"].split()
                self.verified[workload] = int(checked), int(wrong)
            case _ if workload == WORK_ID and self._extractor:
                for line in lines:
                    if line["stream"] == "stdout":
                        self._rows[WORK_ID] += self._extractor.feed(line["at_ns"], line["text"])


def _responses(second: Mapping[str, Any]) -> Iterator[tuple[float, ...]]:
    """Responses of one second by response time, as the middle of a bucket; −1 for those that failed."""
    span = float(second["start_ns"]), float(second["end_ns"])
    for timing in second["timings"]:
        for bucket, count in timing["corrected"]:
            low, high = bucket_bounds(bucket)
            yield (*span, (low + high) / 2, float(count))
        if timing["failed"]:
            yield (*span, -1.0, float(timing["failed"]))
