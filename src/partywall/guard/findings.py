"""The findings of a guard: its reports, and figures derived from them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from partywall.core.stats.estimate import Outcome
from partywall.guard.document import Policy
from partywall.guard.record import GuardInterval

UNREAD_NS = 10_000_000
"""Reports follow each other but for the error of their clock. A longer time between two is that of lost reports."""
REPAIRED = "repaired"
"""The kind of note that reports a repair."""
LOST = "lost"
"""The kind of note about a hook that is there no more."""


def unread_ns(until_ns: int, from_ns: int) -> int:
    """The time of the reports that were lost between one that ended and the next that began."""
    apart_ns = from_ns - until_ns
    return apart_ns if apart_ns > UNREAD_NS else 0


class Means:
    """Figures of every vif over reports that are added one by one: means over time, and sums of counts."""

    def __init__(self) -> None:
        self.length_ns = 0
        self.sent_ns: Counter[str] = Counter()
        """The time of the reports in which a vif offered anything."""
        self._sums: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._known_ns: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._last: dict[str, Mapping[str, Any]] = {}

    def add(self, length_ns: int, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds one report. rows: by vif."""
        self.length_ns += length_ns
        for vif, row in rows.items():
            self._last[vif] = row
            sums, known = self._sums[vif], self._known_ns[vif]
            for key, value in row.items():
                if isinstance(value, int | float):
                    sums[key] += value if key.endswith("_packets") else value * length_ns
                    known[key] += length_ns
            if row["offered_bps"]:
                self.sent_ns[vif] += length_ns

    def rows(self) -> dict[str, dict[str, Any]]:
        """A row of means for each vif. What is not a number is as in its last report; None: never known."""
        return {vif: {key: self._mean(vif, key, last[key]) for key in last} for vif, last in self._last.items()}

    def while_sending(self, vif: str, key: str) -> float:
        """The mean of a rate over the time in which the vif offered anything, which must not be 0."""
        return self._sums[vif][key] / self.sent_ns[vif]

    def _mean(self, vif: str, key: str, last: Any) -> Any:
        known_ns = self._known_ns[vif][key]
        if not known_ns:
            return last
        return self._sums[vif][key] if key.endswith("_packets") else self._sums[vif][key] / known_ns


@dataclass(frozen=True)
class SoFar:
    """What is seen while a guard goes on. last: its last report. wrong: the number of findings other than repairs.

    unread_ns: the time of lost reports. is_over: nothing follows.
    """

    policy: Policy
    last: GuardInterval
    means: Means
    wrong: int = 0
    unread_ns: int = 0
    is_over: bool = False

    def then(self, report: GuardInterval, policy: Policy) -> SoFar:
        """With one more report. policy: the one that holds now."""
        self.means.add(report.at_ns - report.from_ns, report.rows)
        wrong = self.wrong + sum(kind != REPAIRED for _, kind, _ in report.notes)
        lost_ns = unread_ns(self.last.at_ns, report.from_ns)
        return replace(self, policy=policy, last=report, wrong=wrong, unread_ns=self.unread_ns + lost_ns)

    @property
    def outcome(self) -> Outcome:
        """As that of the whole record (`GuardRun.outcome`)."""
        if self.wrong:
            return Outcome.VIOLATED
        return Outcome.INCONCLUSIVE if self.unread_ns else Outcome.HOLDS


@dataclass(frozen=True)
class GuardRun:
    """A whole guard. reports: in order, as stored (docs/guard.md); times are in ns.

    adjustments: the policies that replaced the first one, each with the time from which it holds (`at_ns`). host: the
    facts of its host; empty in records of earlier versions.
    """

    run: str
    reports: Sequence[Mapping[str, Any]]
    adjustments: Sequence[Mapping[str, Any]] = ()
    host: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Violated if a guarantee or ceiling was broken, a hook was lost, or traffic bypassed one.

        Inconclusive without that if there is no report, or if reports were lost: nothing is known of their time.
        """
        if self.wrong:
            return Outcome.VIOLATED
        return Outcome.HOLDS if self.reports and not self.unread_ns else Outcome.INCONCLUSIVE

    @property
    def wrong(self) -> int:
        """Number of findings other than repairs."""
        return sum(kind != REPAIRED for _, _, kind, _ in self.notes)

    @property
    def length_ns(self) -> int:
        return int(self.reports[-1]["at_ns"] - self.reports[0]["from_ns"]) if self.reports else 0

    @property
    def unread_ns(self) -> int:
        """Time whose reports were lost, because they were not read in time. Nothing is known of it."""
        pairs = itertools.pairwise(self.reports)
        return int(sum(unread_ns(before["at_ns"], report["from_ns"]) for before, report in pairs))

    @property
    def vifs(self) -> tuple[str, ...]:
        return tuple(self.reports[-1]["rows"]) if self.reports else ()

    @property
    def links(self) -> Mapping[str, str]:
        """The link of each vif; empty if the policy has one link, without a name."""
        rows = self.reports[-1]["rows"] if self.reports else {}
        return {vif: row["link"] for vif, row in rows.items() if "link" in row}

    @property
    def notes(self) -> tuple[tuple[int, str, str, str], ...]:
        """(ns since the start, hook, kind, text)."""
        return tuple(
            (report["at_ns"] - self.reports[0]["from_ns"], hook, kind, text)
            for report in self.reports
            for hook, kind, text in report["notes"]
        )

    @property
    def parts(self) -> tuple[tuple[int, tuple[str, ...], GuardRun], ...]:
        """The guard by policy: (ns since the start, what the policy changed, the reports while it held).

        A report across a change belongs to the later policy.
        """
        if not self.reports:
            return ()
        begun = self.reports[0]["from_ns"]
        starts = [(begun, ()), *((change["at_ns"], tuple(change["changes"])) for change in self.adjustments)]
        ends = [at_ns for at_ns, _ in starts[1:]]
        held = [
            tuple(
                r
                for r in self.reports
                if (at == 0 or r["at_ns"] > ends[at - 1]) and (at == len(ends) or r["at_ns"] <= ends[at])
            )
            for at in range(len(starts))
        ]
        pairs = zip(starts, held, strict=True)
        return tuple((at_ns - begun, changed, GuardRun(self.run, part)) for (at_ns, changed), part in pairs)

    def mean(self, vif: str, key: str) -> float | None:
        """The mean of a vif's figure, weighted by time; None if it was never known."""
        known = [(report["rows"][vif].get(key), report["at_ns"] - report["from_ns"]) for report in self.reports]
        weighted = [(value * ns, ns) for value, ns in known if value is not None]
        return sum(value for value, _ in weighted) / sum(ns for _, ns in weighted) if weighted else None

    @property
    def means(self) -> Means:
        """The same for all vifs."""
        means = Means()
        for report in self.reports:
            means.add(report["at_ns"] - report["from_ns"], report["rows"])
        return means

    def dropped(self, vif: str) -> int:
        """Number of dropped packets of a vif."""
        return int(sum(report["rows"][vif]["dropped_packets"] for report in self.reports))
