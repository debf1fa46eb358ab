"""Studies: published measurements made again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partywall import study
from partywall.errors import Exit
from partywall.model.study import StudyReport
from partywall.store.study import StudyDirectory

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.report.files import Files


class Studies:
    record = StudyDirectory

    def findings(self, record: StudyDirectory) -> StudyReport:
        return study.report(record)

    def outcome(self, found: StudyReport) -> Exit:
        return Exit.FAILED if found.incomplete else Exit.HOLDS

    def files(self) -> Files[StudyReport]:
        from partywall.report.study_page import FILES  # noqa: PLC0415 - what draws is slow to import

        return FILES

    def show(self, found: StudyReport, console: Console) -> None:
        from partywall.report import study_page  # noqa: PLC0415

        study_page.show(found, console)
