"""Reports as Prometheus text, for node_exporter's textfile collector. The guard opens no port. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall.core.report.prometheus import family

if TYPE_CHECKING:
    from partywall.guard.findings import SoFar

GAUGES = {
    "offered_bps": ("offered_bits_per_second", "Bits a second that reached the hook."),
    "passed_bps": ("passed_bits_per_second", "Bits a second that passed the hook."),
    "offered_pps": ("offered_packets_per_second", "Packets a second that reached the hook."),
    "passed_pps": ("passed_packets_per_second", "Packets a second that passed the hook."),
    "granted_bps": ("granted_bits_per_second", "Bits a second that are granted now."),
    "granted_pps": ("granted_packets_per_second", "Packets a second that are granted now, if packets are limited."),
}
SECONDS = {
    "delay_ns": ("delay_seconds", "Mean time in queues since the last report, if a queue was measured."),
    "jitter_ns": ("jitter_seconds", "Mean difference between consecutive times in queues."),
}
COUNTERS = {
    "dropped_packets": ("dropped_packets_total", "Packets dropped since the guard began."),
    "marked_packets": ("marked_packets_total", "Packets marked with congestion experienced."),
}


class Totals:
    """Counters over all reports. Prometheus needs running totals, but reports count from the previous report."""

    def __init__(self) -> None:
        self._links: dict[str, str] = {}
        """The link of each leaf, if links have names."""
        self._counts: dict[tuple[str, str], int] = {}
        self._findings: dict[tuple[str, str], int] = {}
        self._seen: SoFar | None = None

    def add(self, seen: SoFar) -> None:
        """Adds one report; what is said at the end has none."""
        if seen.is_over:
            return
        self._seen = seen
        for leaf, row in seen.last.rows.items():
            if "link" in row:
                self._links[leaf] = row["link"]
            for key in COUNTERS:
                self._counts[key, leaf] = self._counts.get((key, leaf), 0) + row[key]
        for hook, kind, _text in seen.last.notes:
            self._findings[hook, kind] = self._findings.get((hook, kind), 0) + 1

    def text(self) -> str:
        """The whole file."""
        if self._seen is None:
            return ""
        policy, report = self._seen.policy.name, self._seen.last
        lines: list[str] = []

        def labels(leaf: str) -> dict[str, str]:
            return {"policy": policy, "vif": leaf} | ({"link": self._links[leaf]} if leaf in self._links else {})

        for key, (name, about) in GAUGES.items():
            values = {leaf: row[key] for leaf, row in report.rows.items() if row[key] is not None}
            lines += family(f"partywall_guard_{name}", about, "gauge", [(labels(v), values[v]) for v in values])
        for key, (name, about) in SECONDS.items():
            known = {leaf: row[key] for leaf, row in report.rows.items() if row[key] is not None}
            lines += family(f"partywall_guard_{name}", about, "gauge", [(labels(v), known[v] / 1e9) for v in known])
        for key, (name, about) in COUNTERS.items():
            counted = [(labels(leaf), count) for (k, leaf), count in self._counts.items() if k == key]
            lines += family(f"partywall_guard_{name}", about, "counter", counted)
        counts = [
            ({"policy": policy, "vif": hook, "kind": kind}, count) for (hook, kind), count in self._findings.items()
        ]
        lines += family("partywall_guard_findings_total", "Findings of the independent check.", "counter", counts)
        longest = [({"policy": policy}, report.round_ns_max / 1e9)]
        lines += family("partywall_guard_round_seconds", "Longest round since the last report.", "gauge", longest)
        return "\n".join(lines) + "\n"
