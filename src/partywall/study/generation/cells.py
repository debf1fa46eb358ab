"""Carries out a study of load generation: every cell once in each round, in random order, as a load of some seconds.

One cell in one round gives one observation for each metric. Loads are in `load.prepared`, reports in
`report.study_page`.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from partywall.errors import TrialError
from partywall.load import monitors, plan
from partywall.load.compiling import program as compiled
from partywall.load.health import Health, judge
from partywall.load.lasting import for_guest
from partywall.load.prepared import GUESTS_HOST, PreparedLoad, Setup
from partywall.load.second import SECOND_NS, Second, Timing, histogram
from partywall.load.store import Readings, sample_rows
from partywall.model import paper
from partywall.model.paper import Beside
from partywall.plan import rounds
from partywall.report.latency import quantiles
from partywall.scenario import papers
from partywall.scenario.documents import validated
from partywall.stats.overhead import Pair
from partywall.stats.rounds import beside, student
from partywall.study.generation.model import METRICS, Cell, Form, Observed, Study

RAMP_NS = 500_000_000
OVERHEAD_S = 2.5
"""Time of a cell besides its hold: creating and removing sandboxes."""
GUEST_S = 6.0
"""Additional time for each guest to start."""


# Reading


def load(content: bytes, file: str) -> Study:
    """Reads a study file. UsageError with all mistakes in it."""
    return validated(Study, content, file)


def estimate_s(study: Study, form: Form, backend: str = "container") -> float:
    guests = sum(cell.sandboxes for cell in study.cells if cell.generator == "sandbox") if backend == "qemu" else 0
    each_s = form.hold / 1e9 + RAMP_NS / 1e9 + OVERHEAD_S
    return form.rounds * (len(study.cells) * each_s + guests * GUEST_S)


# Measuring


def order(study: Study, form: Form, seed: int) -> list[tuple[int, Cell]]:
    """(round, cell) in the order of measurement: each round has its own random order."""
    return rounds(study.cells, form.rounds, seed)


def observe(
    study: Study,
    form: Form,
    url: str,
    cell: Cell,
    round_: int,
    work_root: Path,
    backend: str = "container",
    accel: str = "tcg",
) -> Observed:
    """Measures one cell once. accel: the accelerator of its sandboxes if they are guests."""
    setup = replace(
        setup_of(cell, f"study-{study.name}", work_root, seed=round_ + 1, backend=backend),
        accel=accel,
    )
    program = program_of(study, form, url, cell)
    if setup.backend == "qemu":
        program |= {"addresses": for_guest(program, GUESTS_HOST)}
    # The host's CPUs. A session leaves this process only those that the generators do not use.
    cores = len(os.sched_getaffinity(0))
    with PreparedLoad(program, setup) as session:
        seconds: list[Second] = []
        healths: list[Health] = []
        for second in session.run():
            if second is not None:
                seconds.append(second)
                number = second.start_ns // SECOND_NS
                healths.append(judge(second, session.monitor.host(number, setup.cpus)))
        begin_ns = (session.begin_ns or 0) + RAMP_NS + form.settle
        end_ns = (session.begin_ns or 0) + session.stages_ns
        inside = [s.start_ns >= begin_ns and s.end_ns <= end_ns for s in seconds]
        kept = [second for second, keep in zip(seconds, inside, strict=True) if keep]
        doubts = [health for health, keep in zip(healths, inside, strict=True) if keep]
        readings = Readings("host", session.monitor.counters, session.monitor.readings)
        rows = [row for row in sample_rows(readings) if begin_ns - SECOND_NS <= row["at_ns"] <= end_ns]
        values = _values(kept, doubts, rows, begin_ns, session.started["labels"], cores)
        emulated = setup.backend == "qemu" and accel == "tcg"
        return Observed(cell=cell, round=round_, values=values, emulated=emulated)


def setup_of(cell: Cell, name: str, work_root: Path, *, seed: int, backend: str) -> Setup:
    """The generator's CPUs: all except those kept for the host, and at least one."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    kept = min(round(len(cpus) * cell.kept / 100), len(cpus) - 1)
    return Setup(
        name=name,
        cpus=cpus[kept:],
        seed=seed,
        work_root=work_root,
        backend="process" if cell.generator == "physical" else backend,
        sandboxes=cell.sandboxes,
        host_cpus=cpus[:kept] or cpus,
    )


def program_of(study: Study, form: Form, url: str, cell: Cell) -> dict[str, Any]:
    """What the cell's users do: the pages, and the compression if the cell has it, timed together; then thinking."""
    steps: list[Any] = [step.model_dump(by_alias=True, exclude_defaults=True, mode="json") for step in study.actions]
    if cell.compress:
        steps.append({"compress": {"size": form.compress}})
    think = study.think.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    text = json.dumps(
        {
            "partywall_load": 1,
            "name": study.name,
            "base": url,
            "users": {"user": {"actions": [{"transaction": {"name": "iteration", "steps": steps}}, think]}},
            "closed": {"users": cell.users, "ramp_up": f"{RAMP_NS}ns", "hold": f"{form.hold}ns"},
            "grace": "5s",
        }
    )
    return compiled(plan.loads(text.encode(), f"{study.name}: {cell.id}", Path()))


def _values(
    seconds: Sequence[Second],
    healths: Sequence[Health],
    rows: Sequence[Mapping[str, Any]],
    begin_ns: int,
    labels: Sequence[Mapping[str, str]],
    cores: int,
) -> dict[str, float | None]:
    if not seconds:
        raise TrialError("no whole second of the load was recorded; give it a longer hold")
    iteration, pages = _timing(seconds, labels, "transaction"), _timing(seconds, labels, "http")
    length_s = sum(second.length_s for second in seconds)
    host = {(series.group, series.name): series.mean for series in monitors.series(rows, begin_ns)}
    own = [host.get(("Generator's process", what)) for what in ("programs", "kernel")]
    write_ms = host.get(("Disk time", "of a write"))
    tops = quantiles(histogram(iteration.corrected), (0.9,))
    return {
        "response_s": _seconds(iteration.mean_ns),
        "response_p90_s": _seconds(tops[0] if tops else None),
        "pages_s": _seconds(pages.mean_ns),
        "throughput": iteration.done / length_s,
        "cpu_percent": None if None in own else 100 * sum(filter(None, own)) / cores,
        "disk_queue": host.get(("Disk queue", "mean length")),
        "write_s": None if write_ms is None else write_ms / 1e3,
        "received_kbps": sum(second.received_bytes for second in seconds) / length_s / 1e3,
        "doubtful": statistics.fmean(not health.good for health in healths),
    }


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


def _timing(seconds: Sequence[Second], labels: Sequence[Mapping[str, str]], sort: str) -> Timing:
    total = Timing()
    for second in seconds:
        for number, timing in second.timings.items():
            if labels[number]["sort"] == sort:
                total.merge(timing)
    return total


# Results


def estimates(observations: Sequence[Observed], metric: str) -> Iterator[tuple[Cell, Any]]:
    """(cell, mean over rounds with its interval) of all cells with at least two rounds that have the metric."""
    cells = {observed.cell.id: observed.cell for observed in observations}
    for name, cell in cells.items():
        values = [o.values[metric] for o in observations if o.cell.id == name and o.values.get(metric) is not None]
        known = [value for value in values if value is not None]
        if len(known) >= 2:
            yield cell, student(known)


def besides(study: Study, observations: Sequence[Observed], differs: Sequence[str] = ()) -> list[Beside]:
    """The paper's tables and figures with our measurements."""
    published = papers.load(study.paper)
    every = (*study.differs, *differs)
    return [beside(published, exhibit, _measured(observations, exhibit.id), every) for exhibit in published.exhibits]


def _measured(observations: Sequence[Observed], exhibit: str) -> dict[paper.Place, dict[int, float]]:
    """Values by round, at each place of a table or figure."""
    metric, place = EXHIBITS[exhibit]
    found: dict[paper.Place, dict[int, float]] = {}
    for observed in observations:
        value, at = observed.values.get(metric), place(observed.cell)
        if value is not None and at is not None:
            found.setdefault(paper.Place(*at), {})[observed.round] = value
    return found


Place = tuple[str, float] | None


def _by_users(cell: Cell) -> Place:
    plain = cell.compress and not cell.kept and cell.sandboxes == 1
    return (cell.generator, float(cell.users)) if plain else None


def _by_kept(cell: Cell) -> Place:
    plain = cell.generator == "sandbox" and cell.compress and cell.sandboxes == 1
    return (f"{cell.users} users", float(cell.kept)) if plain and cell.users in (50, 150) else None


def _by_sandboxes(cell: Cell) -> Place:
    if not cell.compress or cell.kept or cell.users != 50:
        return None
    return ("50 users", 0.0 if cell.generator == "physical" else float(cell.sandboxes))


def _by_compression(cell: Cell) -> Place:
    if cell.kept or cell.sandboxes > 1:
        return None
    return (f"{cell.generator}, {'with' if cell.compress else 'without'}", float(cell.users))


EXHIBITS: dict[str, tuple[str, Callable[[Cell], Place]]] = {
    "fig 4a": ("response_s", _by_users),
    "fig 4b": ("throughput", _by_users),
    "table II": ("cpu_percent", _by_users),
    "table III": ("disk_queue", _by_users),
    "table IV": ("received_kbps", _by_users),
    "fig 5": ("response_s", _by_kept),
    "fig 6": ("throughput", _by_kept),
    "table V": ("write_s", _by_kept),
    "table VI": ("disk_queue", _by_kept),
    "fig 7": ("response_s", _by_sandboxes),
    "fig 8": ("throughput", _by_sandboxes),
    "fig 9": ("response_p90_s", _by_sandboxes),
    "table VII.1": ("cpu_percent", _by_sandboxes),
    "table VII.2": ("disk_queue", _by_sandboxes),
    "fig 10": ("pages_s", _by_compression),
}
"""The metric of each table or figure, and the place of a cell in it."""

UNITS = {metric: unit for metric, (_, unit) in METRICS.items()}


# The overhead model


def think_s(study: Study) -> float | None:
    """The mean of the pause between iterations; None if the study does not define its mean."""
    think = study.think.think
    if think is None or think.file is not None or think.log_normal is not None:
        return None
    if think.uniform is not None:
        return sum(think.uniform) / 2e9
    return (think.exponential if think.exponential is not None else think.constant or 0) / 1e9


def pairs(study: Study, observations: Sequence[Observed], *, compress: bool = True) -> list[Pair]:
    """Rounds in which the same users were measured both ways, with one sandbox and all CPUs.

    Incomplete ones are left out.
    """
    mean_s = think_s(study)
    if mean_s is None:
        return []
    found: dict[tuple[str, int, int], dict[str, float | None]] = {
        (o.cell.generator, o.cell.users, o.round): o.values
        for o in observations
        if o.cell.compress == compress and not o.cell.kept and o.cell.sandboxes == 1
    }
    made = []
    for (generator, users, number), values in sorted(found.items()):
        bare = found.get(("physical", users, number))
        response, used = values["response_s"], values["cpu_percent"]
        if generator == "sandbox" and bare is not None and response and used and bare["response_s"]:
            made.append(Pair(users, mean_s, response, used / 100, bare["response_s"], bare["throughput"]))
    return made
