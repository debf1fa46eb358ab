"""What is enforced: the job, from which the command and the Python function are made."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, model_validator

from partywall.agent.commands import commands_or_error
from partywall.core.document.textfile import TextFile, told
from partywall.core.job import Duration, Job, Option
from partywall.errors import UsageError
from partywall.guard.check import loads
from partywall.guard.document import Policy


class PolicyFile(TextFile):
    """The file of a policy."""

    WHAT: ClassVar[str] = "policy"
    MODEL: ClassVar[type[BaseModel]] = Policy


def _agents(given: tuple[str, ...]) -> tuple[str, ...]:
    try:
        commands_or_error(given)
    except UsageError as error:
        raise told(error) from None
    return given


class GuardJob(Job):
    """Enforce a policy until Ctrl-C, with a live table. Afterwards the host is as before.

    Exit code: 0 no problem was found; 1 traffic bypassed a hook, a ceiling was exceeded or a hook was lost; 3 no
    problem was found, but reports were lost; 5 guarantees were kept, but --out or --prometheus could not be written
    until the end.
    """

    verb: ClassVar[str] = "run"

    policy: Annotated[PolicyFile, Option("A policy file.", metavar="POLICY", page="")]
    for_ns: Annotated[
        Duration | None, Option("How long, e.g. 30s. Default: until Ctrl-C.", flag="--for", example="30s")
    ] = None
    every_ns: Annotated[Duration, Option("How often to report.", flag="--every", example="1s")] = 1_000_000_000
    wait_for_vifs: Annotated[
        bool, Option("Wait for interfaces, namespaces, sandboxes and domains that do not exist yet.", page="")
    ] = False
    leave: Annotated[
        bool, Option("Keep hooks and rates in the kernel at the end; 'guard remove' removes them.", page="")
    ] = False
    agents: Annotated[
        tuple[str, ...],
        AfterValidator(_agents),
        Option(
            "NAME=COMMAND of an agent in a guest, for vifs with source: NAME/INTERFACE, e.g. vm1='ssh vm1 sudo "
            "partywall-agent serve'.",
            flag="--agent",
            keyword="agents",
            page="",
        ),
    ] = ()

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        _ = self.wanted
        return self

    @property
    def ends(self) -> bool:
        """False without a duration: then Ctrl-C is the end."""
        return self.for_ns is not None

    @cached_property
    def wanted(self) -> Policy:
        """The policy. UsageError with all mistakes in it."""
        return loads(self.policy.text, self.policy.path)

    @cached_property
    def commands(self) -> dict[str, tuple[str, ...]]:
        """The commands of agents in guests, by name."""
        return commands_or_error(self.agents)
