"""What an experiment is asked to do: the job, from which the command, the Python function and the form are made."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from partywall import units
from partywall.core.job import Duration, Job, Option
from partywall.values import Share

NEVER = (
    "init.scope",
    "sshd",
    "ssh",
    "kubelet",
    "containerd",
    "dockerd",
    "docker",
    "crio",
    "podman",
    "libvirtd",
    "systemd-journald",
    "systemd-logind",
    "systemd-udevd",
    "dbus",
)
"""Groups that are never touched, by their name without `.service`.

A `.service` or `.scope` of this name is meant wherever it is in a path. Any other group is meant only as the last part:
Docker puts its containers into /docker, and kind its pods into /kubelet.
"""


VICTIMS = ("victim", "probe", "url", "prometheus_url", "log", "pid", "group")
"""Options that say what is slow; one of them is given."""

WHOLE = ("cpuset", "freeze")
"""Levers without a depth: a pulse moves or stops a suspect as a whole."""


BELONG = (
    ("latency", ("log",), "only lines of a log have one"),
    ("latency_key", ("log",), "only lines of a log have one"),
    ("metric", ("victim",), "it is read from what the command prints"),
    ("query", ("prometheus_url",), "it is what this server is asked"),
    ("prometheus_url", ("query",), "it says what to ask"),
    ("cpus", ("probe", "url"), "only these are started on CPUs of your choice"),
    ("smaller_is_better", ("metric", "query"), "only these state a number"),
)
"""Options that need one of others, and why."""


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def until_ns(text: str, now: datetime.datetime) -> int:
    """The moment that a duration, a time of day or a date with a time means, in ns since the epoch. Pure.

    now: with its time zone, which is that of a text without one. ValueError with a remedy if it means none, or a moment
    that is over.
    """
    try:
        when = _moment(text, now)
    except ValueError as error:
        said = error if text in str(error) else f"{text}: {error}"
        raise ValueError(f"{said}; give a duration such as 2h, or a time such as 18:30 or 2026-12-31 18:30") from None
    if when <= now:
        raise ValueError(f"{text} is over; give a time that is to come")
    return round(when.timestamp() * 10**9)


def _moment(text: str, now: datetime.datetime) -> datetime.datetime:
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        hour, minute = map(int, text.split(":"))
        if hour > 23 or minute > 59:
            raise ValueError(f"{text} is no time of day")
        when = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return when + datetime.timedelta(days=when <= now)
    if re.match(r"\d{4}-", text):
        when = datetime.datetime.fromisoformat(text)
        return when if when.tzinfo else when.replace(tzinfo=now.tzinfo)
    if text.isdigit():
        raise ValueError(f"{text} has no unit")
    return now + datetime.timedelta(microseconds=units.parse_duration_ns(text) / 1000)


class BlameJob(Job):
    """Find out by experiment which neighbour slows a program down, by how much, and what would help.

    \b
      partywall blame --log /var/log/nginx/access.log --latency 'rt=([0-9.]+)'
      partywall blame --victim './my-benchmark' docker/web nginx.service --dry-run
      partywall blame --url http://localhost/ --users 4 --any
      partywall blame --probe memory-copy --cpus 2
      partywall blame --group docker/web --budget 2min --harm 5%

    Each suspect is throttled a little, in short pulses, along a random code of its own. If the victim is faster
    whenever a suspect is pulsed, that suspect is guilty: this is an experiment, not a correlation. All suspects are
    tested at once. A dummy suspect that is never touched shows whether the method holds (A/A check).

    It sets limits of the suspects' cgroups, and puts each back exactly as it was, also if it is killed. Groups of
    system services, the victim and this command are never touched. Every pulse is written to the record first. With
    --apply, it keeps the limit that helps most afterwards, until --until.

    Exit code: 0 no neighbour is guilty, 1 a neighbour is guilty, 2 bad option, victim or suspect, 3 not known yet,
    4 a suspect cannot be held here, 5 the victim or a suspect ended, 130 interrupted (docs/blame.md).
    """  # noqa: D301 - Click keeps the lines after a backspace

    function: ClassVar[str] = "blame"

    suspects: Annotated[
        tuple[str, ...],
        Option(
            "A group: its path, a unit such as nginx.service, a name as partywall-watch shows it, or pid:NUMBER for "
            "that of a process. Default: the busiest groups; --any says which.",
            metavar="SUSPECT...",
        ),
    ] = ()
    victim: Annotated[str, Option("A command to start. Each line that it prints is one unit of work.", page="")] = ""
    metric: Annotated[
        str, Option("The speed in a line that --victim prints: a regular expression with one group.", page="")
    ] = ""
    probe: Annotated[str, Option("A kernel to run beside the suspects, such as memory-copy.")] = ""
    cpus: Annotated[str, Option("CPUs of the probe or users, such as 0-3. Default: any.")] = ""
    url: Annotated[str, Option("A URL that virtual users request again and again: how many responses a second?")] = ""
    users: Annotated[int, Field(ge=1, le=10_000), Option("With --url: the number of users.")] = 1
    prometheus_url: Annotated[
        str, Option("A Prometheus server, such as http://localhost:9090; needs --query.", page="")
    ] = ""
    query: Annotated[str, Option("With --prometheus-url: an expression that has one value.", page="")] = ""
    pid: Annotated[int | None, Field(ge=1), Option("A process: how much of its runnable time does it run?")] = None
    group: Annotated[str, Option("A group, as SUSPECT is given: how much of its runnable time does it run?")] = ""
    log: Annotated[
        str,
        Option(
            "A log to follow. Each new line is one request. Without a latency, only a service at its limit shows harm.",
            page="",
        ),
    ] = ""
    latency: Annotated[
        str, Option("The latency in a line of the log, in any unit: a regular expression with one group.")
    ] = ""
    latency_key: Annotated[str, Option("The key of the latency in a line of JSON, such as request_time.")] = ""
    smaller_is_better: Annotated[bool, Option("What --metric or --query states is a time, not a speed.")] = False
    lever: Annotated[
        Literal["cpu", "disk", "network", "cpuset", "freeze"],
        Option(
            "What pulses act on: cpu, disk, network (what a suspect sends), cpuset, which moves suspects off the "
            "victim's CPUs, or freeze, which stops them."
        ),
    ] = "cpu"
    device: Annotated[str, Option("The disk of --lever disk, such as sda or 8:0.")] = ""
    depth: Annotated[Share, Option("What a pulse takes off a suspect's use.", example="30%")] = 0.3
    deepest: Annotated[Share, Option("The same after a quarter of the longest time.", example="60%")] = 0.6
    pulse_ns: Annotated[
        Duration, Field(ge=20_000_000), Option("Length of a pulse.", flag="--pulse", example="100ms")
    ] = 100_000_000
    budget_ns: Annotated[
        Duration, Option("The longest time; --harm may end it sooner.", flag="--budget", example="5min")
    ] = 300_000_000_000
    harm: Annotated[Share, Option("The share of its work in --budget that a suspect may lose.", example="2%")] = 0.02
    least: Annotated[Share, Option("The smallest effect that matters.", example="5%")] = 0.05
    most: Annotated[int, Field(ge=1, le=63), Option("The most suspects.")] = 15
    apply: Annotated[bool, Option("Afterwards, keep the limit that helps most.", page="")] = False
    until: Annotated[
        str, Option("When --apply takes it back: a duration such as 2h, or a time such as 18:30.", page="")
    ] = ""
    any: Annotated[
        bool,
        Option(
            "If no suspect is named, take units and pods without a label too. Else only units with Blame=yes in "
            "[X-Partywall], and pods with partywall/blame: yes.",
            page="",
        ),
    ] = False
    never: Annotated[tuple[str, ...], Option("A name that is never touched; system services never are.")] = ()
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), Option("Of the code.")] = 1

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("; ".join(problems))
        return self

    @property
    def moves(self) -> bool:
        """Whether a pulse moves a suspect, which may do as much elsewhere."""
        return self.lever == "cpuset"

    @property
    def depths(self) -> tuple[float, float]:
        """The depth of the first pulses and of the later ones."""
        return (1.0, 1.0) if self.lever in WHOLE else (self.depth, self.deepest)

    def _belongs(self) -> Iterator[str]:
        """What is wrong with options of one victim."""
        for name, needed, why in BELONG:
            if getattr(self, name) and not any(getattr(self, each) for each in needed):
                yield f"{_flag(name)} needs {' or '.join(map(_flag, needed))}: {why}"
        if self.latency and self.latency_key:
            yield "--latency or --latency-key: give one, for a line has one latency"
        if self.users != 1 and not self.url:
            yield "--users needs --url: only a URL has users"
        for name, example in (("url", "http://localhost/"), ("prometheus_url", "http://localhost:9090")):
            if (text := getattr(self, name)) and not text.startswith(("http://", "https://")):
                yield f"{_flag(name)}: {text!r} is no URL; give for example {example}"
        if self.cpus:
            try:
                units.parse_cpus(self.cpus)
            except ValueError as error:
                yield f"--cpus: {error}"

    def _problems(self) -> Iterator[str]:
        given = [name for name in VICTIMS if getattr(self, name)]
        if len(given) != 1:
            said = "no victim is given" if not given else "more than one victim is given"
            read = f"; {self.suspects[0]} was read as a suspect" if self.suspects and not given else ""
            yield f"{said}{read}: say what is slow by one of {', '.join(map(_flag, VICTIMS))}"
        yield from self._belongs()
        if self.lever == "disk" and not self.device:
            yield "--lever disk needs a disk: give its name or number, such as --device sda"
        if self.device and not re.fullmatch(r"\d+:\d+|[a-z][a-z0-9!_-]*", self.device):
            yield f"--device: {self.device!r} is neither the name nor the number of a disk; give for example sda or 8:0"
        if self.apply and self.lever == "freeze":
            yield "--apply keeps no suspect frozen; use --lever cpu"
        if self.until and not self.apply:
            yield "--until needs --apply: only what is kept is taken back"
        if self.until:
            try:
                until_ns(self.until, datetime.datetime.now().astimezone())
            except ValueError as error:
                yield f"--until: {error}"
        if self.depth > self.deepest:
            yield f"--depth must be at most --deepest, which is {self.deepest:.0%}, not {self.depth:.0%}"
