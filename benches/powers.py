"""What benchmarks of power share: a simulated machine that consists of the processes of a load, and its meter."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from partywall.events import silent
from partywall.host.label import Label
from partywall.power import ladder, profiles
from partywall.power.activity import Threads
from partywall.power.machine import Display, Machine
from partywall.power.meters import Meter
from partywall.power.sampling import Sampler
from partywall.power.values import Activity, MeterFacts, MeterFault, NodeModel, Reading, Slot
from partywall.sandbox import reaper

PROFILE = profiles.PROFILES["cervera-dl120-g6"]
FACTS = MeterFacts(meter="simulated", origin="simulated")
EVERY_S = 0.03
AFTER_S = 1.0


class Shown:
    """A meter that shows a machine."""

    facts = FACTS

    def __init__(self, machine: Machine, display: Display) -> None:
        self._machine, self._display = machine, display

    def read(self) -> Reading:
        at_ns = time.monotonic_ns()
        return Reading(meter=FACTS.meter, time_ns=at_ns, watts=self._machine.shown(self._display, at_ns))

    def close(self) -> None:
        pass


@dataclass
class Trace:
    """All that was read during some slots."""

    readings: list[Reading] = field(default_factory=list)
    activity: list[Activity] = field(default_factory=list)
    faults: list[MeterFault] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    others: dict[str, list[Reading]] = field(default_factory=dict)

    def take(self, value: Reading | MeterFault | Activity) -> None:
        kept = {Reading: self.readings, MeterFault: self.faults, Activity: self.activity}[type(value)]
        if isinstance(value, Reading) and value.meter != FACTS.meter:
            kept = self.others.setdefault(value.meter, [])
        kept.append(value)


@dataclass
class Rig:
    """A load, and the machine that it makes up. slower: how much slower its cores are than this host's."""

    load: ladder.Load
    machine: Machine
    display: Display
    threads: Callable[[], Sequence[float]]
    slower: float = 1.0

    def trace(
        self,
        steps: Sequence[ladder.Step],
        slot_s: float,
        wrap: Callable[[Shown], Meter] | None = None,
        others: Mapping[str, Machine] | None = None,
    ) -> Trace:
        """Reads the meter while the load is switched. wrap: puts a fault into the meter. others: read beside it."""
        trace = Trace()
        consumers = {name: Threads([pid]) for name, pid in self.load.pids.items()}
        reads = {name: (lambda each=each: each()[0]) for name, each in consumers.items()}
        meter = Shown(self.machine, self.display)
        meters: dict[str, Meter] = {name: Shown(each, self.display) for name, each in (others or {}).items()}
        meters[FACTS.meter] = wrap(meter) if wrap else meter
        with Sampler(meters, EVERY_S, trace.take, lambda: tuple(self.threads()), reads):
            slower = [replace(step, intensity=_divided(step.intensity, self.slower)) for step in steps]
            for slot in self.load.carry_out(slower, round(slot_s * 1e9), silent):
                trace.slots.append(slot)
            time.sleep(AFTER_S)
        return trace


def _divided(intensity: Mapping[str, float], slower: float) -> dict[str, float]:
    return {name: value / slower for name, value in intensity.items()}


@contextmanager
def rig(
    workers: Sequence[ladder.Worker], display: Display, model: NodeModel = PROFILE, slower: float = 1.0
) -> Iterator[Rig]:
    """Starts a load and its machine, which has as many cores as the model.

    slower: a core is busy all the time if its worker takes this part of a CPU, so that all cores can be.
    """
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        label = Label.create(f"power-{time.monotonic_ns()}", Path(folder))
        try:
            with ladder.Load(label, workers) as load:
                taken = Threads(list(load.pids.values()))

                def threads() -> tuple[float, ...]:
                    return tuple(slower * busy_s for busy_s in taken())

                machine = Machine(model, threads, cpus=model.cpus)
                machine.start()
                try:
                    yield Rig(load, machine, display, threads, slower)
                finally:
                    machine.stop()
        finally:
            reaper.clean(label)
