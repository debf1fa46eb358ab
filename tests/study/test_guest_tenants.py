"""Tenants of a lab that are guests: what kinds of studies share about them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from partywall import study
from partywall.agent import memory_check
from partywall.agent.memory_check import Checks
from partywall.core import here
from partywall.errors import CapabilityError, RefusalError, TrialError, UsageError
from partywall.events import Note, silent
from partywall.sandbox import lab, qemu
from partywall.sandbox.qemu import Accelerator
from partywall.study import kind as shared
from partywall.study.document import StudyRequest
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host

GUESTS = StudyRequest(backends=("qemu",))
SCALED = "all rates are 0.05 of the study's"


@pytest.fixture
def emulates(monkeypatch):
    monkeypatch.setattr(qemu, "choose", lambda _requested, _host: Accelerator("tcg", "no KVM"))


def directory(tmp_path, request: StudyRequest) -> StudyDirectory:
    return StudyDirectory.create(tmp_path / "study", study.find("vits-network").read_bytes(), request, {})


@pytest.mark.parametrize("name", ["dba-vm", "vits-network"])
def test_tenants_are_namespaces_or_guests_of_qemu_and_nothing_else(name):
    kind = study.kind_of(study.find(name))
    requested = kind.read(study.find(name).read_bytes(), name)
    plain, virtual = (kind.outline(requested, StudyRequest(backends=given), fake_host()) for given in ((), ("qemu",)))
    assert plain.lines[-1] == "tenants are network namespaces"
    assert virtual.lines[-1] == "tenants are guests, each behind a tap"
    assert virtual.seconds > plain.seconds + lab.BOOT_S
    with pytest.raises(UsageError, match=rf"--backend.*{name} does not support backend container") as refused:
        kind.outline(requested, StudyRequest(backends=("container",)), fake_host())
    assert "give qemu" in str(refused.value)


def test_namespaces_have_no_accelerator(tmp_path):
    said = []
    assert shared.accelerator(directory(tmp_path, StudyRequest()), fake_host(), [], SCALED, said.append) is None
    assert said == []


@pytest.mark.usefixtures("emulates")
def test_emulated_guests_are_announced_with_what_is_scaled(tmp_path):
    said = []
    chosen = shared.accelerator(directory(tmp_path, GUESTS), fake_host(), [True, True], SCALED, said.append)
    assert chosen is not None
    assert chosen.emulates
    (note,) = said
    assert isinstance(note, Note)
    assert "no KVM" in note.text
    assert note.text.endswith(SCALED)


@pytest.mark.usefixtures("emulates")
def test_a_study_does_not_go_on_with_another_accelerator(tmp_path):
    with pytest.raises(UsageError, match=r"--resume.*another accelerator.*begin a new study"):
        shared.accelerator(directory(tmp_path, GUESTS), fake_host(), [True, False], SCALED, silent)


def test_the_hosts_memory_check_includes_every_guest(monkeypatch):
    checked = []
    monkeypatch.setattr(here, "check_free_memory", lambda needed, *_: checked.append(needed))
    memory = shared.TenantsMemory(100, "senders", Checks(silent))
    memory.require()
    memory.require(2)
    assert checked == [100, 100 + 2 * lab.GUEST_BYTES]


class Memory:
    """An agent in a guest that is asked for a part of its memory, and doubts it or refuses."""

    def __init__(self, doubt: str | None = None, *, refuses: bool = False) -> None:
        self.doubt, self.refuses = doubt, refuses
        self.requested: list[tuple[int, int]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        assert method == "memory.check"
        self.requested.append((params["bytes"], params["budget_ns"]))
        if self.refuses:
            raise RefusalError("1 MiB is free")
        return {"doubt": self.doubt}


def test_each_guests_share_is_touched_inside_it_and_what_is_missing_is_a_warning_in_the_report(tmp_path):
    agents = {"sure": Memory(), "swaps": Memory("swapped"), "small": Memory(refuses=True)}
    made = lab.Lab(list(agents), None, SimpleNamespace(run="pw"))
    made.guests = {name: SimpleNamespace(client=agent) for name, agent in agents.items()}
    kept, said = directory(tmp_path, StudyRequest(memory_wait_ns=60_000_000_000)), []
    shared.TenantsMemory(96 << 20, "senders", shared.memory_checks(kept, said.append)).inspect(made)
    assert {agent.requested[0] for agent in agents.values()} == {(32 << 20, 60_000_000_000)}
    notes = [event for event in said if isinstance(event, Note)]
    assert [note.is_warning for note in notes] == [True, True]
    assert "32 MiB of memory for senders in the guest of swaps" in notes[0].text
    assert "1 MiB is free" in notes[1].text
    assert kept.observations() == []
    assert memory_check.warnings(kept.memory_checks()) == tuple(note.text for note in notes)
    assert memory_check.summary(kept.memory_checks()) == ", ".join(f"32 MiB in the guest of {name}" for name in agents)


def test_namespaces_have_no_memory_of_their_own(tmp_path):
    kept = directory(tmp_path, StudyRequest())
    shared.TenantsMemory(96 << 20, "senders", shared.memory_checks(kept, silent)).inspect(
        lab.Lab(["target"], None, SimpleNamespace(run="pw"))
    )
    assert kept.memory_checks() == []


class Agent:
    """An agent in a guest that reports counters as they are scheduled. answers: how many times it does so."""

    def __init__(self, answers: int, **packets: float | None) -> None:
        self.answers, self.packets = answers, packets
        self.made: lab.Lab | None = None
        self.requested: list[str] = []

    def call(self, method: str, **_: Any) -> dict[str, Any]:
        self.requested.append(method)
        if method == "monitor.schedule" and self.answers:
            self.answers -= 1
            self.made._hear("target", "slices", {})
            values = [1.0, *self.packets.values()]
            self.made._hear("target", "sample", {"values": values})
        names = [("cpu0", "busy"), *((name, "network_sent_packets_count") for name in self.packets)]
        return {"counters": [{"subject": subject, "name": name} for subject, name in names]}


def counting(monkeypatch, agent: Agent) -> lab.Lab:
    """A lab that was not built, with this agent in the target's guest."""
    monkeypatch.setattr(lab, "READ_S", 0.01)
    agent.made = lab.Lab(["target"], None, SimpleNamespace(run="pw"))
    agent.made.guests = {"target": SimpleNamespace(client=agent)}
    return agent.made


def test_packets_that_left_a_guest_are_those_of_its_own_interface(monkeypatch):
    agent = Agent(1, lo=3.0, eth0=1234.0)
    made = counting(monkeypatch, agent)
    assert made.sent("target", "eth0") == 1234
    assert agent.requested == ["monitor.start", "monitor.schedule", "monitor.stop"]
    assert made._listeners == {}


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (Agent(0, eth0=1.0), "the guest target did not report its counters within 0.01 s; leave the host less to do"),
        (Agent(1, lo=1.0), "the guest target has no counter of interface eth0"),
        (Agent(1, eth0=None), "the guest target has no counter of interface eth0"),
    ],
)
def test_a_guest_whose_counters_cannot_be_read_is_named_and_left_as_it_was(monkeypatch, agent, said):
    made = counting(monkeypatch, agent)
    with pytest.raises(TrialError, match=said):
        made.sent("target", "eth0")
    assert agent.requested[-1] == "monitor.stop"
    assert made._listeners == {}


def test_guests_need_what_qemu_needs(monkeypatch):
    monkeypatch.setattr(lab, "lacking", lambda: "")
    monkeypatch.setattr(here, "check_programs", lambda _host: None)
    monkeypatch.setattr(here, "check_hooks", lambda _what: None)
    monkeypatch.setattr(qemu, "lacking", lambda _host: "QEMU was not found")
    shared.check_lab(fake_host(), StudyRequest())
    with pytest.raises(CapabilityError, match="QEMU was not found"):
        shared.check_lab(fake_host(), GUESTS)
