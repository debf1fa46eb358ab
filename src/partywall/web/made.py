"""Jobs of capabilities whose forms and commands are made from their jobs. Nothing here knows which there are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from partywall import kinds, registry
from partywall.core.job import Asked, Job
from partywall.errors import Problem, UsageError

PREFIX = "options."
"""Begins the names of fields of a form that belong to a job."""
HAND_MADE = ("run", "study")
"""Kinds that can be continued, beside those that say so themselves."""


@dataclass(frozen=True)
class JobForm:
    """A form for a job. title, lead: the first sentence of the job's help, and the command that does the same."""

    kind: str
    verb: str
    title: str
    command: str
    fields: tuple[Asked, ...]


@cache
def forms() -> tuple[JobForm, ...]:
    """The forms, in the order of the commands."""
    return tuple(
        JobForm(name, job.verb, _first_sentence(job), f"partywall {' '.join(_words(name, job))}", _remote(job))
        for name in registry.made()
        for job in kinds.made(name).jobs
    )


def _first_sentence(job: type[Job]) -> str:
    return " ".join((inspect.getdoc(job) or "").partition("\n\n")[0].split()).rstrip(".")


def _remote(job: type[Job]) -> tuple[Asked, ...]:
    return tuple(each for each in job.asked() if each.option.page)


def _words(name: str, job: type[Job]) -> list[str]:
    return [*kinds.made(name).record.MADE_BY.split()[1:], *filter(None, [job.verb])]


def given(kind: str, verb: str, one: Callable[[str], str], several: Callable[[str], list[str]]) -> dict[str, Any]:
    """The values in the fields of a form. one, several: give a field's text, or the words in it."""
    found: dict[str, Any] = {}
    for asked in _remote(_job(kind, verb)):
        name = f"{PREFIX}{asked.name}"
        value = several(name) if asked.is_list else one(name)
        if value:
            found[asked.name] = value == "on" if asked.is_switch else value
    return found


def _job(kind: str, verb: str) -> type[Job]:
    for job in kinds.made(kind).jobs:
        if job.verb == verb:
            return job
    raise UsageError(Problem(f"{kind} has no job {verb[:40]!r}", "choose a form of this page"))


def job_of(kind: str, verb: str, options: Mapping[str, Any]) -> Job:
    """The job of an order. UsageError with every mistake, such as a value that a page may not give."""
    job = _job(kind, verb)
    fields = {each.name: each for each in _remote(job)}
    wrong = [name[:80] for name, value in options.items() if name not in fields or not _may(fields[name], value)]
    if wrong:
        raise UsageError(*(Problem("a page may not give this", "use the command line", key=name) for name in wrong))
    return job.parsed(options, lambda each: each.name)


def _may(asked: Asked, value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return all(re.fullmatch(asked.option.page, str(each)) for each in values)


def command(kind: str, verb: str, options: Mapping[str, Any], record: Path) -> list[str]:
    """The words after `partywall` that carry out an order. UsageError if something is wrong."""
    job_of(kind, verb, options)
    job = _job(kind, verb)
    return [*_words(kind, job), f"--out={record}", *job.words(options)]


def continued(kind: str, record: Path) -> list[str]:
    """The words after `partywall` that continue a record."""
    return [*_words(kind, kinds.made(kind).jobs[0])[:1], f"--resume={record}"]


def is_made(kind: str) -> bool:
    """True if the shells of a kind are made from its jobs."""
    return kind in registry.made()


def can_resume(kind: str) -> bool:
    """True if an interrupted record of a kind can be continued."""
    return kind in HAND_MADE or (is_made(kind) and not kinds.made(kind).cannot_resume)
