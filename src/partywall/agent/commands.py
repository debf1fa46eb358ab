"""Agents elsewhere, as the command line names them: NAME=COMMAND."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from partywall.errors import Problem, UsageError

EXAMPLE = "write for example vm1='ssh vm1 sudo partywall-agent serve'"
_NAME = re.compile(r"[\w.-]+")


def commands(given: Iterable[str]) -> tuple[dict[str, tuple[str, ...]], list[Problem]]:
    """The command of each agent by its name, and a problem for each text that names none."""
    known: dict[str, tuple[str, ...]] = {}
    problems = []
    for text in given:
        name, equals, command = text.partition("=")
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            problems.append(Problem(f"{text!r}: {error}", "close the quotation", key="--agent"))
            continue
        if not equals or not words or not _NAME.fullmatch(name):
            problems.append(Problem(f"{text!r} is not an agent", EXAMPLE, key="--agent"))
            continue
        known[name] = words
    return known, problems


def commands_or_error(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The command of each agent by its name. UsageError with every problem."""
    known, problems = commands(given)
    if problems:
        raise UsageError(*problems)
    return known
