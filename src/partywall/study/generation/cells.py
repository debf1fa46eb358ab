"""Carries out a study of load generation: every cell once in each round, in random order, as a load of some seconds.

One cell in one round gives one observation for each metric. Loads are in `load.measure`, reports in
`study.page`.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from partywall.agent.memory_check import Checks
from partywall.core.design import rounds
from partywall.core.document.formats import validated
from partywall.core.report.latency import known_quantiles
from partywall.core.stats.rounds import student
from partywall.errors import TrialError
from partywall.load import check, monitors
from partywall.load.availability import availability
from partywall.load.compiling import program as compiled
from partywall.load.document import Generator, Step, Think
from partywall.load.health import Health
from partywall.load.lasting import for_guest
from partywall.load.measure import GENERATOR, GUESTS_HOST, SERVER, Monitor, PreparedLoad, Setup
from partywall.load.overhead import Pair
from partywall.load.record import Readings, sample_rows
from partywall.load.second import SECOND_NS, Second, Timing
from partywall.load.tomcat import Service
from partywall.sandbox import Spent
from partywall.sandbox.slow_disk import SlowDisk
from partywall.study import paper, papers
from partywall.study.document import Machines
from partywall.study.generation import machines as elsewhere
from partywall.study.generation.model import COUNTERS, PERCENTILES, Cell, Form, Observed, Study
from partywall.study.pairing import beside, marked
from partywall.study.paper import Beside

RAMP_NS = 500_000_000
QUEUE, WRITE_MS = "Disk queue: mean length", "Disk time: of a write"
OVERHEAD_S = 2.5
"""Time of a cell beside its hold: creating and removing sandboxes."""
GUEST_S = 6.0
"""Additional time for each guest to start."""
MACHINE_S = 1.5
"""Additional time for each connection to another machine."""
WARM_UP_NS = 3 * SECOND_NS
BESIDE_NS = 60 * SECOND_NS
"""How much longer other tests would last: they are ended with the one that is measured."""
SEEDS_APART = 1_000_000
NOT_WHOLE = "this share of the host's CPUs is not a whole number of CPUs"


# Reading


def load(content: bytes, file: str) -> Study:
    """Reads a study file. UsageError with all mistakes in it."""
    study = validated(Study, content, file)
    if study.machines is not None:
        elsewhere.check(study.machines, file)
    return study


def estimate_s(
    form: Form, cells: Sequence[Cell], backend: str = "container", machines: Machines | None = None
) -> float:
    guests_s = sum(cell.boxes for cell in cells) * GUEST_S if backend == "qemu" and machines is None else 0.0
    # Each cell connects to its generators, and to the application.
    connections = sum(1 + len(elsewhere.generators(machines, cell)) for cell in cells) if machines else 0
    each_s = form.hold / 1e9 + RAMP_NS / 1e9
    overhead_s = OVERHEAD_S * sum(cell.tests for cell in cells)
    return form.rounds * (len(cells) * each_s + overhead_s + guests_s + connections * MACHINE_S)


# Measuring


def order(cells: Sequence[Cell], form: Form, seed: int) -> list[tuple[int, Cell]]:
    """(round, cell) in the order of measurement: each round has its own random order."""
    return rounds(cells, form.rounds, seed)


def observe(
    study: Study,
    form: Form,
    services: Sequence[Service],
    cell: Cell,
    round_: int,
    work_root: Path,
    backend: str = "container",
    accel: str = "tcg",
    machines: Machines | None = None,
    checks: Checks | None = None,
    disk: SlowDisk | None = None,
) -> Observed:
    """Measures one cell once. accel: the accelerator of its sandboxes if they are guests of this host.

    services: one for each of its tests; the first is that of the test that is measured.
    checks: of the memory in guests and on other machines. disk: for the generators' files, and the only one to read.
    """
    service, root = services[0], disk.folder if disk else work_root
    figures = monitors.on_disk(HOST_FIGURES, disk.device) if disk else HOST_FIGURES
    setup = replace(
        setup_of(cell, f"study-{study.name}", root, seed=round_ + 1, backend=backend, machines=machines),
        accel=accel,
        inside=True,
        server_pid=service.pid,
    )
    program = _reached(program_of(study, form, service.url, cell), setup)
    # The host's CPUs. A session leaves this process only those that the generators do not use.
    cores = len(os.sched_getaffinity(0))
    neighbours = _others(study, form, services[1 : cell.tests], cell, replace(setup, inside=False, server_pid=None))
    with neighbours as others, PreparedLoad(program, setup, checks) as session:
        seconds: list[Second] = []
        healths: list[Health] = []
        spent: list[tuple[int, Spent]] = []
        for second in session.run():
            for other in others:
                next(other, None)
            if (so_far := session.spent()) is not None:
                spent.append((time.clock_gettime_ns(time.CLOCK_MONOTONIC), so_far))
            if second is not None:
                seconds.append(second)
                healths.append(session.judge(second))
        begin_ns = (session.begin_ns or 0) + RAMP_NS + form.settle
        end_ns = (session.begin_ns or 0) + session.stages_ns
        inside = [s.start_ns >= begin_ns and s.end_ns <= end_ns for s in seconds]
        kept = [second for second, keep in zip(seconds, inside, strict=True) if keep]
        kept_health = [health for health, keep in zip(healths, inside, strict=True) if keep]
        span = (begin_ns, end_ns)
        values = _values(kept, kept_health, session.started["labels"], study.within)
        if setup.generators:
            apart = [session.monitors[name] for name in setup.generators]
            values |= _of_machines([(_means(m, span, HOST_FIGURES), len(m.cpus)) for m in apart], cell)
        else:
            host = _means(session.monitors[GENERATOR], span, figures)
            guests = [_means(session.monitors[name], span) for name in session.guests]
            values |= _of_host(host, cores, cell.sandboxes) | _of_disks(host, guests)
            values["guest_memory_gb"] = _mean([guest.get("Memory: available") for guest in guests])
            rate = _rate(spent, span)
            values |= _of_host_side(rate.host_side if rate else None, host, cores, guests=bool(guests))
            values |= _of_processors(rate.guest if rate else None, cores, cell.sandboxes) if guests else {}
        values |= _of_service(_means(session.monitors[SERVER], span, monitors.SERVICE_FIGURES), service.cpus)
        return Observed(
            cell=cell,
            round=round_,
            values=values,
            emulated=bool(session.emulated),
            sent=_sent(seconds, setup.generators),
            clock_error_ns=max(session.clock_errors_ns.values(), default=None),
            service=service.version,
        )


def _reached(program: dict[str, Any], setup: Setup) -> dict[str, Any]:
    """A program with the addresses at which a guest reaches this host's services."""
    return program | {"addresses": for_guest(program, GUESTS_HOST)} if setup.backend == "qemu" else program


@contextlib.contextmanager
def _others(
    study: Study, form: Form, services: Sequence[Service], cell: Cell, setup: Setup
) -> Iterator[list[Iterator[Second | None]]]:
    """Tests that run beside the one that is measured, and are not: each is to be asked for its seconds meanwhile.

    They begin before it and end after it.
    """
    longer = form.model_copy(update={"hold": form.hold + BESIDE_NS})
    with contextlib.ExitStack() as sessions:
        running = []
        for number, service in enumerate(services, 1):
            own = replace(setup, name=f"{setup.name}-{number}", seed=setup.seed + SEEDS_APART * number)
            program = _reached(program_of(study, longer, service.url, cell), own)
            running.append(sessions.enter_context(PreparedLoad(program, own)).run())
        for each in running:
            next(each)
        yield running


def warm_up(study: Study, form: Form, service: Service, machines: Machines, work_root: Path) -> None:
    """One user on each machine for some seconds, so that the service has compiled its pages.

    UsageError if a generator cannot reach the service.
    """
    everyone = elsewhere.every(machines)
    cell = Cell(generator="physical", users=len(everyone), compress=False)
    program = program_of(study, form.model_copy(update={"hold": WARM_UP_NS}), service.url, cell)
    with PreparedLoad(program, Setup(f"study-{study.name}", (), work_root=work_root, generators=everyone)) as session:
        for _ in session.run():
            pass


def _sent(seconds: Sequence[Second], generators: Mapping[str, Generator]) -> dict[str, int]:
    """Requests that each generator on another machine sent, by its machine."""
    if len(generators) == 1:
        return {there.place: sum(second.requests for second in seconds) for there in generators.values()}
    parts = {there.place: [second.parts.get(name) for second in seconds] for name, there in generators.items()}
    return {place: sum(part.requests for part in each if part is not None) for place, each in parts.items()}


def setup_of(
    cell: Cell, name: str, work_root: Path, *, seed: int, backend: str, machines: Machines | None = None
) -> Setup:
    """The generator's CPUs: all except those kept for the host, and at least one; on other machines all."""
    if machines is not None:
        return Setup(
            name=name,
            cpus=(),
            seed=seed,
            work_root=work_root,
            generators=elsewhere.generators(machines, cell),
            server_host=machines.application,
        )
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    kept = kept_of(cell, len(cpus))
    return Setup(
        name=name,
        cpus=cpus[kept:],
        seed=seed,
        work_root=work_root,
        backend="process" if cell.generator == "physical" else backend,
        sandboxes=cell.sandboxes,
        # As the paper's Dom-0, the host's side shares the CPUs that it does not have alone.
        host_cpus=cpus,
    )


def kept_of(cell: Cell, cpus: int) -> int:
    """How many of the host's CPUs are kept from the generator."""
    return min(round(cpus * cell.kept / 100), cpus - 1)


def why_not(cell: Cell, cpus: int, machines: Machines | None = None) -> str:
    """Why a cell is not measured on a host with so many CPUs, or on other machines; empty if it is."""
    if machines is not None:
        return elsewhere.why_not(machines, cell)
    # By less than one percent, so that 33 % may be one of three.
    is_whole = abs(100 * kept_of(cell, cpus) / cpus - cell.kept) < 1
    return "" if is_whole else NOT_WHOLE


def possible(study: Study, cpus: int, machines: Machines | None = None) -> tuple[Cell, ...]:
    """The cells without those that cannot differ from another one, or for which there are too few machines."""
    return tuple(cell for cell in study.cells if not why_not(cell, cpus, machines))


def program_of(study: Study, form: Form, url: str, cell: Cell) -> dict[str, Any]:
    """What the cell's users do: the study's script, and the compression if the cell has it, timed together."""
    init, steps, end = (_dumped(part) for part in (study.init, study.actions, study.end))
    if cell.compress:
        # In the paper each user is a thread, and works on its own file.
        steps.append({"compress": {"size": form.compress, "threads": cell.users}})
    user = {"init": init, "actions": [{"transaction": {"name": "iteration", "steps": steps}}], "end": end}
    text = json.dumps(
        {
            "partywall_load": 1,
            "name": study.name,
            "base": url,
            "users": {"user": {name: part for name, part in user.items() if part}},
            "closed": {"users": cell.users, "ramp_up": f"{RAMP_NS}ns", "hold": f"{form.hold}ns"},
            "grace": "5s",
        }
    )
    return compiled(check.loads(text.encode(), f"{study.name}: {cell.id}", Path()))


def _dumped(steps: Sequence[Step]) -> list[Any]:
    return [step.model_dump(by_alias=True, exclude_defaults=True, mode="json") for step in steps]


def _values(
    seconds: Sequence[Second],
    healths: Sequence[Health],
    labels: Sequence[Mapping[str, str]],
    within_ns: int,
) -> dict[str, float | None]:
    """The metrics of the load itself."""
    if not seconds:
        raise TrialError("no whole second of the load was recorded; give it a `hold` of at least 2s")
    iteration, pages = _timing(seconds, labels, "transaction"), _timing(seconds, labels, "http")
    length_s = sum(second.length_s for second in seconds)
    received = [second.received_bytes / second.length_s / 1e3 for second in seconds]
    tops = known_quantiles(iteration.corrected, [share / 100 for share in PERCENTILES])
    requests = [number for number, label in enumerate(labels) if label["sort"] == "http"]
    mean, deviation = iteration.mean_ns, iteration.deviation_ns
    return {
        "response_s": _seconds(mean),
        "response_deviation_s": _seconds(deviation),
        "response_variation": deviation / mean if mean and deviation is not None else None,
        **{f"response_p{share}_s": _seconds(top) for share, top in zip(PERCENTILES, tops, strict=True)},
        "pages_s": _seconds(pages.mean_ns),
        "pages_deviation_s": _seconds(pages.deviation_ns),
        "pages_per_s": pages.done / length_s,
        "iterations_per_s": iteration.done / length_s,
        "received_kbps": sum(second.received_bytes for second in seconds) / length_s / 1e3,
        "received_deviation_kbps": statistics.stdev(received) if len(received) > 1 else None,
        "sent_kbps": sum(second.sent_bytes for second in seconds) / length_s / 1e3,
        "availability": availability(seconds, requests, within_ns),
        "errors": pages.failed / max(1, pages.done + pages.failed),
        "doubtful": statistics.fmean(not health.good for health in healths),
    }


Means = Mapping[str, float | None]
"""The mean of each figure, by its group and name."""
HOST_FIGURES = (*monitors.FIGURES, monitors.SOFTIRQ)


def _means(
    monitor: Monitor, span: tuple[int, int], figures: Sequence[monitors.Figure] = monitors.FIGURES
) -> dict[str, float | None]:
    begin_ns, end_ns = span
    readings = Readings("", monitor.counters, monitor.readings)
    rows = [row for row in sample_rows(readings) if begin_ns - SECOND_NS <= row["at_ns"] <= end_ns]
    every = monitors.series(rows, begin_ns, figures)
    return {f"{series.group}: {series.name}": series.mean for series in every if series.points}


class Used(NamedTuple):
    """CPUs used by guests and by the host's side of them."""

    guest: float
    host_side: float


def _rate(readings: Sequence[tuple[int, Spent]], span: tuple[int, int]) -> Used | None:
    """CPUs used between the first and the last reading (time, CPU time) within a span; None with fewer than two."""
    inside = [reading for reading in readings if span[0] <= reading[0] <= span[1]]
    if len(inside) < 2:
        return None
    (begin_ns, before), (end_ns, after) = inside[0], inside[-1]
    length_ns = end_ns - begin_ns
    return Used((after.guest_ns - before.guest_ns) / length_ns, (after.host_side_ns - before.host_side_ns) / length_ns)


def _of_host_side(emulators: float | None, host: Means, cores: int, *, guests: bool) -> dict[str, float | None]:
    """The paper's Dom-0: what the host spends on the generators' machines. Without guests, softirq alone."""
    softirq = host.get("CPU: packets and timers")
    parts = [softirq, emulators] if guests else [softirq]
    return {
        "host_side_percent": None if None in parts else 100 * sum(filter(None, parts)) / cores,
        "emulators_percent": None if emulators is None else 100 * emulators / cores,
        "softirq_percent": None if softirq is None else 100 * softirq / cores,
    }


def _of_machines(machines: Sequence[tuple[Means, int]], cell: Cell) -> dict[str, float | None]:
    """The metrics of the machines with the generators, each with its CPUs: means over the machines.

    The hosts of sandboxes on other machines are not read, so their side is not known.
    """
    guests = cell.generator == "sandbox"
    each = [
        _of_host(means, cpus, sandboxes=1) | _of_host_side(None, means, cpus, guests=guests) for means, cpus in machines
    ]
    means = [means for means, _ in machines]
    disks = _of_disks({}, means) if guests else _of_disks(means[0], [])
    return {name: _mean([values[name] for values in each]) for name in each[0]} | disks


def _of_disks(host: Means, guests: Sequence[Means]) -> dict[str, float | None]:
    """Disk queue and write time where the generator is: of the guests if there are any, and of the host."""
    own = {name: [guest.get(name) for guest in guests] or [host.get(name)] for name in (QUEUE, WRITE_MS)}
    queue, write_ms = (_mean(own[name]) for name in (QUEUE, WRITE_MS))
    host_ms = host.get(WRITE_MS)
    return {
        "disk_queue": queue,
        "write_s": None if write_ms is None else write_ms / 1e3,
        "host_disk_queue": host.get(QUEUE) if guests else None,
        "host_write_s": host_ms / 1e3 if guests and host_ms is not None else None,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _of_service(service: Means, cores: int) -> dict[str, float | None]:
    used = service.get("Service: CPU time")
    return {
        "service_cpu_percent": None if used is None else 100 * used / cores,
        "service_waiting": service.get("Service: waited for a CPU"),
        "service_threads": service.get("Service: threads"),
        "service_faults_per_s": service.get("Service: page faults"),
    }


def _of_host(host: Mapping[str, float | None], cores: int, sandboxes: int) -> dict[str, float | None]:
    """The metrics from the host's counters: those of the paper's tables, and all others under their own names."""
    own = [host.get(f"Generator's process: {what}") for what in ("programs", "kernel")]
    used = None if None in own else sum(filter(None, own))
    return {**{name: host.get(name) for name in COUNTERS}, **_of_processors(used, cores, sandboxes)}


def _of_processors(used: float | None, cores: int, sandboxes: int) -> dict[str, float | None]:
    """The generators' share of all CPUs. used: CPUs; of guests those that their virtual CPUs used, as they see it."""
    share = None if used is None else 100 * used / cores
    return {"cpu_percent": share, "cpu_percent_each": None if share is None else share / sandboxes}


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


def comparisons(study: Study, observations: Sequence[Observed], differs: Sequence[str] = ()) -> list[Beside]:
    """The paper's tables and figures with our measurements."""
    published = papers.load(study.paper)
    every = (*study.differs, *differs)
    return [
        marked(
            beside(
                published,
                paper_table,
                _measured(observations, paper_table.id),
                every,
                deviations=_deviations(observations, paper_table.id),
            ),
            "victim",
            _measured([observed for observed in observations if observed.emulated], paper_table.id),
        )
        for paper_table in published.exhibits
    ]


def places(study: Study, paper_table: str) -> frozenset[paper.Place]:
    """The places of a table or figure that the study's cells measure."""
    listed = (place(cell) for _, place in TABLES[paper_table] for cell in study.cells)
    return frozenset(paper.Place(*at) for at in listed if at is not None)


def _measured(observations: Sequence[Observed], paper_table: str) -> dict[paper.Place, dict[int, float]]:
    """Values by round, at each place of a table or figure."""
    by_place: dict[paper.Place, dict[int, float]] = {}
    for metric, place in TABLES[paper_table]:
        for observed in observations:
            value, at = observed.values.get(metric), place(observed.cell)
            if value is not None and at is not None:
                by_place.setdefault(paper.Place(*at), {})[observed.round] = value
    return by_place


def _deviations(observations: Sequence[Observed], paper_table: str) -> dict[paper.Place, float]:
    """The mean standard deviation of single values at each place, for figures whose metric has one."""
    metric, place = TABLES[paper_table][0]
    if metric not in DEVIATIONS:
        return {}
    by_place: dict[paper.Place, list[float]] = {}
    for observed in observations:
        value, at = observed.values.get(DEVIATIONS[metric]), place(observed.cell)
        if value is not None and at is not None:
            by_place.setdefault(paper.Place(*at), []).append(value)
    return {at: statistics.fmean(values) for at, values in by_place.items()}


Place = tuple[str, float | str] | None


def _by_users(cell: Cell) -> Place:
    return (cell.generator, float(cell.users)) if cell.compress and cell.is_single else None


def _by_kept(cell: Cell) -> Place:
    plain = cell.generator == "sandbox" and cell.compress and cell.sandboxes == 1 and cell.tests == 1
    return (f"{cell.users} users", float(cell.kept)) if plain and cell.users in (50, 150) else None


def _by_sandboxes(cell: Cell) -> Place:
    if not cell.compress or cell.kept or cell.users != 50 or cell.tests > 1:
        return None
    return ("50 users", 0.0 if cell.generator == "physical" else float(cell.sandboxes))


def _by_sandboxes_at_full_load(cell: Cell) -> Place:
    """By sandboxes, and the most users of the paper in one."""
    if cell.users == 150 and cell.generator == "sandbox" and _by_users(cell) is not None:
        return ("150 users", 1.0)
    return _by_sandboxes(cell)


def _as_well(place: Callable[[Cell], Place], metric: str) -> Callable[[Cell], Place]:
    """The same places as a series of its own, for another metric."""

    def of_metric(cell: Cell) -> Place:
        at = place(cell)
        return None if at is None else (f"{at[0]}, {metric}", at[1])

    return of_metric


def _beside(place: Callable[[Cell], Place]) -> Callable[[Cell], Place]:
    """The same places as another series: what the host's counters say meanwhile."""
    of_host = _as_well(place, "host")
    return lambda cell: None if cell.generator == "physical" else of_host(cell)


def _in_guest(cell: Cell) -> Place:
    return ("guest", float(cell.users)) if cell.generator == "sandbox" and _by_users(cell) is not None else None


def _write_of(whose: str) -> Callable[[Cell], Place]:
    """A write of 50 users in one sandbox, as its generator or its host sees it."""

    def place(cell: Cell) -> Place:
        return ("a write", whose) if cell.generator == "sandbox" and _by_sandboxes(cell) == ("50 users", 1.0) else None

    return place


def _by_generator(metric: str) -> Callable[[Cell], Place]:
    """A series for a metric, at the paper's most users."""

    def place(cell: Cell) -> Place:
        return (metric, cell.generator) if cell.users == 150 and _by_users(cell) is not None else None

    return place


def _by_compression(cell: Cell) -> Place:
    if not cell.is_single:
        return None
    return (f"{cell.generator}, {'with' if cell.compress else 'without'}", float(cell.users))


def _by_tests(cell: Cell) -> Place:
    if cell.generator == "physical" or cell.kept or cell.sandboxes > 1 or cell.users != 50:
        return None
    return ("with compression" if cell.compress else "without", float(cell.tests))


def _at_percentile(share: int) -> Callable[[Cell], Place]:
    def place(cell: Cell) -> Place:
        if _by_sandboxes(cell) is None:
            return None
        return ("physical" if cell.generator == "physical" else _count_text(cell.sandboxes), float(share))

    return place


def _count_text(sandboxes: int) -> str:
    return "1 sandbox" if sandboxes == 1 else f"{sandboxes} sandboxes"


Rule = tuple[str, Callable[[Cell], Place]]

TABLES: dict[str, tuple[Rule, ...]] = {
    "section I (tests at once)": (("response_s", _by_tests),),
    "section II.A (availability)": (("availability", _by_users),),
    "section II.A (memory)": (("Memory: available", _by_users), ("guest_memory_gb", _in_guest)),
    "section III (disk)": (("write_s", _write_of("in the guest")), ("host_write_s", _write_of("on its host"))),
    "section IV.A (pages)": (
        ("pages_per_s", _as_well(_by_users, "pages")),
        ("iterations_per_s", _as_well(_by_users, "iterations")),
    ),
    "section IV.A (metrics)": tuple(
        (metric, _by_generator(f"{metric} ({unit})")) for metric, (_, unit) in COUNTERS.items()
    ),
    "fig 4a": (("response_s", _by_users),),
    "fig 4a (spread)": (("response_deviation_s", _by_users),),
    "fig 4b": (("received_kbps", _by_users),),
    "table II": (("cpu_percent", _by_users),),
    "table III": (("disk_queue", _by_users), ("host_disk_queue", _beside(_by_users))),
    "table IV": (("received_kbps", _by_users),),
    "fig 5": (("response_s", _by_kept),),
    "fig 6": (("received_kbps", _by_kept),),
    "table V": (("write_s", _by_kept), ("host_write_s", _beside(_by_kept))),
    "table VI": (("disk_queue", _by_kept), ("host_disk_queue", _beside(_by_kept))),
    "fig 7": (("response_s", _by_sandboxes),),
    "fig 7 (spread)": (("response_deviation_s", _by_sandboxes),),
    "fig 8": (("received_kbps", _by_sandboxes),),
    "fig 9": tuple((f"response_p{share}_s", _at_percentile(share)) for share in PERCENTILES),
    "table VII.1": (("cpu_percent_each", _by_sandboxes), ("cpu_percent", _as_well(_by_sandboxes, "all"))),
    "table VII.2": (("disk_queue", _by_sandboxes), ("host_disk_queue", _beside(_by_sandboxes))),
    "fig 10": (("pages_s", _by_compression),),
    "section V": (("host_side_percent", _by_sandboxes_at_full_load),),
    "section VI (switches)": (("Switches: context switches", _by_sandboxes),),
}
"""The metrics of each table or figure, each with the place of a cell in it."""

DEVIATIONS = {
    "response_s": "response_deviation_s",
    "pages_s": "pages_deviation_s",
    "received_kbps": "received_deviation_kbps",
}
"""Metrics with a standard deviation of single values, which charts show beside the interval of the mean."""

# The overhead model


def think_s(study: Study) -> float | None:
    """The mean of all pauses of an iteration; None if the study does not define it."""
    means = [_mean_s(step.think) for step in study.actions if step.think is not None]
    return None if None in means else sum(filter(None, means))


def _mean_s(think: Think) -> float | None:
    if think.file is not None or think.log_normal is not None:
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
    known = {
        (o.cell.generator, o.cell.users, o.round): o
        for o in observations
        if o.cell.compress == compress and o.cell.is_single
    }
    made = []
    for (generator, users, number), observed in sorted(known.items(), key=lambda item: item[0]):
        bare = known.get(("physical", users, number))
        response, used = observed.values["response_s"], observed.values["cpu_percent"]
        if generator == "sandbox" and bare is not None and response and used and bare.values["response_s"]:
            physical = bare.values["response_s"], bare.values["iterations_per_s"]
            made.append(Pair(users, mean_s, response, used / 100, *physical, emulated=observed.emulated))
    return made
