"""The format of a load plan: what virtual users do, and when they arrive.

The JSON Schema for editors is generated from these types. `partywall.load.check` reads files and checks across keys;
`partywall.load.compiling` converts a plan to the agent's program.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from partywall import units
from partywall.values import Bytes, Cpus, DurationNs, Frozen, HostPath, Name, Share

Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
Status = Annotated[int, Field(ge=100, le=599)]


def at_key(key: str) -> BeforeValidator:
    """Accepts a plain value where keys are expected: `http: /` is `http: {url: /}`."""
    return BeforeValidator(lambda value: value if isinstance(value, dict | Frozen) else {key: value})


def as_text(value: Any) -> Any:
    """Accepts YAML numbers and booleans where text is sent."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _method(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z]+", text) or text != text.upper():
        raise ValueError(
            f"{text!r} is not an HTTP method; write {text.upper() if text.isalpha() else 'for example GET'}"
        )
    return text


Method = Annotated[str, AfterValidator(_method)]
Text = Annotated[str, BeforeValidator(as_text)]


# Requests and their responses


class Part(Frozen):
    """One part of a form with files."""

    text: Text | None = Field(None, description="its content; may contain ${variables}")
    file: HostPath | None = Field(None, description="a file with its content, relative to the plan")
    content_type: str | None = None


class Body(Frozen):
    """The body of a request; exactly one of these."""

    text: Text | None = Field(None, description="sent unchanged; may contain ${variables}")
    json_: Any = Field(None, alias="json", description="sent as JSON; its texts may contain ${variables}")
    base64: str | None = Field(None, description="bytes in base 64, sent decoded")
    file: HostPath | None = Field(None, description="a file, relative to the plan")
    form: dict[str, Text] | None = Field(None, description="fields of a form; values may contain ${variables}")
    multipart: dict[str, Annotated[Part, at_key("text")]] | None = Field(None, description="a form with files")


class Extract(Frozen):
    """The source of a variable's value in a response; exactly one of regex, json, css and header."""

    regex: str | None = Field(
        None, description="regular expression over the body; its first group, or else the whole match"
    )
    json_: str | None = Field(None, alias="json", description="JSON path (RFC 9535) in the body, e.g. $.items[0].id")
    css: str | None = Field(None, description="CSS selector in the body")
    attribute: str | None = Field(None, description="with css: this attribute instead of the element's text")
    header: str | None = Field(None, description="a header's value")
    pick: Literal["first", "last", "random"] = Field("first", description="which one, if there are several")
    default: Text | None = Field(None, description="used if nothing is found; without it, the iteration ends")


class HeaderCheck(Frozen):
    name: str
    contains: str = ""


class JsonCheck(Frozen):
    path: str
    equals: Text


class SizeCheck(Frozen):
    least: Bytes = 0
    most: Bytes | None = None


class Check(Frozen):
    """A condition on a response; exactly one of these."""

    status: Status | tuple[Status, Status] | None = Field(None, description="a status, or [lowest, highest]")
    contains: Text | None = Field(None, description="the body contains this text")
    lacks: Text | None = Field(None, description="the body does not contain this text")
    matches: str | None = Field(None, description="the body matches this regular expression")
    header: Annotated[HeaderCheck, at_key("name")] | None = Field(None, description="a header exists")
    json_: JsonCheck | None = Field(None, alias="json", description="a JSON path finds exactly this value")
    size: SizeCheck | None = Field(None, description="the body's size is in this range")
    within: DurationNs | None = Field(None, description="complete within this time of the intended start")


# Steps


class Http(Frozen):
    """A request. A plain text is the URL to get."""

    url: str = Field(description="absolute, or relative to base; may contain ${variables} after the host", min_length=1)
    method: Method = Field("GET", description="e.g. POST")
    name: str | None = Field(None, description="its name in reports; default: METHOD URL")
    headers: dict[str, Text] = Field(default_factory=dict)
    body: Annotated[Body, at_key("text")] | None = None
    timeout: DurationNs = Field(30_000_000_000, gt=0, description="until its response is complete")
    redirects: int = Field(5, ge=0, le=50, description="redirects followed, as part of the request")
    extract: dict[Variable, Extract] = Field(default_factory=dict, description="variables taken from the response")
    checks: tuple[Check, ...] = ()


class LogNormal(Frozen):
    median: DurationNs
    sigma: float = Field(ge=0, le=10, description="standard deviation of its natural logarithm")


class Think(Frozen):
    """A pause; exactly one of these. A plain duration is a constant pause."""

    constant: DurationNs | None = None
    uniform: tuple[DurationNs, DurationNs] | None = Field(None, description="[shortest, longest]")
    exponential: DurationNs | None = Field(None, description="its mean")
    log_normal: LogNormal | None = None
    file: HostPath | None = Field(None, description="one duration on each line, equally likely; relative to the plan")


class Compress(Frozen):
    """Reads a file of this size, compresses it, and writes the result to the disk. Work of the generator itself."""

    size: Bytes = Field(5_000_000, ge=1, le=1 << 30, description="of the file, which is created before the start")
    level: int = Field(6, ge=1, le=9, description="1 (fast) to 9 (small)")
    threads: int | None = Field(
        None, ge=1, le=1024, description="how many users compress at once; default: one for each CPU"
    )
    name: str = "compress"


class Repeat(Frozen):
    times: int = Field(ge=0, le=1_000_000)
    steps: tuple[Step, ...] = Field(min_length=1)


class Branch(Frozen):
    weight: float = Field(1.0, ge=0)
    steps: tuple[Step, ...] = ()


class Transaction(Frozen):
    """Steps that are timed together, without thinking times."""

    name: Name
    steps: tuple[Step, ...] = Field(min_length=1)


class Step(Frozen):
    """One step; exactly one of these."""

    http: Annotated[Http, at_key("url")] | None = Field(None, description="a request")
    think: Annotated[Think, at_key("constant")] | None = Field(None, description="a pause")
    compress: Annotated[Compress, at_key("size")] | None = Field(None, description="compression of a file")
    repeat: Repeat | None = Field(None, description="the same steps several times")
    choose: tuple[Branch, ...] | None = Field(None, description="one of several branches, at random", min_length=1)
    transaction: Transaction | None = Field(None, description="steps timed together")
    feed: Name | None = Field(None, description="takes the next row of this feeder into variables")


# Users, pacing and the plan


class User(Frozen):
    """A kind of user."""

    weight: float = Field(1.0, gt=0, description="share of users of this kind, relative to the others")
    variables: dict[Variable, Text] = Field(default_factory=dict, description="initial values for each user")
    cookies: bool = Field(True, description="keeps cookies and sends them back")
    init: tuple[Step, ...] = Field((), description="done once, before the first iteration")
    actions: tuple[Step, ...] = Field(min_length=1, description="one iteration")
    end: tuple[Step, ...] = Field((), description="done once, when the user leaves")


class Stage(Frozen):
    """A level that is reached along a straight line from the previous one. The first starts from 0."""

    to: float = Field(ge=0, description="users, or arrivals a second, at its end")
    for_: DurationNs = Field(alias="for", description="how long it takes; 0s is a jump")


class Closed(Frozen):
    """A fixed number of users. Each begins its next iteration when the last one has ended. Give users or stages."""

    users: int | None = Field(None, ge=1, le=10_000_000, description="number of users after the ramp")
    ramp_up: DurationNs = Field(0, description="time in which they arrive")
    hold: DurationNs = Field(0, description="time for which they stay")
    ramp_down: DurationNs = Field(0, description="time in which they leave")
    stages: tuple[Stage, ...] = Field((), description="instead of the above: the number of users over time")
    every: DurationNs | None = Field(
        None, gt=0, description="time between starts of iterations, instead of back to back"
    )


class Open(Frozen):
    """A fixed number of iterations begins each second, whether or not earlier ones have ended. Give rate or stages."""

    rate: float | None = Field(None, gt=0, le=10_000_000, description="iterations started a second after the ramp")
    ramp_up: DurationNs = 0
    hold: DurationNs = 0
    ramp_down: DurationNs = 0
    stages: tuple[Stage, ...] = Field((), description="instead of the above: arrivals a second over time")
    arrivals: Literal["constant", "poisson"] = Field("constant", description="evenly spaced, or at random")
    users_max: int = Field(
        1000, ge=1, le=10_000_000, description="maximum number of users; further arrivals wait for one"
    )


class Feeder(Frozen):
    """Data that users read; exactly one of csv, json_lines and rows."""

    csv: HostPath | None = Field(None, description="a CSV file with a header line, relative to the plan")
    json_lines: HostPath | None = Field(
        None, description="a file with one JSON object on each line, relative to the plan"
    )
    rows: tuple[dict[Variable, Text], ...] | None = Field(None, min_length=1, description="rows in the plan itself")
    order: Literal["sequential", "random"] = "sequential"
    shared: bool = Field(True, description="all users share one sequence; false: each has its own")
    when_spent: Literal["repeat", "leave"] = Field("repeat", description="start again, or let the user leave")


class Connections(Frozen):
    keep_alive: bool = True
    across_iterations: bool = Field(True, description="a user keeps its connections from one iteration to the next")
    connect_timeout: DurationNs = Field(10_000_000_000, gt=0)
    protocol: Literal["http1", "http2", "negotiated"] = "http1"
    from_addresses: tuple[str, ...] = Field((), description="addresses to connect from, used in turn")
    to: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="host:port to the places to connect to instead: address:port, unix:/path"
    )


class Trust(Frozen):
    verify: bool = Field(True, description="verify certificates")
    authorities: HostPath | None = Field(
        None, description="a PEM file of certificates to trust in addition to the host's"
    )
    resume: bool = Field(True, description="resume earlier sessions, as browsers do")


class Threshold(Frozen):
    """A threshold of the load; one bound. Times are response times from the intended start."""

    of: str | None = Field(None, description="name of a request or transaction; default: all requests together")
    mean: DurationNs | None = Field(None, description="at most")
    p50: DurationNs | None = Field(None, description="at most")
    p90: DurationNs | None = Field(None, description="at most")
    p95: DurationNs | None = Field(None, description="at most")
    p99: DurationNs | None = Field(None, description="at most")
    p999: DurationNs | None = Field(None, description="at most")
    errors: Annotated[float, BeforeValidator(units.parse_share)] | None = Field(
        None, ge=0, le=1, description="maximum share of failures"
    )
    rate: float | None = Field(None, gt=0, description="minimum rate over the stages")
    available: Annotated[float, BeforeValidator(units.parse_share)] | None = Field(
        None, gt=0, le=1, description="minimum share of seconds in which at least half of the requests succeed"
    )
    within: DurationNs | None = Field(
        None, gt=0, description="with available: a response that takes longer does not count"
    )


class Generator(Frozen):
    """Another machine that generates load. A plain text is its host."""

    host: str | None = Field(None, description="for ssh: a Host of ~/.ssh/config, user@name or ssh://user@name:port")
    domain: str | None = Field(
        None, description="your own running libvirt domain; its agent is reached by its port, or by ssh with host"
    )
    uri: str | None = Field(None, description="with domain: the libvirt daemon; default qemu:///system")
    cpus: Annotated[str | None, Cpus] = Field(
        None, description="CPUs of that machine for the generator, e.g. 0, [0, 2] or 0,2-3; default: all"
    )

    @property
    def place(self) -> str:
        """Where it is, for people."""
        of = f" of {self.uri}" if self.uri else ""
        return f"domain {self.domain}{of}" if self.domain else str(self.host)


class LoadPlan(Frozen):
    """A load plan."""

    partywall_load: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    base: str | None = Field(None, description="base of relative URLs, e.g. http://127.0.0.1:8080")
    users: dict[Name, User] = Field(min_length=1, description="kinds of users")
    closed: Closed | None = Field(None, description="closed model: a number of users")
    open: Open | None = Field(None, description="open model: arrivals a second")
    feeders: dict[Name, Feeder] = Field(default_factory=dict)
    connections: Connections = Connections()
    tls: Trust = Trust()
    grace: DurationNs = Field(10_000_000_000, description="time for requests in flight after the last stage")
    threads: int | None = Field(None, ge=1, le=256, description="of each generator; default 1")
    generators: dict[Name, Annotated[Generator, at_key("host")]] = Field(
        default_factory=dict,
        max_length=64,
        description="machines that generate the load in equal parts; default: this host",
    )
    good_seconds: Share = Field(
        0.5, description="share of seconds that must be good; below it, the outcome is inconclusive"
    )
    thresholds: tuple[Threshold, ...] = Field((), description="bounds that decide the exit code")


# Steps contain steps, so these models can only be built now.
for _kind in (Repeat, Branch, Transaction, Step, User, LoadPlan):
    _kind.model_rebuild()


def url_or_plan(value: Any) -> Any:
    """Accepts a plain text: `load: http://127.0.0.1:8080/` or `load: plan.yaml`."""
    if not isinstance(value, str):
        return value
    return {"url": value} if "://" in value else {"plan": value}


class Load(Frozen):
    """Virtual users as a workload. A plain text is a URL or a plan. Its work is responses."""

    url: str | None = Field(None, description="the URL that every user requests repeatedly")
    plan: str | None = Field(None, description="a load plan (docs/load-plan.md), relative to the scenario")
    users: int = Field(10, ge=1, le=100_000, description="with url: number of users")
    rate: float | None = Field(None, gt=0, description="with url: requests a second instead, independent of responses")
    think: DurationNs = Field(0, description="with url: time each user waits before its next request")
    # Compiled when the run is planned, so that the run is self-contained.
    program: SkipJsonSchema[dict[str, Any] | None] = None
