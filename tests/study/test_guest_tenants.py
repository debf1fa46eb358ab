"""Tenants of a lab that are guests: what kinds of studies share about them."""

from __future__ import annotations

import pytest

from partywall import pipeline, study
from partywall.errors import CapabilityError, UsageError
from partywall.events import Note, silent
from partywall.model.study import StudyRequest
from partywall.sandbox import lab, qemu
from partywall.sandbox.qemu import Accelerator
from partywall.store.study import StudyDirectory
from partywall.study import kind as shared
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


def test_the_memory_check_includes_every_guest(monkeypatch):
    checked = []
    monkeypatch.setattr(pipeline, "check_free_memory", lambda needed, *_: checked.append(needed))
    for request in (StudyRequest(), GUESTS):
        shared.check_tenants_memory(100, "senders", 2, request, silent)
    assert checked == [100, 100 + 2 * lab.GUEST_BYTES]


def test_guests_need_what_qemu_needs(monkeypatch):
    monkeypatch.setattr(lab, "lacking", lambda: "")
    monkeypatch.setattr(pipeline, "check_programs", lambda _host: None)
    monkeypatch.setattr(pipeline, "check_hooks", lambda _what: None)
    monkeypatch.setattr(qemu, "lacking", lambda _host: "QEMU was not found")
    shared.check_lab(fake_host(), StudyRequest())
    with pytest.raises(CapabilityError, match="QEMU was not found"):
        shared.check_lab(fake_host(), GUESTS)
