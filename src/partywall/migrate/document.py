"""Live migrations: what is to be moved how, as people write it, and what was observed of each move.

The first part is the format of a migration plan; reading a file is in `partywall.migrate.check`. Times are monotonic
nanoseconds of the host, unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from partywall import units
from partywall.agent.metric import Metric
from partywall.core.stats import estimate
from partywall.core.stats.estimate import Estimate, Span
from partywall.values import Bytes, DurationNs, Frozen, HostPath, Name, Package, Rate

Place = Literal["a", "b"]


# What is to be done


class HostSpec(Frozen):
    """One of the user's own hosts: a libvirt daemon, or a QEMU by its monitor."""

    uri: str | None = Field(None, min_length=1, description="of its libvirt daemon, e.g. qemu+ssh://one/system")
    qmp: HostPath | None = Field(
        None, pattern="^/", description="the Unix socket of its QEMU's monitor, e.g. /run/web.qmp"
    )
    ssh: str | None = Field(None, min_length=1, description="the machine with that socket, as ssh names it")
    address: str | None = Field(None, min_length=1, description="where it takes a guest that arrives, e.g. 10.0.0.2")


class HostsSpec(Frozen):
    """The user's own two hosts, instead of two network namespaces of this machine."""

    a: HostSpec
    b: HostSpec
    direct: bool = Field(
        False, description="we talk to both libvirt daemons; otherwise that of the source talks to the other"
    )


Storage = Literal["shared", "network", "moved"]


class GuestSpec(Frozen):
    """The guest that moves."""

    domain: str | None = Field(None, min_length=1, description="the libvirt domain, on hosts of your own")

    memory: Bytes = Field(256 << 20, description="e.g. 256MiB", ge=64 << 20)
    vcpus: int = Field(1, ge=1, le=255)
    accel: Literal["auto", "kvm", "tcg"] = Field("auto", description="kvm, tcg (emulated), or auto: kvm if it works")
    root: tuple[Package, ...] | None = Field(
        None, description="packages of its root image, e.g. [nginx-light]; none: the agent alone"
    )
    service: tuple[str, ...] | None = Field(
        None, description="a command that runs in the guest all the time, such as a web server", min_length=1
    )
    verify: Bytes | None = Field(
        None, ge=4096, description="pages of memory, and of the disk, that are written and checked all the time"
    )
    storage: Storage = Field(
        "shared",
        description="shared: both hosts use one disk; network: a third host serves the disk to both, by NBD; moved: "
        "its content is copied along",
    )


class LinkSpec(Frozen):
    """The link between the two hosts, over which the guest moves."""

    rate: Rate | None = Field(
        None,
        description="e.g. 100Mbit/s; default: as fast as this host is. On hosts of your own nothing is set: it is what "
        "their link carries, for predictions",
    )
    delay: DurationNs = Field(0, description="one way, e.g. 500us")
    shared: bool = Field(
        False,
        description="whether clients reach the guest over it too, as on hosts with one network card; by default, their "
        "network has no limit. On hosts of your own it is as it is",
    )


class HttpSpec(Frozen):
    """Virtual users of a web server in the guest."""

    users: int = Field(20, ge=1, le=100_000, description="each asks again when it was answered")
    rate: float | None = Field(None, gt=0, description="arrivals a second instead, which do not wait for answers")
    keep_alive: bool = Field(True, description="whether users keep their connections")
    port: int = Field(80, ge=1, le=65535)
    path: str = Field("/", pattern="^/")
    timeout: DurationNs = Field(30_000_000_000, ge=100_000_000)


class ClientsSpec(Frozen):
    """Who uses the guest while it moves."""

    address: str | None = Field(
        None, min_length=1, description="of a guest on hosts of your own; it must answer ICMP echo requests"
    )
    pings: float = Field(
        1000, gt=0, le=5000, description="datagrams a second on a fixed schedule, which the guest answers"
    )
    http: HttpSpec | None = Field(None, description="further virtual users; needs guest.service")


class Bystander(Frozen):
    """What runs on the hosts beside the guest, and is not moved."""

    kernel: str
    params: dict[str, Any] = Field(default_factory=dict)
    threads: int = Field(1, ge=1, le=255)


class Activity(Frozen):
    """What the guest does while it moves. kernel: flat out unless a parameter of it holds it back."""

    kernel: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    threads: int = Field(1, ge=1, le=255)
    command: tuple[str, ...] | None = Field(None, min_length=1, description="a command in the guest, instead")
    metric: Metric | None = Field(None, description="how to read the command's work from its output")
    http: HttpSpec | None = Field(None, description="virtual users, instead of clients.http; null: none")

    def users(self, usual: HttpSpec | None) -> HttpSpec | None:
        """Its virtual users. usual: those of the plan."""
        return self.http if "http" in self.model_fields_set else usual


class Postcopy(Frozen):
    """Hands over before all memory has arrived, and fetches the rest when it is used."""

    after_passes: int = Field(1, ge=0, le=100, description="passes of pre-copy before the hand-over")
    pause: DurationNs = Field(
        0, description="cuts the connection after the hand-over for this time, e.g. 500ms, then continues over another"
    )


class Method(Frozen):
    """How a guest is moved: features and parameters of QEMU's migration. Without any: QEMU's defaults, pre-copy."""

    bandwidth: Rate | None = Field(None, description="QEMU's max-bandwidth, e.g. 400Mbit/s")
    downtime: DurationNs | None = Field(None, description="QEMU's downtime-limit, e.g. 100ms", le=2_000_000_000_000)
    postcopy: Annotated[Postcopy, BeforeValidator(lambda value: value if value is not True else {})] | None = None
    multifd: int | None = Field(None, ge=1, le=255, description="number of parallel connections")
    compression: Literal["zlib", "zstd"] | None = Field(None, description="of multifd")
    xbzrle: bool = Field(False, description="sends the differences of pages that are sent again")
    xbzrle_cache: Bytes | None = Field(None, ge=4096, description="memory for the pages that differences are taken to")
    auto_converge: bool = Field(False, description="slows the guest's CPUs down until the memory can be sent")
    throttle_step: int | None = Field(None, ge=1, le=99, description="by how many percent more each time")
    stop_after: int | None = Field(
        None, ge=0, le=1000, description="stops the guest after so many passes; the rest is sent while it stands still"
    )
    dirty_limit: Bytes | None = Field(
        None, ge=1 << 20, description="bytes/s that a virtual CPU may write, e.g. 20MiB; needs QEMU 8.1 and KVM"
    )
    cancel: bool = Field(False, description="cancels the move as soon as it has begun: what a move costs at least")


class Goal(Frozen):
    """What the user wants of a move."""

    downtime: DurationNs | None = Field(
        None, description="longest time without an answer, from the start of a move on, e.g. 300ms"
    )
    p99: DurationNs | None = Field(
        None, description="p99 response during a move, of virtual users if there are any, e.g. 200ms"
    )

    @property
    def limits(self) -> dict[str, float]:
        """The most that each metric may be, in seconds."""
        wanted = {"longest_s": self.downtime, "p99_s": self.p99}
        return {metric: limit / 1e9 for metric, limit in wanted.items() if limit is not None}


def _idle() -> dict[str, Activity | None]:
    return {"idle": None}


class MigrationPlan(Frozen):
    """A migration plan file."""

    partywall_migration: Literal[1] = Field(description="version of this format")
    name: Name
    description: str = ""
    hosts: HostsSpec | None = Field(None, description="hosts of your own; none: two namespaces of this machine")
    guest: GuestSpec = GuestSpec()
    link: LinkSpec = LinkSpec()
    clients: ClientsSpec = ClientsSpec()
    bystander: Bystander | None = Field(
        None, description="a kernel on the CPUs of QEMU's own threads: what a move costs a neighbour of the guest"
    )
    workloads: dict[Name, Activity | None] = Field(
        default_factory=_idle, min_length=1, description="what the guest does; null: nothing"
    )
    methods: dict[Name, Method] = Field(
        default_factory=lambda: {"default": Method()},
        min_length=1,
        description="how it is moved; the first is compared with",
    )
    moves: int = Field(5, ge=1, le=1000, description="of each workload by each method")
    calibration: int = Field(
        3, ge=0, le=100, description="moves of the idle guest at first, for predictions; 0: nothing is predicted"
    )
    before: DurationNs = Field(2_000_000_000, ge=500_000_000, description="how long clients are watched before a move")
    after: DurationNs = Field(2_000_000_000, ge=500_000_000, description="and after it")
    give_up: DurationNs = Field(60_000_000_000, ge=1_000_000_000, description="a move that takes longer is cancelled")
    goal: Goal = Goal()
    seed: int = Field(0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _few_moves_on_own_hosts(cls, data: Any) -> Any:
        """A guest that others use moves once, and nothing is tried out on it."""
        if isinstance(data, dict) and data.get("hosts") is not None:
            return {"moves": 1, "calibration": 0, **data}
        return data

    @property
    def cells(self) -> list[tuple[str, str]]:
        """(workload, method) of each combination."""
        return [(workload, method) for workload in self.workloads for method in self.methods]


# What was observed

PRECOPY, POSTCOPY = "pre-copy", "post-copy"
"""Methods of calibration moves."""


class Pass(Frozen):
    """The start of a pass over the memory, as QEMU announced it."""

    at_ns: int
    number: int


class Progress(Frozen):
    """A look at a move that goes on. sent, left: bytes of memory; dirty_rate: bytes/s; throttle: percent.

    Of pass 0, while disks are copied, sent and left are bytes of these.
    """

    at_ns: int
    sent: int
    left: int
    passes: int
    dirty_rate: float = 0.0
    rate: float = 0.0
    throttle: int = 0


class Gap(Frozen):
    """A time without an answer: from one answer to the next. is_open: nobody had answered when watching ended."""

    begin_ns: int
    end_ns: int
    is_open: bool = False

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns


Outcome = Literal["completed", "cancelled", "gave up", "failed", "paused", "lost"]


class Move(Frozen):
    """One move of a guest.

    outcome: lost if the guest did not answer afterwards, whatever QEMU says; paused if its link broke after the
    hand-over of post-copy, and it waits for the rest of its memory. setup_ns, downtime_ns, total_ns: QEMU's
    own figures. paused_ns, resumed_ns: QEMU's events STOP on the source and RESUME on the destination. stopped_ns: how
    far the guest's clock fell back behind the host's, which stands still while the guest does; uncertainty_ns: of that,
    either way. offset_ns: what to add to the guest's times before the move to get ours. memory: QEMU's counters of
    bytes and pages. cpu_ns: CPU time of the two QEMUs during the move; link_bytes: what each host sent over the link
    meanwhile, by the counters of its network card; both where they are known.
    """

    workload: str
    method: str
    round: int
    number: int
    source: Place
    begin_ns: int
    end_ns: int
    outcome: Outcome
    reason: str = ""
    setup_ns: int | None = None
    downtime_ns: int | None = None
    total_ns: int | None = None
    paused_ns: int | None = None
    resumed_ns: int | None = None
    stopped_ns: int | None = None
    uncertainty_ns: int | None = None
    offset_ns: int | None = None
    passes: tuple[Pass, ...] = ()
    progress: tuple[Progress, ...] = ()
    memory: dict[str, int | float] = Field(default_factory=dict)
    storage_ns: int | None = Field(None, description="time in which its disk was copied, before its memory")
    storage_bytes: int | None = Field(None, description="of its disk that were sent meanwhile")
    cpu_ns: dict[str, int] = Field(default_factory=dict)
    link_bytes: dict[str, int] = Field(default_factory=dict)
    timeouts: int | None = Field(None, description="of TCP's retransmission timer at virtual users, from its start on")
    intact: bool | None = Field(None, description="whether a known part of its memory is what it was")
    checked_pages: int | None = Field(None, description="pages that the guest checked until after the move")
    wrong_pages: int | None = Field(None, description="of those, pages that were not as the guest had written them")

    @property
    def cell(self) -> tuple[str, str]:
        return self.workload, self.method

    @property
    def is_spoilt(self) -> bool:
        """True if the guest was seen to have lost writes."""
        return self.intact is False or bool(self.wrong_pages)


class ServiceSeen(Frozen):
    """What clients saw of a guest that does not move: response times at `migrate.findings.response.SHARES`.

    rate: answers a second. users: virtual users who wait for an answer before the next request; None for requests on a
    schedule.
    """

    quantiles_ns: tuple[float, ...]
    rate: float
    users: int | None = None


class Survey(Frozen):
    """What is known of a guest at work before it moves.

    content: bytes of pages that are not zero; content_least: set if that is only known to be between the two; layout:
    the same in equal parts of the memory, by address; empty if it is not known. changed: one row a sample: bytes that
    changed within each of the windows, None while it had not been watched for so long; errors: their standard errors,
    empty if pages were counted and not sampled. content_from, changes_from: how both were found, in words; empty for
    a guest whose memory was read.
    """

    workload: str
    memory: int
    content: int
    content_least: int | None = None
    content_from: str = ""
    layout: tuple[int, ...] = ()
    windows_ns: tuple[int, ...]
    changed: tuple[tuple[float | None, ...], ...]
    errors: tuple[float, ...] = ()
    changes_from: str = ""
    service: ServiceSeen | None = None


class MigrationEvidence(Frozen):
    """All that is stored of a series of moves, but the tables of clients and work.

    calibration: moves of the idle guest, made first; of a guest of the user's own, its moves of earlier records.
    """

    name: str
    plan: MigrationPlan
    host: dict[str, Any]
    about: dict[str, Any]
    moves: tuple[Move, ...]
    surveys: tuple[Survey, ...] = ()
    calibration: tuple[Move, ...] = ()
    interrupted: bool = False


def rate_text(plan: MigrationPlan) -> str:
    """The rate of a plan's link, in words."""
    if plan.link.rate:
        return units.format_bit_rate(plan.link.rate)
    return "as fast as the host is" if plan.hosts is None else "of an unknown rate"


# What was found


class Responses(Frozen):
    """Response times of clients in one phase of a move, from intended starts, in ns. lost: never answered, or failed.

    p50_ns, p99_ns: of all requests, those without an answer being the slowest; None if that is one of them. rate:
    answers a second.
    """

    sent: int
    lost: int
    rate: float | None = None
    mean_ns: float | None = None
    p50_ns: float | None = None
    p99_ns: float | None = None
    max_ns: float | None = None


class Part(Frozen):
    """One part of the time that clients waited, and what happened in it."""

    name: str
    ns: int


class Bin(Frozen):
    """Response times of the requests that were due in one bin of time. at_s: from the start of the move."""

    at_s: float
    median_ns: float
    slowest_ns: float


METRICS = {
    "total_s": "time of the move, s",
    "downtime_s": "downtime as QEMU states it, s",
    "events_s": "STOP to RESUME, s",
    "stopped_s": "stop of the guest's clock, s",
    "clients_s": "longest time without an answer at the hand-over, s",
    "longest_s": "longest time without an answer from the start of the move on, s",
    "start_s": "longest time without an answer at the start, s",
    "sent_bytes": "bytes sent, as the hypervisor counts them",
    "link_bytes": "bytes on the link, both ways, as its network cards count them",
    "passes": "passes over the memory",
    "p50_ratio": "median response during the move, as a multiple of that before",
    "p99_ratio": "p99 response during the move, as a multiple of that before",
    "brownout_s": "time from the move's start on in which answers took over twice as long as before, without pauses, s",
    "p99_s": "p99 response during the move, s: of virtual users, or of datagrams until any answer",
    "users_mean_ratio": "mean response of virtual users during the move, as a multiple of that before",
    "users_p99_ratio": "p99 response of virtual users during the move, as a multiple of that before",
    "users_longest_s": "longest response of virtual users during the move, s",
    "users_timeouts": "times that TCP's retransmission timer ran out at virtual users, from the start of the move on",
    "users_rate_ratio": "answers a second to virtual users during the move, as a share of those before",
    "work_ratio": "work done during the move, as a share of that before",
    "bystander_ratio": "work of a neighbour of the guest during the move, as a share of that before",
    "source_cpu_s": "CPU time of the source's QEMU, s",
    "destination_cpu_s": "CPU time of the destination's QEMU, s",
}
"""The reported figures of a move, by name."""


class PassFinding(Frozen):
    """One pass over the memory, as QEMU showed it. begin_s: after the move's beginning. sent: bytes.

    dirty_rate: bytes/s that the guest changed meanwhile, which QEMU knows when the pass ends; None for the last one.
    """

    number: int
    begin_s: float
    seconds: float
    sent: int
    dirty_rate: float | None = None


class MoveFinding(Frozen):
    """One move, as its QEMU, its guest and its clients saw it.

    clients_ns: the longest time without an answer at the hand-over; start_ns: at the beginning of the move. events_ns:
    from STOP on the source to RESUME on the destination. parts: of clients_ns, in order; they add up to it. work:
    rates before, during and after the move, in the kernel's unit a second. values: by metric, those that are known.
    """

    move: Move
    clients_ns: int | None = None
    clients_gap: Gap | None = None
    start_ns: int | None = None
    events_ns: int | None = None
    longest_s: float | None = None
    parts: tuple[Part, ...] = ()
    passes: tuple[PassFinding, ...] = ()
    responses: dict[str, Responses] = Field(default_factory=dict)
    work: dict[str, float] = Field(default_factory=dict)
    bystander: dict[str, float] = Field(default_factory=dict, description="as work, of the guest's neighbour")
    users: dict[str, Responses] = Field(default_factory=dict, description="of virtual users, by phase")
    values: dict[str, float] = Field(default_factory=dict)
    timeline: tuple[Bin, ...] = ()
    users_timeline: tuple[Bin, ...] = ()
    slower_ns: tuple[float, ...] = Field(
        (), description="by how much answers were slower than before, outside the pauses, at several quantiles"
    )


class Figure(Frozen):
    """The mean of a metric over n moves of a cell, and its ratio to the first method's in the same rounds.

    interval, ratio: None with too few moves.
    """

    value: float
    n: int
    interval: Estimate | None = None
    ratio: Estimate | None = None


class Prediction(Frozen):
    """The predicted cost of a move. chance: that it converges. spans: by metric.

    others: what simpler models say, by model and metric; a metric is missing where the model expects no end. They get
    the same facts, and their intervals come from the same draws.
    """

    chance: float
    spans: dict[str, Span]
    others: dict[str, dict[str, Span]] = Field(default_factory=dict)

    @property
    def converges(self) -> bool:
        return self.chance >= 0.5


@dataclass(frozen=True)
class Forecast:
    """Predictions by workload and method. record, started: what they rest on, and when it was measured.

    rests_on, said, lacking: of a guest that was watched for them, see `migrate.findings.cost.Basis`.
    """

    predictions: Mapping[tuple[str, str], Prediction]
    record: Path | None = None
    started: str = ""
    rests_on: str = ""
    said: tuple[str, ...] = ()
    lacking: str = ""

    @property
    def source(self) -> str:
        """What they are made from, in words."""
        when = f" of {self.started}" if self.started else ""
        return f"Predicted from {self.record}{when}" if self.record else f"Predictions rest on {self.rests_on}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know beside them."""
        return tuple(filter(None, (*self.said, self.lacking)))


class Choice(Frozen):
    """One way to move a guest that was considered, and what it is predicted to cost."""

    name: str
    method: Method
    prediction: Prediction


class Advice(Frozen):
    """Which method to use for a workload. chosen: None if no method that was considered ends. text: why, in words.

    reaches: whether it is predicted to reach the goal, or to end if there is none.
    """

    workload: str
    chosen: Choice | None
    considered: tuple[Choice, ...]
    text: str
    reaches: bool = False


class Measured(Frozen):
    """What was measured of a predicted figure: the mean of n moves with its 90 % interval, if there are enough.

    inside: how many of the moves were within the interval that was predicted.
    """

    value: float
    n: int
    inside: int
    low: float | None = None
    high: float | None = None


class DirtyCurve(Frozen):
    """How much of its memory a guest at a workload changed before it moved.

    changed: mean bytes in each of the windows. content: bytes of its memory that were not zero. how: it was watched.
    """

    workload: str
    memory: int
    content: int
    windows_s: tuple[float, ...]
    changed: tuple[float, ...]
    how: str


class CellFinding(Frozen):
    """One workload by one method. figures: by metric, see METRICS. measured: of each predicted metric."""

    workload: str
    method: str
    outcomes: dict[str, int]
    figures: dict[str, Figure] = Field(default_factory=dict)
    reaches_goal: bool | None = None
    prediction: Prediction | None = None
    measured: dict[str, Measured] = Field(default_factory=dict)


class MigrationFindings(Frozen):
    """What is known of a series of moves."""

    name: str
    headline: str
    outcome: estimate.Outcome
    moves: tuple[MoveFinding, ...]
    cells: tuple[CellFinding, ...]
    advice: tuple[Advice, ...] = ()
    curves: tuple[DirtyCurve, ...] = ()
    notes: tuple[str, ...] = ()
    rests_on: str = Field("", description="what predictions rest on, in words")


class MigrationReport(Frozen):
    """Findings, and what a page shows beside them."""

    findings: MigrationFindings
    plan: MigrationPlan
    host: dict[str, Any]
    about: dict[str, Any]
