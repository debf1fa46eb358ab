"""A study of load generation: the same users from a process and from sandboxes, at several numbers, in random rounds.

The format of `*.study.yaml` files, and their observations. `partywall.study.generation.cells` compares them with a
paper.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from partywall.load.document import Step
from partywall.load.monitors import FIGURES
from partywall.study.document import Length, Machines
from partywall.values import Bytes, BytesPerSecond, DurationNs, Frozen, Name

PERCENTILES = (10, 25, 50, 75, 90, 95, 99)
"""Of response times, as the paper's figure 9 has a curve of them."""

SERVICE = {
    "service_cpu_percent": ("CPU time of the service, of all CPUs", "%"),
    "service_waiting": ("its threads that waited for a CPU", "threads"),
    "service_threads": ("its threads", "threads"),
    "service_faults_per_s": ("its page faults", "1/s"),
}
"""What a probe beside the service reads."""

OWN = {
    "response_s": ("response time of an iteration", "s"),
    "response_deviation_s": ("its standard deviation", "s"),
    "response_variation": ("its standard deviation over its mean", ""),
    **{f"response_p{share}_s": (f"its {share}th percentile", "s") for share in PERCENTILES},
    "pages_s": ("response time of the pages alone", "s"),
    "pages_deviation_s": ("its standard deviation", "s"),
    "pages_per_s": ("pages a second", "1/s"),
    "iterations_per_s": ("iterations a second", "1/s"),
    "received_kbps": ("throughput: data received", "10³ bytes/s"),
    "received_deviation_kbps": ("its standard deviation between seconds", "10³ bytes/s"),
    "sent_kbps": ("data sent", "10³ bytes/s"),
    "availability": ("share of seconds in which the service answered in time", ""),
    "errors": ("share of failed requests", ""),
    "cpu_percent": ("CPU time of all generators, a guest's virtual CPUs for guests, of all CPUs", "%"),
    "cpu_percent_each": ("the same of one generator, of all CPUs", "%"),
    "host_side_percent": ("CPU time of the host's side: emulators and softirq, of all CPUs", "%"),
    "emulators_percent": ("CPU time of emulators outside the guests' virtual CPUs, of all CPUs", "%"),
    "softirq_percent": ("CPU time of softirq, of all CPUs", "%"),
    "disk_queue": ("mean disk queue, a guest's own for guests", "requests"),
    "host_disk_queue": ("mean disk queue of the host", "requests"),
    "write_s": ("mean time of a disk write, a guest's own for guests", "s"),
    "host_write_s": ("mean time of a disk write of the host", "s"),
    "guest_memory_gb": ("memory available in a guest", "GB"),
    **SERVICE,
    "doubtful": ("share of doubtful seconds", ""),
}
"""Metrics of the load itself and the paper's tables: (description, unit)."""

COUNTERS = {f"{figure.group}: {figure.name}": (figure.name, figure.unit) for figure in FIGURES}
"""Every figure that `partywall load` derives from the host's counters."""

METRICS = OWN | COUNTERS
"""The metrics of an observation: (description, unit)."""


class Form(Frozen):
    """One length of the study.

    settle: excluded time at the beginning of each hold. disk: the rate of a disk of the generators' own on this host;
    by default their files are on the host's disk, which may be too fast to become the bottleneck.
    """

    rounds: int = Field(ge=2, le=100)
    hold: DurationNs = Field(ge=1_000_000_000)
    settle: DurationNs = 1_000_000_000
    compress: Bytes = Field(description="size of the file that each iteration compresses")
    disk: BytesPerSecond | None = None


class Cell(Frozen):
    """One combination. generator: physical is a process. kept: percent of the CPUs kept for the host.

    tests: like ones at once, each with users, generators and a service of its own; the first is measured.
    """

    generator: Literal["physical", "sandbox"]
    users: int = Field(ge=1, le=100_000)
    compress: bool = True
    kept: int = Field(0, ge=0, le=90)
    sandboxes: int = Field(1, ge=1, le=64)
    tests: int = Field(1, ge=1, le=8)

    @property
    def id(self) -> str:
        parts = [self.generator, f"{self.users} users"]
        parts += [] if self.compress else ["no compression"]
        parts += [f"{self.kept} % of CPUs kept"] if self.kept else []
        parts += [f"{self.sandboxes} sandboxes"] if self.sandboxes > 1 else []
        return ", ".join([*parts, *([f"{self.tests} tests at once"] if self.tests > 1 else [])])

    @property
    def is_single(self) -> bool:
        """Whether it is one test from one generator that may use all CPUs."""
        return not self.kept and self.sandboxes == self.tests == 1

    @property
    def boxes(self) -> int:
        """How many sandboxes there are at a time."""
        return self.sandboxes * self.tests if self.generator == "sandbox" else 0


SetupItem = Literal[
    "machines",
    "processors",
    "memory",
    "load generator",
    "sandboxes",
    "operating system",
    "service",
    "users",
    "numbers of sandboxes",
    "CPUs kept for the host",
    "compressed file",
    "duration of a cell",
]


class Study(Frozen):
    """A study file.

    init, actions, end: the script of a user, as in a plan. An iteration is timed as a whole, without its pauses; each
    cell adds the compression or not. within: a slower response does not count for availability.
    """

    partywall_load_study: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    paper: Name = Field(description="name of the published numbers to compare with")
    init: tuple[Step, ...] = ()
    actions: tuple[Step, ...] = Field(min_length=1)
    end: tuple[Step, ...] = ()
    within: DurationNs = Field(1_000_000_000, gt=0)
    forms: dict[Length, Form]
    cells: tuple[Cell, ...] = Field(min_length=2)
    machines: Machines | None = Field(None, description="default: this host for application and generators")
    setup: dict[SetupItem, str] = Field({}, description="the paper's set-up, shown beside the one here")
    differs: tuple[str, ...] = Field((), description="differences from the paper")


class Observed(Frozen):
    """One cell in one round. values: by metric; None if not measurable. emulated: whether a generator's CPUs were.

    sent: requests that each generator on another machine sent, by machine. clock_error_ns: the largest error of their
    clocks. service: the version of the service; empty if it was not read.
    """

    cell: Cell
    round: int
    values: dict[str, float | None]
    emulated: bool = False
    sent: dict[str, int] = Field({})
    clock_error_ns: int | None = None
    service: str = ""
