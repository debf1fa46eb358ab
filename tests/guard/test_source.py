"""Hooks inside guests: what a guest's agent is asked to do, and when."""

from __future__ import annotations

import threading
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from partywall.agent.client import AgentClient
from partywall.errors import AgentError
from partywall.guard.document import Policy
from partywall.guard.findings import LOST, GuardRun
from partywall.guard.measure.flatten import Flat, flatten
from partywall.guard.measure.resolve import VifPlace
from partywall.guard.measure.run import Kept
from partywall.guard.measure.source import Inside, Source, differs
from tests.waiting import until

if TYPE_CHECKING:
    from partywall.agent.agents import Agents

PERIOD_NS = 1_000_000


def flat() -> Flat:
    policy = Policy.model_validate(
        {
            "partywall_guard": 1,
            "name": "edge",
            "link": {"capacity": "1Gbit/s"},
            "vifs": {
                "other": {"interface": "vnet0"},
                "vm": {
                    "interface": "vnet1",
                    "source": "vm1/eth0",
                    "send": {"guarantee": "10Mbit/s", "packets": "20k/s"},
                    "receive": {"ceiling": "5Mbit/s"},
                    "flows": {"voice": {"protocol": "udp", "ports": "5000"}},
                },
            },
        }
    )
    return flatten(policy, {name: VifPlace(vif.interface or "", None, False) for name, vif in policy.vifs.items()})


class Agent:
    """Answers with grants, and keeps what it was asked."""

    name = "vm1"

    def __init__(self, grants: list[dict[str, Any]] | None = None) -> None:
        self.grants, self.asked, self.fails = grants or [], [], False
        self.asked: list[tuple[str, dict[str, Any]]]

    def call(self, method: str, **params: Any) -> Any:
        if self.fails:
            raise AgentError("agent vm1: gone")
        if method == "guard.grants":
            return {"grants": self.grants}
        self.asked.append((method, params))
        return {"excess": ["held"], "queue": "fq"}

    def adjusted(self) -> list[dict[str, Any]]:
        return [params for method, params in self.asked if method == "guard.adjust"]


def source_of(guest: Agent, host: Agent) -> Source:
    inside = Inside.of(flat(), "vm", "eth0")
    return Source("vm", cast("AgentClient", guest), inside, cast("AgentClient", host), PERIOD_NS)


def grant(bps: int, pps: int | None = None) -> dict[str, Any]:
    return {"bps": bps, "pps": pps}


def test_a_guest_keeps_the_flow_classes_of_its_vif_and_a_little_more_than_their_grants() -> None:
    policy = flat()
    assert [leaf["held_at_source"] for leaf in policy.start["leaves"]] == [False, True, True, False]
    inside = Inside.of(policy, "vm", "eth0")
    assert inside.numbers == (1, 2)
    start = inside.at([(64_000_000, 6_400), (640_000, None)])
    assert [leaf["ceiling_bps"] for leaf in start["leaves"]] == [65_000_001, 650_001]
    assert [leaf["ceiling_pps"] for leaf in start["leaves"]] == [6_501, None]
    assert start["pools"][0]["capacity_bps"] == 65_650_002
    (hook,) = start["hooks"]
    assert (hook["interface"], hook["direction"], hook["leaf"], hook["rules"][0]["leaf"]) == ("eth0", "egress", 0, 1)
    assert start["transient"]
    assert all(leaf["totals"] == [] for leaf in start["leaves"])


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"excess": [], "queue": "fq"},
        {"excess": ["held"], "queue": "\x1b[2J"},
        {"excess": "h", "queue": "fq"},
    ],
)
def test_an_answer_of_a_guest_that_starts_no_hook_is_refused_with_the_vifs_name(answer: object) -> None:
    guest = Agent()
    guest.call = lambda *_, **__: answer  # type: ignore[method-assign]
    with pytest.raises(AgentError, match="vm: its guest's agent gave no answer that starts a hook; leave `source` out"):
        source_of(guest, Agent([grant(0)] * 4)).start()


def test_small_changes_of_a_rate_are_not_passed_on() -> None:
    assert not differs([(1000, None), (500, 10)], [(1005, None), (500, 10)])
    assert differs([(1000, None)], [(1010, None)])
    assert differs([(1000, 10)], [(1000, None)])
    assert differs([(1000, 100)], [(1000, 90)])


def test_a_guest_follows_its_grants_until_the_end_and_then_has_no_hook() -> None:
    host, guest = Agent([grant(1), grant(8_000_000), grant(1_000), grant(1)]), Agent()
    source = Source(
        "vm", cast("AgentClient", guest), Inside.of(flat(), "vm", "eth0"), cast("AgentClient", host), PERIOD_NS
    )
    source.start()
    assert source.excess == "held"
    host.grants = [grant(1), grant(4_000_000), grant(1_000), grant(1)]
    until(lambda: guest.adjusted())
    source.close()
    assert len(guest.adjusted()) == 1, "grants that stay the same are not sent again"
    assert guest.adjusted()[0]["leaves"][0]["ceiling_bps"] == 4_062_501
    assert [method for method, _ in guest.asked[-2:]] == ["guard.stop", "guard.remove"]
    assert source.take_notes() == []


def test_a_guest_that_is_gone_is_reported_once_and_the_vif_goes_on() -> None:
    host, guest = Agent([grant(1), grant(8_000_000), grant(1_000), grant(1)]), Agent()
    source = Source(
        "vm", cast("AgentClient", guest), Inside.of(flat(), "vm", "eth0"), cast("AgentClient", host), PERIOD_NS
    )
    source.start()
    guest.fails = True
    host.grants = [grant(1), grant(4_000_000), grant(1_000), grant(1)]
    notes: list[str] = []
    until(lambda: notes.extend(source.take_notes()) or notes)
    gone = "its guest no longer holds packets back (agent vm1: gone)"
    assert notes == [f"{gone}; excess packets are dropped at the vif from now on"]
    source.close()


@pytest.mark.parametrize("method", ["gone", "ended"])
def test_a_guest_that_is_gone_is_a_finding_of_the_report_also_while_its_rates_stay_the_same(method: str) -> None:
    source = source_of(Agent(), Agent([grant(1), grant(8_000_000), grant(1_000), grant(1)]))
    source.start()
    messages = [("vm2", method, {"reason": "of another vif"}), *[("vm1", method, {"reason": "it was killed"})] * 2]
    agents = SimpleNamespace(attach=lambda *_: None, take=lambda _timeout_s: [messages.pop(0)])
    kept = Kept(flat(), cast("Agents", agents))
    kept.sources.append(source)
    for _ in range(3):
        assert kept.report(0) is None
    source.close()
    row = {"offered_bps": 0}
    params: dict[str, Any] = {"from_ns": 0, "at_ns": 1, "notes": [], "round_ns_max": 1, "decide_ns_max": 1}
    params |= {"rows": [row] * len(kept.flat.leaves), "pools": [{}] * len(kept.flat.start["pools"])}
    seen = kept._report(params)
    gone = "its guest no longer holds packets back (it was killed)"
    assert seen.notes == (("vm", LOST, f"{gone}; excess packets are dropped at the vif from now on"),)
    assert GuardRun("edge", (asdict(seen),), (), {}).wrong == 1
    assert kept._report(params).notes == ()


def test_a_guard_that_is_busy_for_a_moment_is_asked_again() -> None:
    host, guest = Agent([grant(1), grant(8_000_000), grant(1_000), grant(1)]), Agent()
    source = source_of(guest, host)
    source.start()
    asked_in_vain = threading.Event()

    def busy(*_: Any, **__: Any) -> Any:
        asked_in_vain.set()
        raise AgentError("agent guard: guard.grants was not answered within 5 s")

    answer, host.call = host.call, busy  # type: ignore[method-assign]
    assert asked_in_vain.wait(10)
    host.grants = [grant(1), grant(4_000_000), grant(1_000), grant(1)]
    host.call = answer  # type: ignore[method-assign]
    until(lambda: guest.adjusted())
    source.close()
    assert source.take_notes() == []


def test_a_thread_that_ends_by_a_bug_is_reported() -> None:
    host, guest = Agent([grant(1), grant(8_000_000), grant(1_000), grant(1)]), Agent()
    source = source_of(guest, host)
    source.start()
    host.grants = [{}, {}, {}, {}]
    notes: list[str] = []
    until(lambda: notes.extend(source.take_notes()) or notes)
    assert notes[0].startswith("its guest no longer holds packets back ('bps')")
    source.close()
