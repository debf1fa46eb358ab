"""The Python interface: the commands, as functions that return values.

`import partywall` offers everything here. A function that measures takes `on_event` and calls it with every event
(`partywall.events`) during the measurement; `partywall.print_event` prints them. `UsageError` reports invalid
arguments, `CapabilityError` what the host lacks, and other kinds of `PartywallError` failures. Each says what is wrong
and what to do. Nothing is left on the host, even after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from partywall import kinds, registry, units
from partywall.core import here
from partywall.core.capability import Capability, Options
from partywall.core.document.decode import key_text
from partywall.core.job import Asked, Job
from partywall.core.record import Record
from partywall.errors import CapabilityError, Exit, PartywallError, Problem, TrialError, UsageError, parsed_above_zero
from partywall.events import (
    Block,
    Broken,
    Counters,
    Doing,
    Emit,
    Event,
    Left,
    Note,
    Second,
    Seen,
    Sinks,
    Started,
    silent,
)
from partywall.host import Host
from partywall.host.label import WORK_ROOT
from partywall.kinds.journal import Journal, Look
from partywall.load import check as load_plans
from partywall.load.capability import LoadJob, Loads
from partywall.load.compiling import program as compiled
from partywall.load.quick import Quick
from partywall.load.quick import program as quick_program
from partywall.run import stages
from partywall.run.capability import RunJob, Runs, changes
from partywall.run.record import RunDirectory
from partywall.run.values.plan import Plan
from partywall.sandbox.measuring import alone, measuring
from partywall.study.capability import Studies, StudyJob
from partywall.study.document import Length, Machines, StudyRequest

if TYPE_CHECKING:
    import pandas as pd

    from partywall.run.values.comparison import Comparison

__all__ = [
    "Block",
    "Broken",
    "CapabilityError",
    "Counters",
    "Doing",
    "Event",
    "Exit",
    "Left",
    "Note",
    "PartywallError",
    "Result",
    "Second",
    "Seen",
    "Started",
    "TrialError",
    "UsageError",
    "alone",
    "compare_runs",
    "open_record",
    "plan_scenario",
    "print_event",
    "resume_record",
    "run_load",
    "run_scenario",
    "run_study",
    "this_host",
]


def __getattr__(name: str) -> Any:
    """The function that carries out a job of a capability whose functions are made from its jobs."""
    if name not in functions():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return functions()[name]


@dataclass(frozen=True)
class Result:
    """A record and its findings. Findings are derived once: after the measurement, or at first use."""

    record: Record

    @property
    def path(self) -> Path:
        """The record's folder."""
        return self.record.path

    @property
    def kind(self) -> str:
        """The kind of the record, such as run or load: see `partywall.registry`."""
        return self.record.KIND

    @cached_property
    def findings(self) -> Any:
        """The findings. Their type depends on the kind (`partywall.kinds`); for a run it is (Findings, Evidence)."""
        self.record.settle()
        return kinds.of(self.record).findings(self.record)

    @property
    def outcome(self) -> Exit:
        """The exit code of the equivalent command."""
        return kinds.of(self.record).outcome(self.findings)

    def rows(self) -> list[dict[str, Any]]:
        """The findings as flat rows: one for each cell, second, vif, hop or observation. Unknown values are None."""
        return kinds.of(self.record).files().rows(self.findings)

    def frame(self, query: str = "") -> pd.DataFrame:
        """The findings as a data frame, or the result of an SQL query over the raw tables (as `partywall sql`)."""
        pandas = _pandas()
        if not query:
            return pandas.DataFrame(self.rows())
        from partywall.core.query import table  # noqa: PLC0415 - DuckDB is slow to import

        self.record.settle()
        columns, rows = table(self.path, query)
        return pandas.DataFrame(rows, columns=list(columns))

    def write(self, *formats: str) -> tuple[Path, ...]:
        """Writes the report in these formats, by default html and json. Returns the files."""
        written: tuple[Path, ...] = kinds.of(self.record).files().write(self.findings, self.path, list(formats) or None)
        return written

    def __repr__(self) -> str:
        return f"<partywall {self.kind} {self.path}>"

    def _repr_html_(self) -> str:
        """The page, for display in a notebook."""
        import html  # noqa: PLC0415 - of a notebook alone

        page = next(path for path in self.write("html") if path.suffix == ".html")
        return f'<iframe srcdoc="{html.escape(page.read_text())}" width="100%" height="800"></iframe>'


def this_host() -> Host:
    """The host of this process as one value: CPUs, memory, caches, missing capabilities."""
    return here.this_host()


def open_record(path: str | Path) -> Result:
    """Opens an existing record. UsageError if there is none at `path`."""
    return Result(kinds.opened(Path(path)))


def plan_scenario(
    scenario: str, *, budget: str = "", precision: str = "", seed: int | None = None, host: Host | None = None
) -> Plan:
    """The plan that `run_scenario` would measure. Changes nothing on the host.

    scenario: a file, or the name of one that ships with Partywall. budget: such as 5min. precision: such as 1%.
    """
    job = RunJob.read(scenario, changes(budget or None, precision or None), seed)
    return Runs().plan(job, Options(host or this_host()))[0]


def run_scenario(
    scenario: str,
    *,
    budget: str = "",
    precision: str = "",
    seed: int | None = None,
    out: str | Path | None = None,
    work_dir: str | Path = WORK_ROOT,
    allow_commands: bool = False,
    wait_for_memory: str = "",
    resume: str | Path | None = None,
    on_event: Emit = silent,
) -> Result:
    """Measures how well this host isolates its tenants. The arguments are those of `partywall run`."""
    options = _options(out, work_dir, allow_commands=allow_commands)
    options = replace(options, memory_wait_ns=_wait_ns(wait_for_memory))
    if resume is not None:
        return _resumed(resume, options, on_event)
    job = RunJob.read(scenario, changes(budget or None, precision or None), seed)
    return _measured(lambda emit: Runs().measure(job, options, emit), on_event)


def resume_record(
    record: str | Path,
    *,
    work_dir: str | Path = WORK_ROOT,
    allow_commands: bool = False,
    on_event: Emit = silent,
) -> Result:
    """Continues an interrupted record of any kind, as `--resume` does. UsageError if its kind cannot be continued."""
    return _resumed(record, _options(None, work_dir, allow_commands=allow_commands), on_event)


def run_load(
    target: str,
    *,
    users: int | None = None,
    rate: float | None = None,
    for_: str = "30s",
    out: str | Path | None = None,
    wait_for_memory: str = "",
    on_event: Emit = silent,
) -> Result:
    """Puts a service under load. target: a URL, or a plan file that defines everything but `out`."""
    if target.startswith(("http://", "https://")):
        quick = Quick(url=target, for_ns=_ns("for_", for_), users=users, rate=rate)
        job = LoadJob(target, quick_program(quick))
    else:
        loaded = load_plans.load(Path(target))
        job = LoadJob(f"{loaded.plan.name} ({target})", compiled(loaded), loaded)
    options = replace(_options(out), memory_wait_ns=_wait_ns(wait_for_memory))
    return _measured(lambda emit: Loads().measure(job, options, emit), on_event)


def run_study(
    name: str,
    *,
    length: str = "short",
    backends: Sequence[str] = (),
    on: str = "",
    machines: Mapping[str, Any] | None = None,
    parts: Sequence[str] = (),
    rounds: int | None = None,
    seed: int = 1,
    out: str | Path | None = None,
    allow_commands: bool = False,
    wait_for_memory: str = "",
    on_event: Emit = silent,
) -> Result:
    """Repeats a published measurement. The arguments are those of `partywall study`.

    machines: for a study of load generation, as in its file: `physical`, `sandboxes`, `application` and `address`.
    """
    if length not in (lengths := get_args(Length)):
        raise UsageError(Problem(f"{length!r} is not a length", f"give {' or '.join(lengths)}", key="length"))
    request = StudyRequest(
        length=length,
        backends=tuple(backends),
        parts=tuple(parts),
        rounds=rounds,
        seed=seed,
        memory_wait_ns=_wait_ns(wait_for_memory),
        on=on,
        machines=None if machines is None else _machines(machines),
    )
    job, options = StudyJob.read(name, request), _options(out, allow_commands=allow_commands)
    return _measured(lambda emit: Studies().measure(job, options, emit), on_event)


def compare_runs(run: Result | str | Path, reference: Result | str | Path, *, tolerance: float = 0.02) -> Comparison:
    """Compares a run with an earlier one, cell by cell. UsageError if one is no run, or both are the same.

    tolerance: the largest change of the isolation factor that does not matter.
    """
    paths = [given.path if isinstance(given, Result) else Path(given) for given in (run, reference)]
    return stages.compared(RunDirectory.open(paths[0]), RunDirectory.open(paths[1]), tolerance)


@cache
def functions() -> dict[str, Callable[..., Result]]:
    """The functions that are made from jobs, by name."""
    every = ((kinds.made(name), name) for name in registry.made())
    made = (_made(capability, job, name) for capability, name in every for job in capability.jobs)
    return {each.__name__: each for each in made}


def _made(capability: Capability[Any, Any, Any], job: type[Job], name: str) -> Callable[..., Result]:
    """A function with the fields of a job as keywords. Arguments of a command line may be given in place."""
    fields = {each.keyword: each for each in job.asked()}
    signature = _signature(fields)

    def call(*places: Any, **given: Any) -> Result:
        given = signature.bind(*places, **given).arguments
        options, on_event = _options(given.pop("out", None)), given.pop("on_event", silent)
        # One text stands for a list of one.
        known = {
            fields[key].name: (value,) if fields[key].is_list and isinstance(value, str) else value
            for key, value in given.items()
            if value not in ("", None)
        }
        wanted = job.parsed(known, lambda each: each.keyword)
        if capability.only_with_out and options.out is None:
            raise UsageError(Problem("it keeps no record without `out`", "give for example out='record'", key="out"))

        def measure(emit: Emit) -> Record | None:
            record: Record | None = capability.begin(wanted, options, emit)
            return record

        return _measured(measure, on_event, capability.live) if capability.disturbs else _kept(measure(on_event))

    call.__name__ = call.__qualname__ = job.function or f"{job.verb or 'run'}_{name}"
    call.__doc__ = inspect.getdoc(job)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _signature(fields: Mapping[str, Asked]) -> inspect.Signature:
    in_place, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    none = inspect.Parameter.empty
    every = [
        *((key, in_place if each.option.metavar else by_name, none if each.is_required else each.default)
          for key, each in fields.items()),
        ("out", by_name, None),
        ("on_event", by_name, silent),
    ]  # fmt: skip
    parameters = [inspect.Parameter(key, kind, default=default) for key, kind, default in every]
    return inspect.Signature(parameters, return_annotation=Result)


def print_event(event: Event) -> None:
    """A listener that prints the events that matter to a person."""
    match event:
        case Doing(text) | Note(text) | Broken(text):
            print(text, flush=True)  # noqa: T201 - its purpose
        case Left(seconds):
            print(f"about {units.format_duration(round(seconds) * 10**9)} left", flush=True)  # noqa: T201


def _measured(measure: Callable[[Emit], Record | None], emit: Emit, live: Look = lambda _: None) -> Result:
    journal, listeners = Journal(live), Sinks()
    listeners.add("the journal", journal)

    def heard(event: Event) -> None:
        listeners(event)
        mark(event)
        emit(event)

    with journal, measuring("a Python program", emit, wait="partywall.alone() waits for it") as mark:
        result = _kept(measure(heard))
        # The page's list of records shows these. What keeps them from being derived is an error where they are used.
        with contextlib.suppress(PartywallError):
            result.write("json")
            journal.exit = int(result.outcome)
        return result


def _kept(record: Record | None) -> Result:
    if record is None:
        raise TrialError("the job kept no record, because `out` is not set; give for example out='record'")
    return Result(record)


def _resumed(path: str | Path, options: Options, emit: Emit) -> Result:
    record = kinds.opened(Path(path))

    def measure(heard: Emit) -> Record:
        kinds.of(record).resume(record, options, heard)
        return record

    return _measured(measure, emit)


def _options(out: str | Path | None, work_dir: str | Path = WORK_ROOT, *, allow_commands: bool = False) -> Options:
    return Options(this_host(), Path(out) if out else None, Path(work_dir), allow_commands)


def _machines(given: Mapping[str, Any]) -> Machines:
    try:
        return Machines.model_validate(given)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        raise UsageError(*(Problem(each["msg"], key=key_text(("machines", *each["loc"]))) for each in wrong)) from None


def _ns(name: str, text: str) -> int:
    return parsed_above_zero(name, text, units.parse_duration_ns, "10s")


def _wait_ns(wait_for_memory: str) -> int:
    return _ns("wait_for_memory", wait_for_memory) if wait_for_memory else 0


def _pandas() -> Any:
    try:
        import pandas  # noqa: PLC0415, ICN001 - optional
    except ImportError:
        raise UsageError(Problem("data frames need pandas", "pip install pandas, or use rows()")) from None
    return pandas
