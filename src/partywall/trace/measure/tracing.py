"""A trace in progress. This host's agent aligns the records; those of agents elsewhere are forwarded to it.

Agents are tied to their stream, not to this process. If this process is killed, its agents see the end of the stream
and remove their hooks. If an agent is killed too, the next start finds its hooks (`sandbox.reaper`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from partywall import units
from partywall.agent import binary
from partywall.agent.client import AgentClient
from partywall.agent.client import Sink as AgentSink
from partywall.agent.clock import DRIFT_PPB, Alignment
from partywall.agent.inbox import NOT_READ
from partywall.clock import Clock
from partywall.errors import AgentError, CapabilityError, Refusal, RefusalError, TrialError, UsageError
from partywall.host.label import Label
from partywall.sandbox import hooks
from partywall.session import Session
from partywall.trace.record import ClockBound, Flow, Missed, Report
from partywall.trace.request import TraceRequest

ROUNDS_AT_START = 20
# Each answer of a relay is followed by a request for its clock's time; the result is reported this often.
CLOCK_EVERY_NS = 1_000_000_000
# A relay reports five times a second, even if it saw nothing, because records of other hops wait for it.
SILENCE_MOST_NS = 10_000_000_000
REPORT_NS = 1_000_000_000
RING_BYTES = 4 << 20
SLOWEST = 20
# A busy kernel needs time to remove hooks, and an agent that is killed leaves them.
UNHOOK_S = 30.0
HOST = "this host"

Sink = Callable[[Report], None]
ClockSink = Callable[[ClockBound], None]


@dataclass(frozen=True)
class Present:
    """An agent that runs already, such as one in a guest. listen: sends its messages elsewhere; None: nowhere.

    drift_ppb: largest difference in rate between its clock and this host's; more than the default if it is steered.
    """

    client: AgentClient
    listen: Callable[[AgentSink | None], None]
    drift_ppb: int = DRIFT_PPB


@dataclass
class _Relay:
    """An agent elsewhere, and its hops of the path."""

    name: str
    client: AgentClient
    hops: list[int]
    alignment: Alignment
    counted: tuple[Missed, ...]
    reported: tuple[Missed, ...]
    told_ns: int
    heard_ns: int
    # By the relay's own clock: everything it saw before this time has been reported.
    until_ns: int = 0


class Tracing:
    """Traces from `__enter__` to `finish`. Call `pump` regularly: it passes reports to the sink."""

    def __init__(
        self,
        request: TraceRequest,
        label: Label,
        sink: Sink,
        clock_sink: ClockSink = lambda _bound: None,
        *,
        clock: Clock | None = None,
        report_ns: int = REPORT_NS,
        ring_bytes: int = RING_BYTES,
        present: Mapping[str, Present] | None = None,
    ) -> None:
        """present: agents of the request that run already, by name."""
        self.request = request
        self.record_ns: int | None = None
        self.relays_record_ns: dict[str, int | None] = {}
        self._present = dict(present or {})
        self._agents = Session(label, clock)
        self._sink = sink
        self._clock_sink = clock_sink
        self._report_ns = report_ns
        self._ring_bytes = ring_bytes
        self._relays: dict[str, _Relay] = {}
        self._flows: list[Flow] = []
        self._sampled = 1.0
        self._closing = False

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every agent, which removes its hooks. May be called twice."""
        self._agents.close()

    def pump(self, timeout_s: float) -> None:
        """Handles messages that arrive within `timeout_s`. TrialError if an agent ended."""
        self.pump_until(self._agents.clock.now_ns() + int(timeout_s * 1e9))

    def pump_until(self, deadline_ns: int) -> None:
        """Handles messages that arrive until this host's clock shows `deadline_ns`. TrialError if an agent ended."""
        while (left := deadline_ns - self._agents.clock.now_ns()) > 0:
            for message in self._agents.take(left / 1e9):
                self._handle(*message)

    def finish(self) -> None:
        """Stops sampling new packets; waits for those on their way and for the last reports."""
        until_ns = self._host.call("trace.close", id=self._id)["until_ns"]
        self.pump(max(0, until_ns - self._agents.clock.now_ns()) / 1e9)
        self._closing = True
        for relay in self._relays.values():
            relay.client.call("trace.stop", id=self._id)
        self._drain()
        self._host.call("trace.stop", id=self._id)
        self._drain()

    @property
    def pid(self) -> int:
        """The process ID of this host's agent."""
        return self._host.process.pid

    @property
    def _id(self) -> str:
        return self._agents.label.run

    @property
    def _host(self) -> AgentClient:
        return self._agents.client(HOST)

    def _start(self) -> None:
        # Written before a hook is created, so that the hook can be found again.
        hooks.note(
            self._agents.label, [(hop.namespace, hop.interface) for hop in self.request.hops if hop.agent is None]
        )
        serve = (str(binary.find()), "serve", "--only", "trace")
        host = self._agents.attach(HOST, serve, os.environ | self._agents.label.environment, patience_s=UNHOOK_S)
        for name, command in self.request.agents.items():
            client = self._client(name, command)
            mine = [at for at, hop in enumerate(self.request.hops) if hop.agent == name]
            drift_ppb = self._present[name].drift_ppb if name in self._present else DRIFT_PPB
            alignment = self._agents.alignment(name, ROUNDS_AT_START, drift_ppb)
            none = (Missed(),) * len(mine)
            now_ns = self._agents.clock.now_ns()
            relay = _Relay(name, client, mine, alignment, none, none, told_ns=now_ns, heard_ns=now_ns)
            self._relays[name] = relay
            self._report_time(relay)
        # The host first, so that it is ready for records; relays' hooks follow a moment later.
        started = self._call(host, "trace.start", **self._parameters(range(len(self.request.hops)), relay=False))
        self.record_ns = started["record_ns"]
        for relay in self._relays.values():
            began = self._call(relay.client, "trace.start", **self._parameters(relay.hops, relay=True))
            self.relays_record_ns[relay.name] = began["record_ns"]
            if relay.name in self._present:
                self._agents.at_end(self._leave, relay)

    def _client(self, name: str, command: tuple[str, ...]) -> AgentClient:
        if name not in self._present:
            return self._agents.attach(name, command, patience_s=UNHOOK_S)
        there = self._present[name]
        there.listen(self._agents.share(name, there.client))
        return there.client

    def _leave(self, relay: _Relay) -> None:
        """Removes the hooks of an agent that goes on, unless it has ended."""
        with contextlib.suppress(AgentError):
            if not self._closing:
                relay.client.call("trace.stop", id=self._id)
        self._present[relay.name].listen(None)

    def _call(self, client: AgentClient, method: str, **params: Any) -> Any:
        """Calls an agent at the start.

        The user can fix a refusal: a wrong hop, no permission, an agent without programs.
        """
        try:
            return client.call(method, **params)
        except RefusalError as error:
            text = error.why if client.name == HOST else str(error)
            match error.refusal:
                case Refusal.LACKING:
                    raise CapabilityError(text) from None
                case Refusal.USAGE:
                    raise UsageError(*text.split("\n")) from None
            raise

    def _parameters(self, hops: Any, *, relay: bool) -> dict[str, Any]:
        request = self.request
        return {
            "id": self._id,
            "hops": [
                {
                    "name": hop.name,
                    "namespace": hop.namespace,
                    "interface": hop.interface,
                    "hook": hop.hook,
                    "remote": hop.agent is not None and not relay,
                }
                for hop in (request.hops[at] for at in hops)
            ],
            "relay": relay,
            "horizon_ns": request.horizon_ns,
            "report_ns": self._report_ns,
            "budget": request.budget,
            "one_in": request.one_in,
            "only": request.only.model_dump(),
            "translations": [translation.model_dump() for translation in request.translations],
            "slowest": SLOWEST,
            "packets": request.packets,
            "ring_bytes": self._ring_bytes,
        }

    def _drain(self) -> None:
        for message in self._agents.take(0):
            self._handle(*message)

    def _handle(self, name: str, method: str, params: dict[str, Any]) -> None:
        match method:
            case "trace":
                self._report(Report.model_validate(params))
            case "trace_records":
                self._feed(self._relays[name], params)
            case "dropped":
                said = f"{params['count']} messages of the agent of {name} were not read in time"
                raise TrialError(f"{said}, so the trace's figures would not be whole; {NOT_READ}")
            case "gone":
                raise TrialError(f"the agent of {name} ended: {params['reason']}")
            case "ended":
                raise TrialError(f"the trace of {name} ended: {params['reason']}")

    def _report(self, report: Report) -> None:
        """Adds what relays report about their hops, and passes them the sampling rate."""
        missed = list(report.hops)
        for relay in self._relays.values():
            self._check_heard(relay)
            for at, theirs in zip(relay.hops, _since(relay.counted, relay.reported), strict=True):
                # Records that were dropped here count as missed, like those that the agent could not write.
                missed[at] = theirs.model_copy(update={"missed": theirs.missed + missed[at].missed})
            relay.reported = relay.counted
        if report.sampled < self._sampled:
            self._sampled = report.sampled
            # A relay that has stopped has nothing left to sample.
            for relay in () if self._closing else self._relays.values():
                relay.client.call("trace.sample", id=self._id, below=int(report.sampled * 2**32))
        flows, self._flows = (*report.flows, *self._flows), []
        self._sink(report.model_copy(update={"hops": tuple(missed), "flows": flows}))

    def _check_heard(self, relay: _Relay) -> None:
        silent_ns = self._agents.clock.now_ns() - relay.heard_ns
        if silent_ns > SILENCE_MOST_NS:
            raise TrialError(
                f"the agent of {relay.name} sent nothing for {units.format_duration(silent_ns)}, so nothing can be "
                "matched; check the connection to it"
            )

    def _feed(self, relay: _Relay, params: dict[str, Any]) -> None:
        # A relay that sends messages without reporting its time delays the others as much as a silent one.
        if params["told_ns"] > relay.until_ns:
            relay.until_ns, relay.heard_ns = params["told_ns"], self._agents.clock.now_ns()
        self._check_heard(relay)
        relay.alignment.ask()
        if self._agents.clock.now_ns() - relay.told_ns > CLOCK_EVERY_NS:
            relay.told_ns = self._agents.clock.now_ns()
            self._report_time(relay)
        relay.counted = tuple(Missed.model_validate(counted) for counted in params["hops"])
        self._flows += [Flow.model_validate(flow) for flow in params["flows"]]
        offset = relay.alignment.best
        self._host.call(
            "trace.feed",
            id=self._id,
            hops=relay.hops,
            records=params["records"],
            told_ns=params["told_ns"],
            offset_ns=offset.offset_ns,
            bound_ns=offset.bound_ns,
        )

    def _report_time(self, relay: _Relay) -> None:
        best = relay.alignment.best
        self._clock_sink(ClockBound(agent=relay.name, offset_ns=best.offset_ns, bound_ns=best.bound_ns))


def _since(now: tuple[Missed, ...], before: tuple[Missed, ...]) -> Iterator[Missed]:
    """The increase since the last report: relays count from the start, reports cover an interval."""
    for after, other in zip(now, before, strict=True):
        rose = {name: count - getattr(other, name) for name, count in after if name != "gone"}
        yield Missed(**rose, gone=after.gone)
