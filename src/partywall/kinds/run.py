"""Runs: how well a host isolates its tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall import pipeline
from partywall.errors import Exit
from partywall.kinds.kind import EXITS
from partywall.model.evidence import Evidence
from partywall.model.finding import Findings
from partywall.store import RunDirectory

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.report.files import Files

Found = tuple[Findings, Evidence]


class Runs:
    record = RunDirectory

    def findings(self, record: RunDirectory) -> Found:
        evidence, findings = pipeline.analyse(record)
        return findings, evidence

    def outcome(self, found: Found) -> Exit:
        findings, evidence = found
        return Exit.FAILED if evidence.incomplete else EXITS[findings.outcome]

    def files(self) -> Files[Found]:
        from partywall.report.export import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES

    def show(self, found: Found, console: Console) -> None:
        from partywall.report import terminal  # noqa: PLC0415

        terminal.show(*found, console)
