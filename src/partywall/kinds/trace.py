"""Traces: where between the hops of a path packets are delayed or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall.errors import Exit
from partywall.model.trace import TraceEvidence, TraceFindings
from partywall.store.trace import TraceDirectory

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.report.files import Files

Found = tuple[TraceFindings, TraceEvidence]


class Traces:
    record = TraceDirectory

    def findings(self, record: TraceDirectory) -> Found:
        from partywall.stats.trace import findings  # noqa: PLC0415 - slow to import

        evidence = record.evidence()
        return findings(evidence), evidence

    def outcome(self, found: Found) -> Exit:
        del found
        return Exit.HOLDS

    def files(self) -> Files[Found]:
        from partywall.report.trace_view import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES

    def show(self, found: Found, console: Console) -> None:
        from partywall.report import trace_view  # noqa: PLC0415

        trace_view.show(found[0], console)
