"""Documents that come from the page: which kind they are of, their mistakes, and what they would measure.

A document from the page may not name files of this host, because whoever carries it out may read more than whoever
wrote it. Nor may it have libvirt start a program. `partywall serve --allow-commands` lifts this, with the ban on
commands.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from partywall import kinds, study, units
from partywall.core.capability import Options, Outline
from partywall.core.document.decode import decode
from partywall.core.document.formats import FORMATS, format_key, refuse_other
from partywall.core.document.shipped import shipped_file
from partywall.errors import PartywallError, Problem, ProblemsError, UsageError, parsed
from partywall.host import Host
from partywall.load import check as load_plans
from partywall.load.capability import LoadJob
from partywall.load.compiling import program as compiled
from partywall.load.document import LoadPlan
from partywall.load.quick import Quick
from partywall.load.quick import program as quick_program
from partywall.run.capability import RunJob, Runs, outlined
from partywall.run.check import load
from partywall.run.check import names as scenario_names
from partywall.run.document.scenario import Scenario
from partywall.run.plan.requirements import check_commands
from partywall.run.values.plan import Plan
from partywall.study.capability import StudyJob
from partywall.study.document import StudyRequest
from partywall.values import host_path_keys
from partywall.web import made
from partywall.web.jobs import Order

METER_FILES = re.compile(r"^(replay|wattsup):|[?&]password=file:|[?&]certificate=")
"""Meters whose names name files."""
MEASURED = ("run", "load", "guard", "study", "migration")
"""The kinds of job that begin with a document."""
PLAN_KEYS = ("load", "plan")
"""Keys with a URL or the path of a load plan."""
NAME = "document.yaml"


@cache
def file_keys() -> frozenset[str]:
    """The keys of documents whose values are files of this host."""
    made_of = [kind for kind in MEASURED if made.is_made(kind)]
    return frozenset(host_path_keys(Scenario, LoadPlan, *(made.document_of(kind).model for kind in made_of)))


@dataclass(frozen=True)
class Forecast:
    """What an order would do, one item a line, and how long it takes. plan: of a run. lacking: what this host lacks."""

    kind: str
    lines: tuple[str, ...]
    seconds: float
    plan: Plan | None
    lacking: tuple[Problem, ...]


def kind_of(text: str) -> str:
    """The kind of a document, by the key with its version. UsageError if the page cannot measure it."""
    known = [key for key, form in FORMATS.items() if form.kind in MEASURED]
    if (key := format_key(text)) in known:
        return FORMATS[key].kind
    refuse_other(text, known, "FILE")
    raise UsageError(Problem("the document does not say of which kind it is", f"begin with one of {', '.join(known)}"))


def shipped_names(kind: str) -> tuple[str, ...]:
    """The names of the shipped documents, by kind."""
    listed = {"run": scenario_names, "study": study.names}
    if kind in MEASURED and made.is_made(kind):
        return made.document_of(kind).names()
    return listed[kind]() if kind in listed else ()


def text_of(kind: str, name: str) -> str:
    """The text of a shipped document. UsageError if there is none, also for the path of another file."""
    if name not in shipped_names(kind):
        raise UsageError(Problem(f"no {kind[:20]} called {name[:80]!r} ships with Partywall", "choose another"))
    return shipped_file(name).read_text(encoding="utf-8")


def check(text: str, *, allow_files: bool) -> list[Problem]:
    """All mistakes of a document, in the order of their lines."""
    try:
        kind = kind_of(text)
        with tempfile.TemporaryDirectory(prefix="partywall-") as folder:
            file = Path(folder) / NAME
            file.write_text(text, encoding="utf-8", errors="replace")
            refuse_files(text, allowed=allow_files)
            _read(kind, file)
    except ProblemsError as error:
        return sorted(map(_here, error.problems), key=lambda problem: problem.line or 0)
    except PartywallError as error:
        return [Problem(str(error))]
    return []


def check_change(record: Path, text: str) -> list[Problem]:
    """What keeps the running job of a record from a document without mistakes."""
    try:
        running = kinds.opened(record)
        kinds.made(running.KIND).check_adjustment(running, text)
    except ProblemsError as error:
        return sorted(error.problems, key=lambda problem: problem.line or 0)
    except PartywallError as error:
        return [Problem(str(error))]
    return []


def refuse_files(text: str, *, allowed: bool) -> None:
    """UsageError that lists the files of this host, and the commands, that a document names, if it may not."""
    if allowed:
        return
    document = decode(text.encode("utf-8", "replace"), NAME)
    remedy = "use the command line, or start the server with --allow-commands"
    problems = [
        Problem(f"a document from the page may not {what}", remedy, line=document.line(path))
        for path, text in _texts(document.data, ())
        if (what := _forbidden(path, text))
    ]
    if problems:
        raise UsageError(*problems)


def _texts(part: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Every text of a document with its path."""
    if isinstance(part, str):
        yield path, part
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from _texts(value, (*path, key))
    elif isinstance(part, list | tuple):
        for number, value in enumerate(part):
            yield from _texts(value, (*path, number))


def _forbidden(path: tuple[Any, ...], text: str) -> str:
    """What a text of a document does that only `--allow-commands` allows; empty if nothing.

    The levels of a factor are values of the keys that the factor's path names.
    """
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    keys = re.findall(r"\w+", key) if path[:1] == ("factors",) else [key]
    is_url = text.startswith(("http://", "https://"))
    if path in (("guest", "service"), ("guest", "service", 0)):
        return f"contain the command {text[:80]!r}"
    if not is_url and "uri" in keys and _has_program(text):
        return f"name the libvirt address {text[:80]!r}"
    named = any(
        name in file_keys() or (name in PLAN_KEYS and not is_url) or (name == "meter" and METER_FILES.search(text))
        for name in keys
    )
    return f"name the file {text[:80]!r}" if named or "files" in path or _is_path(path, text) else ""


def _is_path(path: tuple[Any, ...], text: str) -> bool:
    """True if a text is a path whatever its key. In parameters and levels, every absolute path is one."""
    is_setting = "params" in path or path[:1] == ("factors",)
    return text.startswith(("unix:", "/dev/")) or "../" in text or (is_setting and text.startswith("/"))


def _has_program(uri: str) -> bool:
    """True if libvirt may start a program, or open a socket or file of this host, that its address names."""
    return "?" in uri or "+ext:" in uri or (":" in uri and not uri.startswith(("qemu", "xen")))


def _read(kind: str, file: Path) -> None:
    """Reads a document. UsageError with all of its mistakes."""
    match kind:
        case "run":
            load(file)
        case "load":
            compiled(load_plans.load(file))
        case "study":
            _study_job(str(file))
        case _:
            made.job_of(Order(kind=kind, document=""), str(file))


def forecast(order: Order, host: Host, *, allow_commands: bool) -> Forecast:
    """What an order would do on this host. Changes nothing. UsageError if the order has mistakes.

    What the host lacks is part of the result.
    """
    with tempfile.TemporaryDirectory(prefix="partywall-") as folder:
        file = Path(folder) / NAME
        if order.document is not None:
            refuse_files(order.document, allowed=allow_commands)
            file.write_text(order.document, encoding="utf-8", errors="replace")
        try:
            return _forecast(order, file, Options(host, allow_commands=allow_commands))
        except ProblemsError as error:
            raise type(error)(*map(_here, error.problems)) from None


def _forecast(order: Order, file: Path, options: Options) -> Forecast:
    is_made = made.is_made(order.kind)
    job = made.job_of(order, str(file)) if is_made else _job(order, file)
    kind = kinds.kind(order.kind)
    outline, plan = Outline((), 0), None
    try:
        if isinstance(job, RunJob):
            plan, _ = Runs().plan(job, options)
            outline = outlined(plan)
            check_commands(plan.scenario, allowed=options.allow_commands)
        else:
            outline = kind.outline(job, options)
            kind.check(job, options)
    except PartywallError as error:
        return Forecast(order.kind, outline.lines, outline.seconds, plan, tuple(_problems(error)))
    return Forecast(order.kind, outline.lines, outline.seconds, plan, ())


def _problems(error: PartywallError) -> Iterator[Problem]:
    problems = error.problems if isinstance(error, ProblemsError) else (Problem(str(error)),)
    return map(_here, problems)


def _job(order: Order, file: Path) -> Any:
    """The job of an order, as the kind takes it. UsageError with all mistakes."""
    source = str(file) if order.document is not None else order.shipped
    duration_ns = parsed("duration", order.duration, units.parse_duration_ns) if order.duration else None
    match order.kind:
        case "run" if source:
            return _run_job(order, source)
        case "load" if order.url or order.document is not None:
            return _load_job(order, file, duration_ns)
        case "study" if source:
            return _study_job(source, long=order.long, seed=order.seed)
    raise UsageError(Problem(f"a {order.kind} needs something to measure", "give a document, an address or a time"))


def _run_job(order: Order, source: str) -> RunJob:
    changes: dict[str, Any] = {}
    if order.budget:
        changes["budget"] = parsed("budget", order.budget, units.parse_duration_ns)
    if order.precision:
        changes["precision"] = parsed("precision", order.precision, units.parse_share)
    return RunJob.read(source, changes, order.seed)


def _load_job(order: Order, file: Path, duration_ns: int | None) -> LoadJob:
    if order.url:
        quick = Quick(url=order.url, for_ns=duration_ns or 30 * 10**9, users=order.users, rate=order.rate)
        return LoadJob(order.url, quick_program(quick))
    loaded = load_plans.load(file)
    return LoadJob(loaded.plan.name, compiled(loaded), loaded)


def _study_job(source: str, *, long: bool = False, seed: int | None = None) -> StudyJob:
    length = "long" if long else "short"
    return StudyJob.read(source, StudyRequest(length=length, backends=(), parts=(), rounds=None, seed=seed or 1))


def _here(problem: Problem) -> Problem:
    """A problem without the path of the temporary file."""
    if not problem.file.endswith(NAME):
        return problem
    return replace(problem, file="", remedy=problem.remedy.replace(problem.file, "FILE"))
