"""What benchmarks of power share: a simulated machine that consists of the processes of a load, and its meter."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from partywall.events import silent
from partywall.model.power import Activity, MeterFacts, MeterFault, NodeModel, Reading, Slot
from partywall.power import ladder, profiles
from partywall.power.activity import Threads
from partywall.power.machine import Display, Machine
from partywall.power.meters import Meter
from partywall.power.sampling import Sampler
from partywall.sandbox import Label, reaper

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

    def take(self, value: Reading | MeterFault | Activity) -> None:
        kept = {Reading: self.readings, MeterFault: self.faults, Activity: self.activity}[type(value)]
        kept.append(value)


@dataclass
class Rig:
    """A load, and the machine that it makes up."""

    load: ladder.Load
    machine: Machine
    display: Display
    threads: Threads

    def trace(self, steps: Sequence[ladder.Step], slot_s: float, wrap: Callable[[Shown], Meter] | None = None) -> Trace:
        """Reads the meter while the load is switched. wrap: puts a fault into the meter."""
        trace = Trace()
        consumers = {name: Threads([pid]) for name, pid in self.load.pids.items()}
        reads = {name: (lambda each=each: each()[0]) for name, each in consumers.items()}
        meter = Shown(self.machine, self.display)
        read = wrap(meter) if wrap else meter
        with Sampler({FACTS.meter: read}, EVERY_S, trace.take, lambda: tuple(self.threads()), reads):
            for slot in self.load.carry_out(steps, round(slot_s * 1e9), silent):
                trace.slots.append(slot)
            time.sleep(AFTER_S)
        return trace


@contextmanager
def rig(workers: Sequence[ladder.Worker], display: Display, model: NodeModel = PROFILE) -> Iterator[Rig]:
    """Starts a load and its machine, which has as many cores as the model."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        label = Label.create(f"power-{time.monotonic_ns()}", Path(folder))
        try:
            with ladder.Load(label, workers) as load:
                threads = Threads(list(load.pids.values()))
                machine = Machine(model, threads, cpus=model.cpus)
                machine.start()
                try:
                    yield Rig(load, machine, display, threads)
                finally:
                    machine.stop()
        finally:
            reaper.clean(label)
