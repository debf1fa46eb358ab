"""The format of a scenario file: victims, aggressors, sandboxes, factors, goals, precision and budget.

The JSON Schema for editors is generated from these types. `partywall.run.check` reads files and checks across keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from partywall import units
from partywall.agent.metric import Metric
from partywall.host.settings.held import HostSettings
from partywall.load.document import Load, url_or_plan
from partywall.sandbox.document import File, Sandbox, path_or_file
from partywall.values import (
    Bytes,
    BytesPerSecond,
    DurationNs,
    Frozen,
    Level,
    Name,
    Rate,
    Ratio,
    Share,
)


class Passing(Frozen):
    """A migration that passes by, as one host sees it: QEMU sends a guest's memory, or receives it, again and again.

    The host at the other end is not simulated. The guest stands still.
    """

    role: Literal["source", "destination"] = Field(description="the end of the migration that is on this host")
    memory: Bytes = Field(256 << 20, ge=64 << 20, le=3 << 30, description="of the guest, e.g. 1GiB; at most 3GiB")
    content: Share = Field(1.0, description="share of the memory that is not zero; zero pages are only looked at")
    rate: Rate = Field(10**9, description="of the link, e.g. 10Gbit/s")
    dirty: BytesPerSecond | None = Field(
        None, description="memory that changes while it is sent and so is sent again, e.g. 16MiB/s; less than the rate"
    )

    @property
    def bytes_per_s(self) -> float:
        """What the link carries."""
        return self.rate / 8

    @property
    def resent(self) -> float:
        """Bytes that change for each byte that is sent; below 1, or the migration never ends."""
        return (self.dirty or 0) / self.bytes_per_s

    @property
    def held_bytes(self) -> int:
        """Memory that it uses: QEMU with its guest and, on a destination, the stream that arrives again and again.

        Zero pages need none.
        """
        copies = 1 + (1 / (1 - self.resent) if self.role == "destination" else 0)
        return PASSING_BYTES + round(self.memory * self.content * copies)


PASSING_BYTES = 96 << 20
"""QEMU without its guest's memory, and the program that drives it. Measured with QEMU 7.2: 81 MiB."""
MOVED = Metric(regex=r"moved (\d+)", kind="total", unit="B/s")
"""How a passing migration reports the bytes of its stream."""


class Workload(Frozen):
    """A built-in kernel with its parameters, a user's command, or virtual users."""

    params: dict[str, Any] = Field(default_factory=dict, description="parameters of the kernel, see docs/kernels")
    threads: int = Field(1, ge=1, le=1024)
    command: tuple[str, ...] | None = Field(None, description="program and arguments; no shell. Needs --allow-commands")
    load: Annotated[Load, BeforeValidator(url_or_plan)] | None = Field(
        None, description="virtual users against a service: a URL, a plan, or keys; process and container sandboxes"
    )
    env: dict[str, str] = Field(default_factory=dict)
    files: tuple[Annotated[File, BeforeValidator(path_or_file)], ...] = Field(
        (), description="your own files for the command, copied into its working directory before each trial"
    )
    version: tuple[str, ...] | None = Field(
        None, description="program and arguments that print the command's version; the first line is recorded"
    )
    metric: Metric | None = None
    settle: DurationNs | None = Field(
        None,
        description="how long after a switch a neighbour still feels the previous state; default: the kernel's own",
    )
    sandbox: Sandbox = Sandbox()

    @property
    def is_program(self) -> bool:
        """True if it is a group of processes that is switched by stopping and continuing it."""
        return self.command is not None

    @property
    def readings(self) -> Metric | None:
        """How to read its progress from its output; None if it prints none."""
        return self.metric


class Victim(Workload):
    """The sandbox that is measured."""

    probe: str | None = Field(None, description="kernel, e.g. memory-copy")


class Aggressor(Workload):
    """A sandbox that runs a stressor or a noisy command."""

    stressor: str | None = Field(None, description="kernel, e.g. memory-copy")
    migration: Passing | None = Field(None, description="a migration that passes by; process sandboxes; needs QEMU")
    intensity: tuple[Share, ...] = Field(
        (1.0,), min_length=1, description="shares of the time in which it runs flat out"
    )
    together: tuple[Name, ...] = Field(
        (), description="other aggressors that run at full intensity whenever this one runs"
    )

    @property
    def is_program(self) -> bool:
        return self.migration is not None or super().is_program

    @property
    def readings(self) -> Metric | None:
        return MOVED if self.migration is not None else super().readings


class Goal(Frozen):
    """A threshold that decides the verdict of every matching cell."""

    victim: str = Field("*", description="name or pattern")
    aggressor: str = Field("*", description="name or pattern")
    isolation_factor: Share | None = Field(None, description="at least this")
    latency_impact_p99: Annotated[float, Field(ge=0), BeforeValidator(units.parse_share)] | None = Field(
        None, description="at most this: 0.1 or 10% is 10 % slower at the 99th percentile"
    )
    latency_p99: DurationNs | None = Field(None, description="99th percentile at most this, e.g. 2ms")
    efficiency: tuple[Ratio, Ratio] | None = Field(None, description="q between these")

    @property
    def is_about_neighbours(self) -> bool:
        """Whether it judges what a neighbour does to a victim."""
        return self.efficiency is None


SWITCH_AFTER_NS = 200_000
"""Time between the end of a slot and the next treatment.

A victim's slice ends with the first operation beyond the slot. This operation must not be affected by the next
treatment.
"""


class Timing(Frozen):
    """Lengths of time. The defaults suit most hosts; a run lengthens slots that prove too short.

    Slots are as short as slices allow, because the noise between adjacent slots decreases with the time between them.
    """

    slice: DurationNs = Field(2_000_000, ge=1_000_000)
    slot: DurationNs = Field(
        4_000_000,
        ge=4_000_000,
        description="least measured part of a slot, after the guard; short slots are never shorter than "
        "the guards between them, nor than two slices",
    )
    guard: DurationNs = Field(2_000_000, ge=0, description="least excluded time between slots")
    long: DurationNs = Field(
        60_000_000,
        ge=20_000_000,
        description="as slot, for long blocks, in which counters are read and carry-over is tested",
    )
    slot_max: DurationNs = Field(
        4_000_000_000, description="longest slot to which slots with carry-over are lengthened"
    )


class Scenario(Frozen):
    """A scenario file."""

    partywall: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    victims: dict[Name, Victim] = Field(min_length=1)
    aggressors: dict[Name, Aggressor] = Field(default_factory=dict)
    factors: dict[str, tuple[Level, ...]] = Field(
        default_factory=dict,
        description="settings to vary: a path such as victim.sandbox.cpu_limit, aggressor.params.block_bytes, "
        "victims.NAME.params.x or sandbox.backend, and its levels; all combinations are measured",
    )
    goals: tuple[Goal, ...] = ()
    precision: Share = Field(
        0.01, description="half-width of the interval of each isolation factor at which a trial may end early"
    )
    budget: DurationNs = Field(120_000_000_000, description="measuring time of the whole run")
    aim: Literal["precision", "decision"] = Field(
        "precision",
        description="what time is spent on. precision: equally narrow intervals; decision: neighbours whose effect is "
        "not known yet",
    )
    budget_grows: Share | None = Field(
        None,
        le=0.5,
        description="share by which the budget grows if the intervals of many neighbours are too wide at its end",
    )
    min_blocks: int = Field(20, ge=8)
    timing: Timing = Timing()
    idle: Literal["sleep", "poll"] = Field(
        "sleep", description="what this host's CPUs do while idle; polling CPUs wake up without delay"
    )
    host: HostSettings = HostSettings()
    seed: int = 1

    @field_validator("factors")
    @classmethod
    def _switches(cls, varied: dict[str, tuple[Level, ...]]) -> dict[str, tuple[Level, ...]]:
        """Levels of a switch as words, so that reports do not show `False`."""
        return {
            path: tuple(map(units.switch_as_text, levels)) if path == "host.smt" else levels
            for path, levels in varied.items()
        }
