"""Enforces a policy on this host: where its hooks are, what its guard says, and requests to change it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from partywall.core.control import Control
from partywall.errors import AgentError, CapabilityError, Problem, ProblemsError, UsageError
from partywall.events import Emit, Left, Note, Seen, Sinks
from partywall.guard.change import changes, refuse
from partywall.guard.check import IS_INSIDE, loads
from partywall.guard.findings import Means, SoFar
from partywall.guard.job import GuardJob
from partywall.guard.measure.ends import beside_hooks, check_sides
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.follow import AGAIN_S, Follower
from partywall.guard.measure.resolve import VifPlace, places, resolve_links
from partywall.guard.measure.run import Kept, keep
from partywall.guard.measure.source import AtSource
from partywall.guard.record import GuardRecord

QUEUES = {"fq": "fq, until each packet's departure time", "tbf": "tbf, at a rate"}
NAMED = 6
"""The most hooks that a note names."""
KEPT_EVERY_NS = 900_000_000
"""Of what is seen, at most a line in this time goes to the journal, which keeps everything."""

Located = Mapping[str, VifPlace]


def enforce(job: GuardJob, record: GuardRecord, emit: Sinks) -> None:
    """Enforces the policy of a job until its time is up or Ctrl-C, the normal end."""
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        located, kept = _begun(job, stack, emit)
        for note in _notes(kept):
            emit(note)
        for unmet in beside_hooks(located, resolve_links(job.wanted)):
            emit(Note(unmet, is_warning=True))
        _watch(job, Follower(job.wanted, located), kept, emit, _Changes(job, located, kept, record))


def _begun(job: GuardJob, stack: contextlib.ExitStack, emit: Emit) -> tuple[Located, Kept]:
    """Hooks every vif. A job that waits says once what is not there yet, and tries again.

    So a guard that starts with the host meets guests that start later.
    """
    noted = ""
    while True:
        try:
            located, flat = _located(job)
            _check_sources(job, located)
            return located, stack.enter_context(keep(flat, leave=job.leave, sources=_sources(job)))
        except (UsageError, CapabilityError) as error:
            if not _may_come(job, error):
                raise
            missing = "; ".join(": ".join(filter(None, (each.key, each.message))) for each in error.problems)
        if missing != noted:
            noted = missing
            emit(Note(f"nothing is enforced yet: {missing}", is_warning=True))
        time.sleep(AGAIN_S)


def hooked(job: GuardJob) -> Iterator[str]:
    """What would be hooked, a line each. Raises what is wrong with any place."""
    _, flat = _located(job)
    for hook, place in zip(flat.hooks, flat.start["hooks"], strict=True):
        where = f" in {place['namespace']}" if place["namespace"] else ""
        # A tenant can bypass a hook that it can reach.
        also = ", and the interface's other end as a backstop" if place["backstop"] else ""
        yield f"would hook {place['direction']} of {place['interface']}{where}{also}: {hook}"


def check(job: GuardJob) -> None:
    """Raises what is wrong with a place of the policy, or with agents in guests. A job waits for what comes later."""
    try:
        located, _ = _located(job)
        _check_sources(job, located)
    except (UsageError, CapabilityError) as error:
        if not _may_come(job, error):
            raise


def _may_come(job: GuardJob, error: ProblemsError) -> bool:
    return job.wait_for_vifs and error.is_early


def _located(job: GuardJob) -> tuple[Located, Flat]:
    """The place of every vif, and the policy as the agent needs it. Raises what is wrong with either."""
    located, links = places(job.wanted)
    check_sides(job.wanted, located)
    return located, flatten(job.wanted, located, job.every_ns, links)


def _check_sources(job: GuardJob, located: Mapping[str, VifPlace]) -> None:
    """UsageError if a vif's agent is not given, an agent has no vif, or a hook is inside its sender already."""
    problems, used = [], set()
    for name, vif in job.wanted.vifs.items():
        if vif.source is None:
            continue
        agent = vif.source.partition("/")[0]
        used.add(agent)
        key = f"vifs.{name}.source"
        if agent not in job.commands:
            remedy = f"add --agent {agent}='ssh {agent} sudo partywall-agent serve'"
            problems.append(Problem(f"no command is given for agent {agent!r}", remedy, key=key))
        if located[name].inside:
            problems.append(Problem(IS_INSIDE, "leave source out", key=key))
    for unused in sorted(set(job.commands) - used):
        remedy = f"write source: {unused}/INTERFACE at a vif, or leave the agent out"
        problems.append(Problem(f"no vif of the policy has agent {unused!r}", remedy, key="--agent"))
    if problems:
        raise UsageError(*problems)


def _sources(job: GuardJob) -> dict[str, AtSource]:
    """The hooks inside guests, by vif."""
    places = {}
    for name, vif in job.wanted.vifs.items():
        if vif.source is not None:
            agent, _, interface = vif.source.partition("/")
            places[name] = AtSource(interface, (agent, job.commands[agent]))
    return places


class _Changes:
    """Requests to replace the policy of a running guard, which come through its record."""

    def __init__(self, job: GuardJob, located: Mapping[str, VifPlace], kept: Kept, record: GuardRecord) -> None:
        self._job, self._located, self._kept, self._record = job, located, kept, record
        self._control = Control(record.path)
        self.policy = job.wanted

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
        policy = loads(content, "the new policy")
        refuse(self.policy, policy, "the new policy")
        if not (changed := changes(self.policy, policy)):
            return "the new policy is the one that is enforced already"
        links = resolve_links(policy)
        at_ns = self._kept.adjust(flatten(policy, self._located, self._job.every_ns, links))
        self.policy = policy
        self._record.adjusted(at_ns, content, changed)
        return f"the policy was changed: {_some(changed)}"


def _watch(job: GuardJob, follower: Follower, kept: Kept, emit: Emit, change: _Changes) -> None:
    """Passes on reports and notes until the time is up."""
    begun_ns, means, seen = time.monotonic_ns(), Means(), None
    kept_ns = begun_ns - KEPT_EVERY_NS
    try:
        while job.for_ns is None or (left_ns := job.for_ns - (time.monotonic_ns() - begun_ns)) > 0:
            if report := kept.report(0.2):
                if job.for_ns is not None:
                    emit(Left(left_ns / 1e9))
                seen = (seen or SoFar(change.policy, report, means)).then(report, change.policy)
                is_kept = (now_ns := time.monotonic_ns()) - kept_ns >= KEPT_EVERY_NS
                kept_ns = now_ns if is_kept else kept_ns
                emit(Seen(seen, is_kept))
                for hook, kind, text in report.notes:
                    emit(Note(f"{hook}: {kind}: {text}", is_warning=True))
                follower.hear(report)
            _follow(follower, kept, emit)
            for note in kept.notes():
                emit(Note(note, is_warning=True))
            change.take(emit)
    finally:
        if seen is not None:
            emit(Seen(replace(seen, is_over=True)))


def _follow(follower: Follower, kept: Kept, emit: Emit) -> None:
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
