"""Reports as Prometheus text, for node_exporter's textfile collector. The guard opens no port. Pure."""

from __future__ import annotations

from partywall.core.report.prometheus import family
from partywall.guard.measure.run import Report

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
        self.links: dict[str, str] = {}
        """The link of each leaf, if links have names."""
        self.counts: dict[tuple[str, str], int] = {}
        self.findings: dict[tuple[str, str], int] = {}

    @property
    def wrong(self) -> bool:
        """True if there was a finding that has not been corrected."""
        return any(kind != "repaired" for _hook, kind in self.findings)

    def add(self, report: Report) -> None:
        """Adds one report."""
        for leaf, row in report.rows.items():
            if "link" in row:
                self.links[leaf] = row["link"]
            for key in COUNTERS:
                self.counts[key, leaf] = self.counts.get((key, leaf), 0) + row[key]
        for hook, kind, _text in report.notes:
            self.findings[hook, kind] = self.findings.get((hook, kind), 0) + 1


def text(policy: str, report: Report, totals: Totals) -> str:
    """The whole file."""
    lines: list[str] = []

    def labels(leaf: str) -> dict[str, str]:
        return {"policy": policy, "vif": leaf} | ({"link": totals.links[leaf]} if leaf in totals.links else {})

    for key, (name, about) in GAUGES.items():
        values = {leaf: row[key] for leaf, row in report.rows.items() if row[key] is not None}
        lines += family(f"partywall_guard_{name}", about, "gauge", [(labels(v), values[v]) for v in values])
    for key, (name, about) in SECONDS.items():
        known = {leaf: row[key] for leaf, row in report.rows.items() if row[key] is not None}
        lines += family(f"partywall_guard_{name}", about, "gauge", [(labels(v), known[v] / 1e9) for v in known])
    for key, (name, about) in COUNTERS.items():
        counted = [(labels(leaf), count) for (k, leaf), count in totals.counts.items() if k == key]
        lines += family(f"partywall_guard_{name}", about, "counter", counted)
    counts = [({"policy": policy, "vif": hook, "kind": kind}, count) for (hook, kind), count in totals.findings.items()]
    lines += family("partywall_guard_findings_total", "Findings of the independent check.", "counter", counts)
    longest = [({"policy": policy}, report.round_ns_max / 1e9)]
    lines += family("partywall_guard_round_seconds", "Longest round since the last report.", "gauge", longest)
    return "\n".join(lines) + "\n"
