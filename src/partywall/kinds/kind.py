"""The face of every kind of record: how it is made, derived and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from partywall.errors import Exit
from partywall.model.finding import Outcome
from partywall.store.record import Record

if TYPE_CHECKING:
    from rich.console import Console

    from partywall.report.files import Files

R = TypeVar("R", bound=Record)
F = TypeVar("F")

EXITS = {Outcome.HOLDS: Exit.HOLDS, Outcome.VIOLATED: Exit.VIOLATED, Outcome.INCONCLUSIVE: Exit.INCONCLUSIVE}


class Kind(Protocol[R, F]):
    """One kind of record. R: the record on disk. F: what is derived from it.

    Everything but `findings` is independent of the record on disk. What draws is imported when it is used.
    """

    @property
    def record(self) -> type[R]:
        """The class of the record."""
        ...

    def findings(self, record: R) -> F:
        """What was found, from the record alone; it can be derived at any time. TrialError if there is nothing yet."""
        ...

    def outcome(self, found: F) -> Exit:
        """The exit code that the findings stand for."""
        ...

    def files(self) -> Files[F]:
        """The report as files: the page, and formats for other programs."""
        ...

    def show(self, found: F, console: Console) -> None:
        """The report as text."""
        ...
