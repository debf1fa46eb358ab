"""Watches a cluster, and carries out what its policy decides, until the time is over."""

from __future__ import annotations

import contextlib
import math
import time

from partywall.consolidate.document import Cluster
from partywall.consolidate.job import PlanJob, WatchJob
from partywall.consolidate.measure import connect
from partywall.consolidate.measure.apply import StoppedError, Timing
from partywall.consolidate.measure.planning import applied, keep
from partywall.consolidate.measure.seams import Hypervisor
from partywall.consolidate.measure.seeing import Seeing
from partywall.consolidate.measure.watch import Look, Watching
from partywall.consolidate.record import ConsolidationDirectory
from partywall.consolidate.values import Acted, ConsolidationPlan
from partywall.core.capability import Options
from partywall.core.record import stamped
from partywall.errors import PartywallError, TrialError, UsageError
from partywall.events import Doing, Emit, Left, Note, Started

SEEN_EACH = 5
"""How often a watched cluster is recorded between two decisions."""
FRUITLESS = 5
"""A watch ends after so many looks in a row that failed."""


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
        return Manager(job, hypervisor, options, emit, timing, None if seeing is None else (seeing, kept)).run()


class Manager:
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
        keep(record, look.cluster, plan)
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
