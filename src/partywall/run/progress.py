"""What a run tells whoever watches it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told as things happen; must return at once, for it runs between blocks."""

    def doing(self, text: str) -> None:
        """What is being done now."""

    def block(self, trial: str, done: int, text: str) -> None:
        """A block of `trial` is finished; text says how precise it is by now."""

    def spent(self, measured_ns: int, budget_ns: int) -> None:
        """How much of the measuring time is spent or no longer needed."""

    def note(self, text: str) -> None:
        """Something worth keeping on the screen."""


class Silent:
    """Tells nobody."""

    def doing(self, text: str) -> None: ...

    def block(self, trial: str, done: int, text: str) -> None: ...

    def spent(self, measured_ns: int, budget_ns: int) -> None: ...

    def note(self, text: str) -> None: ...
