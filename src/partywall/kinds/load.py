"""Loads: a service under virtual users."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall.errors import Exit
from partywall.kinds.kind import EXITS
from partywall.load.evidence import load_run
from partywall.load.store import LoadDirectory
from partywall.model.load_run import LoadRun

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.report.files import Files


class Loads:
    record = LoadDirectory

    def findings(self, record: LoadDirectory) -> LoadRun:
        return load_run(record)

    def outcome(self, found: LoadRun) -> Exit:
        return Exit.FAILED if found.failure else EXITS[found.outcome]

    def files(self) -> Files[LoadRun]:
        from partywall.report.load_page import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES

    def show(self, found: LoadRun, console: Console) -> None:
        from partywall.report import load_text  # noqa: PLC0415

        load_text.show(found, console)
