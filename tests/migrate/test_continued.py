"""A guest of the user's own whose link broke after the hand-over of post-copy: it is continued, or it is said how."""

import threading
from types import SimpleNamespace

import pytest

from partywall.agent.catalogue import shipped
from partywall.errors import CapabilityError, TrialError
from partywall.migrate import check as plans
from partywall.migrate.measure import libvirt_end, owned
from partywall.migrate.measure.end import Look
from partywall.migrate.measure.libvirt_end import LibvirtEnd
from partywall.migrate.measure.move import Again
from partywall.migrate.measure.owned import OwnSeries
from partywall.sandbox.libvirt import library

PLAN = b"partywall_migration: 1\nname: own\nhosts: {a: {qmp: /run/a, address: one}, b: {qmp: /run/b, address: two}}\n"
PAUSED = Look("postcopy-paused", reason="no route to host")


class End:
    """One end. looks: what it says of the move, one after the other; it repeats the last."""

    def __init__(self, place, state, *looks, refuses=""):
        self.place, self.looks, self.now, self.refuses = place, list(looks), state, refuses
        self.sent_to, self.asked, self.refuses_after = [], 0, 0

    def look(self):
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def state(self):
        return self.now

    def recover(self, _port):
        if self.refuses and self.asked >= self.refuses_after:
            raise TrialError(self.refuses)
        self.asked += 1
        return "tcp:two:1"

    def go_on(self, to):
        self.sent_to.append(to)

    def by_hand(self, _there):
        return "run: virsh migrate --postcopy-resume"

    def wait(self, _seconds): ...


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch, tmp_path):
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(owned, "TRY_S", 0.0)
    monkeypatch.setattr(owned, "RECOVER_S", 0.05)


def continued(tmp_path, *looks, there="running", refuses=""):
    """What is said, and the end that has the rest of the guest."""
    here = End("a", "postmigrate", *looks)
    series = OwnSeries(plans.loads(PLAN, "plan.yaml", shipped()), "test-continued", tmp_path)
    # The destination tells of the same move.
    ends = {"a": here, "b": End("b", there, Look("postcopy-paused"), refuses=refuses)}
    with pytest.raises(CapabilityError) as raised:
        series._continue_broken(ends)
    return str(raised.value), here


def test_the_rest_is_sent_when_the_link_is_back(tmp_path):
    said, here = continued(tmp_path, PAUSED, PAUSED, Look("postcopy-active"), Look("completed"))
    assert here.sent_to == ["tcp:two:1"]
    assert (
        "was handed over from this machine (/run/a) to this machine (/run/b), and the link between them broke" in said
    )
    assert "its move continued now, and it is on this machine (/run/b)" in said


def test_without_a_link_it_is_said_why_and_how_to_continue_it(tmp_path):
    said, here = continued(tmp_path, PAUSED)
    assert here.sent_to
    assert "cannot be continued: no route to host. End neither of the two" in said
    assert said.endswith("start this again, or run: virsh migrate --postcopy-resume")


def test_a_destination_that_already_waits_for_a_connection_is_not_given_up():
    here, there = End("a", "postmigrate"), End("b", "running", refuses="Migrate recovery is triggered already")
    there.refuses_after = 1
    again = Again(here, there)
    again.connect(1)
    again.connect(2)
    assert here.sent_to == ["tcp:two:1", "tcp:two:1"]


def test_a_try_that_libvirt_still_makes_itself_is_awaited(tmp_path, monkeypatch):
    monkeypatch.setattr(owned, "RECOVER_S", 0.0)
    busy = Look("postcopy-paused", reason=f"migration of domain web is being {libvirt_end.TRIES_ITSELF}")
    series = OwnSeries(plans.loads(PLAN, "plan.yaml", shipped()), "test-continued", tmp_path)
    assert series._patience_s(busy.reason, 10.0, is_sent=False) > 127, "so long TCP may try to connect"
    assert series._patience_s("no route to host", 10.0, is_sent=False) == 0.0


def test_a_hypervisor_that_cannot_continue_it_is_named(tmp_path):
    said, here = continued(tmp_path, PAUSED, refuses="libvirt x is 8.4.0")
    assert not here.sent_to
    assert "cannot be continued: libvirt x is 8.4.0" in said


def test_a_try_that_libvirt_made_itself_meanwhile_counts(tmp_path):
    said, here = continued(tmp_path, PAUSED, PAUSED, Look("failed", reason="no domain web"))
    assert here.sent_to
    assert "its move continued now" in said


def test_nothing_is_done_about_other_guests(tmp_path):
    series = OwnSeries(plans.loads(PLAN, "plan.yaml", shipped()), "test-continued", tmp_path)
    series._continue_broken({"a": End("a", "running", Look("none")), "b": End("b", "inmigrate", Look("none"))})


STATES = {"VIR_DOMAIN_PAUSED": 3, "VIR_DOMAIN_PAUSED_POSTCOPY": 12, "VIR_DOMAIN_PAUSED_POSTCOPY_FAILED": 13}


@pytest.mark.parametrize(("state", "expected"), [([3, 13], "postcopy-paused"), ([1, 1], "failed")])
def test_a_move_that_libvirt_ended_is_paused_if_the_rest_of_the_guest_is_still_there(monkeypatch, state, expected):
    fake = SimpleNamespace(libvirtError=OSError, **STATES)
    for module in (library, libvirt_end):
        monkeypatch.setattr(module, "library", lambda: fake)
    end = object.__new__(LibvirtEnd)
    end.uri, end._name, end._there = "here", "web", None
    end._result = ("failed", "job 'migration out' failed in post-copy phase")
    end._connection = SimpleNamespace(lookupByName=lambda _: SimpleNamespace(state=lambda: state))
    look = end.look()
    assert look.state == expected
    assert look.reason == "job 'migration out' failed in post-copy phase"


@pytest.mark.parametrize(("ours", "theirs", "lacking"), [(9, 8, "libvirt here is 8.4.0"), (8, 9, "library is 8.4.0")])
def test_a_libvirt_that_is_too_old_is_named_with_the_version_that_is_needed(monkeypatch, ours, theirs, lacking):
    versions = {9: 9_000_000, 8: 8_004_000}
    fake = SimpleNamespace(getVersion=lambda: versions[ours], libvirtError=OSError)
    monkeypatch.setattr(library, "library", lambda: fake)
    monkeypatch.setattr(libvirt_end, "library", lambda: fake)
    end = object.__new__(LibvirtEnd)
    end.uri, end._connection = "here", SimpleNamespace(getLibVersion=lambda: versions[theirs])
    with pytest.raises(TrialError, match=rf"{lacking}, and a broken post-copy can be continued from 8\.5\.0 on"):
        end.recover(1)


@pytest.mark.parametrize(
    ("error", "said"), [(KeyError("x"), "this is a bug: KeyError('x')"), (TrialError(""), "TrialError")]
)
def test_a_move_that_ends_by_any_error_has_a_result(monkeypatch, error, said):
    fake = SimpleNamespace(libvirtError=OSError)
    monkeypatch.setattr(libvirt_end, "library", lambda: fake)
    end = object.__new__(LibvirtEnd)
    end._name, end._bell = "web", threading.Event()

    def carry(*_):
        raise error

    end._carry, end.domain, end._parameters = carry, lambda: None, dict
    end._begin("there", 0)
    assert end._bell.wait(10)
    state, reason = end._result
    assert state == "failed"
    assert said in reason
