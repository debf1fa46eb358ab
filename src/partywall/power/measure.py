"""Reads meters into a record: for some time, or while a load is switched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from partywall.clock import Monotonic
from partywall.core.capability import Options, expect_same, refuse_to_resume
from partywall.core.record import stamped
from partywall.errors import CapabilityError, Failures, Problem, UsageError
from partywall.events import Doing, Emit, Left, Note
from partywall.host import Host
from partywall.host.label import Label
from partywall.power import activity, ladder
from partywall.power.job import AttributeJob, CalibrateJob, PowerJob
from partywall.power.meters import Meter, make
from partywall.power.meters.simulated import Simulated
from partywall.power.record import PowerRecord
from partywall.power.sampling import Sampler
from partywall.power.values import Activity, MeterFault, NodeModel, PowerEvidence, Reading
from partywall.sandbox import reaper, tenants

FAULTS_SHOWN = 3
"""Faults of one meter that are shown while it is read; the record has all."""
AFTER_NS = 1_000_000_000
"""Readings go on for so long after the last slot, because meters lag."""
LOOK_NS = 500_000_000
LAG_NS = AFTER_NS // 2
"""A slot without readings for so long after its end is measured again."""

Opened = tuple[dict[str, Meter], list[activity.Consumer]]


def cores(meter: Meter, host: Host) -> tuple[int, ...]:
    """The cores of the machine that a meter measures: the host's, or those of a simulated machine."""
    count = meter.cores if isinstance(meter, Simulated) else None
    return host.cpus if count is None else tuple(range(count))


def workers(meter: Meter, host: Host) -> list[ladder.Worker]:
    """A worker for each core. Those of a simulated machine run where there is room."""
    own = cores(meter, host)
    if own == host.cpus:
        return ladder.workers(own)
    return [ladder.Worker(f"cpu{core}", host.cpus) for core in own]


def read(
    record: PowerRecord,
    host: Host,
    meters: Mapping[str, Meter],
    consumers: Mapping[str, activity.Read],
    for_ns: int,
    every_ns: int,
    emit: Emit,
) -> None:
    """Reads meters and CPU time for some time."""
    clock = Monotonic()
    emit(Doing("reading"))
    with Sampler(meters, every_ns / 1e9, Sink(record, emit), _cpus(meters, host), consumers) as sampler:
        end_ns = clock.now_ns() + for_ns
        while (left_ns := end_ns - clock.now_ns()) > 0:
            emit(Left(left_ns / 1e9))
            clock.sleep_until(min(end_ns, clock.now_ns() + LOOK_NS))
            sampler.look()


def under_load(
    record: PowerRecord,
    host: Host,
    meters: Mapping[str, Meter],
    every: Sequence[ladder.Worker],
    steps: Sequence[ladder.Step],
    slot_ns: int,
    every_ns: int,
    label: Label,
    emit: Emit,
) -> None:
    """Reads meters and CPU time while workers are switched as `steps` say."""
    emit(Doing("starting the load"))
    with ladder.Load(label, every) as load:
        for each in load.disturbed:
            record.stream.append(each)
            emit(Note(f"worker {each.worker}: {each.warning}", is_warning=True))
        for meter in meters.values():
            if isinstance(meter, Simulated):
                meter.follow(activity.Threads(list(load.pids.values())))
        with Sampler(meters, every_ns / 1e9, Sink(record, emit), _cpus(meters, host)) as sampler:
            for slot in load.carry_out(steps, slot_ns, emit, sampler.look):
                record.stream.append(slot)
            clock = Monotonic()
            clock.sleep_until(clock.now_ns() + AFTER_NS)


@contextlib.contextmanager
def labelled(name: str, work_root: Path) -> Iterator[Label]:
    """A label for processes, all of which are removed at the end."""
    label = Label.create(name, work_root)
    try:
        yield label
    finally:
        reaper.clean(label)


def _cpus(meters: Mapping[str, Meter], host: Host) -> Callable[[], tuple[float, ...]]:
    """CPU seconds of the machine that is measured: the host, or a simulated one."""
    own = [meter.cpus for meter in meters.values() if isinstance(meter, Simulated) and meter.cpus]
    return own[0] if own else activity.HostCpus(host)


class Sink:
    """Writes what is read, and shows the first faults of each meter."""

    def __init__(self, record: PowerRecord, emit: Emit) -> None:
        self._record, self._emit = record, emit
        self._faults: dict[str, int] = {}

    def __call__(self, value: Reading | MeterFault | Activity) -> None:
        self._record.stream.append(value)
        if isinstance(value, MeterFault):
            count = self._faults[value.meter] = self._faults.get(value.meter, 0) + 1
            if count <= FAULTS_SHOWN:
                more = "; further faults are only recorded" if count == FAULTS_SHOWN else ""
                self._emit(Note(f"{value.meter}: {value.fault}: {value.text}{more}", is_warning=True))


def opened(job: PowerJob, options: Options, stack: contextlib.ExitStack) -> Opened:
    """The meters and consumers of a job. Raises everything that is wrong with any of them at once."""
    failures, every, consumers, texts = Failures(), {}, [], job.consumer_names
    if isinstance(job, AttributeJob) and not texts:
        texts = tuple(f"{each.name}=cgroup:{each.name}" for each in activity.containers(options.host))
    for name in job.meter_names:
        with failures.kept():
            every[name] = make(name, options.host)
            stack.callback(every[name].close)
    for text in texts:
        with failures.kept():
            consumers.append(activity.consumer(text, options.host))
    with failures.kept():
        tenants.expect_apart([tenants.named(text, options.host) for text in texts], options.host)
    failures.tell()
    _expect_same_part(job.node, every)
    if isinstance(job, CalibrateJob) and not every:
        raise CapabilityError("a model needs a meter; 'partywall power meters' lists those of this host")
    return every, consumers


def _expect_same_part(model: NodeModel | None, every: Mapping[str, Meter]) -> None:
    """UsageError if the total would be that of another part of the machine than the model's watts."""
    if model is None or not every or model.fits(facts := next(iter(every.values())).facts):
        return
    said = f"meter {facts.meter} covers {facts.covers}, and {model.name} has the watts of {model.covers}"
    remedy = f"fit a model on this meter: partywall power calibrate {facts.meter}; or give another meter"
    raise UsageError(Problem(said, remedy, key="--model"))


def steps(job: CalibrateJob, every: Mapping[str, Meter], options: Options) -> list[ladder.Step]:
    """The slots of a calibration with the first of these meters."""
    return ladder.ladder(cores(next(iter(every.values())), options.host), job.blocks, job.seed)


def climb(record: PowerRecord, job: CalibrateJob, every: Mapping[str, Meter], options: Options, emit: Emit) -> None:
    """Measures the levels of load that a record lacks, with the same meters on the same boot of the host."""
    wanted, measured = steps(job, every, options), _measured(record)
    if unknown := measured - {(step.block, step.level) for step in wanted}:
        level = sorted(unknown)[0][1]
        refuse_to_resume(record, f"this host has other levels of load than {level}, which was measured")
    expect_same(record, record.about, {"boot": options.host.boot})
    record.found([meter.facts for meter in every.values()], options.host.boot)
    left = [step for step in wanted if (step.block, step.level) not in measured]
    with labelled(stamped("power-calibrate"), options.work_root) as label:
        each = workers(next(iter(every.values())), options.host)
        under_load(record, options.host, every, each, left, job.slot_ns, job.every_ns, label, emit)


def _measured(record: PowerRecord) -> set[tuple[int, str]]:
    """Block and level of each slot that has readings for as long after its end as meters may lag."""
    evidence: PowerEvidence = record.evidence()
    if evidence.slots and "blocks" not in evidence.about:
        refuse_to_resume(record, "a version that did not keep its number of blocks made it")
    last_ns = max((reading.time_ns for reading in evidence.readings), default=0)
    return {(slot.block, slot.level) for slot in evidence.slots if slot.end_ns + LAG_NS <= last_ns}
