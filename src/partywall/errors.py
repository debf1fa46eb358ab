"""Every error that a user can see, and its exit code.

    PartywallError
    ├── UsageError            2  an unusable scenario or command line; may contain many problems
    ├── CapabilityError       4  the host lacks something; names it, its cost and how to get it
    ├── TrialError            5  a trial or sandbox failed
    └── AgentError            5  the agent died or sent invalid messages
        └── RefusalError         or refused a request; `refusal` gives the kind of reason
            └── LackError     4  ... because it or its host lacks something: also a CapabilityError

Any other exception is a bug and ends with exit code 70.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeVar

T = TypeVar("T")
N = TypeVar("N", int, float)


class Exit(IntEnum):
    """The meaning of the process's exit code."""

    HOLDS = 0
    VIOLATED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    CAPABILITY = 4
    FAILED = 5
    BUG = 70


@dataclass(frozen=True)
class Problem:
    """One mistake in an input: its place, what is wrong, and a remedy."""

    message: str
    remedy: str = ""
    file: str = ""
    line: int | None = None
    key: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part)
        # '--users must be at least 1' reads as a sentence.
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
    """An error that reports several problems at once.

    is_early: the same input may be right later, because something that it names does not exist yet.
    """

    is_early = False

    def __init__(self, *problems: Problem | str, is_early: bool = False) -> None:
        self.is_early = is_early
        self.problems = tuple(p if isinstance(p, Problem) else Problem(p) for p in problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(ProblemsError):
    """An input that cannot be used."""

    exit = Exit.USAGE


class CapabilityError(ProblemsError):
    """The host lacks something this run needs."""

    exit = Exit.CAPABILITY


class TrialError(PartywallError):
    """A trial or a sandbox failed. The message names it.

    is_lasting: a retry would fail in the same way.
    """

    def __init__(self, message: str, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


class AgentError(PartywallError):
    """The agent died, sent a message that violates the contract, or refused a request."""


class Refusal(StrEnum):
    """Why an agent refuses a request. The reason decides what to do about it."""

    USAGE = "usage"
    """The request is invalid for this agent: fix the request."""
    LACKING = "lacking"
    """The agent lacks a permission, or its host lacks something: fix the host."""
    PASSING = "passing"
    """Something that is running or in use is in the way: try again later."""
    LASTING = "lasting"
    """None of these. The same request will be refused again."""


class RefusalError(AgentError):
    """The agent answered that it cannot do what was requested.

    why: the agent's own message. Several reasons are separated by line breaks.
    """

    def __init__(self, message: str, *, why: str = "", refusal: Refusal = Refusal.LASTING) -> None:
        super().__init__(message)
        self.why = why or message
        self.refusal = refusal

    @property
    def is_passing(self) -> bool:
        """True if the same request may succeed later."""
        return self.refusal is Refusal.PASSING

    @property
    def is_lasting(self) -> bool:
        """True if the same request will be refused again."""
        return not self.is_passing


class LackError(CapabilityError, RefusalError):
    """The agent refused because it lacks a permission or capability, or its host lacks something."""

    def __init__(self, message: str, *, why: str = "") -> None:
        RefusalError.__init__(self, message, why=why, refusal=Refusal.LACKING)
        self.problems = (Problem(message),)


class Failures:
    """Collects the problems of several checks, to report them at once."""

    def __init__(self) -> None:
        self._errors: list[UsageError | CapabilityError] = []

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Collects errors raised in the block, for `tell`."""
        try:
            yield
        except (UsageError, CapabilityError) as error:
            self._errors.append(error)

    def tell(self) -> None:
        """Raises the collected errors, if any, as one: a CapabilityError if all of them are, early if all are."""
        if self._errors:
            error = CapabilityError if all(isinstance(e, CapabilityError) for e in self._errors) else UsageError
            problems = dict.fromkeys(problem for failure in self._errors for problem in failure.problems)
            raise error(*problems, is_early=all(failure.is_early for failure in self._errors))


def parsed(key: str, text: str, parse: Callable[[str], T]) -> T:
    """Parses the value of an option or argument. UsageError that names it if it is invalid."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(Problem(str(error), key=key)) from None


def parsed_above_zero(key: str, text: str, parse: Callable[[str], N], example: str) -> N:
    """Like `parsed`, for a number that must be greater than 0."""
    value = parsed(key, text, parse)
    if value <= 0:
        raise UsageError(Problem(f"must be greater than 0, not {text}", f"give for example {example}", key=key))
    return value


def one_line(text: str) -> str:
    """Text that can be shown on one line, whatever characters it was read with: others are escaped."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
