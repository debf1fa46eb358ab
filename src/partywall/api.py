"""The Python interface: what the commands do, as functions that return values.

`import partywall` gives everything here. A function that measures takes `on_event`, which is called with every event
(`partywall.events`) while it goes on; `partywall.print_event` prints them. Errors are `UsageError` for what the caller
gave, `CapabilityError` for what the host lacks, and other kinds of `PartywallError`; each says what is wrong and what
to do. Nothing is left on the host, also after Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partywall import kinds, pipeline, units
from partywall.errors import CapabilityError, Exit, PartywallError, Problem, TrialError, UsageError, parsed
from partywall.events import Block, Broken, Doing, Emit, Event, Left, Note, Report, Second, Started, silent
from partywall.host import Host
from partywall.kinds.guard import GuardJob, Guards
from partywall.kinds.kind import Options
from partywall.kinds.load import LoadJob, Loads
from partywall.kinds.run import RunJob, Runs
from partywall.kinds.study import Studies, StudyJob
from partywall.kinds.trace import TraceJob, Traces
from partywall.load import plan as load_plans
from partywall.load.compiling import program as compiled
from partywall.load.quick import Quick
from partywall.load.quick import program as quick_program
from partywall.model.plan import Plan
from partywall.model.study import Asked
from partywall.sandbox import WORK_ROOT
from partywall.store.record import Record
from partywall.trace import ask

if TYPE_CHECKING:
    import pandas as pd

    from partywall.model.comparison import Comparison

__all__ = [
    "Block",
    "Broken",
    "CapabilityError",
    "Doing",
    "Event",
    "Exit",
    "Left",
    "Note",
    "PartywallError",
    "Report",
    "Result",
    "Second",
    "Started",
    "TrialError",
    "UsageError",
    "compare_runs",
    "open_record",
    "plan_scenario",
    "print_event",
    "run_guard",
    "run_load",
    "run_scenario",
    "run_study",
    "run_trace",
    "this_host",
]


@dataclass(frozen=True)
class Result:
    """A record and what was found in it. Findings are derived when they are first asked for."""

    record: Record

    @property
    def path(self) -> Path:
        """The record's folder."""
        return self.record.path

    @property
    def kind(self) -> str:
        """run, load, guard, trace or study."""
        return self.record.KIND

    @cached_property
    def findings(self) -> Any:
        """The findings, typed by kind (`partywall.kinds`): for a run, (Findings, Evidence)."""
        self.record.settle()
        return kinds.of(self.record).findings(self.record)

    @property
    def outcome(self) -> Exit:
        """The exit code that a command would have ended with."""
        return kinds.of(self.record).outcome(self.findings)

    def rows(self) -> list[dict[str, Any]]:
        """The findings as flat rows: a cell, a second, a vif, a hop or an observation each. Unknown is None."""
        return kinds.of(self.record).rows(self.findings)

    def frame(self, query: str = "") -> pd.DataFrame:
        """The findings as a data frame, or the answer to an SQL query over the raw tables (`partywall sql`)."""
        pandas = _pandas()
        if not query:
            return pandas.DataFrame(self.rows())
        from partywall.store.query import table  # noqa: PLC0415 - DuckDB is slow to import

        self.record.settle()
        columns, rows = table(self.path, query)
        return pandas.DataFrame(rows, columns=list(columns))

    def write(self, *formats: str) -> tuple[Path, ...]:
        """Writes the report in these formats (html and json if none is given); the files."""
        written: tuple[Path, ...] = kinds.of(self.record).files().write(self.findings, self.path, list(formats) or None)
        return written

    def __repr__(self) -> str:
        return f"<partywall {self.kind} {self.path}>"

    def _repr_html_(self) -> str:
        """The page, in a frame of a notebook."""
        import html  # noqa: PLC0415 - of a notebook alone

        page = next(path for path in self.write("html") if path.suffix == ".html")
        return f'<iframe srcdoc="{html.escape(page.read_text())}" width="100%" height="800"></iframe>'


def this_host() -> Host:
    """The host of this process as one value: CPUs, memory, caches, what is missing."""
    return pipeline.this_host()


def open_record(path: str | Path) -> Result:
    """A record that exists. UsageError if there is none at `path`."""
    return Result(kinds.opened(Path(path)))


def plan_scenario(
    scenario: str, *, budget: str = "", precision: str = "", seed: int | None = None, host: Host | None = None
) -> Plan:
    """What `run_scenario` would measure. Changes nothing on the host.

    scenario: a file, or the name of one that ships with Partywall. budget: as 5min; precision: as 1%.
    """
    return Runs().plan(RunJob.read(scenario, _changes(budget, precision), seed), Options(host or this_host()))[0]


def run_scenario(
    scenario: str,
    *,
    budget: str = "",
    precision: str = "",
    seed: int | None = None,
    out: str | Path | None = None,
    work_dir: str | Path = WORK_ROOT,
    allow_commands: bool = False,
    resume: str | Path | None = None,
    on_event: Emit = silent,
) -> Result:
    """Measures how well this host isolates its tenants. The arguments are those of `partywall run`."""
    options = _options(out, work_dir, allow_commands=allow_commands)
    if resume is not None:
        return _resumed(resume, options, on_event)
    job = RunJob.read(scenario, _changes(budget, precision), seed)
    return _measured(lambda: Runs().measure(job, options, on_event))


def run_load(
    target: str,
    *,
    users: int | None = None,
    rate: float | None = None,
    for_: str = "30s",
    out: str | Path | None = None,
    on_event: Emit = silent,
) -> Result:
    """Puts a service under load. target: a URL, or a plan file, which then says everything but `out`."""
    if target.startswith(("http://", "https://")):
        quick = Quick(url=target, for_ns=_ns("for_", for_), users=users, rate=rate)
        job = LoadJob(target, quick_program(quick))
    else:
        loaded = load_plans.load(Path(target))
        job = LoadJob(f"{loaded.plan.name} ({target})", compiled(loaded), loaded)
    return _measured(lambda: Loads().measure(job, _options(out), on_event))


def run_trace(
    hops: Sequence[str], *, for_: str, out: str | Path | None = None, on_event: Emit = silent, **only: Any
) -> Result:
    """Follows packets along interfaces. only: keyword arguments of `partywall.trace.ask`, such as protocol="tcp"."""
    job = TraceJob(ask(list(hops), **only), _ns("for_", for_))
    return _measured(lambda: Traces().measure(job, _options(out), on_event))


def run_guard(policy: str | Path, *, for_: str, out: str | Path, every: str = "1s", on_event: Emit = silent) -> Result:
    """Keeps a bandwidth policy for some time, and records what it saw."""
    job = replace(GuardJob.read(Path(policy)), for_ns=_ns("for_", for_), every_ns=_ns("every", every))
    return _measured(lambda: Guards().measure(job, _options(out), on_event))


def run_study(
    name: str,
    *,
    length: str = "short",
    backends: Sequence[str] = (),
    parts: Sequence[str] = (),
    rounds: int | None = None,
    seed: int = 1,
    out: str | Path | None = None,
    allow_commands: bool = False,
    on_event: Emit = silent,
) -> Result:
    """Makes a published measurement again. The arguments are those of `partywall study`."""
    if length not in ("short", "long"):
        raise UsageError(Problem(f"{length!r} is not a length", "give short or long", key="length"))
    asked = Asked(length=length, backends=tuple(backends), parts=tuple(parts), rounds=rounds, seed=seed)
    job, options = StudyJob.read(name, asked), _options(out, allow_commands=allow_commands)
    return _measured(lambda: Studies().measure(job, options, on_event))


def compare_runs(run: Result | str | Path, reference: Result | str | Path, *, tolerance: float = 0.02) -> Comparison:
    """A run beside an earlier one, cell by cell. tolerance: a change of the isolation factor that does not matter."""
    from partywall.stats import compare_runs as compared  # noqa: PLC0415 - slow to import

    evidence = []
    for given in (run, reference):
        found, read = (given if isinstance(given, Result) else open_record(given)).findings
        evidence.append((read, found))
    return compared(evidence[0], evidence[1], tolerance)


def print_event(event: Event) -> None:
    """A listener that prints what a person would want to see."""
    match event:
        case Doing(text) | Note(text) | Broken(text):
            print(text, flush=True)  # noqa: T201 - what it is for
        case Left(seconds):
            print(f"about {units.format_duration(round(seconds) * 10**9)} left", flush=True)  # noqa: T201


def _measured(measure: Callable[[], Record | None]) -> Result:
    record = measure()
    if record is None:
        raise TrialError("the job kept no record; give out=FOLDER")
    return Result(record)


def _resumed(path: str | Path, options: Options, emit: Emit) -> Result:
    record = kinds.opened(Path(path))
    kinds.of(record).resume(record, options, emit)
    return Result(record)


def _options(out: str | Path | None, work_dir: str | Path = WORK_ROOT, *, allow_commands: bool = False) -> Options:
    return Options(this_host(), Path(out) if out else None, Path(work_dir), allow_commands)


def _changes(budget: str, precision: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if budget:
        changes["budget"] = _ns("budget", budget)
    if precision:
        changes["precision"] = parsed("precision", precision, units.parse_share)
    return changes


def _ns(name: str, text: str) -> int:
    return parsed(name, text, units.parse_duration_ns)


def _pandas() -> Any:
    try:
        import pandas  # noqa: PLC0415, ICN001 - optional
    except ImportError:
        raise UsageError(Problem("data frames need pandas", "pip install pandas, or use rows()")) from None
    return pandas
