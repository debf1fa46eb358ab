"""Enforces a policy: runs the agent that sets the rates, and passes on its reports. Only this module acts on the host.

If this process dies, the agent ends with it. Hooks, buckets and queues stay in the kernel, as the policy defines.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from partywall.agent import binary
from partywall.agent.agents import Agents
from partywall.agent.client import AgentClient
from partywall.agent.inbox import NOT_READ, Inbox, Message
from partywall.errors import AgentError, Problem, TrialError, UsageError
from partywall.files import write_whole
from partywall.guard.findings import LOST, unread_ns
from partywall.guard.measure import left
from partywall.guard.measure.flatten import Flat, vif_of
from partywall.guard.measure.resolve import VifPlace, identity
from partywall.guard.measure.source import AtSource, Inside, Source
from partywall.guard.record import GuardInterval
from partywall.host.label import made_state_root, start_ticks, state_root
from partywall.units import format_duration

AGENT = "guard"
UNREAD_MAX = 64 << 20
"""Limit on reports that wait, in bytes. A reader that stops reading loses reports; the guard never waits for it."""


class Kept:
    """A policy that is being enforced."""

    def __init__(self, flat: Flat, agents: Agents) -> None:
        self.flat = flat
        self._earlier: list[tuple[int, Flat]] = []
        """Policies that were replaced: until when each held."""
        self.client = _attached(agents)
        self._agents = agents
        self._waiting: list[Message] = []
        self._until_ns: int | None = None
        self._unread: list[str] = []
        self.hooks: list[Any] = list(flat.start["hooks"])
        """Places where this guard has hooks, or may have left some."""
        self._placed: dict[int, Any] = dict(enumerate(flat.start["hooks"]))
        self.excess: dict[str, str] = {}
        self.queue = ""
        self.without_backstop: tuple[str, ...] = ()
        self.sources: list[Source] = []

    def start(self) -> None:
        """Attaches all hooks and starts."""
        if any(hook["direction"] == "ingress" for hook in self.flat.start["hooks"]):
            _load_ifb()
        started = self.client.call("guard.start", timeout_s=120, **self.flat.start)
        self.excess = dict(zip(self.flat.hooks, started["excess"], strict=True))
        self.queue = started["queue"]
        self.without_backstop = tuple(self.flat.hooks[at] for at in started["without_backstop"])

    def hold_at_source(self, places: Mapping[str, AtSource]) -> None:
        """Attaches a hook inside each of these vifs' guests. AgentError if one is refused."""
        clients: dict[str, AgentClient] = {}
        for vif, place in places.items():
            if isinstance(place.agent, AgentClient):
                client = place.agent
            else:
                name, command = place.agent
                client = clients.get(name) or self._agents.attach(name, command)
                clients[name] = client
            inside = Inside.of(self.flat, vif, place.interface)
            self.sources.append(source := Source(vif, client, inside, self.client, self.flat.start["period_ns"]))
            source.start()

    def notes(self) -> list[str]:
        """Which reports were lost since the last call."""
        unread, self._unread = self._unread, []
        return unread

    def adjust(self, flat: Flat) -> int:
        """Replaces the policy, whole or not at all; hooks stay attached. Returns the time from which it holds, in ns.

        AgentError if the agent refuses; the earlier policy then stays.
        """
        at_ns: int = self.client.call("guard.adjust", timeout_s=120, **flat.start)["at_ns"]
        self._earlier.append((at_ns, self.flat))
        self.flat = flat
        return at_ns

    def move(self, moved: Mapping[str, VifPlace]) -> None:
        """Moves vifs to other places. Notes in a report tell whether their hooks are in place."""
        places = {
            at: {"namespace": moved[vif].namespace, "interface": moved[vif].interface}
            for at, hook in enumerate(self.flat.hooks)
            if (vif := vif_of(hook)) in moved
        }
        name = self.flat.start["id"]
        hooks = [{**self.flat.start["hooks"][at], **place} for at, place in places.items()]
        # Recorded before anything is created, so that all of it can be found if this process dies.
        _write(name, [*self.hooks, *hooks])
        moves = [{"hook": at, **place} for at, place in places.items()]
        self.client.call("guard.move", id=name, moves=moves)
        # The agent removes what it can reach; something may be left elsewhere. The places are then free for others.
        old = [self._placed[at] for at in places]
        self._placed |= dict(zip(places, hooks, strict=True))
        kept = [hook for hook in self.hooks if hook not in old or not left.is_there(hook)]
        self.hooks = [*kept, *hooks]
        _write(name, self.hooks)

    def report(self, timeout_s: float) -> GuardInterval | None:
        """The next report; None if none arrived in time. TrialError if the guard or its agent has ended."""
        self._waiting += [] if self._waiting else self._agents.take(timeout_s)
        if not self._waiting:
            return None
        name, method, params = self._waiting.pop(0)
        has_ended = method in ("gone", "ended")
        if name != AGENT:
            # An agent in a guest. Its source itself would notice only when the rates change.
            for source in self.sources if has_ended else ():
                if source.agent == name:
                    source.lost(params["reason"])
            return None
        if has_ended:
            what = "the guard's agent" if method == "gone" else "the guard"
            raise TrialError(f"{what} ended: {params['reason']}; the kernel continues as the policy says")
        return self._report(params) if method == "guard" else None

    def _report(self, params: Mapping[str, Any]) -> GuardInterval:
        if self._until_ns is not None and (lost_ns := unread_ns(self._until_ns, params["from_ns"])):
            # The agent or the inbox dropped them.
            lost = f"reports of {format_duration(lost_ns)} were not read in time and are lost"
            self._unread.append(f"{lost}; {NOT_READ}; the guard went on")
        self._until_ns = params["at_ns"]
        # Reports come in order, so a policy that none of this time on is about is not needed any more.
        self._earlier = [(until_ns, flat) for until_ns, flat in self._earlier if params["at_ns"] <= until_ns]
        flat = self._earlier[0][1] if self._earlier else self.flat
        known = (
            {"guarantee_bps": leaf["guarantee_bps"] or None, "ceiling_bps": leaf["ceiling_bps"]}
            | ({"link": link} if link else {})
            for leaf, link in zip(flat.start["leaves"], flat.links, strict=True)
        )
        rows = {leaf: row | more for leaf, row, more in zip(flat.leaves, params["rows"], known, strict=True)}
        pools = dict(zip((pool["name"] for pool in flat.start["pools"]), params["pools"], strict=True))
        gone = ((source.vif, LOST, note) for source in self.sources for note in source.take_notes())
        notes = (*((note["about"], note["kind"], note["text"]) for note in params["notes"]), *gone)
        longest = (params["round_ns_max"], params["decide_ns_max"])
        return GuardInterval(params["from_ns"], params["at_ns"], rows, pools, notes, *longest, self.queue)


@contextlib.contextmanager
def keep(flat: Flat, *, leave: bool = False, sources: Mapping[str, AtSource] | None = None) -> Iterator[Kept]:
    """Enforces a policy while the block runs. Afterwards removes it, or with `leave` leaves it to the kernel.

    sources: of vifs that also have a hook inside their guest, which is always removed.
    """
    name = flat.start["id"]
    left.reap()
    _refuse(name, flat)
    earlier = left.located(name, left.hooks(left.state(name)))
    stale = [hook for hook in earlier if _place(hook) not in {_place(new) for new in flat.start["hooks"]}]
    with Agents(messages=Inbox(UNREAD_MAX, lossy=True)) as agents:
        kept = Kept(flat, agents)
        _write(name, [*flat.start["hooks"], *stale])
        _start(kept, name, earlier)
        try:
            # Removes hooks that an edited policy no longer contains.
            kept.client.call("guard.remove", timeout_s=120, hooks=stale)
            _write(name, flat.start["hooks"])
            kept.hold_at_source(sources or {})
            yield kept
        finally:
            for source in kept.sources:
                source.close()
            if leave:
                _write(name, kept.hooks, kept=False)
            else:
                _take_away(kept, name)


def _take_away(kept: Kept, name: str) -> None:
    """Ends a guard and removes its hooks, unless its agent has ended."""
    with contextlib.suppress(AgentError):
        kept.client.call("guard.stop", id=name)
    with contextlib.suppress(AgentError):
        _remove(kept.client, name, kept.hooks)


def _start(kept: Kept, name: str, earlier: list[Any]) -> None:
    """Starts the guard. A refused start has undone its own changes; hooks of an earlier guard stay recorded."""
    try:
        kept.start()
    except AgentError:
        # An agent that died may have left anything, so all of it stays recorded.
        if kept.client.process.poll() is None:
            if earlier:
                _write(name, earlier, kept=False)
            else:
                left.state(name).unlink(missing_ok=True)
        raise
    except BaseException:
        # Ctrl-C, for example: the agent goes on attaching hooks, and would leave them in the kernel.
        _take_away(kept, name)
        raise


def remove(name: str, hooks: list[Any]) -> list[str]:
    """Removes everything that a guard of policy `name` has in the kernel, at `hooks` or elsewhere.

    Returns what it removed.

    TrialError if some places could not be read; these stay recorded.
    """
    with Agents() as agents:
        return _remove(_attached(agents), name, hooks)


def _remove(client: AgentClient, name: str, hooks: list[Any]) -> list[str]:
    done = client.call("guard.remove", timeout_s=120, id=name, hooks=left.located(name, hooks))
    removed: list[str] = done["removed"]
    if done["unseen"]:
        also = f"; removed: {', '.join(removed)}" if removed else ""
        unseen = ", ".join(done["unseen"])
        remedy = f"they are still in the kernel; try again: partywall guard remove {name}"
        raise TrialError(f"policy {name!r}: these could not be read: {unseen}; {remedy}{also}")
    left.state(name).unlink(missing_ok=True)
    return removed


def _refuse(name: str, flat: Flat) -> None:
    if (pid := left.owner(name)) and pid != os.getpid():
        said = f"policy {name!r} is already enforced by process {pid}"
        raise UsageError(Problem(said, "end that one first"), is_early=True)
    mine = {_place(hook): vif for hook, vif in zip(flat.start["hooks"], flat.hooks, strict=True)}
    problems = []
    for state in sorted(state_root().glob("guard-*.json")):
        other = state.stem.removeprefix("guard-")
        taken = {mine[place]: hook for hook in left.hooks(state) if other != name and (place := _place(hook)) in mine}
        for vif, hook in taken.items():
            pid = left.owner(other)
            by = f"enforced by process {pid}" if pid else "whose process has died"
            remedy = (
                "end that process, or take the vif out of one" if pid else f"'partywall guard remove {other}' first"
            )
            said = f"{hook['interface']} has hooks of policy {other!r} already, {by}; two would undo each other's"
            problems.append(Problem(said, remedy, key=f"vifs.{vif}"))
    if problems:
        raise UsageError(*problems)


def _place(hook: Mapping[str, Any]) -> tuple[object, str, str]:
    """The identity of a hook, the same for every name of its namespace."""
    return (identity(hook["namespace"]), hook["interface"], hook["direction"])


def _write(name: str, hooks: list[Any], *, kept: bool = True) -> None:
    """Writes the state file. kept: by this process, otherwise by none."""
    made_state_root()
    pid = os.getpid() if kept else None
    ticks = start_ticks(pid) if pid else None
    namespaces = left.namespaces(hooks, left.noted(name))
    written = {"pid": pid, "start_ticks": ticks, "namespaces": namespaces, "hooks": hooks}
    write_whole(left.state(name), json.dumps(written))


def _load_ifb() -> None:
    """Loads the kernel's module for queues on ingress, without the two interfaces that it adds when it loads itself."""
    if not Path("/sys/module/ifb").exists():
        # A kernel that has it built in has no such module.
        with contextlib.suppress(OSError):
            subprocess.run(["modprobe", "--quiet", "ifb", "numifbs=0"], capture_output=True, check=False)


def _attached(agents: Agents) -> AgentClient:
    return agents.attach(AGENT, [str(binary.find()), "serve", "--die-with-parent", "--only", "guard"])
