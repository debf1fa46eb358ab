"""Values for the templates, from records, journals and documents. Reads only, and knows no HTTP."""

from __future__ import annotations

import datetime
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from partywall import __version__, study, units
from partywall.core.document.reading import read
from partywall.core.report import page
from partywall.core.stats.estimate import Estimate
from partywall.errors import PartywallError, Problem, ProblemsError
from partywall.load.health import ADVICE, Reason
from partywall.run.check import find, load, names
from partywall.run.document.scenario import Scenario
from partywall.run.report.matrix import Severity, severity_of, severity_words
from partywall.run.values.plan import Plan, Trial
from partywall.web import documents, made
from partywall.web.jobs import Force, Job, State, Want
from partywall.web.live import SECONDS_SHOWN
from partywall.web.live import State as Live
from partywall.web.live import Trial as Seen


@cache
def environment() -> jinja2.Environment:
    """The templates: those of this package, on the frame of every report."""
    made = page.environment()
    own = jinja2.PackageLoader("partywall.web", "templates")
    made.loader = jinja2.ChoiceLoader([own, jinja2.PackageLoader("partywall.core.report", "assets")])
    made.filters |= {
        "when": when,
        "clock": clock,
        "about": about,
        "rate": units.format_bit_rate,
        "packets": units.format_packet_rate,
        "number": units.format_number,
        "counted": units.counted,
        "percent": lambda share: f"{100 * share:.1f} %",
    }
    made.globals |= {"version": __version__}
    return made


def render(template: str, **content: Any) -> str:
    """A page, or a part of one."""
    return environment().get_template(template).render(**content)


def when(seconds: float | None) -> str:
    """A date and time of this host: 24 Nov 03:08."""
    if seconds is None:
        return ""
    at = datetime.datetime.fromtimestamp(seconds).astimezone()
    year = "" if at.year == datetime.datetime.now().astimezone().year else f" {at.year}"
    return f"{at.day} {at:%b}{year} {at:%H:%M}"


def clock(seconds: float) -> str:
    """A time of this host with seconds: 03:08:15."""
    return f"{datetime.datetime.fromtimestamp(seconds).astimezone():%H:%M:%S}"


def about(seconds: float | None) -> str:
    """A length of time in whole seconds."""
    return "" if seconds is None else units.format_duration(max(1, round(seconds)) * 10**9)


def asset(name: str) -> bytes | None:
    """A file of the page: style, script, icon. None if there is none."""
    if name == "report.css":
        return files("partywall.core.report").joinpath("assets", name).read_bytes()
    if name not in ASSETS:
        return None
    return files("partywall.web").joinpath("assets", *name.split("/")).read_bytes()


ASSETS = ("web.css", "web.js", "start.js", "vendor/htmx.min.js", "vendor/sse.min.js", "vendor/codemirror.js")


@dataclass(frozen=True)
class Offered:
    """Something that ships with Partywall and can be started. seconds: how long it takes; None if not known."""

    kind: str
    name: str
    description: str
    seconds: float | None = None


@cache
def offered() -> tuple[Offered, ...]:
    """Everything that ships with Partywall and can be started."""
    kinds = []
    for name in names():
        scenario = load(find(name))
        kinds.append(Offered("run", name, scenario.description, scenario.budget / 1e9))
    for name in study.names():
        file = study.find(name)
        kinds.append(Offered("study", name, study.kind_of(file).read(read(file, "study"), str(file)).description))
    for kind in filter(made.is_made, documents.MEASURED):
        document = made.document_of(kind)
        kinds += [Offered(kind, name, document.load(document.find(name)).description) for name in document.names()]
    return tuple(kinds)


def host_line() -> dict[str, Any]:
    """Name, load and CPUs of this host."""
    return {"name": socket.gethostname(), "load": os.getloadavg()[0], "cpus": len(os.sched_getaffinity(0))}


@dataclass(frozen=True)
class Cell:
    """A cell of the live matrix. level: the class of its colour; mark and words repeat it without colour."""

    value: float
    half: float
    level: str
    mark: str
    words: str


def cells_of(scenario: Scenario, trial: Trial, seen: Seen) -> dict[str, Cell]:
    """Isolation factors of a trial so far, by treatment, judged as the report judges them."""
    from partywall.run.findings import states  # noqa: PLC0415 - slow to import

    few = "" if seen.done >= scenario.min_blocks else states.too_few(seen.done)
    bound, cells = states.bound_of(scenario.precision), {}
    for role in ("null", "aggressor", "limit"):
        own = [t.id for t in trial.treatments if t.role == role and t.id in seen.cells]
        claims = [states.Claim(_estimate(*seen.cells[id_], seen.done), bound, too_few=few) for id_ in own]
        for id_, claim, found in zip(own, claims, states.judge(claims), strict=True):
            level = severity_of(found.effect, claim.ratio.value) if role != "limit" else Severity.NONE
            words = severity_words(level, bound) + (f": {found.why}" if found.why else "") + ", so far"
            cells[id_] = Cell(claim.ratio.value, claim.ratio.half_width, level.name.lower(), level.mark, words)
    return cells


def _estimate(value: float, low: float, high: float, blocks: int) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=max(2, blocks), method="so far")


@dataclass(frozen=True)
class LiveRow:
    """A trial in the live matrix."""

    title: str
    done: int
    precision: str
    current: bool
    cells: tuple[Cell | None, ...]


def treatments(plan: Plan) -> dict[str, str]:
    """The columns of the live matrix in planned order: labels by the IDs of treatments."""
    labels: dict[str, str] = {}
    for trial in plan.trials:
        labels |= {t.id: t.label for t in trial.treatments if t.role != "baseline"}
    return labels


def row_of(scenario: Scenario, trial: Trial, seen: Seen | None, columns: Iterable[str], *, current: bool) -> LiveRow:
    """The row of a trial in the live matrix. Treatments without figures are left empty.

    seen: its progress. columns: IDs of treatments. current: whether it is measured now.
    """
    levels = ", ".join(f"{path.rsplit('.', 1)[-1]} {level}" for path, level in trial.levels.items())
    name = trial.id.partition("-")[2] or trial.id
    title = f"{name} ({levels})" if levels else name
    if seen is None:
        return LiveRow(title, 0, "", current, tuple(None for _ in columns))
    cells = cells_of(scenario, trial, seen)
    return LiveRow(title, seen.done, seen.precision, current, tuple(map(cells.get, columns)))


def seconds_of(live: Live) -> Iterator[dict[str, Any]]:
    """The last seconds of a load, newest first."""
    count = live.seconds_count
    for back, second in enumerate(reversed(live.seconds)):
        reasons = [
            f"{ADVICE[Reason(name)][0]} ({figure})" if name in set(Reason) else name
            for name, figure in second.get("doubts", {}).items()
        ]
        yield dict(second) | {"number": count - back, "doubts": reasons}


CHART = (600, 120)


def chart(live: Live) -> dict[str, Any] | None:
    """Requests a second and the 99th percentile of the last seconds, as points of two lines."""
    seconds = list(live.seconds)
    if len(seconds) < 2:
        return None
    width, height = CHART

    def line(values: Sequence[float | None]) -> tuple[str, float]:
        top = max((value for value in values if value), default=1) or 1
        step = width / (len(values) - 1)
        known = [(i * step, height - height * value / top) for i, value in enumerate(values) if value is not None]
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in known), top

    rate, rate_top = line([second.get("rate") for second in seconds])
    tail, tail_top = line([second.get("p99_ns") for second in seconds])
    return {"rate": rate, "rate_top": rate_top, "tail": tail, "tail_top": tail_top, "width": width, "height": height}


@dataclass(frozen=True)
class Monitor:
    """A small chart of a figure of monitors. points: of its line, 240 wide and 40 high. last, top: values as text."""

    name: str
    points: str
    last: str
    top: str


def monitors(live: Live) -> list[tuple[str, list[Monitor]]]:
    """The charts of monitors by their groups."""
    groups: dict[str, list[Monitor]] = {}
    for (group, name, unit), values in live.monitored.items():
        top, step = max(values), 240 / (SECONDS_SHOWN - 1)
        begin = 240 - step * (len(values) - 1)
        points = " ".join(
            f"{begin + number * step:.0f},{40 - 40 * value / (top or 1):.0f}" for number, value in enumerate(values)
        )
        last, most = (f"{units.format_number(value, 3)} {unit}" for value in (values[-1], top))
        groups.setdefault(group, []).append(Monitor(name, points if len(values) > 1 else "", last, most))
    return list(groups.items())


@dataclass(frozen=True)
class Buttons:
    """The actions that make sense for a job now."""

    stop: bool = False
    force: bool = False
    pause: bool = False
    resume: bool = False
    extend: bool = False
    adjust: bool = False
    policy: bool = False


def buttons(job: Job | None) -> Buttons:
    """The actions that a job's state allows."""
    if job is None:
        return Buttons()
    parts = made.can_resume(job.order.kind)
    match job.state:
        case State.RUNNING:
            free = job.want is None
            kind = job.order.kind
            return Buttons(
                job.want is not Want.STOP,
                job.want is Want.STOP and job.force is None,
                free and parts,
                extend=free and kind == "run",
                adjust=free and made.adjusts(kind) == "level",
                policy=free and made.adjusts(kind) == "policy",
            )
        case State.QUEUED:
            return Buttons(stop=True, pause=parts)
        case State.PAUSED:
            return Buttons(stop=True, resume=True, extend=job.order.kind == "run")
        case State.ENDED:
            return Buttons(resume=parts and job.exit != 0, extend=job.order.kind == "run" and job.attempt > 0)
        case _:
            return Buttons(resume=True)


FORCED: dict[Force | None, str] = {
    None: "stopping",
    Force.TERMINATE: "stopping by SIGTERM, because it did not end; SIGKILL follows after 10 s",
    Force.KILL: "killed by SIGKILL, because it did not end; what it left on this host is removed next",
}


def status(  # noqa: PLR0911 - one for each state
    job: Job | None,
    live: Live,
    waiting: Callable[[], Sequence[Job]],
    *,
    running: bool,
    stalled: Callable[[], str] = str,
) -> str:
    """What a record or job does now, in one line.

    waiting: gives the jobs that run or are next. stalled: gives why the queue stands still; empty if it does not.
    """
    if job is not None and job.state in (State.QUEUED, State.RUNNING) and (why := stalled()):
        return f"the queue stands still: {why}; it is tried again every few seconds"
    if job is not None and job.state is State.QUEUED:
        ahead = [other for other in waiting() if other.created < job.created or other.state is State.RUNNING]
        ahead = [other for other in ahead if other.id != job.id]
        if ahead:
            return f"waiting for {', '.join(other.name for other in ahead)}: two measurements would spoil each other"
        return "next: it starts as soon as no other measurement runs on this host"
    if job is not None and job.state is State.RUNNING and job.want is not None:
        wants = {
            Want.PAUSE: "pausing after this block",
            Want.STOP: FORCED[job.force],
            Want.EXTEND: "restarting with more time",
        }
        return wants[job.want]
    if job is not None and job.state is State.PAUSED:
        return "its measurements are kept"
    if job is not None and job.state is State.CANCELLED:
        return "cancelled before it started"
    if running or (job is not None and job.state is State.RUNNING):
        return live.doing or "starting"
    return f"ended at {when(live.ended_at)}" if live.ended_at else "ended"


def left(live: Live, *, running: bool) -> float | None:
    """The time left now, in seconds. None if it is not known."""
    if not running or live.left_s is None:
        return None
    return max(0.0, live.left_s - (time.time() - live.left_at))


def problems_of(error: PartywallError) -> list[Problem]:
    """The problems of an error, in the order of their lines."""
    problems = error.problems if isinstance(error, ProblemsError) else (Problem(str(error)),)
    return sorted(problems, key=lambda problem: problem.line or 0)


def tail_of(file: Path, most: int = 8192) -> str:
    """The end of a text file; empty if there is none."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - most))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
