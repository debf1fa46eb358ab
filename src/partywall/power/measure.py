"""Reads meters into a record: for some time, or while a load is switched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from partywall.clock import Monotonic
from partywall.events import Doing, Emit, Left, Note
from partywall.host import Host
from partywall.host.label import Label
from partywall.power import activity, ladder
from partywall.power.meters import Meter
from partywall.power.meters.simulated import Simulated
from partywall.power.record import PowerRecord
from partywall.power.sampling import Sampler
from partywall.power.values import Activity, MeterFault, Reading
from partywall.sandbox import reaper

FAULTS_SHOWN = 3
"""Faults of one meter that are shown while it is read; the record has all."""
AFTER_NS = 1_000_000_000
"""Readings go on for so long after the last slot, because meters lag."""
LOOK_NS = 500_000_000


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
