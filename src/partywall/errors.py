"""Every error a user can meet, and the exit code each ends with.

PartywallError
├── UsageError            2  a scenario or command line that cannot be used; may hold many problems
├── CapabilityError       4  the host lacks something; names it, what it costs and how to get it
├── TrialError            5  a trial or sandbox failed
└── AgentError            5  the agent died or spoke nonsense
    └── RefusalError         or refused what it was asked; `refusal` says of what kind
        └── LackError     4  ... because it or its host lacks something: a CapabilityError too
Anything else that escapes is a bug and ends with 70.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeVar

T = TypeVar("T")


class Exit(IntEnum):
    """What the process's exit code means."""

    HOLDS = 0
    VIOLATED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    CAPABILITY = 4
    FAILED = 5
    BUG = 70


@dataclass(frozen=True)
class Problem:
    """One mistake in an input: where it stands, what it is, and what would do."""

    message: str
    remedy: str = ""
    file: str = ""
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part)
        # '--users must be at least 1', as a sentence.
        sentence = self.key.startswith("--") and self.message.startswith("must ")
        said = (
            f"{self.key} {self.message}" if sentence else ": ".join(part for part in (self.key, self.message) if part)
        )
        text = ": ".join(part for part in (place, said) if part)
        return f"{text} — {self.remedy}" if self.remedy else text


class PartywallError(Exception):
    """Base of all errors that are not bugs."""

    exit = Exit.FAILED


class ProblemsError(PartywallError):
    """Carries all of its problems at once."""

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(ProblemsError):
    """An input that cannot be used."""

    exit = Exit.USAGE


class CapabilityError(ProblemsError):
    """The host lacks something this run needs."""

    exit = Exit.CAPABILITY


class TrialError(PartywallError):
    """A trial or a sandbox failed; the message names it.

    is_lasting: trying again would fail in the same way.
    """

    def __init__(self, message: str, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


class AgentError(PartywallError):
    """The agent died, sent what the contract does not know, or refused a request."""


class Refusal(StrEnum):
    """Why an agent refuses a request, which says what to do about it."""

    USAGE = "usage"
    """The request makes no sense there: mend it."""
    LACKING = "lacking"
    """The agent lacks a permission, or its host something: mend the host."""
    PASSING = "passing"
    """What runs or is in use at this moment is in the way: try again."""
    LASTING = "lasting"
    """None of these: the same request will be refused again."""


class RefusalError(AgentError):
    """The agent is there, and answered that it cannot do what it was asked.

    why: in the agent's own words, of several reasons each on a line.
    """

    def __init__(self, message: str, *, why: str = "", refusal: Refusal = Refusal.LASTING) -> None:
        super().__init__(message)
        self.why = why or message
        self.refusal = refusal

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.refusal is Refusal.PASSING

    @property
    def is_lasting(self) -> bool:
        """Whether it will not."""
        return not self.is_passing


class LackError(CapabilityError, RefusalError):
    """The agent refused for want of a permission, a capability, or something of its host."""

    def __init__(self, message: str, *, why: str = "") -> None:
        RefusalError.__init__(self, message, why=why, refusal=Refusal.LACKING)
        self.problems = (Problem(message),)


class Failures:
    """What several checks find, told at once."""

    def __init__(self) -> None:
        self._found: list[UsageError | CapabilityError] = []

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps what is raised in the block, for `tell`."""
        try:
            yield
        except (UsageError, CapabilityError) as error:
            self._found.append(error)

    def tell(self) -> None:
        """Raises what was kept, if anything was: a CapabilityError if the host alone is to be mended."""
        if self._found:
            error = CapabilityError if all(isinstance(e, CapabilityError) for e in self._found) else UsageError
            raise error(*dict.fromkeys(problem for one in self._found for problem in one.problems))


def parsed(key: str, text: str, parse: Callable[[str], T]) -> T:
    """The value of an option or argument; UsageError that names it if it cannot be read."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(Problem(str(error), key=key)) from None
