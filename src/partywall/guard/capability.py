"""Guards: bandwidth guarantees, and whether they were kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from partywall import events, guard
from partywall.core import here
from partywall.core.capability import EXITS, NeverContinued, Options, Outline
from partywall.core.control import Control
from partywall.core.document.shipped import text
from partywall.errors import AgentError, Exit, Problem, UsageError
from partywall.events import Emit, Left, Note, Sinks, Started, reports
from partywall.guard.check import IS_INSIDE
from partywall.guard.document import Policy
from partywall.guard.findings import GuardRun
from partywall.guard.measure.run import Kept
from partywall.guard.record import GuardDirectory

if TYPE_CHECKING:
    from partywall.core.report.files import Files

KEEPS = "the policy is still enforced"
QUEUES = {"fq": "fq, until each packet's departure time", "tbf": "tbf, at a rate"}
NAMED = 6
"""The most hooks that a note names."""


@dataclass(frozen=True)
class GuardJob:
    """A policy to be enforced. every_ns: the interval between reports. for_ns: the duration; None until Ctrl-C.

    leave: whether hooks and rates stay in the kernel afterwards. agents: commands of agents in guests, by name.
    """

    policy: Policy
    file: Path
    every_ns: int = 1_000_000_000
    for_ns: int | None = None
    leave: bool = False
    agents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> GuardJob:
        """Reads a policy file. UsageError with all mistakes in it."""
        return cls(guard.load(file), file)


class Guards(NeverContinued):
    record = GuardDirectory
    why_not = "a guard keeps bandwidths and has no end of its own"

    def places(self, job: GuardJob) -> tuple[Mapping[str, guard.VifPlace], guard.Flat]:
        """The place of every vif, and the policy as the agent needs it.

        UsageError or CapabilityError if vifs are missing.
        """
        located, links = guard.places(job.policy)
        guard.check_sides(job.policy, located)
        return located, guard.flatten(job.policy, located, job.every_ns, links)

    def outline(self, job: GuardJob, options: Options) -> Outline:
        del options
        _, flat = self.places(job)
        return Outline(tuple(_hooked(flat)), (job.for_ns or 0) / 1e9)

    def check(self, job: GuardJob, options: Options) -> None:
        del options
        self._checked(job)

    def _checked(self, job: GuardJob) -> tuple[Mapping[str, guard.VifPlace], guard.Flat]:
        here.check_hooks("a guard")
        located, flat = self.places(job)
        _check_sources(job, located)
        return located, flat

    def measure(self, job: GuardJob, options: Options, emit: Emit) -> GuardDirectory | None:
        """Enforces the policy until the time is up or Ctrl-C, the normal end. Keeps a record if `out` is given."""
        located, flat = self._checked(job)
        record = GuardDirectory.create(options.out, text(job.file, "policy")) if options.out else None
        sinks = Sinks(KEEPS)
        if record is not None:
            sinks.add(str(record.path), reports(record.add))
        sinks.add("the listener", emit)
        with (
            record.exclusive() if record else contextlib.nullcontext(),
            contextlib.suppress(KeyboardInterrupt),
            guard.keep(flat, leave=job.leave, sources=_sources(job)) as kept,
        ):
            sinks(Started(record.path if record else None))
            for note in _notes(kept):
                sinks(note)
            for unmet in guard.beside_hooks(located, guard.resolve_links(job.policy)):
                sinks(Note(unmet, is_warning=True))
            change = _Changes(job, located, kept, record).take if record else _nothing
            _watch(job, guard.Follower(job.policy, located), kept, sinks, change)
        return record

    def findings(self, record: GuardDirectory) -> GuardRun:
        return GuardRun(record.name, tuple(record.reports()), tuple(record.adjustments()))

    def outcome(self, findings: GuardRun) -> Exit:
        return EXITS[findings.outcome]

    def files(self) -> Files[GuardRun]:
        from partywall.core.report import rendered  # noqa: PLC0415 - what draws is slow to import
        from partywall.guard.report import report  # noqa: PLC0415 - of those who look alone

        return rendered.files("guard", "vifs", report, {})


def _check_sources(job: GuardJob, located: Mapping[str, guard.VifPlace]) -> None:
    """UsageError if a vif's agent is not given, an agent has no vif, or a hook is inside its sender already."""
    problems, used = [], set()
    for name, vif in job.policy.vifs.items():
        if vif.source is None:
            continue
        agent = vif.source.partition("/")[0]
        used.add(agent)
        key = f"vifs.{name}.source"
        if agent not in job.agents:
            remedy = f"add --agent {agent}='ssh {agent} sudo partywall-agent serve'"
            problems.append(Problem(f"no command is given for agent {agent!r}", remedy, key=key))
        if located[name].inside:
            problems.append(Problem(IS_INSIDE, "leave source out", key=key))
    for unused in sorted(set(job.agents) - used):
        remedy = f"write source: {unused}/INTERFACE at a vif, or leave the agent out"
        problems.append(Problem(f"no vif of the policy has agent {unused!r}", remedy, key="--agent"))
    if problems:
        raise UsageError(*problems)


def _sources(job: GuardJob) -> dict[str, guard.AtSource]:
    """The hooks inside guests, by vif."""
    places = {}
    for name, vif in job.policy.vifs.items():
        if vif.source is not None:
            agent, _, interface = vif.source.partition("/")
            places[name] = guard.AtSource(interface, (agent, job.agents[agent]))
    return places


class _Changes:
    """Requests to replace the policy of a running guard, which come through its record."""

    def __init__(
        self, job: GuardJob, located: Mapping[str, guard.VifPlace], kept: Kept, record: GuardDirectory
    ) -> None:
        self._job, self._located, self._kept, self._record = job, located, kept, record
        self._control = Control(record.path)
        self._policy = job.policy

    def take(self, emit: Emit) -> None:
        """Carries out the requests since the last call. Says to all listeners what became of each."""
        for request in self._control.take():
            policy = request.get("policy")
            if not isinstance(policy, str):
                emit(Note("a request to this guard has no policy; send the text of a policy", is_warning=True))
                continue
            try:
                emit(Note(self._adjust(policy)))
            except (UsageError, AgentError) as error:
                emit(Note(f"the policy was not changed: {error}", is_warning=True))

    def _adjust(self, content: str) -> str:
        policy = guard.loads(content, "the new policy")
        guard.refuse(self._policy, policy, "the new policy")
        if not (changed := guard.changes(self._policy, policy)):
            return "the new policy is the one that is enforced already"
        links = guard.resolve_links(policy)
        at_ns = self._kept.adjust(guard.flatten(policy, self._located, self._job.every_ns, links))
        self._policy = policy
        self._record.adjusted(at_ns, content, changed)
        return f"the policy was changed: {_some(changed)}"


def _nothing(emit: Emit) -> None:
    """A guard without a record takes no requests."""
    del emit


def _watch(
    job: GuardJob, follower: guard.Follower, kept: Kept, emit: Emit, change: Callable[[Emit], None] = _nothing
) -> None:
    begun_ns = time.monotonic_ns()
    while job.for_ns is None or (left_ns := job.for_ns - (time.monotonic_ns() - begun_ns)) > 0:
        if report := kept.report(0.2):
            if job.for_ns is not None:
                emit(Left(left_ns / 1e9))
            emit(events.Report(report))
            follower.hear(report)
        _follow(follower, kept, emit)
        for note in kept.notes():
            emit(Note(note, is_warning=True))
        change(emit)


def _follow(follower: guard.Follower, kept: Kept, emit: Emit) -> None:
    """Tells the guard about vifs that have moved to another place."""
    if not (moved := follower.moved()):
        return
    try:
        kept.move(moved)
    except (OSError, AgentError) as error:
        said = f"{', '.join(moved)}: the guard could not follow it to its new place and will try again: {error}"
        emit(Note(said, is_warning=True))
    else:
        follower.went(moved)


def _hooked(flat: guard.Flat) -> Iterator[str]:
    for hook, place in zip(flat.hooks, flat.start["hooks"], strict=True):
        where = f" in {place['namespace']}" if place["namespace"] else ""
        # A tenant can bypass a hook that it can reach.
        also = ", and the interface's other end as a backstop" if place["backstop"] else ""
        yield f"would hook {place['direction']} of {place['interface']}{where}{also}: {hook}"


def _notes(kept: Kept) -> Iterator[Note]:
    """Notes about the hooks: what happens to excess packets, and what a tenant can bypass."""
    queue = QUEUES.get(kept.queue, kept.queue)
    words = {
        "held": f"excess packets wait in a queue that their sender's kernel sees ({queue})",
        "tcp_held": f"excess TCP waits in a queue ({queue}); other excess packets are dropped, and marked before if "
        "they support ECN",
        "dropped": "excess packets are dropped, and marked before if they support ECN; there can be no queue, so TCP "
        "gets little of its guarantee with a short burst (docs/guard.md)",
    }
    for excess, said in words.items():
        if hooks := [hook for hook, excess_there in kept.excess.items() if excess_there == excess]:
            yield Note(f"{said}: {_some(hooks)}")
    for source in kept.sources:
        queue = QUEUES.get(source.queue, source.queue)
        what = "are dropped in the guest" if source.excess == "dropped" else f"wait in their guest ({queue})"
        yield Note(f"excess packets of {source.vif} {what}; the hook at the vif still enforces the policy")
    if kept.without_backstop:
        said = "the interface's other end was not found: a tenant that may send raw frames can bypass the hook; this is"
        yield Note(f"{said} reported, but not prevented: {_some(kept.without_backstop)}", is_warning=True)
    pairs = zip(kept.flat.hooks, kept.flat.start["hooks"], strict=True)
    if received := [vif for vif, place in pairs if place["direction"] == "ingress"]:
        said = "the interface also counts dropped packets, so the hook's own count is compared with the ceiling"
        yield Note(f"{said}: {_some(received)}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
