"""Memory is touched and timed before load, guard and path studies, as before a run; a user may set a longer wait."""

from __future__ import annotations

import pytest

from partywall import study
from partywall.agent import memory_check
from partywall.agent.memory_check import Checked, Checks
from partywall.core import here
from partywall.errors import AgentError, CapabilityError, UsageError
from partywall.events import Doing, Left
from partywall.host import Host
from partywall.load import memory
from partywall.run import stages
from partywall.run.check import find, load
from partywall.run.plan import room
from partywall.run.plan.room import check_guest_memory
from partywall.study.capability import StudyJob
from partywall.study.document import StudyReport, StudyRequest
from partywall.study.record import StudyDirectory
from partywall.testing import fake_host

SECOND_NS = 1_000_000_000


class Waiting:
    """An agent whose memory is free after some seconds."""

    def __init__(self, free_after: int) -> None:
        self.seconds = free_after
        self.requests = []

    def call(self, method, *, timeout_s, each_second=None, **params):
        self.requests.append((method, timeout_s, params))
        for _ in range(self.seconds if each_second else 0):
            each_second()
        if self.seconds * SECOND_NS > params["budget_ns"]:
            raise AgentError("waited for memory")
        return {"doubt": None}


@pytest.mark.host
@pytest.mark.long
def test_memory_that_is_there_is_checked_and_more_than_the_host_has_is_refused():
    said, kept = [], []
    here.check_free_memory(16 << 20, "senders", Checks(said.append, keep=kept.append))
    assert said[0] == Doing("checking that 16 MiB of memory are available")
    (stored,) = kept
    assert (stored["bytes"], stored["what"]) == (16 << 20, "senders")
    assert stored["found"]["first_touch"]["pages"] == 4096
    with pytest.raises(CapabilityError, match="memory for senders"):
        here.check_free_memory(1 << 50, "senders", Checks(said.append))


@pytest.mark.host
@pytest.mark.long
def test_a_longer_wait_tells_the_time_left_and_ends_with_what_is_missing():
    said = []
    with pytest.raises(CapabilityError, match=r"waited 1[12]\d{3} ms"):
        here.check_free_memory(1 << 50, "senders", Checks(said.append, 11 * SECOND_NS))
    left = [event.seconds for event in said if isinstance(event, Left)]
    assert left == sorted(left, reverse=True)
    assert len(left) > 5
    assert all(seconds < 11 for seconds in left)


def test_without_an_option_the_check_takes_at_most_ten_seconds_and_tells_no_time():
    said, agent = [], Waiting(free_after=0)
    memory_check.check(agent, 1 << 30, said.append)
    assert said == [Doing("checking that 1 GiB of memory are available")]
    assert agent.requests == [("memory.check", 60.0, {"bytes": 1 << 30, "budget_ns": 10 * SECOND_NS})]


def test_the_option_sets_how_long_the_agent_waits():
    said, agent = [], Waiting(free_after=30)
    memory_check.check(agent, 1 << 30, said.append, 300 * SECOND_NS, " on big")
    assert said[0] == Doing("checking that 1 GiB of memory are available on big; waiting for at most 5 min")
    assert len([event for event in said if isinstance(event, Left)]) == 30
    with pytest.raises(AgentError):
        memory_check.check(agent, 1 << 30, said.append, 20 * SECOND_NS)


def test_guests_that_do_not_fit_now_are_refused_unless_the_run_waits(monkeypatch):
    monkeypatch.setattr(room, "guest_memory", lambda _trial: 3 << 30)
    plan = stages.plan(load(find("demo")), fake_host(cpus=4))
    busy = {"total_bytes": 4 << 30, "usable_bytes": 1 << 30, "limit": None}
    with pytest.raises(CapabilityError, match=r"1 GiB are available; .* --wait-for-memory"):
        check_guest_memory(plan, Host({"memory": busy}))
    check_guest_memory(plan, Host({"memory": busy}), waits=True)
    limited = busy | {"limit": {"folder": "/a", "limit_bytes": 2 << 30, "used_bytes": 0}}
    with pytest.raises(CapabilityError, match="2 GiB are there; "):
        check_guest_memory(plan, Host({"memory": limited}), waits=True)


def test_a_study_keeps_its_wait_and_gets_another_when_it_is_continued(tmp_path):
    job = StudyJob.read("papers/vits", StudyRequest(memory_wait_ns=60 * SECOND_NS))
    record = StudyDirectory.create(tmp_path / "study", job.content, job.request, {"host": {}})
    assert StudyJob.of(record).request.memory_wait_ns == 60 * SECOND_NS
    record.wait_for_memory(120 * SECOND_NS)
    assert StudyJob.of(record).request == job.request.model_copy(update={"memory_wait_ns": 120 * SECOND_NS})
    assert record.about["host"] == {}


def test_a_wrong_wait_is_refused_with_the_options_name():
    from partywall.cli.arguments import memory_wait_ns  # noqa: PLC0415

    assert memory_wait_ns(None) == 0
    assert memory_wait_ns("5min") == 300 * SECOND_NS
    with pytest.raises(UsageError, match="--wait-for-memory"):
        memory_wait_ns("0s")


class Withheld:
    """An agent whose memory is not all there."""

    def call(self, _method, **_params):
        return {"doubt": "not_resident"}


def test_a_stored_outcome_says_the_same_as_the_warning_of_its_check():
    said, kept = [], []
    checks = Checks(said.append, keep=kept.append)
    checks.require(Withheld(), 1 << 30, "the service", "big")
    (stored,) = kept
    assert Checked.of(stored).stored == stored
    assert said[-1].is_warning
    assert memory_check.warnings([stored, stored]) == (said[-1].text,)
    assert "1 GiB of memory for the service on big may not be present" in said[-1].text
    assert memory_check.summary([stored]) == "1 GiB on big"


def test_the_outcome_of_an_older_run_is_read():
    assert Checked.of({"kind": "memory_checked", "bytes": 1, "found": {"doubt": None}}).warning == ""


def test_memory_that_a_machine_does_not_have_is_refused_with_the_remedy():
    with pytest.raises(CapabilityError, match=r"memory for users on big: waited for memory; then go on"):
        Checks(lambda _event: None).require(Waiting(100), 1 << 30, "users", "big", "then go on")


def test_a_studys_report_names_its_memory_checks(tmp_path, monkeypatch):
    job = StudyJob.read("papers/vits-network", StudyRequest())
    record = StudyDirectory.create(tmp_path / "study", job.content, job.request, {"host": {}})
    Checks(lambda _event: None, keep=record.append_memory_check).require(Withheld(), 1 << 30, "senders")
    plain = StudyReport("run", "name", "", "short", (), ("emulated",), (("slots", "4"),), "", {}, ())
    monkeypatch.setattr(type(job.kind), "report", lambda *_: plain)
    report = study.report(record)
    assert report.facts == (("slots", "4"), ("memory checked", "1 GiB on this host"))
    warning, other = report.notes
    assert "1 GiB of memory for senders may not be present" in warning
    assert other == "emulated"


@pytest.mark.parametrize(
    ("pacing", "users"),
    [
        ({"closed": {"stages": [{"to": 10, "for_ns": 1}, {"to": 400, "for_ns": 1}, {"to": 0, "for_ns": 1}]}}, 400),
        ({"open": {"stages": [{"to": 9000, "for_ns": 1}], "users_max": 50}}, 50),
    ],
)
def test_a_loads_memory_grows_with_its_users(pacing, users):
    program = {"pacing": pacing}
    assert memory.most_users(program) == users
    assert memory.generator_bytes(program, 2) == memory.GENERATOR_BYTES + users // 2 * memory.USER_BYTES
