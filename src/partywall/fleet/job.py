"""What is measured on which hosts, and in which order: the jobs, from which commands and Python functions are made."""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from partywall.core.document.formats import FORMATS, format_key
from partywall.core.document.shipped import find, shipped_as
from partywall.core.document.textfile import KeptFile, told
from partywall.core.job import Duration, Job, Option
from partywall.errors import UsageError
from partywall.fleet import inventory
from partywall.fleet.inventory import Place
from partywall.values import Frozen, Share

if TYPE_CHECKING:
    from partywall.run.document.scenario import Scenario
    from partywall.study import Kind

HERE = "localhost"
"""An inventory of this name is this host alone, which needs no ssh."""

MARK = "fleet.json"
"""The file that identifies the record of a fleet."""


@dataclass(frozen=True)
class Subject:
    """What every host measures. verb: the command for it; loads: what it does to a host.

    seconds: it takes; 0 if only a host could tell. goals: whether it may violate one.
    """

    verb: str
    name: str
    loads: str
    seconds: float = 0.0
    goals: bool = False


class SubjectFile(KeptFile):
    """A scenario or a study: a file, or the name of one that ships with Partywall, with its text.

    It is no `TextFile`, because an editor on the web page could not name the hosts.
    """

    WHAT: ClassVar[str] = "scenario or study"

    @classmethod
    def found(cls, given: str | Path) -> Path:
        name, known = str(given), shipped_as(lambda key: FORMATS[key].kind in ("run", "study"))
        return find(f"papers/{name}" if f"papers/{name}" in known else name, known, cls.WHAT)

    @property
    def is_study(self) -> bool:
        key = format_key(self.text)
        return key in FORMATS and FORMATS[key].kind == "study"

    @cached_property
    def scenario(self) -> Scenario:
        """The checked scenario. UsageError with everything that is wrong with it."""
        from partywall.run.check.reading import loads  # noqa: PLC0415 - help does not wait for it

        return loads(self.text, self.path)

    @cached_property
    def study(self) -> tuple[Kind[Any], Any]:
        """The checked study behind its kind. UsageError with everything that is wrong with it."""
        from partywall.study import KINDS  # noqa: PLC0415 - help does not wait for it

        kind = KINDS[format_key(self.text)]
        return kind, kind.read(self.text.encode(), self.path)

    @cached_property
    def subject(self) -> Subject:
        """What it is. UsageError with everything that is wrong with it."""
        if not self.is_study:
            of = self.scenario
            loads = f"{', '.join(of.victims)} beside {', '.join(of.aggressors) or 'nothing'}"
            return Subject("run", of.name, loads, of.budget / 1e9, bool(of.goals))
        return Subject("study", self.study[1].name, "each part of the study, in its short form")


def _checked(given: SubjectFile) -> SubjectFile:
    try:
        _ = given.subject
    except UsageError as error:
        raise told(error) from None
    return given


class Host(Frozen):
    """A host of a fleet, as its inventory described it when the record was made."""

    name: str
    groups: tuple[str, ...] = ()
    variables: dict[str, str] = Field(default_factory=dict)

    @property
    def place(self) -> Place:
        return Place(self.name, self.groups, self.variables)


LEAST = 0.05
"""The smallest loss that hosts are measured further for, unless somebody says another one."""
KEPT = re.compile(
    r"(partywall|slurm|kubernetes|dask)_\w+|ansible_(host|port|user|become|become_user|python_interpreter|private_key_file)"
    r"|ansible_ssh_(host|port|user|private_key_file|common_args|extra_args)"
)
"""The variables that say how to reach a host. Others may be secrets, which no record should have."""


class Inventory(Frozen):
    """The hosts of an inventory. They are read once: a record has those that it began with."""

    path: str
    hosts: tuple[Host, ...]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        if not isinstance(given, str | Path):
            return given
        try:
            hosts = [_kept(each) for each in _loaded(given)]
        except UsageError as error:
            raise told(error) from None
        return {"path": str(given), "hosts": hosts}

    def chosen(self, pattern: str) -> tuple[Place, ...]:
        """The hosts that a pattern means; all without one. UsageError if a part of it means none."""
        every = tuple(host.place for host in self.hosts)
        return inventory.chosen(every, pattern) if pattern else every


def _kept(place: Place) -> Host:
    variables = {name: value for name, value in place.variables.items() if KEPT.fullmatch(name)}
    return Host(name=place.name, groups=place.groups, variables=variables)


def _loaded(given: str | Path) -> tuple[Place, ...]:
    return (Place(HERE),) if str(given) == HERE else inventory.load(Path(given))


ENGINE = Option("How hosts are reached: ssh, slurm, kubernetes, dask or local.")
BUDGET = Option("The longest time of each host. Default: that of the scenario.", flag="--budget", example="10min")
LEASE = Option("How long a host may measure on if it hears nothing from here.", flag="--lease", example="1h")
ATTEMPTS = Option("How often a run on a host may begin, if it dies there.")
EVERY = Option("How often each host is looked at.", flag="--every", example="5s")
COMMANDS = Option("Run the commands that the scenario contains, on every host.", page="")
INVENTORY = Option("An Ansible inventory: INI, YAML, JSON, or a program that prints it.", metavar="INVENTORY", page="")


class FleetJob(Job):
    """What every job of a fleet has."""

    if TYPE_CHECKING:
        # Each job has them, at their places among its own fields.
        scenario: SubjectFile
        engine: str
        budget_ns: int | None
        lease_ns: int
        every_ns: int
        attempts: int
        allow_commands: bool

    @property
    def at_once(self) -> int:
        """How many hosts measure at a time."""
        return 1

    @property
    def load_most(self) -> float | None:
        """The load a CPU with which a host is idle; None if it may be busy."""
        return None

    @property
    def least(self) -> float:
        """The smallest loss that a host is measured further for."""
        return LEAST

    def not_now(self, at: datetime.time) -> str:
        """Why no host begins at a time of day; empty if hosts may begin."""
        del at
        return ""

    @property
    def rounds(self) -> int:
        """In how many parts a host's time is measured. Only hosts whose answer is open get more than the first."""
        return 1

    @property
    def places(self) -> tuple[Place, ...]:
        """The hosts that are measured, in their order."""
        raise NotImplementedError

    @property
    def first(self) -> tuple[str, ...]:
        """The names of hosts that are measured before all others."""
        return ()

    @property
    def unread(self) -> list[str]:
        """Folders beside the inventory with variables that are not read."""
        return []

    @property
    def seconds(self) -> float:
        """How long one host takes at most, apart from preparations; 0 if only a host could tell."""
        return (self.budget_ns or 0) / 1e9 or self.scenario.subject.seconds


def _hours(given: str) -> str:
    if given and not re.fullmatch("-".join([r"([01]\d|2[0-3]):[0-5]\d"] * 2), given):
        raise ValueError(f"{given!r} are not hours; write them as 22:00-06:00")
    return given


class RunJob(FleetJob):
    """Measure a scenario on every host of an Ansible inventory, and say which hosts isolate worse than the others.

    A study is measured in its short form, and the hosts that differ from the others are named.

    \b
      partywall fleet run hosts.ini demo --at-once 5
      partywall fleet run hosts.ini papers/vits
      partywall fleet run hosts.yml my.yaml --hosts 'rack1,!web3' --canaries 'web1,web2'

    Each host runs Partywall itself, detached and under a lease, and goes on if this command, the network or this host
    fails. Records come home while they grow. After Ctrl-C hosts measure on; --resume takes them over again. A host
    that cannot be measured gets a line, and the others go on.

    Exit code: 0 no host differs, 1 a host isolates worse, 2 bad inventory, scenario or option, 3 too few hosts to tell,
    5 a host could not be measured (docs/fleet.md).
    """  # noqa: D301 - Click keeps the lines after a backspace

    verb: ClassVar[str] = "run"

    inventory: Annotated[Inventory, INVENTORY]
    scenario: Annotated[
        SubjectFile,
        AfterValidator(_checked),
        Option("A scenario or a study: a file, or a name such as demo or papers/vits.", metavar="SCENARIO"),
    ]
    hosts: Annotated[str, Option("Hosts or groups, with * and !, such as 'rack1,!web3'. Default: all.")] = ""
    engine: Annotated[str, ENGINE] = "ssh"
    at_once_: Annotated[int, Field(ge=1, le=1000), Option("How many hosts measure at a time.", flag="--at-once")] = 10
    canaries: Annotated[
        str, Option("Hosts or groups that are measured first. The others follow only if none violates a goal.")
    ] = ""
    rounds_: Annotated[
        int,
        Field(ge=1, le=10),
        Option(
            "Divide the time of each host into so many parts. Only hosts that may still turn out to be worse get all.",
            flag="--rounds",
        ),
    ] = 1
    least_: Annotated[
        Share,
        Option("With --rounds: the smallest loss that a host is measured further for.", flag="--least", example="5%"),
    ] = LEAST
    hours: Annotated[
        str,
        AfterValidator(_hours),
        Option("The hours in which hosts may begin, in local time here, such as 22:00-06:00."),
    ] = ""
    idle: Annotated[
        Share | None, Option("Begin on a host only while its load is below this share of its CPUs.", example="10%")
    ] = None
    budget_ns: Annotated[Duration | None, BUDGET] = None
    lease_ns: Annotated[Duration, Field(ge=10_000_000_000), LEASE] = 3_600_000_000_000
    every_ns: Annotated[Duration, Field(ge=200_000_000), EVERY] = 5_000_000_000
    attempts: Annotated[int, Field(ge=1, le=10), ATTEMPTS] = 3
    allow_commands: Annotated[bool, COMMANDS] = False

    @model_validator(mode="before")
    @classmethod
    def _reaches_this_host(cls, given: Any) -> Any:
        is_here = isinstance(given, dict) and str(given.get("inventory")) == HERE
        return {"engine": "local", **given} if is_here else given

    @model_validator(mode="after")
    def _means_hosts(self) -> Self:
        if self.scenario.is_study and (self.budget_ns or self.rounds > 1):
            flag = "--budget" if self.budget_ns else "--rounds"
            raise ValueError(f"{flag}: a study takes its own time; leave it out")
        for flag, pattern in (("--hosts", self.hosts), ("--canaries", self.canaries)):
            try:
                self.inventory.chosen(pattern)
            except UsageError as error:
                raise ValueError(f"{flag}: {error}") from None
        return self

    @property
    def at_once(self) -> int:
        return self.at_once_

    @property
    def rounds(self) -> int:
        return self.rounds_

    @property
    def least(self) -> float:
        return self.least_

    @property
    def load_most(self) -> float | None:
        return self.idle

    def not_now(self, at: datetime.time) -> str:
        if not self.hours:
            return ""
        begin, end = map(datetime.time.fromisoformat, self.hours.split("-"))
        is_within = begin <= at < end if begin < end else at >= begin or at < end
        return "" if is_within else f"it may begin from {begin:%H:%M} to {end:%H:%M}"

    @property
    def places(self) -> tuple[Place, ...]:
        every = self.inventory.chosen(self.hosts)
        return tuple(sorted(every, key=lambda place: place.name not in self.first))

    @property
    def first(self) -> tuple[str, ...]:
        return tuple(place.name for place in self.inventory.chosen(self.canaries)) if self.canaries else ()

    @property
    def unread(self) -> list[str]:
        return inventory.beside(Path(self.inventory.path)) if self.inventory.path != HERE else []


def _about(record: str | Path) -> dict[str, Any]:
    """The file that identifies the record of a fleet; empty if there is none."""
    try:
        return dict(json.loads((Path(record) / MARK).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


class AdmitJob(FleetJob):
    """Measure a new host before it takes work, and judge it by the fleet's prediction.

    \b
      partywall fleet admit web9 --against runs/fleet-run-… --inventory hosts.ini
      partywall fleet admit localhost --against runs/fleet-run-… --engine local --budget 60s

    The scenario is that of the fleet's record. A sound host is refused in at most 1 % of all cases. The host is
    admitted only if nine of ten that are worse than the fleet by --margin would have been refused. --dry-run says how
    long that takes.

    Exit code: 0 admitted, 1 refused, 2 bad option, 3 measured too briefly to tell, 5 the host could not be measured.
    """  # noqa: D301 - Click keeps the lines after a backspace

    verb: ClassVar[str] = "admit"

    host: Annotated[str, Option("The host.", metavar="HOST")]
    against: Annotated[Path, Option("The record of the fleet.", page="")]
    inventory: Annotated[Inventory | None, Option("An inventory that has the host.", page="")] = None
    margin: Annotated[Share, Option("A loss that must not be missed.", example="5%")] = 0.05
    engine: Annotated[str, ENGINE] = "ssh"
    budget_ns: Annotated[Duration | None, BUDGET] = 60_000_000_000
    lease_ns: Annotated[Duration, Field(ge=10_000_000_000), LEASE] = 600_000_000_000
    every_ns: Annotated[Duration, Field(ge=200_000_000), EVERY] = 2_000_000_000
    attempts: Annotated[int, Field(ge=1, le=10), ATTEMPTS] = 1
    allow_commands: Annotated[bool, COMMANDS] = False
    scenario: SubjectFile

    @model_validator(mode="before")
    @classmethod
    def _of_fleet(cls, given: Any) -> Any:
        """Takes the scenario of the fleet's record."""
        if not isinstance(given, dict) or "scenario" in given:
            return given
        about = _about(given.get("against", ""))
        return {**given, "scenario": about.get("scenario", {"path": "", "text": ""})}

    @model_validator(mode="after")
    def _is_of_fleet(self) -> Self:
        if not self.scenario.text:
            remedy = "give one of partywall fleet run"
            raise ValueError(f"--against: {self.against} is not the record of a fleet; {remedy}")
        if self.scenario.is_study:
            remedy = "give a fleet that measured a scenario"
            raise ValueError(f"--against: {self.against} is of a study, which knows no worse; {remedy}")
        return self

    @property
    def places(self) -> tuple[Place, ...]:
        return (Place(self.host),) if self.inventory is None else self.inventory.chosen(self.host)
