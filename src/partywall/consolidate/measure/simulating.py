"""Simulates policies over traces, as a job says."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from partywall.consolidate.document import Cluster
from partywall.consolidate.job import SimulationJob
from partywall.consolidate.placement import plan as plans
from partywall.consolidate.placement import traces
from partywall.consolidate.placement.bound import least_energy_j
from partywall.consolidate.placement.policies import POLICIES
from partywall.consolidate.placement.simulate import first_placement, simulate
from partywall.consolidate.placement.state import ON, Floats, Guests, Hosts, State, guests_of, hosts_of
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.values import Simulation
from partywall.core.capability import refuse_to_resume
from partywall.core.document.explain import did_you_mean
from partywall.errors import Problem, UsageError
from partywall.events import Doing, Emit, Left, Note

EACH_S = 12.0
"""What one policy takes for 800 hosts and a day, about."""


@dataclass(frozen=True)
class Simulating:
    """Policies over traces. days: (name, utilisation) of each; orders: random assignments of traces to guests."""

    cluster: Cluster
    days: tuple[tuple[str, Floats], ...]
    policies: tuple[str, ...]
    orders: int
    seed: int

    @classmethod
    def of(cls, job: SimulationJob) -> Simulating:
        """What a job simulates. Reads its traces; UsageError with everything that is wrong."""
        remedy = "give a folder or a tar archive of traces"
        problems = [
            Problem(f"{str(path)!r} does not exist", remedy, key="--traces") for path in job.traces if not path.exists()
        ]
        problems += [
            Problem(f"there is no policy {name!r}", did_you_mean(name, list(POLICIES)), key="--policy")
            for name in job.policies
            if name not in POLICIES
        ]
        if problems:
            raise UsageError(*problems)
        days = tuple((path.name, traces.read(path)) for path in job.traces) or tuple(
            (f"generated, seed {seed}", traces.generated(len(job.cluster.guest_names()), seed))
            for seed in range(job.seed, job.seed + job.days)
        )
        return cls(job.cluster, days, tuple(dict.fromkeys(job.policies or POLICIES)), job.orders, job.seed)

    @property
    def seconds(self) -> float:
        """How long all of it takes, about."""
        return EACH_S * len(self.days) * self.orders * len(self.policies)

    @property
    def digests(self) -> dict[str, str]:
        """By trace, what shows that it has changed."""
        return {name: hashlib.sha256(utilisation.tobytes()).hexdigest() for name, utilisation in self.days}


def fill(record: ConsolidationDirectory, job: SimulationJob, emit: Emit) -> None:
    """Simulates what a record lacks."""
    about, done = record.about, {(each.trace, each.order) for each in record.evidence().simulations}
    if "traces" not in about:
        refuse_to_resume(record, "a version that did not keep its traces made it")
    whole, known = Simulating.of(job), about.get("digests", {})
    if changed := [name for name, digest in whole.digests.items() if known.get(name, digest) != digest]:
        remedy = "restore it, or start a new one: partywall consolidate simulate CLUSTER"
        refuse_to_resume(record, f"trace {changed[0]} has changed since", remedy)
    record.learn(traces=[str(path.absolute()) for path in job.traces], digests=whole.digests)
    for simulation in simulated(whole, emit, done):
        record.stream.append(simulation)


def simulated(job: Simulating, emit: Emit, known: Collection[tuple[str, int]] = ()) -> Iterator[Simulation]:
    """Every policy over every trace in every order, from the same first placement.

    known: trace and order of simulations that are left out.
    """
    hosts, guests, rules = hosts_of(job.cluster), guests_of(job.cluster), plans.rules_of(job.cluster)
    whole = (len(job.days) * job.orders - len(known)) * len(job.policies)
    begun, done = time.monotonic(), 0
    for day, (name, utilisation) in enumerate(job.days):
        for order in range(job.orders):
            if (name, order) in known:
                continue
            demand = demand_of_day(utilisation, guests, job.seed + 1000 * day + order)
            state = first_placement(unplaced(hosts, guests))
            results = []
            for policy in job.policies:
                emit(Doing(f"{name}, {policy}"))

                def watch(step: int, of: int, done: int = done) -> None:
                    share = (done + step / of) / whole
                    if step % 16 == 0:
                        emit(Left((time.monotonic() - begun) * (1 - share) / share))

                results.append(simulate(POLICIES[policy](rules), state, demand, traces.INTERVAL_S, watch))
                done += 1
                result = results[-1]
                emit(Note(f"{name}, {policy}: {result.energy_kwh:.1f} kWh, {result.moves} moves (simulated)"))
            bound = least_energy_j(hosts, guests, demand, traces.INTERVAL_S) / 3.6e6
            yield Simulation(
                trace=name,
                seed=job.seed,
                order=order,
                interval_s=traces.INTERVAL_S,
                hosts=len(hosts),
                guests=len(guests),
                bound_kwh=bound,
                results=tuple(results),
            )


def demand_of_day(utilisation: Floats, guests: Guests, seed: int) -> Floats:
    """Each guest's demand: a trace drawn without replacement, as long as there are enough, times its CPUs."""
    chance = np.random.default_rng(seed)
    drawn = [chance.permutation(len(utilisation)) for _ in range(-(-len(guests) // len(utilisation)))]
    chosen = np.concatenate(drawn)[: len(guests)]
    return np.asarray(utilisation[chosen] * guests.cpus[:, None])


def unplaced(hosts: Hosts, guests: Guests) -> State:
    """All hosts on, and guests not placed yet."""
    return State(
        hosts=hosts,
        guests=guests,
        at=np.zeros(len(guests), np.int64),
        status=np.full(len(hosts), ON),
        status_s=np.full(len(hosts), np.inf),
        moved_s=np.full(len(guests), np.inf),
        origin=np.full(len(guests), -1, np.int64),
    )
