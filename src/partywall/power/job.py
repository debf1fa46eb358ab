"""What is read: the jobs, from which the commands, the Python functions and the forms are made."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from partywall.core.job import Duration, Job, Option
from partywall.errors import Problem, UsageError
from partywall.power.profiles import PROFILES, find
from partywall.power.values import NodeModel

PLAIN_METER = r"(?!replay|wattsup)[a-z][a-z0-9-]*(:[A-Za-z0-9_.-]+)?"
"""The meters that a browser may name: those of this host, without addresses, passwords and files."""
OF_ONE_TIME = "its readings are of one stretch of time"

For = Annotated[Duration, Option("How long, e.g. 30s.", flag="--for", example="30s")]
Every = Annotated[
    Duration,
    Field(ge=20_000_000),
    Option("Time between two readings of a meter, e.g. 100ms.", flag="--every", example="100ms"),
]


def _meters(keyword: str) -> Option:
    """The meters of a command. keyword: of the Python function."""
    said = "Meters, as 'partywall power meters' names them; such as rapl."
    return Option(said, metavar="METER...", keyword=keyword, page=PLAIN_METER)


class PowerJob(Job):
    """What all jobs have: meters, as `partywall power meters` names them, and the time between two readings."""

    if TYPE_CHECKING:
        # Each job has them, at their places among its own fields.
        meter_names: tuple[str, ...]
        every_ns: int

    @property
    def consumer_names(self) -> tuple[str, ...]:
        """Whose CPU time is read beside the meters."""
        return ()

    @property
    def node(self) -> NodeModel | None:
        """The model whose watts are divided."""
        return None


class ReadJob(PowerJob):
    """Read one or more meters for some time, with the host's CPU time beside them.

    partywall power read rapl nut://ups1@localhost --for 1min

    Exit code: 0 every meter was read, 3 one was not, 2 bad name or option.
    """

    verb: ClassVar[str] = "read"
    cannot_resume: ClassVar[str] = OF_ONE_TIME

    meter_names: Annotated[tuple[str, ...], _meters("meters")]
    for_ns: For = 10_000_000_000
    every_ns: Every = 100_000_000


class CalibrateJob(PowerJob):
    """Fit a power model of this host: watts by busy cores, from a load ladder that Partywall runs itself.

    partywall power calibrate rapl

    Levels (0 to all cores, 25 to 100 % busy) come in random order. The first meter is the one that the model is fitted
    to. The model is written to model.json in the record. It takes some minutes of all CPUs.

    Exit code: 0 left-out levels are predicted within 3 %, 3 they are not, 2 bad name or option.
    """

    verb: ClassVar[str] = "calibrate"
    makes_files: ClassVar[bool] = True

    meter_names: Annotated[tuple[str, ...], _meters("meter")]
    slot_ns: Annotated[
        Duration,
        Option("Length of each level; several times the meter's refresh and lag.", flag="--slot", example="4s"),
    ] = 4_000_000_000
    blocks: Annotated[int, Field(ge=2, le=1000), Option("How often each level is tried.")] = 4
    every_ns: Every = 100_000_000
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), Option("Of the order of levels.")] = 1


class AttributeJob(PowerJob):
    """Show each consumer's watts: containers, guests, services or processes.

    partywall power attribute --meter rapl --model runs/power-calibrate-…/model.json web=pid:1234

    partywall power attribute --model cervera-dl120-g6          no meter: watts of a named profile, marked modelled

    The watts of activity are divided by what each consumer adds to the power, over all orders of switching them on. The
    idle power is shown apart, and divided by two rules.
    """

    verb: ClassVar[str] = "attribute"
    cannot_resume: ClassVar[str] = OF_ONE_TIME

    consumers: Annotated[
        tuple[str, ...],
        Option(
            "pid:NUMBER or a cgroup such as /system.slice/nginx.service; NAME=… names it. "
            "Default: all containers, guests and services.",
            metavar="CONSUMER...",
        ),
    ] = ()
    model: Annotated[
        str, Option("A model file of 'partywall power calibrate', or the name of a profile.", page=r"[a-z0-9-]+")
    ] = ""
    meter_names: Annotated[
        tuple[str, ...],
        Option("A meter for the total; without one it is modelled.", flag="--meter", keyword="meter", page=PLAIN_METER),
    ] = ()
    for_ns: For = 10_000_000_000
    every_ns: Every = 100_000_000

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        if not self.model:
            remedy = f"give a file of 'partywall power calibrate', or a profile: {', '.join(PROFILES)}"
            raise UsageError(Problem("an attribution needs a power model", remedy, key="--model"))
        _ = self.node
        return self

    @property
    def consumer_names(self) -> tuple[str, ...]:
        return self.consumers

    @cached_property
    def node(self) -> NodeModel | None:
        """The model. UsageError if there is none of this name."""
        return find(self.model)
