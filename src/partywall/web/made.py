"""Jobs of capabilities whose forms and commands are made from their jobs. Nothing here knows which there are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from partywall import kinds, registry
from partywall.core.document.textfile import Document
from partywall.core.job import Asked, Job
from partywall.errors import Problem, UsageError
from partywall.web.jobs import Order

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
    """The forms, in the order of the commands. A job that needs what no page may give has none."""
    return tuple(
        JobForm(name, job.verb, _first_sentence(job), f"partywall {' '.join(_words(name, job))}", _remote(job))
        for name in registry.made()
        for job in kinds.made(name).jobs
        if _document(job) is None and all(each.option.page for each in job.asked() if each.is_required)
    )


def _document(job: type[Job]) -> tuple[str, Document] | None:
    """Name and document of the field of a job that an editor gives; None if it has none."""
    return next(((each.name, each.document) for each in job.asked() if each.document and each.document.edited), None)


def _document_job(kind: str) -> tuple[type[Job], str, Document]:
    """The job of a kind that begins with a document, and that field. UsageError if there is none."""
    for job in kinds.made(kind).jobs:
        if (found := _document(job)) is not None:
            return job, *found
    raise UsageError(Problem(f"no document leads to a {kind}", "choose a form of this page"))


def document_of(kind: str) -> Document:
    """The document with which jobs of a kind begin. UsageError if there is none."""
    return _document_job(kind)[2]


def _first_sentence(job: type[Job]) -> str:
    return " ".join((inspect.getdoc(job) or "").partition("\n\n")[0].split()).rstrip(".")


def _remote(job: type[Job]) -> tuple[Asked, ...]:
    return tuple(each for each in job.asked() if each.option.page)


def _words(name: str, job: type[Job]) -> list[str]:
    return [registry.command(name), *filter(None, [job.verb])]


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


def job_of(order: Order, source: str) -> Job:
    """The job of an order. source: the file of its document, if it has one. UsageError with every mistake."""
    job, given = _ordered(order, source)
    return job.parsed(given, lambda each: each.name)


def _ordered(order: Order, source: str) -> tuple[type[Job], dict[str, Any]]:
    """The kind of job of an order, and the values of its fields. UsageError for what a page may not give."""
    if order.document is not None or order.shipped is not None:
        job, name, _ = _document_job(order.kind)
        given = source if order.document is not None else order.shipped
        return job, {name: given} | ({"for_ns": order.duration} if order.duration else {})
    job = _job(order.kind, order.verb or "")
    fields = {each.name: each for each in _remote(job)}
    wrong = [name[:80] for name, value in order.options.items() if name not in fields or not _may(fields[name], value)]
    if wrong:
        raise UsageError(*(Problem("a page may not give this", "use the command line", key=name) for name in wrong))
    return job, dict(order.options)


def _may(asked: Asked, value: Any) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return all(re.fullmatch(asked.option.page, str(each)) for each in values)


def command(order: Order, source: str, record: Path) -> list[str]:
    """The words after `partywall` that carry out an order. UsageError if something is wrong."""
    job, given = _ordered(order, source)
    if order.document is None:
        job_of(order, source)
    return [*_words(order.kind, job), f"--out={record}", *job.words(given)]


def continued(kind: str, record: Path) -> list[str]:
    """The words after `partywall` that continue a record."""
    capability = kinds.made(kind)
    return [*_words(kind, type(capability.record.open(record).job)), f"--resume={record}"]


def is_made(kind: str) -> bool:
    """True if the shells of a kind are made from its jobs."""
    return kind in registry.made()


def adjusts(kind: str) -> str:
    """What of a running job of a kind can be changed; empty if nothing."""
    found: str = getattr(kinds.kind(kind), "adjusts", "")
    return found


def can_resume(kind: str) -> bool:
    """True if an interrupted record of a kind can be continued."""
    return kind in HAND_MADE or (is_made(kind) and not kinds.made(kind).cannot_resume)
