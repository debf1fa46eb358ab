"""What containers' limits keep on a stock host: ceilings, weights and disk ceilings switched live, and memory.

A figure is held against its promise. Where the rate misses it, the CPU time that the kernel accounted to the container
says whether the limit or the emulated processor is the reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from labs.hosts.bench import MEASURED, Bench, FailedError, expect
from partywall.run import stages
from partywall.run.record import RunDirectory
from partywall.run.values.evidence import Evidence
from partywall.run.values.finding import Cell

POINTS = 0.03
CEILINGS = (0.1, 0.25, 0.5, 0.75)
WEIGHTS = {50.0, 100.0, 300.0}
# In the short form, whose intervals are wide.
POINTS_SHORT = 0.08
USED = "victim.cgroup_cpu_usage_ns"
# What these kernels tell and others do not: pressure by cgroup, and the time threads waited for a CPU.
REPORTED = ("victim.cgroup_cpu_pressure_some_ns", "victim.process_run_queue_wait_ns")
MEMORY_KILLED = "it hit its memory limit of 64 MiB"


@dataclass(frozen=True)
class Kept:
    """What one limit kept. half: of the 95 % interval. used: the same by the kernel's account of CPU time, or None.

    A ceiling is a share of a CPU. A weight is a share of the victim's rate without its neighbour: on one CPU, the
    controller takes a part from both. points: how far a figure may be from its promise.
    """

    name: str
    promised: float
    kept: float
    half: float
    used: float | None
    points: float = POINTS

    @property
    def holds(self) -> bool:
        """Whether the limit is what was promised.

        The kernel's account of CPU time decides, where it is kept: what lies between it and the rate is the emulated
        processor, whose speed wanders. Else the rate decides.
        """
        return abs((self.kept if self.used is None else self.used) - self.promised) <= self.points

    def __str__(self) -> str:
        used = "" if self.used is None else f", CPU time {self.used:.1%}"
        return f"{self.name}: promised {self.promised:.1%}, kept {self.kept:.1%} ± {self.half:.1%}{used}"


def judged(kept: Sequence[Kept]) -> str:
    """What was kept, on one line. FailedError if it is not what was promised."""
    said = "; ".join(map(str, kept))
    expect(all(limit.holds for limit in kept), said)
    return said


def measured(bench: Bench, *, quick: bool) -> list[Kept]:
    """All that was promised and kept. FailedError if a memory limit did not hold."""
    kept = [*_ceilings(bench), *_weights(bench)]
    if not quick:
        kept += _disk(bench)
        _memory(bench)
    return kept


def short(bench: Bench, scenario: str = "limits", timeout_s: float = 900) -> list[Kept]:
    """One ceiling and one weight, in one run."""
    evidence, cells = _run(bench, scenario, timeout_s)
    by_treatment = {cell.treatment: cell for cell in cells if cell.isolation}
    ceiling, weight = by_treatment["cpu_limit=0.5"], by_treatment["beside@1"]
    kept = [
        _kept("ceiling of 50 %", 0.5, ceiling, _used(evidence, ceiling.treatment)),
        _kept("weight of 300 to 100", 0.75, weight, _share(evidence, weight)),
    ]
    return [replace(limit, points=POINTS_SHORT) for limit in kept]


def _ceilings(bench: Bench) -> Iterator[Kept]:
    evidence, cells = _run(bench, "ceilings")
    read = {name for seen in evidence.observations.values() for observation in seen for name in observation.counters}
    if unread := [name for name in REPORTED if name not in read]:
        raise FailedError(f"this kernel tells {', '.join(unread)}, and the run holds no such counter")
    by_treatment = {cell.treatment: cell for cell in cells if cell.role == "limit" and cell.isolation}
    for ceiling in CEILINGS:
        treatment = f"cpu_limit={ceiling:g}"
        if treatment not in by_treatment:
            raise FailedError(f"the run has no figure for {treatment}; it has {', '.join(by_treatment) or 'none'}")
        yield _kept(f"ceiling {ceiling:.0%}", ceiling, by_treatment[treatment], _used(evidence, treatment))


def _weights(bench: Bench) -> Iterator[Kept]:
    """100 against 100 is in the plan unasked: the neighbour beside the victim as it was made."""
    evidence, cells = _run(bench, "weights")
    beside = [cell for cell in cells if cell.aggressor == "beside" and cell.isolation]
    by_weight = {float(cell.treatment.partition("cpu_weight=")[2] or 100): cell for cell in beside}
    if set(by_weight) != WEIGHTS:
        raise FailedError(f"the run has figures for the weights {sorted(by_weight)}, not {sorted(WEIGHTS)}")
    for weight, cell in by_weight.items():
        yield _kept(f"weight {weight:g} to 100", weight / (weight + 100), cell, _share(evidence, cell))


def _disk(bench: Bench) -> Iterator[Kept]:
    _, cells = _run(bench, "disk")
    if not any(cell.role == "limit" and cell.efficiency for cell in cells):
        raise FailedError("the run has no figure for a disk ceiling")
    for cell in cells:
        if cell.role == "limit" and cell.efficiency:
            half = (cell.efficiency.high - cell.efficiency.low) / 2
            yield Kept(f"disk {cell.treatment.partition('=')[2]}", 1, cell.efficiency.value, half, None)


def _memory(bench: Bench) -> None:
    output = bench.shell(
        "rm -rf memory; partywall run /opt/try/scenarios/memory.yaml --allow-commands --out memory", 300
    )
    # A terminal breaks lines.
    if MEMORY_KILLED not in " ".join(output.text.split()):
        raise FailedError(f"a command with 64 MiB took 128: exit code {output.code}: {output.last}")


def _run(bench: Bench, name: str, timeout_s: float = 900) -> tuple[Evidence, Sequence[Cell]]:
    bench.shell(f"rm -rf {name}")
    bench.partywall(f"run /opt/try/scenarios/{name}.yaml --out {name}", *MEASURED, timeout_s=timeout_s)
    with bench.taken(name) as folder:
        evidence, findings = stages.analyse(RunDirectory(folder))
    return evidence, findings.cells


def _used(evidence: Evidence, treatment: str) -> float | None:
    counters = [o.counters for seen in evidence.observations.values() for o in seen if o.treatment == treatment]
    read = [values[USED] / 1e9 for values in counters if USED in values]
    return statistics.mean(read) if read else None


def _share(evidence: Evidence, cell: Cell) -> float | None:
    """CPU time beside a neighbour, of that without it."""
    beside, alone = _used(evidence, cell.treatment), _used(evidence, cell.baseline)
    return beside / alone if beside and alone else None


def _kept(name: str, promised: float, cell: Cell, used: float | None) -> Kept:
    factor = cell.isolation
    return Kept(name, promised, factor.value, (factor.high - factor.low) / 2, used)
