"""Guards: promises of bandwidth, and whether they were kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall.errors import Exit
from partywall.kinds.kind import EXITS
from partywall.model.guard_run import GuardRun
from partywall.store.guard import GuardDirectory

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.report.files import Files


class Guards:
    record = GuardDirectory

    def findings(self, record: GuardDirectory) -> GuardRun:
        return GuardRun(record.name, tuple(record.reports()))

    def outcome(self, found: GuardRun) -> Exit:
        return EXITS[found.outcome]

    def files(self) -> Files[GuardRun]:
        from partywall.report.guard_view import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES

    def show(self, found: GuardRun, console: Console) -> None:
        from partywall.report import guard_view  # noqa: PLC0415

        guard_view.show(found, console)
