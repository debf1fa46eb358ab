"""Reads a load plan. A UsageError contains all mistakes with file, line, key and remedy.

Pure except for reading the plan and the files that it names, relative to it. The agent checks regular expressions,
selectors and paths, because it evaluates them; `locate` finds the line of its message.
"""

from __future__ import annotations

import base64
import csv
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from partywall import units
from partywall.core.document.decode import Document
from partywall.core.document.decode import Path as At
from partywall.core.document.explain import Mistake, did_you_mean
from partywall.core.document.form import checked, opened, problem
from partywall.core.document.reading import BYTES_MAX as SCENARIO_BYTES_MAX
from partywall.core.document.reading import read
from partywall.errors import Problem
from partywall.files import lines_of
from partywall.load.document import (
    Body,
    Branch,
    Closed,
    Feeder,
    Generator,
    Http,
    LoadPlan,
    Open,
    Part,
    Step,
    Think,
    Threshold,
    User,
)
from partywall.load.urls import wrong_with
from partywall.sandbox.addresses import ADDRESSES, wrong_address

# A plan may contain a browser's whole session.
LARGER = 64
BYTES_MAX = LARGER * SCENARIO_BYTES_MAX
ALWAYS = ("user", "iteration")
_DOLLAR = re.compile(r"\$(?:\$|\{([^}]*)\}|)")
_STAND_INS: dict[str, Any] = {"partywall_load": 1, "name": "unnamed"}
_STEPS = ("http", "think", "compress", "repeat", "choose", "transaction", "feed")
_THINKS = ("constant", "uniform", "exponential", "log_normal", "file")
_BODIES = ("text", "json", "base64", "file", "form", "multipart")
_SOURCES = ("regex", "json", "css", "header")
_CHECKS = ("status", "contains", "lacks", "matches", "header", "json", "size", "within")
BOUNDS = ("mean", "p50", "p90", "p95", "p99", "p999", "errors", "rate", "available")
_FEEDERS = ("csv", "json_lines", "rows")


@dataclass(frozen=True)
class Loaded:
    """A checked plan, the folder of its files, and its lines."""

    plan: LoadPlan
    folder: Path
    file: str
    document: Document


def load(path: Path) -> Loaded:
    """Reads and checks a plan. Raises UsageError with all of its problems."""
    return loads(read(path, "load plan", larger=LARGER), str(path), path.resolve().parent)


def loads(raw: bytes, file: str, folder: Path) -> Loaded:
    """Like `load`, for bytes. `file` is their name in messages."""
    document = opened(raw, "partywall_load", file, "a plan", "docs/load-plan.md", larger=LARGER)
    return of_document(document, file, folder)


def of_document(document: Document, file: str, folder: Path) -> Loaded:
    """Like `load`, for values whose lines are known, or do not matter because the plan was made here."""
    plan = checked(LoadPlan, document, file, lambda plan: check(plan, folder), stand_ins=_STAND_INS, one_each=True)
    return Loaded(plan, folder, file, document)


def locate(loaded: Loaded, said: str) -> Problem:
    """Converts an agent's message about a program, 'KEY: text', to a problem in the plan."""
    key, colon, text = said.partition(": ")
    at = _plan_path(loaded.plan, key) if colon else None
    return problem(Mistake(at, text), loaded.document, loaded.file) if at else Problem(said, file=loaded.file)


def _plan_path(plan: LoadPlan, key: str) -> At | None:
    """'kinds[0].actions[2].http.extract[1]' → ('users', NAME, 'actions', 2, 'http', 'extract', VARIABLE)."""
    parts: list[str | int] = [int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", key)]
    kinds = list(plan.users)
    if parts[:1] == ["kinds"] and len(parts) > 1 and isinstance(parts[1], int) and parts[1] < len(kinds):
        return _named(plan, ("users", kinds[parts[1]], *parts[2:]))
    if parts[:1] == ["pacing"]:
        return tuple(parts[1:])
    return tuple(parts) if parts and parts[0] in LoadPlan.model_fields else None


def _named(plan: LoadPlan, path: At) -> At:
    """Replaces indices by names: the program has lists of extracted variables, which the plan names."""
    value: Any = plan
    for depth, part in enumerate(path):
        if isinstance(value, Http) and path[depth : depth + 1] == ("extract",) and len(path) > depth + 1:
            names, number = list(value.extract), path[depth + 1]
            if isinstance(number, int) and number < len(names):
                return (*path[: depth + 1], names[number], *path[depth + 2 :])
        value = _below(value, part)
    return path


def _below(value: Any, part: str | int) -> Any:
    if isinstance(value, BaseModel):
        return getattr(value, str(part), None)
    if isinstance(value, Mapping):
        return value.get(part)
    return value[part] if isinstance(value, Sequence) and isinstance(part, int) and part < len(value) else None


# Checks across keys


def check(plan: LoadPlan, folder: Path) -> Iterator[Mistake]:
    """All mistakes of a plan that has the right form."""
    yield from _pacing(plan)
    columns: dict[str, tuple[str, ...]] = {}
    for name, feeder in plan.feeders.items():
        yield from _feeder(("feeders", name), feeder, folder, columns)
    if plan.base is not None:
        yield from _absolute(("base",), plan.base)
    for name, user in plan.users.items():
        yield from _User(plan, folder, user, columns).check(("users", name))
    yield from _one_thing_a_name(plan)
    labels = set(labels_of(plan))
    for number, threshold in enumerate(plan.thresholds):
        yield from _threshold(("thresholds", number), threshold, labels)
    if plan.tls.authorities is not None:
        yield from _file(("tls", "authorities"), plan.tls.authorities, folder)
    for name, generator in plan.generators.items():
        yield from wrong_generator(("generators", name), generator)
    for place in plan.connections.to:
        if not re.fullmatch(r".+:\d+", place):
            yield Mistake(
                ("connections", "to", place), f"{place!r} is not HOST:PORT", "write for example shop.test:443"
            )


def _exactly(path: At, value: BaseModel, choices: Sequence[str], what: str, example: str) -> Iterator[Mistake]:
    """Exactly one of these keys must be given."""
    names = {info.alias or name: name for name, info in type(value).model_fields.items()}
    given = [key for key in choices if names[key] in value.model_fields_set and getattr(value, names[key]) is not None]
    if not given:
        yield Mistake(path, f"{what} needs one of {', '.join(choices)}, and has none", f"write for example {example}")
    elif len(given) > 1:
        yield Mistake((*path, given[1]), f"{' and '.join(given)} are in one {what.split()[-1]}", "keep one of them")


def _pacing(plan: LoadPlan) -> Iterator[Mistake]:
    if (plan.closed is None) == (plan.open is None):
        said = "both closed and open are given" if plan.closed else "neither closed nor open is given"
        remedy = "give one: closed: {users: 50, hold: 1min} or open: {rate: 100, hold: 1min}"
        yield Mistake(("open",) if plan.closed else (), said, remedy)
    for key, pacing, level in (("closed", plan.closed, "users"), ("open", plan.open, "rate")):
        if pacing is not None:
            yield from _stages((key,), pacing, level)
    for name, feeder in plan.feeders.items() if plan.open is not None else ():
        if feeder.when_spent == "leave":
            said = "leave needs the closed model: the open model would not serve arrivals after the last row"
            yield Mistake(("feeders", name, "when_spent"), said, "write repeat, or closed in place of open")


def _stages(path: At, pacing: Closed | Open, level: str) -> Iterator[Mistake]:
    given = [key for key in (level, "ramp_up", "hold", "ramp_down") if key in pacing.model_fields_set]
    if pacing.stages and given:
        yield Mistake((*path, given[0]), f"{given[0]} is given beside stages", "stages define the load; leave it out")
    elif pacing.stages:
        if not any(stage.for_ for stage in pacing.stages):
            yield Mistake((*path, "stages"), "the total duration of all stages is 0", "give one a length: for: 1min")
        if not any(stage.to for stage in pacing.stages):
            yield Mistake((*path, "stages"), f"no stage has any {level}", "give one more than 0: to: 10")
    elif getattr(pacing, level) is None:
        yield Mistake(path, f"neither {level} nor stages are given", f"write for example {level}: 50")
    elif pacing.ramp_up + pacing.hold + pacing.ramp_down == 0:
        yield Mistake(path, "its duration is 0", "say how long it holds, for example hold: 1min")


def _feeder(path: At, feeder: Feeder, folder: Path, columns: dict[str, tuple[str, ...]]) -> Iterator[Mistake]:
    """columns: receives the feeder's columns under its name."""
    if mistakes := list(_exactly(path, feeder, _FEEDERS, "a feeder", "csv: users.csv")):
        yield from mistakes
        return
    try:
        names = _columns(feeder, folder)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        key = "csv" if feeder.csv is not None else "json_lines"
        coded = isinstance(error, UnicodeDecodeError)
        remedy = "save it in UTF-8" if coded else "check the path, relative to the plan, and its content"
        yield Mistake((*path, key), _unreadable(error, folder), remedy)
        return
    columns[str(path[-1])] = names
    if twice := [name for name in names if names.count(name) > 1]:
        yield Mistake(path, f"two columns are called {twice[0]!r}", "name each once")
    if feeder.rows and any(set(row) != set(feeder.rows[0]) for row in feeder.rows):
        yield Mistake((*path, "rows"), "rows have different columns", "give every row the columns of the first")


def _columns(feeder: Feeder, folder: Path) -> tuple[str, ...]:
    if feeder.csv is not None:
        with (folder / feeder.csv).open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.reader(stream)
            head = tuple(next(lines, ()))
            if not head or next(lines, None) is None:
                raise ValueError(f"{feeder.csv} has no header line followed by rows")
            return head
    if feeder.json_lines is not None:
        for line in lines_of(folder / feeder.json_lines):
            if line.strip():
                first = json.loads(line)
                if not isinstance(first, dict):
                    raise ValueError(f"the first line of {feeder.json_lines} is not a JSON object")
                return tuple(first)
        raise ValueError(f"{feeder.json_lines} has no lines")
    return tuple(feeder.rows[0]) if feeder.rows else ()


def _file(path: At, name: str, folder: Path) -> Iterator[Mistake]:
    try:
        with (folder / name).open("rb") as stream:
            stream.read(1)
    except (OSError, ValueError) as error:
        yield Mistake(path, _unreadable(error, folder), "files are found relative to the plan")


def _unreadable(error: Exception, folder: Path) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or folder}: {error.strerror or error}"
    return "the file is not in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def wrong_generator(path: At, generator: Generator) -> Iterator[Mistake]:
    """The mistakes in the place of a generator on another machine. path: where it is in the document."""
    if generator.host is None and generator.domain is None:
        yield Mistake(path, "neither host nor domain says which machine it is", "write for example host: load1")
    for key in ("host", "domain", "uri"):
        value = getattr(generator, key)
        if value is not None and wrong_address(value):
            yield Mistake((*path, key), f"{key} cannot be {value[:60]!r}", f"write for example {ADDRESSES[key]}")
    if generator.uri is not None and generator.domain is None:
        yield Mistake((*path, "uri"), "uri is given without a domain", "add domain, or leave it out")
    if generator.cpus is not None and generator.domain is not None:
        message = "a domain keeps the CPUs that it has"
        yield Mistake((*path, "cpus"), message, "leave cpus out, or name the machine by host alone")
    elif generator.cpus is not None:
        try:
            units.parse_cpus(generator.cpus)
        except ValueError as error:
            said, _, remedy = str(error).partition("; ")
            yield Mistake((*path, "cpus"), said, remedy or "write for example 0,2-3")


def _absolute(path: At, url: str) -> Iterator[Mistake]:
    if wrong := wrong_with(url):
        yield Mistake(path, *wrong)


def _threshold(path: At, threshold: Threshold, labels: set[str]) -> Iterator[Mistake]:
    yield from _exactly(path, threshold, BOUNDS, "a threshold", "p99: 200ms")
    if threshold.within is not None and threshold.available is None:
        yield Mistake(
            (*path, "within"), "within belongs to available", "write for example {available: 99%, within: 1s}"
        )
    if threshold.of is not None and threshold.of not in labels:
        remedy = did_you_mean(threshold.of, sorted(labels))
        yield Mistake((*path, "of"), f"no request or transaction is called {threshold.of!r}", remedy)


def label_of(http: Http) -> str:
    """The name of a request in records."""
    return http.name or f"{http.method} {http.url}"


def labels_of(plan: LoadPlan) -> list[str]:
    """Names of all requests, transactions and compressions without duplicates, in order."""
    return list(dict.fromkeys(name for user in plan.users.values() for name, _ in _named_by(user)))


def _named_by(user: User) -> Iterator[tuple[str, str]]:
    """(name, sort) of everything that a kind of user times."""
    for step in _all_steps((*user.init, *user.actions, *user.end)):
        if step.http:
            yield label_of(step.http), "request"
        elif step.transaction:
            yield step.transaction.name, "transaction"
        elif step.compress:
            yield step.compress.name, "compression"


def _one_thing_a_name(plan: LoadPlan) -> Iterator[Mistake]:
    """Names must be unique, because times, errors and thresholds refer to them."""
    sorts: dict[str, str] = {}
    for kind, user in plan.users.items():
        for name, sort in dict.fromkeys(_named_by(user)):
            if sorts.setdefault(name, sort) != sort:
                what = f"a {sorts[name]} and a {sort} are both called {name!r}"
                yield Mistake(("users", kind), what, "give one of them another name")


def _all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    for step in steps:
        yield step
        for below in (step.repeat, step.transaction, *(step.choose or ())):
            if below is not None:
                yield from _all_steps(below.steps)


@dataclass
class _User:
    """Checks one kind of user. columns: those of each readable feeder."""

    plan: LoadPlan
    folder: Path
    user: User
    columns: Mapping[str, tuple[str, ...]]

    def check(self, path: At) -> Iterator[Mistake]:
        for key in ("init", "actions", "end"):
            yield from self._steps((*path, key), getattr(self.user, key))
        if not any(step.http or step.think or step.compress for step in _all_steps(self.user.actions)):
            yield Mistake((*path, "actions"), "they take no time", "give a request, a pause or a compression")

    @functools.cached_property
    def variables(self) -> set[str]:
        """All variables that a step of this kind may use."""
        steps = list(_all_steps((*self.user.init, *self.user.actions, *self.user.end)))
        extracted = {name for step in steps if step.http for name in step.http.extract}
        fed = {column for step in steps if step.feed for column in self.columns.get(step.feed, ())}
        return {*ALWAYS, *self.user.variables, *extracted, *fed}

    @functools.cached_property
    def feeds_unread(self) -> bool:
        """True if it uses a feeder that could not be read, which may have any column."""
        steps = _all_steps((*self.user.init, *self.user.actions, *self.user.end))
        return any(step.feed in self.plan.feeders and step.feed not in self.columns for step in steps if step.feed)

    def _steps(self, path: At, steps: Sequence[Step]) -> Iterator[Mistake]:
        for number, step in enumerate(steps):
            yield from self._step((*path, number), step)

    def _step(self, path: At, step: Step) -> Iterator[Mistake]:
        yield from _exactly(path, step, _STEPS, "a step", "http: /")
        if step.http:
            yield from self._http((*path, "http"), step.http)
        if step.think:
            yield from self._think((*path, "think"), step.think)
        for key in ("repeat", "transaction"):
            if below := getattr(step, key):
                yield from self._steps((*path, key, "steps"), below.steps)
        if step.choose:
            yield from self._choose((*path, "choose"), step.choose)
        if step.feed is not None and step.feed not in self.plan.feeders:
            remedy = did_you_mean(step.feed, self.plan.feeders, "add it under feeders")
            yield Mistake((*path, "feed"), f"no feeder is called {step.feed!r}", remedy)

    def _choose(self, path: At, branches: Sequence[Branch]) -> Iterator[Mistake]:
        if not any(branch.weight for branch in branches):
            yield Mistake(path, "no branch has a weight over 0, so none can be taken", "give one a weight")
        for number, branch in enumerate(branches):
            yield from self._steps((*path, number, "steps"), branch.steps)

    def _think(self, path: At, think: Think) -> Iterator[Mistake]:
        yield from _exactly(path, think, _THINKS, "a think", "think: 2s")
        if think.uniform and think.uniform[0] > think.uniform[1]:
            yield Mistake((*path, "uniform"), "the minimum is longer than the maximum", "write the shorter one first")
        if think.file is not None:
            try:
                think_times(self.folder / think.file)
            except (OSError, ValueError) as error:
                yield Mistake((*path, "file"), _unreadable(error, self.folder), "write one duration a line, e.g. 1.5s")

    def _http(self, path: At, http: Http) -> Iterator[Mistake]:
        yield from self._url((*path, "url"), http.url)
        for name, value in http.headers.items():
            yield from self._template((*path, "headers", name), value)
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
                yield Mistake((*path, "headers", name), f"{name!r} cannot name a header", "write for example Accept")
        if http.body:
            yield from self._body((*path, "body"), http.body)
        for name, extract in http.extract.items():
            here = (*path, "extract", name)
            yield from _exactly(here, extract, _SOURCES, "an extraction", 'regex: "id=([0-9]+)"')
            if extract.attribute is not None and extract.css is None:
                yield Mistake((*here, "attribute"), "an attribute needs an element", "give css: a selector")
        for number, check in enumerate(http.checks):
            here = (*path, "checks", number)
            yield from _exactly(here, check, _CHECKS, "a check", "status: 200")
            if isinstance(check.status, tuple) and check.status[0] > check.status[1]:
                yield Mistake((*here, "status"), "the range runs backwards", "write the lower one first")
            if check.size and check.size.most is not None and check.size.least > check.size.most:
                yield Mistake((*here, "size"), "the minimum is more than the maximum", "swap them")

    def _url(self, path: At, url: str) -> Iterator[Mistake]:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", url):
            yield from _absolute(path, url)
        elif not url.startswith("/"):
            yield Mistake(path, f"{url[:60]!r} is not a URL", "write http://… or, with base, a path that begins with /")
        elif self.plan.base is None:
            yield Mistake(path, f"{url[:60]!r} has no host", "add base: http://… at the top, or write the whole URL")
        yield from self._template(path, url)

    def _body(self, path: At, body: Body) -> Iterator[Mistake]:
        yield from _exactly(path, body, _BODIES, "a body", "text: hello")
        if body.text is not None:
            yield from self._template((*path, "text"), body.text)
        if body.json_ is not None:
            yield from self._template((*path, "json"), json.dumps(body.json_, ensure_ascii=False))
        if body.file is not None:
            yield from _file((*path, "file"), body.file, self.folder)
        if body.base64 is not None:
            yield from _base64((*path, "base64"), body.base64)
        for name, value in (body.form or {}).items():
            yield from self._template((*path, "form", name), value)
        for name, part in (body.multipart or {}).items():
            yield from self._part((*path, "multipart", name), part)

    def _part(self, path: At, part: Part) -> Iterator[Mistake]:
        yield from _exactly(path, part, ("text", "file"), "a part", "file: photo.jpg")
        if part.text is not None:
            yield from self._template((*path, "text"), part.text)
        if part.file is not None:
            yield from _file((*path, "file"), part.file, self.folder)

    def _template(self, path: At, text: str) -> Iterator[Mistake]:
        """Each dollar sign must be doubled, or begin a variable that has a value."""
        for dollar in _DOLLAR.finditer(text):
            name = dollar[1]
            if dollar[0] == "$":
                yield Mistake(path, "a dollar sign without a variable", "write $$ for a dollar sign")
            elif name is not None and name not in self.variables and not self.feeds_unread:
                known = sorted(self.variables)
                remedy = did_you_mean(
                    name, known, f"extract it, feed it, or give it in variables; there are {', '.join(known)}"
                )
                yield Mistake(path, f"the variable {name!r} has no value", remedy)


def _base64(path: At, text: str) -> Iterator[Mistake]:
    try:
        base64.b64decode(text, validate=True)
    except ValueError as error:
        yield Mistake(path, f"this is not base 64: {error}", "encode the bytes with: base64 FILE")


def think_times(path: Path) -> list[int]:
    """Durations in a file in ns, one on each line. ValueError with the wrong line."""
    times = []
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        try:
            times.append(units.parse_duration_ns(line.strip()))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not times:
        raise ValueError(f"{path} holds no duration")
    return times
