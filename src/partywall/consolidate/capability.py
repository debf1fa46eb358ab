"""Consolidation: plans for a cluster, and simulations of policies."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from partywall.consolidate.actions import Explain
from partywall.consolidate.document import Cluster
from partywall.consolidate.job import ConsolidationJob, PlanJob, SimulationJob, WatchJob
from partywall.consolidate.measure import connect
from partywall.consolidate.measure.apply import Applying, StoppedError, Timing
from partywall.consolidate.measure.seams import Hypervisor
from partywall.consolidate.measure.seeing import Seeing
from partywall.consolidate.measure.watch import Look, Watching
from partywall.consolidate.placement import plan as plans
from partywall.consolidate.placement import traces
from partywall.consolidate.placement.bound import least_energy_j
from partywall.consolidate.placement.policies import POLICIES
from partywall.consolidate.placement.simulate import first_placement, simulate
from partywall.consolidate.placement.state import ON, Floats, Guests, Hosts, State, guests_of, hosts_of
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.values import Acted, ConsolidationFindings, ConsolidationPlan, Simulation
from partywall.core.capability import Capability, Options, Outline, refuse_to_resume
from partywall.core.document.explain import did_you_mean
from partywall.core.record import stamped
from partywall.core.report.value import Report
from partywall.errors import PartywallError, Problem, TrialError, UsageError
from partywall.events import Doing, Emit, Left, Note, Started

SIMULATED_S = 12.0
"""What one policy takes for 800 hosts and a day, about."""

SEEN_EACH = 5
"""How often a watched cluster is recorded between two decisions."""
FRUITLESS = 5
"""A watch ends after so many looks in a row that failed."""


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
    def digests(self) -> dict[str, str]:
        """By trace, what shows that it has changed."""
        return {name: hashlib.sha256(utilisation.tobytes()).hexdigest() for name, utilisation in self.days}


class Consolidations(Capability[ConsolidationJob, ConsolidationDirectory, ConsolidationFindings]):
    """Plan which guests share a host and which hosts are off, and simulate policies."""

    jobs, record, actions = (PlanJob, SimulationJob), ConsolidationDirectory, (Explain,)
    rows, doing, disturbs = "", "planning", False

    def outline(self, job: ConsolidationJob, options: Options) -> Outline:
        del options
        size = f"{len(job.cluster.host_names())} hosts, {len(job.cluster.guest_names())} guests"
        if not isinstance(job, SimulationJob):
            return Outline((size,), job.cluster.limits.solver / 1e9)
        whole = Simulating.of(job)
        lines = (size, f"traces: {', '.join(name for name, _ in whole.days)}", f"policies: {', '.join(whole.policies)}")
        return Outline(lines, SIMULATED_S * len(whole.days) * whole.orders * len(whole.policies))

    def measure(self, record: ConsolidationDirectory, options: Options, emit: Emit) -> None:
        """Makes a plan, or simulates what the record lacks with the same traces."""
        del options
        if isinstance(record.job, SimulationJob):
            _simulate(record, record.job, emit)
        elif isinstance(record.job, PlanJob):
            emit(Doing("reading the cluster's state"))
            cluster = connect.observed(record.job.cluster)
            emit(Doing("making a plan"))
            _keep_plan(record, cluster, planned(cluster, record.job.solver))

    def continued_by(self, record: ConsolidationDirectory) -> tuple[str, ...]:
        if isinstance(record.job, PlanJob) and not record.is_ended:
            return ("consolidate", "apply", str(record.path))
        return super().continued_by(record)

    def findings(self, record: ConsolidationDirectory) -> ConsolidationFindings:
        from partywall.consolidate.findings import findings

        evidence = record.evidence()
        if evidence.mode == "plan" and evidence.plan is None:
            raise TrialError(f"{record.path}: no plan was made; make one: partywall consolidate plan CLUSTER")
        return findings(evidence)

    def report(self, findings: ConsolidationFindings) -> Report:
        from partywall.consolidate.report import report

        return report(findings)


def _simulate(record: ConsolidationDirectory, job: SimulationJob, emit: Emit) -> None:
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


def _keep_plan(record: ConsolidationDirectory, cluster: Cluster, plan: ConsolidationPlan) -> None:
    """Writes a plan, and the cluster as it was seen for it."""
    written = cluster.model_dump(mode="json", exclude_unset=True)
    record.learn(cluster=written, plan=plan.model_dump(mode="json"))


def planned(cluster: Cluster, solver: str = "auto") -> ConsolidationPlan:
    """The plan for a cluster whose state is that of its file."""
    empty = connect.may_empty(cluster.limits.hours, datetime.datetime.now().astimezone().time())
    return plans.make(plans.known(cluster, may_empty=empty), solver=solver)


def applied(record: ConsolidationDirectory, emit: Emit, timing: Timing | None = None) -> bool:
    """Carries the plan of a record out, or goes on with it. False if a step failed and the others were undone.

    UsageError if it was ended before, or if the cluster is not as it was when the plan was made.
    """
    evidence = record.evidence()
    if evidence.plan is None:
        raise UsageError(
            Problem(f"{record.path} holds a simulation", "make a plan: partywall consolidate plan CLUSTER")
        )
    if evidence.ended:
        raise UsageError(Problem(f"the plan in {record.path} has been carried out", "make a new plan"))
    hypervisor = connect.hypervisor_of(evidence.cluster)
    if not evidence.journal:
        _expect_unchanged(evidence.cluster, connect.observed(evidence.cluster), evidence.plan.digest)
    powers = connect.powers_of(evidence.cluster, hypervisor)
    with record.exclusive():
        at = {name: spec.host for name, spec in evidence.cluster.guests.items() if spec.host is not None}
        done = Applying(evidence.plan, hypervisor, powers, evidence.journal, record, emit, timing, at).carry_out()
        record.carried_out()
    return done


def _expect_unchanged(planned: Cluster, now: Cluster, digest: str) -> None:
    """UsageError that names what has changed since the plan was made, or that the plan was changed by hand."""
    problems = [
        f"guest {name} was on {spec.host} and is on {now.guests[name].host} now"
        for name, spec in planned.guests.items()
        if spec.host != now.guests[name].host
    ]
    problems += [
        f"host {name} was {spec.state} and is {now.hosts[name].state} now"
        for name, spec in planned.hosts.items()
        if spec.state != now.hosts[name].state
    ]
    if not problems and plans.digest(now, plans.known(now).state) != digest:
        problems = ["the cluster in the record is not the one that the plan was made for"]
    if problems:
        raise UsageError(*(Problem(text, "make a new plan: partywall consolidate plan CLUSTER") for text in problems))


def watched(job: WatchJob, options: Options, emit: Emit, timing: Timing | None = None) -> bool:
    """Watches until the time is over. False if a plan failed and was undone.

    A look that fails is noted. The watch ends with an error after FRUITLESS of them in a row, or if a guest is lost.
    """
    hypervisor = connect.hypervisor_of(job.cluster)
    with contextlib.ExitStack() as stack:
        seeing = None
        if not job.dry_run:
            path = job.out / stamped(f"watch-{job.cluster.name}")
            kept = ConsolidationDirectory.create(path, job, options.host.facts)
            emit(Started(kept.path))
            stack.enter_context(kept.exclusive())
            stack.callback(kept.end)
            each_s = job.every_s / SEEN_EACH
            seeing = stack.enter_context(Seeing(job.cluster, hypervisor, options.host, kept.stream.append, each_s))
        return _Watch(job, hypervisor, options, emit, timing, None if seeing is None else (seeing, kept)).run()


class _Watch:
    """The loop. Each look and each plan may fail without ending it."""

    def __init__(
        self,
        job: WatchJob,
        hypervisor: Hypervisor,
        options: Options,
        emit: Emit,
        timing: Timing | None,
        keeping: tuple[Seeing, ConsolidationDirectory] | None,
    ) -> None:
        self._job, self._options, self._emit = job, options, emit
        self._timing, self._keeping = timing, keeping
        self._watching = Watching(job.cluster, hypervisor, is_off=lambda host: _is_off(job.cluster, hypervisor, host))
        self._fruitless, self._has_looked = 0, False
        self._unknown: tuple[str, ...] = ()
        self._all_done = True
        self._told = ""

    def run(self) -> bool:
        begun, job = time.monotonic(), self._job
        while True:
            self._once()
            left_s = math.inf if job.for_s is None else job.for_s - (time.monotonic() - begun)
            if left_s < job.every_s:
                return self._all_done
            if math.isfinite(left_s):
                self._emit(Left(left_s))
            time.sleep(job.every_s)

    def _once(self) -> None:
        """One look, and what follows from it."""
        self._tell_failed()
        try:
            look = self._watching.look()
            self._say(look)
            if look.plan is not None and self._keeping is not None:
                self._act(look, look.plan, *self._keeping)
        except StoppedError:
            raise
        except PartywallError as error:
            if not self._has_looked and isinstance(error, UsageError):
                raise
            self._fruitless += 1
            if self._fruitless >= FRUITLESS:
                raise TrialError(f"{FRUITLESS} looks in a row came to nothing; the last: {error}") from None
            self._emit(Note(f"this look came to nothing ({self._fruitless} of {FRUITLESS}): {error}", is_warning=True))
        else:
            self._fruitless = 0
        self._has_looked = True

    def _tell_failed(self) -> None:
        """Reports why the record lacks what was seen, once for each reason."""
        failed = None if self._keeping is None else self._keeping[0].failed
        if failed is not None and repr(failed) != self._told:
            self._told = repr(failed)
            self._emit(Note(f"the record lacks looks at the cluster: {failed!r}", is_warning=True))

    def _say(self, look: Look) -> None:
        for host in sorted({*look.unknown} - {*self._unknown}):
            said = f"{host} does not answer and may be on: it and guests that may be there are left alone until it does"
            self._emit(Note(said, is_warning=True))
        for host in sorted({*self._unknown} - {*look.unknown}):
            self._emit(Note(f"it is known again whether {host} is on"))
        self._unknown = look.unknown
        if self._keeping is not None:
            self._keeping[0].unknown = look.unknown
        on = sum(spec.state == "on" for spec in look.cluster.hosts.values())
        self._emit(Doing(f"{on} hosts on, {sum(look.demand.values()):.1f} cores in use"))
        for step in look.plan.steps if look.plan else ():
            self._emit(Note(f"{'would ' if self._job.dry_run else ''}{step.title}: {step.reason}"))

    def _act(self, look: Look, plan: ConsolidationPlan, seeing: Seeing, kept: ConsolidationDirectory) -> None:
        """Carries a plan out, into a record of its own."""
        began_s = seeing.at_s()
        path = self._job.out / stamped(f"consolidation-{look.cluster.name}")
        record = ConsolidationDirectory.create(path, PlanJob(cluster=look.cluster), self._options.host.facts)
        _keep_plan(record, look.cluster, plan)
        done = applied(record, self._emit, self._timing)
        self._emit(Note(f"{'done' if done else 'undone'}: {path}", is_warning=not done))
        self._all_done &= done
        self._watching.done(look, whole=done)
        kept.stream.append(
            Acted(
                at_s=began_s,
                ended_s=seeing.at_s(),
                done=done,
                record=str(path),
                steps=tuple(step.title for step in plan.steps),
                net_j=plan.net_j,
            )
        )


def _is_off(cluster: Cluster, hypervisor: Hypervisor, host: str) -> bool:
    """Whether the power control of a host says that it is off; False if it does not answer."""
    try:
        power = connect.powers_of(cluster, hypervisor).get(host)
        return power is not None and not power.is_on()
    except PartywallError:
        return False


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
